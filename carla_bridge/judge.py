"""When a route is over, and what went wrong on it. Knows poses and times only, so it judges every planner alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carla_bridge.results import Infraction, Outcome
from wamdiff2_core.types import EgoState


@dataclass(frozen=True)
class RouteLimits:
    """What ends a route.

    Attributes:
        max_deviation_m: farther than this from the route's line is off route (CARLA leaderboard: 30 m).
        lane_half_width_m: farther than this is off the route's lane, an infraction that does not end the route.
        standing_mps: slower than this is standing.
        blocked_s: standing this long ends the route, simulated seconds.
        lost_standing_s: standing this long after the planner was lost ends the route.
        slowest_mean_mps, spare_s: the time limit is length / slowest_mean + spare, simulated seconds.
        same_contact_s: contacts with the same kind of actor within this time are one collision.
    """

    max_deviation_m: float = 30.0
    lane_half_width_m: float = 1.75
    standing_mps: float = 0.1
    blocked_s: float = 20.0
    lost_standing_s: float = 2.0
    slowest_mean_mps: float = 2.0
    spare_s: float = 60.0
    same_contact_s: float = 3.0


@dataclass(frozen=True)
class Verdict:
    """The end of a route, in words."""

    outcome: Outcome
    reason: str


class RouteJudge:
    """Watches one route.

    Attributes:
        infractions: so far, in order of their beginning.
        off_lane_s: simulated time spent off the route's lane.
        max_deviation_m: so far.
    """

    def __init__(self, length_m: float, limits: RouteLimits = RouteLimits()) -> None:
        self._limits = limits
        self._time_limit_s = length_m / limits.slowest_mean_mps + limits.spare_s
        self._last_s = 0.0
        self._last_mps = 0.0  # a contact is reported when it has stopped the vehicle already
        self._standing_since_s: float | None = None
        self._lost_since_s: float | None = None
        self._lost_index = 0
        self._stood_after_s: float | None = None
        self._off_lane_index: int | None = None
        self._widest_m = 0.0
        self._last_contact_s: dict[str, float] = {}
        self.infractions: list[Infraction] = []
        self.off_lane_s = 0.0
        self.max_deviation_m = 0.0

    def planner_lost(self, t_s: float, ego: EgoState, detail: str) -> None:
        """Take note that no plans come any more."""
        if self._lost_since_s is None:
            self._lost_since_s, self._lost_index, self._stood_after_s = t_s, len(self.infractions), None
            self._add("planner lost", t_s, ego, detail)

    def planner_back(self) -> None:
        """Take note that plans come again."""
        self._lost_since_s = None

    def update(
        self, t_s: float, ego: EgoState, deviation_m: float, completed: bool, contacts: Sequence[str], braking_for: str
    ) -> Verdict | None:
        """Judge one moment; a verdict ends the route.

        Args:
            t_s: simulated time since the route began.
            ego: state of the vehicle.
            deviation_m: distance from the route's line.
            completed: whether the goal is reached.
            contacts: kinds of actors touched since the last call.
            braking_for: why the controller brakes; empty while a plan is driven.
        """
        c = self._limits
        self.max_deviation_m = max(self.max_deviation_m, deviation_m)
        self._watch_lane(t_s, ego, deviation_m)
        if abs(ego.speed_mps) >= c.standing_mps:
            self._standing_since_s = None
        elif self._standing_since_s is None:
            self._standing_since_s = t_s
        self._last_s = t_s

        static = self._watch_contacts(t_s, ego, contacts)
        impact_mps, self._last_mps = self._last_mps, ego.speed_mps
        if static:
            return Verdict(Outcome.COLLISION, f"hit {static} at {impact_mps:.1f} m/s after {t_s:.1f} s")
        if completed:
            return Verdict(Outcome.COMPLETED, f"reached the goal after {t_s:.1f} s")
        if deviation_m > c.max_deviation_m:
            return Verdict(Outcome.OFF_ROUTE, f"{deviation_m:.1f} m from the route after {t_s:.1f} s, "
                                              f"limit {c.max_deviation_m:g} m")
        if t_s > self._time_limit_s:
            return Verdict(Outcome.TIMEOUT, f"not at the goal within {self._time_limit_s:.0f} s")
        return self._judge_standing(t_s, braking_for)

    def _judge_standing(self, t_s: float, braking_for: str) -> Verdict | None:
        c = self._limits
        if self._standing_since_s is None:
            return None
        if self._lost_since_s is not None:
            if self._stood_after_s is None:
                self._stood_after_s = max(0.0, self._standing_since_s - self._lost_since_s)
            if t_s - max(self._standing_since_s, self._lost_since_s) >= c.lost_standing_s:
                detail = self.infractions[self._lost_index].detail
                return Verdict(Outcome.PLANNER_LOST, f"{detail} at {self._lost_since_s:.2f} s; the vehicle braked and "
                                                     f"stood {self._stood_after_s:.2f} s later")
        if t_s - self._standing_since_s >= c.blocked_s:
            why = f": {braking_for}" if braking_for else ""
            return Verdict(Outcome.BLOCKED, f"stood for {c.blocked_s:g} s{why}")
        return None

    def _watch_lane(self, t_s: float, ego: EgoState, deviation_m: float) -> None:
        if deviation_m <= self._limits.lane_half_width_m:
            self._off_lane_index = None
            return
        self.off_lane_s += t_s - self._last_s
        if self._off_lane_index is None:
            self._off_lane_index, self._widest_m = len(self.infractions), 0.0
            self._add("off lane", t_s, ego, "")
        self._widest_m = max(self._widest_m, deviation_m)
        first = self.infractions[self._off_lane_index]
        detail = f"up to {self._widest_m:.2f} m from the lane's middle for {t_s - first.t_s:.2f} s"
        self.infractions[self._off_lane_index] = replace(first, detail=detail)

    def _watch_contacts(self, t_s: float, ego: EgoState, contacts: Sequence[str]) -> str:
        """Take note of contacts; the kind of the static object that was hit, or nothing."""
        static = ""
        for kind in contacts:
            if t_s - self._last_contact_s.get(kind, float("-inf")) > self._limits.same_contact_s:
                self._add("collision", t_s, ego, f"with {kind} at {self._last_mps:.1f} m/s")
            self._last_contact_s[kind] = t_s
            if not kind.startswith(("vehicle.", "walker.")):
                static = kind
        return static

    def _add(self, kind: str, t_s: float, ego: EgoState, detail: str) -> None:
        self.infractions.append(Infraction(kind, t_s, ego.map_from_base.x_m, ego.map_from_base.y_m, detail))
