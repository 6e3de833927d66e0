"""Planning: distance of planned waypoints from the expert's.

An answer that cannot be read has no distance. `l2_all_m` counts it as a plan to stay where it is, so that a model does
not gain by refusing hard samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.decode.generator import Generation
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.tasks.text import AnswerError


@dataclass(frozen=True)
class PlanScore:
    """One planning answer.

    Attributes:
        text: the answer.
        l2_m: (T,) distance of each waypoint to the expert's, or None when the answer could not be read.
        standing_m: (T,) the same for a plan that stays where it is.
        forwards: forwards of the language model, prefill included.
        tokens: answer tokens up to and including EOS.
    """

    text: str
    l2_m: np.ndarray | None
    standing_m: np.ndarray
    forwards: int
    tokens: int

    @property
    def counted_m(self) -> np.ndarray:
        """(T,) distances, those of standing still when the answer could not be read."""
        return self.standing_m if self.l2_m is None else self.l2_m


def score_plan(expected: str, generation: Generation, task: PlanningTask) -> PlanScore:
    """Compare an answer with the expert's.

    Raises:
        UserError: the expert's own answer is not of the checkpoint's task.
    """
    try:
        expert = parse_waypoints(expected, task).xy_m
    except AnswerError as error:
        raise UserError("data", f"answers with {task.waypoints} waypoints, as the checkpoint's record says",
                        str(error)) from None
    try:
        l2_m = np.linalg.norm(parse_waypoints(generation.text, task).xy_m - expert, axis=1)
    except AnswerError:
        l2_m = None
    stats = generation.stats
    return PlanScore(generation.text, l2_m, np.linalg.norm(expert, axis=1), stats.forwards, stats.tokens)


def plan_figures(scores: Sequence[PlanScore]) -> dict[str, Any]:
    """Figures of answers; L2 is the mean over an answer's waypoints, in metres, over answers that can be read."""
    read = [score.l2_m for score in scores if score.l2_m is not None]
    figures: dict[str, Any] = {"samples": len(scores), "unreadable": len(scores) - len(read)}
    figures["l2_all_m"] = _rounded(np.mean([score.counted_m.mean() for score in scores]))
    if read:
        means = np.array([l2_m.mean() for l2_m in read])
        figures |= {
            "l2_mean_m": _rounded(means.mean()),
            "l2_median_m": _rounded(np.median(means)),
            "l2_p95_m": _rounded(np.percentile(means, 95)),
            "l2_p99_m": _rounded(np.percentile(means, 99)),
            "l2_max_m": _rounded(means.max()),
            "l2_by_waypoint_m": [_rounded(value) for value in np.stack(read).mean(0)],
        }
    figures["forwards"] = round(float(np.mean([score.forwards for score in scores])), 1)
    figures["tokens_per_forward"] = round(sum(s.tokens for s in scores) / sum(s.forwards for s in scores), 2)
    return figures


def plan_control(right: Sequence[PlanScore], wrong: Sequence[PlanScore]) -> dict[str, Any]:
    """What wrong images do to the same samples: share of plans that change, and both distances."""
    return {
        "samples": len(right),
        "changed": _rounded(np.mean([one.text != other.text for one, other in zip(right, wrong, strict=True)])),
        "l2_all_m_right": _rounded(np.mean([score.counted_m.mean() for score in right])),
        "l2_all_m_wrong": _rounded(np.mean([score.counted_m.mean() for score in wrong])),
        "unreadable_wrong": sum(score.l2_m is None for score in wrong),
    }


def _rounded(value: Any) -> float:
    return round(float(value), 3)
