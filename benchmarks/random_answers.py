"""Answers that grammars make of random logits: every one must be readable, in range, and spelled as the tokenizer does.

    python -m benchmarks.random_answers --answers 100000

Logits are drawn flat, sharp, huge, full of ties, and impossible for most tokens; a step fixes a random share of the
open positions, or all of them at once, as a deadline does. Exit code 1: some answer was not valid.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.decode.grammar import detection_language, waypoint_language
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.constraint import Constraint
from wamdiff2_core.errors import ExitCode
from wamdiff2_core.model.checkpoint import load_chat_codec
from wamdiff2_core.tasks.grounding import format_grounding, parse_grounding
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints

ROWS = 50  # answers at a time
BLOCK_SIZES = (4, 8, 16, 32)
COLUMNS = 192
MOST_M = 1000.0  # waypoints are below it


@dataclass(frozen=True)
class Form:
    """A kind of answer.

    Attributes:
        name: for people.
        language: its automaton.
        check: raises, or returns False, for a text that is not one.
    """

    name: str
    language: Automaton
    check: Callable[[str], bool]


def forms(codec: ChatCodec) -> list[Form]:
    """Six and eight waypoints with one and two decimals, detections with any labels and with given ones."""
    found = []
    for waypoints, decimals in itertools.product((6, 8), (1, 2)):
        task = replace(PlanningTask(), waypoints=waypoints, decimals=decimals)

        def plan(text: str, task: PlanningTask = task) -> bool:
            waypoints = parse_waypoints(text, task)
            return format_waypoints(waypoints, task) == text and bool((abs(waypoints.xy_m) < MOST_M).all())

        found.append(Form(f"{waypoints} waypoints, {decimals} decimals", waypoint_language(codec, task), plan))

    def boxes(text: str) -> bool:
        return format_grounding(parse_grounding(text)) == text

    found.append(Form("detections", detection_language(codec), boxes))
    found.append(Form("detections of two labels", detection_language(codec, ["car", "traffic light"]), boxes))
    return found


class RandomHead:
    """Stands where the model's head is."""

    device = torch.device("cpu")

    def __init__(self, vocabulary: int, generator: torch.Generator) -> None:
        """Take the number of tokens, and what draws."""
        self.vocabulary, self._generator = vocabulary, generator

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Made up anew at every call, each row in a way of its own."""
        shape = *hidden.shape[:-1], self.vocabulary if tokens is None else len(tokens)
        drawn = torch.randn(shape, generator=self._generator)
        for row, way in zip(drawn, torch.randint(5, (len(drawn),), generator=self._generator).tolist(), strict=True):
            if way == 1:
                row.mul_(30)
            elif way == 2:
                row.mul_(1e30)
            elif way == 3:
                row.round_()
            elif way == 4:
                row.masked_fill_(torch.rand(row.shape, generator=self._generator) < 0.95, -torch.inf)
        return drawn


@torch.inference_mode()
def answers_of(language: Automaton, head: RandomHead, size: int, generator: torch.Generator) -> list[list[int]]:
    """Tokens of `ROWS` answers up to EOS."""
    constraint = Constraint([language] * ROWS, COLUMNS, head, None)
    ids = torch.full((ROWS, COLUMNS), language.eos_token_id)
    finished = torch.zeros(ROWS, 1, dtype=torch.bool)
    for first in range(0, COLUMNS, size):
        masked = ~finished.expand(ROWS, size)
        block = ids[:, first : first + size]
        while masked.any():
            choice = constraint.choose(torch.zeros(ROWS, size, 1), masked, ids[:, : first + size], first)
            share = torch.rand(ROWS, 1, generator=generator) * 1.5  # a third of the rows fix all that is left
            fixed = masked & (torch.rand(ROWS, size, generator=generator) < share)
            block.copy_(torch.where(fixed, choice.tokens, block))
            masked = masked & ~fixed
        constraint.advance()
        finished = finished | (block == language.eos_token_id).any(-1, keepdim=True)
        if finished.all():
            break
    return [row[: row.index(language.eos_token_id)] if language.eos_token_id in row else row for row in ids.tolist()]


def fault(form: Form, codec: ChatCodec, ids: list[int], canonical: bool) -> str:
    """What is wrong with an answer; empty when nothing is."""
    text = codec.decode(ids)
    try:
        if not form.check(text):
            return f"not as it is written, or out of range: {text}"
    except ValueError as error:
        return f"{error}: {text}"
    return "" if not canonical or codec.encode_text(text) == ids else f"other tokens than the tokenizer's: {text}"


def main(
    answers: Annotated[int, typer.Option(min=1, help="In all, over all forms and block sizes.")] = 100_000,
    checkpoint: Annotated[
        Path, typer.Option(help="Checkpoint folder, for its tokenizer.")
    ] = Path("checkpoints/wamdiff2-nano"),
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> int:
    """Count invalid answers."""
    torch.set_num_threads(1)
    codec, _ = load_chat_codec(checkpoint)
    generator = torch.Generator().manual_seed(seed)
    head = RandomHead(len(codec.tokenizer), generator)
    kinds = list(itertools.product(forms(codec), BLOCK_SIZES))
    batches = -(-answers // (ROWS * len(kinds)))
    faults = 0
    for form, size in kinds:
        started, tokens, wrong = time.perf_counter(), 0, 0
        for _ in range(batches):
            for ids in answers_of(form.language, head, size, generator):
                # free labels may be spelled by other tokens
                said = fault(form, codec, ids, form.name != "detections")
                tokens, wrong = tokens + len(ids), wrong + bool(said)
                if said:
                    print(said)
        faults += wrong
        print(f"{form.name}, blocks of {size}: {batches * ROWS} answers, {tokens / batches / ROWS:.1f} tokens each, "
              f"{wrong} not valid, {time.perf_counter() - started:.1f} s", flush=True)
    print(f"{batches * ROWS * len(kinds)} answers, {faults} not valid")
    return int(ExitCode.FAILED_ITEMS if faults else ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.random_answers"))
