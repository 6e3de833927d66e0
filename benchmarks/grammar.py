"""Answers with and without the planning grammar: readable ones, distance to the expert, forwards.

    python -m benchmarks.grammar --data data/nano-val/samples.jsonl --limit 100

An unreadable answer counts as a car that stays where it is: all its waypoints at (0, 0).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.dataset import Sample, read_dataset, read_images, spread_over
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.decode.grammar import waypoint_language
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.tasks.text import AnswerError

BATCH = 20


def measured(answers: list[Generation], samples: list[Sample], task: PlanningTask) -> str:
    """One line of figures."""
    unreadable, l2_m = 0, []
    for answer, sample in zip(answers, samples, strict=True):
        expert = parse_waypoints(sample.answer, task).xy_m
        try:
            planned = parse_waypoints(answer.text, task).xy_m
        except AnswerError:
            unreadable, planned = unreadable + 1, np.zeros_like(expert)
        l2_m.append(np.linalg.norm(planned - expert, axis=1).mean())
    forwards = np.mean([answer.stats.forwards for answer in answers])
    changed = sum(answer.stats.interventions for answer in answers)
    return (f"unreadable {unreadable} of {len(answers)}, L2 {np.mean(l2_m):.3f} m, forwards {forwards:.1f}, "
            f"interventions {changed} of {sum(answer.stats.tokens for answer in answers)} tokens")


def main(
    data: Annotated[Path, typer.Option(help="Planning samples, such as those of `wamdiff2 collect`.")],
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint folder.")] = Path("checkpoints/wamdiff2-nano"),
    limit: Annotated[int, typer.Option(min=1, help="Samples to answer, spread over the file.")] = 100,
) -> None:
    """Decode the same samples in several ways."""
    torch.set_num_threads(1)
    loaded = load_checkpoint(checkpoint)
    if loaded.record is None or loaded.record.planning is None:
        raise UserError("--checkpoint", "one with a record of how it plans", str(checkpoint))
    task, base = loaded.record.planning, loaded.record.decode
    samples = spread_over(read_dataset(data), limit)
    decoder, language = Generator(loaded), waypoint_language(loaded.chat, task)
    requests = [
        loaded.chat.encode(ChatRequest(
            s.prompt, tuple(read_images(s, f"sample {s.conversation.id!r}")), s.conversation.system, s.history
        ))
        for s in samples
    ]
    ways: list[tuple[str, DecodeConfig]] = [
        ("as recorded", base),
        ("threshold 0.4", replace(base, confidence_threshold=0.4)),
        ("4 steps a block", replace(base, denoising_steps=4, strategy="low_confidence_static")),
    ]
    for name, config in ways:
        for mode in ("off", "task"):
            answers: list[Generation] = []
            for first in range(0, len(requests), BATCH):
                chosen = requests[first : first + BATCH]
                answers += decoder.generate(
                    chosen, replace(config, grammar=mode), grammars=[language] * len(chosen), full_head=True
                )
            print(f"{name}, grammar {mode}: {measured(answers, samples, task)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.grammar"))
