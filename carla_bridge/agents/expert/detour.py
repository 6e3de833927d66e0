"""A shift of the route to one side, for a while."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Detour:
    """A shift of the route to the left (positive) or right.

    Attributes:
        offset_m: how far.
        begin_m, full_m, leave_m, end_m: arc lengths of the vehicle's middle: the shift grows from `begin` to `full` and
            shrinks from `leave` to `end`.
        oncoming: whether it uses a lane of the opposite direction.
        yields_to: actor that is let by, or None.
    """

    offset_m: float
    begin_m: float
    full_m: float
    leave_m: float
    end_m: float
    oncoming: bool = False
    yields_to: int | None = None

    def offsets(self, s_m: np.ndarray) -> np.ndarray:
        """Shift at arc lengths."""
        rising = np.clip((s_m - self.begin_m) / max(self.full_m - self.begin_m, 0.1), 0.0, 1.0)
        falling = np.clip((self.end_m - s_m) / max(self.end_m - self.leave_m, 0.1), 0.0, 1.0)
        share = np.minimum(rising, falling)
        return self.offset_m * share**2 * (3.0 - 2.0 * share)
