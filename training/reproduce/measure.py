"""Measures a row of a table for one seed; what was measured before, of the same weights in the same way, is kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training import seeds
from training.config import StageConfig, contents
from training.reproduce.recipes import RECIPES, Workshop
from training.reproduce.tables import Kind, Row
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file
from wamdiff2_core.outputs import writable_folder

TIMED = 32  # answers that are timed, one at a time
WARM_UP = 2
SLOTS_AT_ONCE = 8  # samples of an overlap measurement that are computed together


@dataclass(frozen=True)
class Examiner:
    """What rows are measured on.

    Attributes:
        workshop: where the stages are.
        file: conversation file.
        limit: first plans of it that are used; 0 for all.
    """

    workshop: Workshop
    file: Path
    limit: int = 0

    def samples(self) -> list[Sample]:
        """The plans of the file.

        Raises:
            UserError: there are none.
        """
        from wamdiff2_core.tasks.recognise import asked_task

        plans = [sample for sample in read_dataset(self.file) if asked_task(sample.prompt) == "planning"]
        if not plans:
            raise UserError("validation", "samples that ask for plans", f"{self.file}, which has none")
        return plans[: self.limit] if self.limit else plans

    def measure(self, row: Row, kind: Kind, seed: int) -> dict[str, Any]:
        """Figures of one row and seed; distances by sample are in `l2_m`."""
        config = self.workshop.configure(RECIPES[row.stage], seed)
        state = self.file.stat()
        asked = json.loads(json.dumps({
            "stage": contents(config), "kind": kind, "decode": dict(row.decode), "limit": self.limit,
            "file": [str(self.file), state.st_size, state.st_mtime_ns],
        }))
        word = "-".join([row.stage, kind, *(str(value) for value in row.decode.values())])
        note = writable_folder(self.workshop.out / "measured" / f"seed-{seed}", "out") / f"{word}.json"
        if note.is_file():
            found = json.loads(note.read_text())
            if found["asked"] == asked:
                return dict(found["figures"])
        figures = self._overlaps(config) if kind == "overlap" else self._open_loop(config, row.decode, kind == "speed")
        replace_file(note, json.dumps({"asked": asked, "figures": figures}) + "\n")
        return figures

    def _open_loop(self, config: StageConfig, decode: Mapping[str, Any], timed: bool) -> dict[str, Any]:
        from training.checkpoints import resolve_checkpoint
        from training.evaluate import decode_samples
        from training.measures.planning import plan_figures, score_plan
        from wamdiff2_core.model.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(resolve_checkpoint(config.out, "stage"))
        assert checkpoint.record is not None
        if checkpoint.record.planning is None:
            raise UserError("record.planning", "a planning task in the stage's configuration", "none")
        chosen, samples = replace(checkpoint.record.decode, **decode), self.samples()
        answers = decode_samples(checkpoint, "planning", samples, chosen)
        scores = [
            score_plan(sample.answer, answer, checkpoint.record.planning)
            for sample, answer in zip(samples, answers, strict=True)
        ]
        figures = plan_figures(scores)
        figures["unreadable"] = round(figures["unreadable"] / len(scores), 4)
        figures["l2_m"] = [None if score.l2_m is None else score.l2_m.round(4).tolist() for score in scores]
        if timed:
            some = samples[:TIMED]
            some = some[:WARM_UP] + some
            alone = decode_samples(checkpoint, "planning", some, chosen, batch_size=1)
            stats = [answer.stats for answer in alone[min(WARM_UP, len(samples)) :]]
            times = [one.prefill_ms + one.decode_ms for one in stats]
            figures["ms"] = round(statistics.median(times), 2)
            figures["tokens_per_s"] = round(sum(one.tokens for one in stats) / sum(times) * 1e3, 1)
        return figures

    def _overlaps(self, config: StageConfig) -> dict[str, Any]:
        """Top-K overlaps with the stage's own teacher, in percent, over states that the student's decoding meets."""
        import torch

        from training.assembly import assemble, make_accelerator
        from training.stages.stage import Slots

        data = replace(config.data, validation=str(self.file), validation_samples=0)
        config = replace(config, data=data, run=replace(config.run, compiled=False))
        parts = assemble(config, make_accelerator(config))
        plans = {str(sample.conversation.id or "") for sample in self.samples()}
        samples = [sample for sample in parts.validation if sample.id in plans]
        sums: dict[str, float] = {}
        with torch.no_grad():
            for first in range(0, len(samples), SLOTS_AT_ONCE):
                rows = tuple(range(first, min(first + SLOTS_AT_ONCE, len(samples))))
                chosen = [samples[row] for row in rows]
                prepared = parts.stage.prepare(chosen, Slots(seeds.VALIDATION, 0, rows))
                for name, value in parts.stage.loss(prepared, prepared.totals)[1].items():
                    sums[name] = sums.get(name, 0.0) + float(value)
        compared = max(sums.pop("known"), 1.0)
        return {name: round(100 * value / compared, 3) for name, value in sums.items() if name.startswith("overlap")}


def paired_by_waypoint(measured: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Mean distance by waypoint of each row, over samples that all rows can read; empty lists where there are none."""
    import numpy as np

    answers = list(zip(*(figures["l2_m"] for figures in measured), strict=True))
    both = [row for row, found in enumerate(answers) if all(l2_m is not None for l2_m in found)]
    if not both:
        return [[] for _ in measured]
    return [np.array([figures["l2_m"][row] for row in both]).mean(0).round(4).tolist() for figures in measured]
