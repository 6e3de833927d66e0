"""How the CARLA leaderboard judges a route, as Bench2Drive 0.0.4 does it: completion, infractions and the end.

`RouteCriteria` is shown every tick and answers with a verdict once the route is over; then `record` is what an
evaluator would have written. It sees true poses only, so it judges every agent alike, and it holds no opinion of its
own: what upstream measures oddly is measured as oddly here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from carla_bridge.leaderboard.criteria_rules import (
    BlockedRule,
    CollisionRule,
    Contact,
    Moment,
    RedLightRule,
    RedLightsMet,
    StopSignRule,
)
from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.verdict import Outcome, Verdict
from wamdiff2_core.frames import yaw_to_carla
from wamdiff2_core.types import EgoState

if TYPE_CHECKING:
    import carla

    from carla_bridge.client.surroundings import Surroundings
    from carla_bridge.routes.navigation import RoutePlan

TIME_LIMIT_NS = 200 * 10**9  # 4000 ticks at 20 Hz
COMPLETE_PCT, COMPLETE_M = 99.0, 10.0
CHECKPOINTS, LAST_CHECKPOINT = 20, 0.95
FAR_M, OFFSET_M, OFFSET_SHARE_PCT = 30.0, 15.0, 30.0
LANE_MARGIN_M, WRONG_WAY_DEG, WRONG_AFTER_JUNCTION_DEG = 0.5, 150.0, 120.0
STATUS = {
    Outcome.OFF_ROUTE: RouteStatus.DEVIATED,
    Outcome.BLOCKED: RouteStatus.BLOCKED,
    Outcome.TIMEOUT: RouteStatus.TICK_LIMIT,
}


class ScenarioWatch(Protocol):
    """What the scenarios tell the criteria; `scenarios.engine.ScenarioEngine` does."""

    @property
    def waiting_allowed(self) -> bool:
        """Whether a scenario with a time limit of its own is running: standing still is no fault then."""

    @property
    def wrong_way_allowed(self) -> bool:
        """Whether a scenario makes the vehicle use the opposite lane."""

    def take_infractions(self) -> Sequence[Infraction]:
        """Infractions of scenarios that have ended since the last call."""


@dataclass(frozen=True)
class Incident:
    """An infraction and when it happened.

    Attributes:
        t_s: simulated time since the route began.
        x_m, y_m: where the ego vehicle was, map frame.
        infraction: as the record has it.
    """

    t_s: float
    x_m: float
    y_m: float
    infraction: Infraction


class DenseRoute:
    """A route as the criteria walk along it: points a metre apart up to the goal, each with its direction.

    Attributes:
        xy_m: (N, 2), map frame.
        arc_m: (N,) arc length.
        along: (N, 2) unit vectors.
    """

    def __init__(self, plan: RoutePlan) -> None:
        inside = plan.arc_m <= plan.length_m + 1e-6
        self.xy_m, self.arc_m = plan.xy_m[inside], plan.arc_m[inside]
        self.along = np.stack([np.cos(plan.yaw_rad[inside]), np.sin(plan.yaw_rad[inside])], axis=1)

    @property
    def length_m(self) -> float:
        """From the first point to the last."""
        return float(self.arc_m[-1])

    def passed(self, first: int, window: int, here_m: np.ndarray) -> list[int]:
        """Those of the points `first` .. `first + window` that lie behind a position."""
        last = min(first + window + 1, len(self.xy_m))
        ahead = np.einsum("ij,ij->i", here_m - self.xy_m[first:last], self.along[first:last])
        return [first + int(i) for i in np.flatnonzero(ahead > 0)]


class CompletionRule:
    """Share of the route that is driven: arc length of the last point passed."""

    def __init__(self, route: DenseRoute) -> None:
        self._route, self._index = route, 0
        self.pct = 0.0

    def update(self, moment: Moment) -> bool:
        """Whether the goal is reached: more than 99 % and within 10 m of the last point."""
        for index in self._route.passed(self._index, 2, moment.here_m):
            self._index = index
            self.pct = round(100.0 * float(self._route.arc_m[index]) / self._route.length_m, 2)
        reached = self.pct > COMPLETE_PCT and np.linalg.norm(moment.here_m - self._route.xy_m[-1]) < COMPLETE_M
        if reached:
            self.pct = 100.0
        return bool(reached)


class LanesRule:
    """Metres driven outside the driving lanes or against a lane's direction, of the metres driven along the route."""

    def __init__(self, route: DenseRoute, carla_map: carla.Map) -> None:
        self._route, self._map = route, carla_map
        self._index = 0
        self._driven_m = self._wrong_m = 0.0
        self._last: carla.Waypoint | None = None
        self._wrong_lane = False

    def update(self, moment: Moment, wrong_way_allowed: bool) -> None:
        """Measure one tick."""
        import carla

        place = carla.Location(*moment.carla_xyz_m)
        driving = self._map.get_waypoint(place, lane_type=carla.LaneType.Driving)
        parking = self._map.get_waypoint(place, lane_type=carla.LaneType.Parking)
        nearest, distance = driving, place.distance(driving.transform.location)
        if parking is not None and place.distance(parking.transform.location) <= distance:
            nearest, distance = parking, place.distance(parking.transform.location)
        outside = distance > nearest.lane_width / 2 + LANE_MARGIN_M
        self._watch_direction(driving, moment)
        for index in self._route.passed(self._index + 1, 2, moment.here_m):
            step_m = float(self._route.arc_m[index] - self._route.arc_m[self._index])
            self._driven_m += step_m
            if outside or (self._wrong_lane and not wrong_way_allowed):
                self._wrong_m += step_m
            self._index = index

    def infraction(self) -> Infraction | None:
        """What was measured; None when the lanes were kept."""
        return Infraction.outside_lanes(self._wrong_m, self._driven_m) if self._wrong_m > 0 else None

    def _watch_direction(self, lane: carla.Waypoint, moment: Moment) -> None:
        last, self._last = self._last or lane, lane
        if lane.is_junction:
            self._wrong_lane = False
        elif (last.road_id, last.lane_id) != (lane.road_id, lane.lane_id):
            if last.is_junction:
                ego_deg = yaw_to_carla(moment.around.ego.pose.yaw_rad)
                self._wrong_lane = _between_deg(lane.transform.rotation.yaw, ego_deg) >= WRONG_AFTER_JUNCTION_DEG
            elif _between_deg(lane.transform.rotation.yaw, last.transform.rotation.yaw) > WRONG_WAY_DEG:
                self._wrong_lane = not self._wrong_lane


