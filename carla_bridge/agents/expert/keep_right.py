"""Giving room to oncoming vehicles that reach over the middle of the road."""

from __future__ import annotations

import math
from collections.abc import Sequence

from carla_bridge.agents.expert.detour import Detour
from carla_bridge.agents.expert.lanes import SideLanes
from carla_bridge.agents.expert.others import OPPOSITE_RAD, Other, follows
from carla_bridge.agents.expert.road import Road

LOOK_M = 90.0
WANTED_M = 0.6  # to the side of an oncoming vehicle; with less room, the vehicle slows down as well
RISE_M = 8.0  # way over which the shift grows and shrinks
KEPT_M = 25.0  # it is kept this far: where one comes over the middle, more may follow
NARROW_MPS, NARROW_DECEL_MPS2, NARROW_ROOM_M = 4.5, 1.2, 10.0


class KeepRight:
    """Shifts one route to the right, as far as its lane has room."""

    def __init__(self, road: Road, sides: SideLanes, half_length_m: float, half_width_m: float) -> None:
        self._road, self._sides = road, sides
        self._half_m, self._half_width_m = half_length_m, half_width_m
        self.nudge: Detour | None = None

    def update(self, others: Sequence[Other], progress_m: float, *, on_detour: bool) -> float:
        """Begin, keep or end the shift; a limit of speed.

        Args:
            others: everything near the route.
            progress_m: arc length of the vehicle's middle.
            on_detour: whether it leaves the lane anyhow; no shift is begun then.
        """
        if self.nudge is not None and progress_m > self.nudge.end_m:
            self.nudge = None
        oncoming = [
            other for other in others
            if abs(other.turned_rad) > OPPOSITE_RAD and other.right_m > 0.0
            and -self._half_m < other.front_m - progress_m < LOOK_M and follows(other, self._road)
        ]
        close = [other for other in oncoming if other.right_m < self._half_width_m + WANTED_M]
        if close and not on_detour:
            self.nudge = self._shifted(close, progress_m)
        offset_m = 0.0 if self.nudge is None else self.nudge.offset_m
        tight = [
            other for other in oncoming
            if other.right_m < offset_m + self._half_width_m + WANTED_M and other.along_mps < -0.5
        ]
        return min((narrow_mps(other.rear_m - progress_m - self._half_m) for other in tight), default=math.inf)

    def _shifted(self, close: Sequence[Other], progress_m: float) -> Detour:
        lane = self._sides.at(progress_m, -1)
        room_m = max(0.0, (lane.own_m if lane.driving else lane.room_m) - self._half_width_m)
        offset_m = -min(room_m, max(self._half_width_m + WANTED_M - other.right_m for other in close))
        begin_m = progress_m + 0.5
        if self.nudge is not None:
            begin_m, offset_m = self.nudge.begin_m, min(offset_m, self.nudge.offset_m)
        leave_m = max(begin_m + RISE_M, progress_m + KEPT_M, max(other.front_m for other in close))
        return Detour(offset_m, begin_m, begin_m + RISE_M, leave_m, leave_m + RISE_M)


def narrow_mps(gap_m: float) -> float:
    """Speed at a distance from an oncoming vehicle that will be passed with little room."""
    return math.sqrt(NARROW_MPS**2 + 2.0 * NARROW_DECEL_MPS2 * max(0.0, gap_m - NARROW_ROOM_M))
