"""What a grammar adds to a denoising step: all of it but the logits, which are made up and given.

A step's cost depends on the language and the block size, not on what the logits say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.bench.machine import synchronised
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.constraint import Constraint
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.decode.selection import select_positions
from wamdiff2_core.model.masks import block_count

STEPS = 4  # of a block
_SPREAD = 3.0  # of made-up logits
_CONFIG = DecodeConfig(strategy="low_confidence_static")


@dataclass(frozen=True)
class GrammarRow:
    """Steps of one language in one block size.

    Attributes:
        name: of the language.
        block_size: B.
        ms_median, ms_p95, ms_iqr: what a step takes, wall clock: median, 95th percentile, distance of the quartiles.
        states, alphabet: of the automaton: its states, and the tokens that it may write.
        calls: measured steps.
    """

    name: str
    block_size: int
    ms_median: float
    ms_p95: float
    ms_iqr: float
    states: int
    alphabet: int
    calls: int


class GivenLogits:
    """Stands where the model's head is, and has its logits already."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        """Take the number of tokens."""
        self.vocabulary, self.device = vocabulary, device
        self._logits = torch.empty(0)

    def draw(self, size: int, generator: torch.Generator) -> None:
        """Make up the logits of one row's next step."""
        self._logits = _SPREAD * torch.randn(1, size, self.vocabulary, generator=generator).to(self.device)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Those drawn last; any of them, when only some tokens are asked for."""
        return self._logits if tokens is None else self._logits[..., : len(tokens)]


@torch.inference_mode()
def measure_grammar(
    languages: Mapping[str, Automaton], vocabulary: int, sizes: Sequence[int], new_tokens: int, rounds: int,
    device: torch.device, show: Callable[[int], None] = lambda done: None,
) -> list[GrammarRow]:
    """Time every step of made-up answers, turn about; the first answer of each row is not measured.

    Args:
        languages: by name.
        vocabulary: rows of the model's head.
        sizes: block sizes.
        new_tokens: length limit of an answer, rounded up to whole blocks.
        rounds: answers of each row, at least 1.
        device: where logits are.
        show: told how many answers are done.

    Raises:
        UserError: no answer of a language is that short.
    """
    cases = [(name, size) for size in sizes for name in languages]
    times: list[list[float]] = [[] for _ in cases]
    for turn in range(rounds + 1):
        for step in range(len(cases)):
            which = (turn + step) % len(cases)
            name, size = cases[which]
            taken, _ = made_up_answer(languages[name], vocabulary, size, new_tokens, turn, device)
            if turn:
                times[which] += taken
            show(turn * len(cases) + step + 1)
    rows = []
    for (name, size), every in zip(cases, times, strict=True):
        low, middle, high, top = (float(value) for value in np.percentile(every, (25, 50, 75, 95)))
        states, alphabet = len(languages[name].shortest), len(languages[name].alphabet)
        rows.append(GrammarRow(name, size, middle, top, high - low, states, alphabet, len(every)))
    return rows


def made_up_answer(
    language: Automaton, vocabulary: int, size: int, new_tokens: int, seed: int, device: torch.device
) -> tuple[list[float], list[int]]:
    """Milliseconds of each step of one answer, and its tokens, whole blocks up to that of EOS."""
    columns = block_count(new_tokens, size) * size
    head, generator = GivenLogits(vocabulary, device), torch.Generator().manual_seed(seed)
    constraint = Constraint([language], columns, head, None)
    ids = torch.zeros(1, columns, dtype=torch.long, device=device)
    hidden = torch.zeros(1, size, 1, device=device)
    times: list[float] = []
    for first in range(0, columns, size):
        masked = torch.ones(1, size, dtype=torch.bool, device=device)
        block = ids[:, first : first + size]
        for count in schedule(size, STEPS):
            head.draw(size, generator)
            started = synchronised(device)
            choice = constraint.choose(hidden, masked, ids[:, : first + size], first)
            times.append((synchronised(device) - started) * 1e3)
            fixed = select_positions(choice.confidence, masked, _CONFIG, count)
            block.copy_(torch.where(fixed, choice.tokens, block))
            masked = masked & ~fixed
        constraint.advance()
        if bool((block == language.eos_token_id).any()):
            return times, ids[0, : first + size].tolist()
    return times, ids[0].tolist()


def grammar_calls(languages: Mapping[str, Automaton], sizes: Sequence[int], rounds: int) -> int:
    """What `measure_grammar` will have told its `show` at the end."""
    return (rounds + 1) * len(languages) * len(sizes)