def _between_deg(a_deg: float, b_deg: float) -> float:
    """Angle between two headings, 0..180."""
    return abs((a_deg - b_deg + 180.0) % 360.0 - 180.0)


class DeviationRule:
    """Leaving the route: 30 m from it, or more than 15 m for over 30 % of its length."""

    def __init__(self, route: DenseRoute) -> None:
        self._route, self._index = route, 0
        self._safe = True
        self._off_m = 0.0

    def update(self, moment: Moment) -> bool:
        """Whether the route is left."""
        last = min(self._index + 6, len(self._route.xy_m))
        distances = np.linalg.norm(self._route.xy_m[self._index : last] - moment.here_m, axis=1)
        # of several nearest points the last, as upstream
        closest = self._index + len(distances) - 1 - int(np.argmin(distances[::-1]))
        distance = float(distances.min())
        if distance < FAR_M:
            self._safe = distance < OFFSET_M
        left = distance >= FAR_M
        if closest != self._index:
            if not self._safe:
                self._off_m += float(self._route.arc_m[closest] - self._route.arc_m[self._index])
                left = left or 100.0 * self._off_m / self._route.length_m > OFFSET_SHARE_PCT
            self._index = closest
        return left


class SpeedRule:
    """Mean speed against that of all background traffic, over each twentieth of the route; Bench2Drive does not punish.
    """

    def __init__(self, route: DenseRoute) -> None:
        self._route, self._index = route, 0
        self._since_m = 0.0
        self._own: list[float] = []
        self._others: list[float] = []

    def update(self, moment: Moment) -> list[Infraction]:
        """The entry of a stretch that has ended."""
        found = []
        for index in self._route.passed(self._index, 2, moment.here_m):
            self._index = index
        here_m = float(self._route.arc_m[self._index])
        if here_m - self._since_m > self._route.length_m / CHECKPOINTS:
            found.append(self._entry())
            self._since_m = here_m
            self._own, self._others = [], []
        speeds = [
            actor.speed_mps for actor in moment.around.actors
            if actor.role_name == "background" and actor.type_id.startswith("vehicle")
        ]
        if speeds:
            self._own.append(moment.around.ego.speed_mps)
            self._others.append(sum(speeds) / len(speeds))
        return found

    def finish(self) -> list[Infraction]:
        """The entry of the last stretch, when over 95 % of the route is driven."""
        return [self._entry()] if self._route.arc_m[self._index] / self._route.length_m > LAST_CHECKPOINT else []

    def _entry(self) -> Infraction:
        others = sum(self._others)
        return Infraction.min_speed(round(100.0 * sum(self._own) / others, 2) if others > 0 else 100)


