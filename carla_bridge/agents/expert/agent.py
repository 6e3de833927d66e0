"""The privileged expert as an agent: what it may do is gathered as things ahead, and the nearest decides.

A plan is a roll-out along the route, shifted by a detour when there is one, at speeds that the intelligent driver model
finds behind leaders, lines and conflicts. A conflict is somebody whose forecast meets this roll-out; the vehicle then
stops before the place, unless it is in it already, when the quickest way out is on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from carla_bridge.agents.agent import Needs, View
from carla_bridge.agents.expert.idm import Ahead, IdmConfig, roll_speeds
from carla_bridge.agents.expert.others import (
    FORECAST_STEPS,
    OPPOSITE_RAD,
    STANDING_MPS,
    TIMES_S,
    Discs,
    Other,
    OthersReader,
    ego_discs,
    follows,
    forecast,
)
from carla_bridge.agents.expert.others import discs as discs_of
from carla_bridge.agents.expert.passing import Passing
from carla_bridge.agents.expert.road import Road
from carla_bridge.agents.expert.rules import RouteRules
from carla_bridge.agents.in_process import InProcessAgent
from carla_bridge.agents.route_follower import GRID_M, STEP_S, FollowerConfig, chase, speed_profile
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.types import Plan, Pose2D, Waypoints

SIDE_M, ONCOMING_SIDE_M, WALKER_SIDE_M = 0.2, 0.05, 0.6  # free strip beside the vehicle in which others count
# Discs are 0.3 m wider than two bodies: side by side in opposite directions, 0.25 m between those is let pass.
CONFLICT_MARGIN_M, WALKER_MARGIN_M, OPPOSITE_MARGIN_M = 0.5, 0.9, -0.05
LEADER_TURN_RAD = math.radians(60.0)
MAX_CONFLICTS = 4
CROSSING_GAP_M, HELD_MPS = 1.6, 0.5
BOLD_AFTER_PLANS, BOLD_MARGIN_M, BOLD_LOOK_S = 32, 0.15, 4.0  # 8 s of waiting
PULL_OUT_M = 12.0  # for so long, who has pulled out does not get timid again: half-way it is in everybody's way
PUSHY_AFTER_PLANS, PUSHY_LOOK_S = 56, 2.5  # who comes later than this has time to slow down
WARY_SIDE_M, WARY_MPS, WARY_DECEL_MPS2 = 3.0, 2.2, 2.5
PATH_AHEAD_M = 60.0
STYLE = FollowerConfig()
CALM, BOLD = IdmConfig(), IdmConfig(max_accel_mps2=3.2)


@dataclass(frozen=True)
class Noticed:
    """What a plan was made from.

    Attributes:
        others: everybody near the route, by rising distance along it.
        ahead: what the vehicle must not run into.
        progress_m: arc length of its middle.
        front_m: arc length of its front.
        shift_m: how far a detour shifts it from the route's line, left positive.
    """

    others: tuple[Other, ...]
    ahead: tuple[Ahead, ...]
    progress_m: float
    front_m: float
    shift_m: float


class PrivilegedExpert(InProcessAgent):
    """Drives by full knowledge. One object drives one route after another.

    Attributes:
        noticed: what the latest plan was made from; None before the first.
    """

    noticed: Noticed | None = None

    def __init__(self, name: str = "expert", config: FollowerConfig = STYLE) -> None:
        """Take a driving style: its cruise speed, lateral acceleration and the shape of answers."""
        super().__init__(name, Needs(surroundings=True))
        self._config = config

    def start(self, route: RoutePlan, carla_map: Any) -> None:
        """Take the route."""
        self._road = Road(route.xy_m, carla_map)
        self._limits = speed_profile(self._road.xy_m, self._config)
        self._map = carla_map
        self._readers: tuple[OthersReader, RouteRules, Passing] | None = None
        self._progress_m = 0.0
        self._held_m = math.inf
        self._waits, self._waited_m = 0, 0.0
        self.noticed = None

    def plan(self, view: View) -> Plan:
        """The roll-out from where the vehicle is."""
        return Plan(view.frame.stamp_ns, self._waypoints(view), source=self.name)

    def _waypoints(self, view: View) -> Waypoints:
        around, ego = view.surroundings, view.frame.ego
        pose, speed = ego.map_from_base, max(0.0, ego.speed_mps)
        half_m, half_width_m = around.ego.extent_m[:2]
        if self._readers is None:
            self._readers = (OthersReader(self._road), RouteRules(self._road, half_m),
                             Passing(self._road, self._map, half_m, half_width_m))
        reader, rules, passing = self._readers
        self._progress_m = self._project(pose)
        front_m = self._progress_m + half_m
        others = reader.read(around, self._progress_m)
        ahead = rules.stops(around, self._progress_m, speed)
        waits, detour_mps = passing.update(others, self._progress_m, speed, rules.next_line_m(self._progress_m))
        ahead += waits

        grid = self._progress_m + np.arange(0.0, PATH_AHEAD_M, 1.0)
        leaders = [other for other in others if self._leads(other, passing, front_m, half_width_m)]
        ahead += [Ahead(max(other.rear_m, front_m + 0.05), max(0.0, other.along_mps), self._gap(other),
                        other.actor.type_id) for other in leaders]

        wary = [other.rear_m - front_m for other in others if self._may_step_out(other, front_m, half_width_m)]

        def limit(way_m: float) -> float:
            free = min(float(self._limits[self._road.index(self._progress_m + way_m)]), detour_mps)
            return min([free, *(wary_mps(gap_m - way_m) for gap_m in wary if gap_m > way_m - 1.0)])

        rivals = [
            (other, forecast(other, self._road)) for other in others if other not in leaders and self._counts(other)
        ]
        conflicts, idm = len(ahead), BOLD if self._bold or passing.in_a_hurry else CALM
        for _ in range(MAX_CONFLICTS):
            _, ways = roll_speeds(front_m, speed, limit, ahead, 2 * FORECAST_STEPS, STEP_S, idm)
            s = self._progress_m + np.array(ways[1::2])
            extent = (half_m, half_width_m)
            own = ego_discs(self._road, s, passing.offsets(s) + self._aside(pose, passing, s), pose, extent)
            strip = ego_discs(self._road, grid, passing.offsets(grid) + self._aside(pose, passing, grid), pose, extent)
            stop = self._conflict(own, strip, rivals, grid, pose, front_m, extent, speed)
            if stop is None or any(abs(stop.rear_m - known.rear_m) < 0.3 for known in ahead):
                break
            ahead.append(stop)
        ahead += self._hold(len(ahead) > conflicts, front_m, speed)
        accels, _ = roll_speeds(front_m, speed, limit, ahead, FORECAST_STEPS, STEP_S, idm)
        shift_m = float(passing.offsets(np.array([self._progress_m]))[0])
        self.noticed = Noticed(tuple(others), tuple(ahead), self._progress_m, front_m, shift_m)
        return self._roll(pose, speed, passing, accels)

    def _hold(self, gives_way: bool, front_m: float, speed: float) -> list[Ahead]:
        """Stay where it stands until the way is free of all: who creeps forward is in everybody's way in the end."""
        if not gives_way:
            self._held_m = math.inf
            if speed < HELD_MPS:
                self._waits = max(0, self._waits - 1)
            elif front_m > self._waited_m + PULL_OUT_M:
                self._waits = 0
        elif speed < HELD_MPS:
            self._held_m = min(self._held_m, front_m)
            self._waits, self._waited_m = self._waits + 1, front_m
        if self._bold:
            return []
        return [Ahead(self._held_m + CROSSING_GAP_M, 0.0, CROSSING_GAP_M, "gives way")] if gives_way else []

    @property
    def _bold(self) -> bool:
        """Whether it has given way for so long that a smaller gap must do: it pulls out fast, and looks less far."""
        return self._waits > BOLD_AFTER_PLANS

    def _roll(self, pose: Pose2D, speed: float, passing: Passing, accels: Sequence[float]) -> Waypoints:
        """Waypoints along the shifted route, from the true pose."""
        first = self._road.index(self._progress_m - 8.0)
        last = self._road.index(self._progress_m + PATH_AHEAD_M)
        s = np.arange(first, last + 1) * GRID_M
        xy = self._road.places(s, passing.offsets(s))
        gaps = np.hypot(xy[:, 0] - pose.x_m, xy[:, 1] - pose.y_m)
        near = slice(0, min(len(xy), round(16.0 / GRID_M)))
        progress_m = float(np.argmin(gaps[near])) * GRID_M
        return chase(
            xy[:, 0].tolist(), xy[:, 1].tolist(), progress_m, pose, speed,
            lambda step, index, v: accels[min(step, len(accels)) - 1], self._config,
        )

    def _project(self, pose: Pose2D) -> float:
        """Arc length of the vehicle; it moves on by no more than a few metres between two plans."""
        first = self._road.index(self._progress_m - 5.0)
        last = self._road.index(self._progress_m + 20.0) + 1
        gaps = ((self._road.xy_m[first:last] - [pose.x_m, pose.y_m]) ** 2).sum(axis=1)
        best = first + int(np.argmin(gaps))
        offset = np.array([pose.x_m, pose.y_m]) - self._road.xy_m[best]
        return max(0.0, best * GRID_M + float(offset @ self._road.along[best]))

    def _aside(self, pose: Pose2D, passing: Passing, s_m: np.ndarray) -> np.ndarray:
        """How far the vehicle still is off its line, fading over 10 m."""
        best = self._road.index(self._progress_m)
        offset = np.array([pose.x_m, pose.y_m]) - self._road.xy_m[best]
        now = float(offset @ self._road.left[best]) - float(passing.offsets(np.array([self._progress_m]))[0])
        return now * np.clip(1.0 - (s_m - self._progress_m) / 10.0, 0.0, 1.0)

    @staticmethod
    def _gap(other: Other) -> float:
        return 5.0 if other.is_rider else 2.5 if other.is_vehicle else 2.0  # behind a rider, with room to steer out

    @staticmethod
    def _counts(other: Other) -> bool:
        """Whether a forecast of it means anything: who stands is a leader, an obstacle, or not in the way."""
        return (other.is_vehicle or other.is_walker) and other.actor.speed_mps >= STANDING_MPS

    @staticmethod
    def _leads(other: Other, passing: Passing, front_m: float, half_width_m: float) -> bool:
        """Whether it is in the vehicle's own strip, ahead, and not just crossing it."""
        middle_m = (other.rear_m + other.front_m) / 2
        if other.front_m < front_m or middle_m < front_m - 1.0:
            return False
        offset = float(passing.offsets(np.array([max(other.rear_m, front_m)]))[0])
        far = float(passing.offsets(np.array([other.front_m]))[0])
        side = half_width_m + (WALKER_SIDE_M if other.is_walker else ONCOMING_SIDE_M if other.oncoming else SIDE_M)
        if not other.overlaps(min(offset, far) - side, max(offset, far) + side):
            return False
        leaving = abs(other.across_mps) > 0.7 and other.is_vehicle and abs(other.turned_rad) > LEADER_TURN_RAD
        return not leaving

    def _conflict(
        self, own: Discs, strip: Discs, rivals: Sequence[tuple[Other, Discs]], grid_m: np.ndarray, pose: Pose2D,
        front_m: float, extent_m: tuple[float, float], speed: float,
    ) -> Ahead | None:
        """Where to stop for the first meeting of the roll-out with somebody's forecast; None when all goes well."""
        first: tuple[int, Other, Discs] | None = None
        for other, discs in rivals:
            if self._follows(other, pose, front_m, extent_m):
                continue
            hits = np.flatnonzero(own.hits(discs, self._margin_m(other)))
            hits = hits[TIMES_S[hits] < horizon_s(self._waits, other.is_walker)]
            if len(hits) and (first is None or hits[0] < first[0]):
                first = int(hits[0]), other, discs
        if first is None:
            return None
        when, other, discs = first
        # The strip that it needs until a second after the meeting: who merges enters it before that.
        window = slice(0, min(len(TIMES_S), when + 6))
        gaps = strip.centres_m[:, :, None, None] - discs.centres_m[None, None, window]
        reach = strip.radius_m + discs.radius_m + CONFLICT_MARGIN_M
        touched = (np.einsum("gktnc,gktnc->gktn", gaps, gaps) < reach**2).any(axis=(1, 2, 3))
        if not touched.any():
            return None
        begins_m = float(grid_m[int(np.argmax(touched))]) + extent_m[0]
        room_m = begins_m - front_m
        crosses_in_front = other.rear_m > front_m - 0.8 or (other.is_walker and other.front_m > front_m - 1.0)
        if room_m < 0.5 and not crosses_in_front:
            here = discs_of(np.tile([pose.x_m, pose.y_m, pose.yaw_rad], (len(TIMES_S), 1)), *extent_m)
            if speed < 3.0 and not here.hits(discs, 0.1).any():
                return Ahead(front_m + 0.5, 0.0, 1.0, f"lets {other.actor.type_id} by")
            return None  # in the midst of it: the way out is on
        if speed**2 / (2.0 * max(room_m, 0.1)) > 9.0 and not other.is_walker and TIMES_S[when] > 2.0:
            return None  # it cannot be stopped before, and there is time to be through
        return Ahead(begins_m + 0.3, 0.0, CROSSING_GAP_M, f"crossing {other.actor.type_id}")

    def _margin_m(self, other: Other) -> float:
        """Room to the discs of a forecast."""
        if other.is_walker:
            return WALKER_MARGIN_M
        if abs(other.turned_rad) > OPPOSITE_RAD and follows(other, self._road):
            return OPPOSITE_MARGIN_M
        return BOLD_MARGIN_M if self._bold else CONFLICT_MARGIN_M

    @staticmethod
    def _may_step_out(other: Other, front_m: float, half_width_m: float) -> bool:
        """Whether somebody on foot or on a bicycle is beside the road ahead and looks across it."""
        if not (other.is_walker or other.is_rider) or other.rear_m < front_m:
            return False
        across = math.radians(40.0) < abs(other.turned_rad) < math.radians(140.0)
        return across and other.overlaps(-half_width_m - WARY_SIDE_M, half_width_m + WARY_SIDE_M)

    def _follows(self, other: Other, pose: Pose2D, front_m: float, extent_m: tuple[float, float]) -> bool:
        """Whether it is behind in the vehicle's own strip, and so has to look out itself."""
        rear_m = front_m - 2 * extent_m[0]
        best = self._road.index(self._progress_m)
        offset = float((np.array([pose.x_m, pose.y_m]) - self._road.xy_m[best]) @ self._road.left[best])
        behind = (other.rear_m + other.front_m) / 2 < rear_m and abs(other.turned_rad) < LEADER_TURN_RAD
        return behind and other.overlaps(offset - 1.2, offset + 1.2)


def horizon_s(waits: int, is_walker: bool) -> float:
    """How far ahead a conflict counts, after having given way for a number of plans."""
    if waits <= BOLD_AFTER_PLANS:
        return math.inf
    return PUSHY_LOOK_S if waits > PUSHY_AFTER_PLANS and not is_walker else BOLD_LOOK_S


def wary_mps(gap_m: float) -> float:
    """Speed at a distance from somebody who may step out."""
    return math.sqrt(WARY_MPS**2 + 2.0 * WARY_DECEL_MPS2 * max(0.0, gap_m - 1.0))
