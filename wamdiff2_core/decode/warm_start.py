"""Warm start: the plan before, moved on by the time since, as a guess of the next answer.

The guess is not shown to the model, which has been trained to fill masks and says little of use about tokens that it
sees. It only counts as a second opinion: a token that the model would choose, and that the guess has in its place, is
fixed at a lower confidence than any other. So a wrong guess costs nothing but its agreement by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.types import Plan, Waypoints

AGREED_CONFIDENCE = 0.5
LONGEST_S = 1.0  # an older plan says nothing any more about single decimals
_NO_TOKEN = -1
_SHORTEST_STEP_M = 0.3  # that says where a car is heading, beyond the text's rounding


def moved_on(before: Waypoints, elapsed_s: float) -> Waypoints:
    """What a car that has driven along a plan for a while would plan, if nothing changed.

    Args:
        before: plan of a moment ago, base_link then.
        elapsed_s: time since, >= 0.

    Returns:
        As many waypoints, base_link now: on the path, heading along it. Behind its end the path goes on as its last
        step did.
    """
    points = np.vstack([np.zeros(2), before.xy_m])
    times = before.dt_s * np.arange(len(points))
    further_s = elapsed_s + before.dt_s
    points = np.vstack([points, points[-1] + (points[-1] - points[-2]) * further_s / before.dt_s])
    times = np.append(times, times[-1] + further_s)

    def at(time_s: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(time_s, times, points[:, axis]) for axis in range(2)], -1)

    ahead = at(elapsed_s + before.dt_s * np.arange(1, len(before.xy_m) + 1)) - at(np.array(elapsed_s))
    # a step's direction is that of the path half-way along it
    headings_rad = [0.0]
    for x, y in np.diff(points, axis=0):
        headings_rad.append(np.arctan2(y, x) if np.hypot(x, y) >= _SHORTEST_STEP_M else headings_rad[-1])
    middles = np.append(0.0, (times[1:] + times[:-1]) / 2)
    heading_rad = np.interp(elapsed_s, middles, np.unwrap(headings_rad))
    cos, sin = np.cos(heading_rad), np.sin(heading_rad)
    return Waypoints(ahead @ np.array([[cos, -sin], [sin, cos]]), before.dt_s)


def guess_from(before: Plan | None, stamp_ns: int) -> Waypoints | None:
    """The plan before moved on to `stamp_ns`; None when there is none to go by: too old, of later, or not valid."""
    if before is None or before.waypoints is None or not before.check.ok:
        return None
    elapsed_s = (stamp_ns - before.stamp_ns) / 1e9
    return moved_on(before.waypoints, elapsed_s) if 0 < elapsed_s <= LONGEST_S else None


@dataclass(frozen=True)
class Guesses:
    """Guesses of a batch's answers; `ids` are (N, columns) tokens, EOS behind an answer, -1 where there is no guess."""

    ids: Tensor

    @classmethod
    def of(
        cls, answers: Sequence[Sequence[int] | None], columns: int, eos_token_id: int, device: torch.device
    ) -> Guesses:
        """Pad answers with EOS, or cut them, to `columns` tokens; None for no guess."""
        rows = [
            [_NO_TOKEN] * columns if answer is None else [*answer, *[eos_token_id] * columns][:columns]
            for answer in answers
        ]
        return cls(torch.tensor(rows, device=device))

    def agreed(self, candidates: Tensor, confidence: Tensor, first: int) -> Tensor:
        """(N, B) bool: where the model's choice for the block at column `first` is the guess's, and sure enough."""
        guess = self.ids[:, first : first + candidates.shape[1]]
        return (candidates == guess) & (confidence >= AGREED_CONFIDENCE)
