"""The end of a route whose planner has gone silent: the vehicle brakes, and the route ends once it has stood.

A planner that comes back within that time is trusted again.
"""

from __future__ import annotations

from carla_bridge.leaderboard.verdict import Outcome, Verdict
from carla_bridge.recording.results import TimedInfraction
from wamdiff2_core.types import EgoState

STANDING_MPS, STANDING_S = 0.1, 2.0


class PlannerLoss:
    """Watches one route.

    Attributes:
        infractions: one each time that the planner was lost.
    """

    def __init__(self) -> None:
        self._lost_s: float | None = None
        self._standing_since_s: float | None = None
        self.infractions: list[TimedInfraction] = []

    def lost(self, t_s: float, ego: EgoState, detail: str) -> None:
        """Take note that no plans come any more, and why."""
        if self._lost_s is None:
            self._lost_s, self._standing_since_s = t_s, None
            pose = ego.map_from_base
            self.infractions.append(TimedInfraction("planner lost", t_s, pose.x_m, pose.y_m, detail))

    def back(self) -> None:
        """Take note that plans come again."""
        self._lost_s = None

    def update(self, t_s: float, speed_mps: float) -> Verdict | None:
        """Judge a tick; a verdict ends the route."""
        if self._lost_s is None or abs(speed_mps) >= STANDING_MPS:
            self._standing_since_s = None
            return None
        if self._standing_since_s is None:
            self._standing_since_s = t_s
        if t_s - self._standing_since_s < STANDING_S:
            return None
        return Verdict(
            Outcome.PLANNER_LOST,
            f"{self.infractions[-1].detail} at {self._lost_s:.2f} s; the vehicle braked and "
            f"stood {self._standing_since_s - self._lost_s:.2f} s later",
        )