class RouteCriteria:
    """Judges one route.

    Args:
        route: the planned route.
        carla_map: its town.
        scenarios: the route's scenarios, if any run.

    Attributes:
        incidents: infractions so far, with their time and place; entries that only the end can tell come with it.
    """

    def __init__(self, route: RoutePlan, carla_map: carla.Map, scenarios: ScenarioWatch | None = None) -> None:
        dense = DenseRoute(route)
        self._plan, self._scenarios = route, scenarios
        self._completion, self._lanes = CompletionRule(dense), LanesRule(dense, carla_map)
        self._deviation, self._speed = DeviationRule(dense), SpeedRule(dense)
        self._collisions, self._lights = CollisionRule(), RedLightRule(carla_map)
        self._stops, self._blocked = StopSignRule(carla_map), BlockedRule()
        self._met = RedLightsMet()
        self._begin_ns: int | None = None
        self._last: Moment | None = None
        self._verdict: Verdict | None = None
        self._finished = False
        self.incidents: list[Incident] = []

    @property
    def completion_pct(self) -> float:
        """Driven share of the route, 0..100."""
        return self._completion.pct

    @property
    def red_lights_met(self) -> int:
        """Red lights of its own lane that the vehicle came up to."""
        return self._met.count

    def update(
        self, stamp_ns: int, ego: EgoState, surroundings: Surroundings, contacts: Sequence[Contact]
    ) -> Verdict | None:
        """Judge one tick; a verdict ends the route.

        Args:
            stamp_ns: simulated time; the first call is the beginning of the route.
            ego: state of the ego vehicle at that time.
            surroundings: of the same tick.
            contacts: what the ego vehicle has touched since the last call.

        Raises:
            ValueError: the surroundings are of another tick.
        """
        if surroundings.stamp_ns != stamp_ns or ego.stamp_ns != stamp_ns:
            raise ValueError(f"surroundings: expected stamp {stamp_ns}, got {surroundings.stamp_ns} and {ego.stamp_ns}")
        self._begin_ns = stamp_ns if self._begin_ns is None else self._begin_ns
        t_s = (stamp_ns - self._begin_ns) * 1e-9
        moment = self._last = Moment(t_s, surroundings, contacts)
        reached = self._completion.update(moment)
        self._lanes.update(moment, self._scenarios is not None and self._scenarios.wrong_way_allowed)
        self._met.update(moment)
        for rule in (self._collisions, self._lights, self._stops, self._speed):
            self._note(rule.update(moment))
        if self._scenarios is not None:
            self._note(self._scenarios.take_infractions())
        waiting_allowed = self._scenarios is not None and self._scenarios.waiting_allowed
        self._verdict = self._end(moment, reached, waiting_allowed, stamp_ns - self._begin_ns)
        return self._verdict

    def finish(self) -> None:
        """Take note of what only the end of the route tells; call once, after the scenarios were closed."""
        if self._finished or self._last is None:
            return
        self._finished = True
        if self._scenarios is not None:
            self._note(self._scenarios.take_infractions())
        self._note(self._speed.finish())
        outside = self._lanes.infraction()
        self._note([] if outside is None else [outside])

    def record(self, *, failure: RouteStatus | None = None, duration_system_s: float = 0.0) -> RouteRecord:
        """The route's record, as the leaderboard's evaluator would write it.

        Args:
            failure: status of a route that was ended from outside; by default what the verdict says.
            duration_system_s: wall-clock seconds.
        """
        self.finish()
        if failure is None:
            outcome = self._verdict.outcome if self._verdict is not None else None
            failure = STATUS.get(outcome, RouteStatus.FAILED) if outcome is not None else RouteStatus.FAILED
        return RouteRecord.of_drive(
            self._plan.route_id, self.completion_pct, [incident.infraction for incident in self.incidents], failure,
            town=self._plan.town, route_length_m=self._plan.length_m,
            duration_game_s=self._last.t_s if self._last is not None else 0.0, duration_system_s=duration_system_s,
        )

    def _end(self, moment: Moment, reached: bool, waiting_allowed: bool, age_ns: int) -> Verdict | None:
        t_s = moment.t_s
        blocked = self._blocked.update(moment, waiting_allowed)
        left = self._deviation.update(moment)
        if reached:
            return Verdict(Outcome.COMPLETED, f"reached the goal after {t_s:.1f} s")
        if left:
            self._note([Infraction.deviation(moment.carla_xyz_m)])
            return Verdict(Outcome.OFF_ROUTE, f"left the route after {t_s:.1f} s")
        if blocked is not None:
            self._note([blocked])
            return Verdict(Outcome.BLOCKED, f"stood for 60 s, until {t_s:.1f} s")
        if age_ns > TIME_LIMIT_NS:
            return Verdict(Outcome.TIMEOUT, f"not at the goal within {TIME_LIMIT_NS * 1e-9:.0f} s")
        return None

    def _note(self, infractions: Sequence[Infraction]) -> None:
        assert self._last is not None
        x, y = self._last.here_m
        self.incidents += [Incident(self._last.t_s, float(x), float(y), infraction) for infraction in infractions]
