"""Where the route's traffic lights and stop signs ask to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.expert.idm import Ahead
from carla_bridge.agents.expert.road import Road
from carla_bridge.agents.route_follower import GRID_M
from wamdiff2_core.frames import wrap_angle
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from carla_bridge.surroundings import Surroundings

ON_LANE_M, WITH_LANE_RAD = 1.5, math.radians(60.0)
LINE_GAP_M = 1.0  # left before a line
SIGN_AHEAD_M = 2.0  # the vehicle's middle stands this far before the middle of a sign's area
HARD_MPS2 = 4.0  # a yellow light that needs more than this is driven through
COMMITTED_M = 1.5  # with its middle this far over a line, the vehicle goes on
STOPPED_MPS = 0.08
LOOK_M = 70.0


@dataclass(frozen=True)
class Line:
    """A stop line that the route crosses, at arc length `s_m`, of the light or sign `id`."""

    id: int
    s_m: float


class RouteRules:
    """Lights and stop signs of one route."""

    def __init__(self, road: Road, half_length_m: float) -> None:
        self._road, self._half_m = road, half_length_m
        self._lights: dict[int, tuple[Line, ...]] = {}
        self._signs: dict[int, tuple[Line, ...]] = {}
        self._obeyed: set[tuple[int, float]] = set()

    def stops(self, around: Surroundings, progress_m: float, speed_mps: float) -> list[Ahead]:
        """What asks to stop now.

        Args:
            around: of this moment.
            progress_m: arc length of the vehicle's middle.
            speed_mps: its speed.
        """
        found = []
        front_m = progress_m + self._half_m
        for light in around.lights:
            if light.state.value not in ("red", "yellow"):
                continue
            for line in self._light_lines(light.id, light):
                room_m = line.s_m - front_m
                if not -self._half_m - COMMITTED_M < room_m < LOOK_M:
                    continue
                hard = speed_mps**2 / (2.0 * max(room_m, 0.1))
                if (light.state.value == "yellow" and hard > HARD_MPS2) or (room_m < 0 and speed_mps > 3.0):
                    continue
                found.append(Ahead(line.s_m + 0.2, 0.0, LINE_GAP_M, f"{light.state.value} light"))
        for sign in around.stop_signs:
            for line in self._sign_lines(sign.id, sign):
                middle_m = line.s_m - SIGN_AHEAD_M
                key = sign.id, line.s_m
                if key in self._obeyed or not -3.0 < line.s_m - progress_m < LOOK_M:
                    continue
                if speed_mps < STOPPED_MPS and line.s_m - progress_m < SIGN_AHEAD_M + 1.5:
                    self._obeyed.add(key)
                    continue
                found.append(Ahead(middle_m + self._half_m + 0.3, 0.0, 0.5, "stop sign"))
        return found

    def next_line_m(self, progress_m: float) -> float:
        """Arc length of the next light's line at or behind a place; infinite without one."""
        lines = [line.s_m for known in self._lights.values() for line in known if line.s_m >= progress_m - 1.0]
        return min(lines, default=math.inf)

    def _light_lines(self, key: int, light: object) -> tuple[Line, ...]:
        if key not in self._lights:
            poses = [stop_line.pose for stop_line in light.stop_lines]  # type: ignore[attr-defined]
            crossings = {s for pose in poses for s in self._crossings(pose)}
            self._lights[key] = tuple(Line(key, s) for s in sorted(crossings))
        return self._lights[key]

    def _sign_lines(self, key: int, sign: object) -> tuple[Line, ...]:
        """The place beside a sign's area. The area is a box that is not turned with the sign, as its criterion has it;
        whether the route runs through it is what decides, not which way the sign looks."""
        if key not in self._signs:
            area, extent = sign.area, sign.extent_m  # type: ignore[attr-defined]
            inside = np.all(np.abs(self._road.xy_m - [area.x_m, area.y_m]) < 1.2 * np.array(extent[:2]), axis=1)
            first = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
            last = np.flatnonzero(inside & ~np.concatenate([inside[1:], [False]]))
            self._signs[key] = tuple(Line(key, (a + b) / 2 * GRID_M) for a, b in zip(first, last, strict=True))
        return self._signs[key]

    def _crossings(self, pose: Pose2D) -> list[float]:
        """Arc lengths at which the route runs over a place in its direction."""
        gaps = np.hypot(*(self._road.xy_m - [pose.x_m, pose.y_m]).T)
        near = gaps < ON_LANE_M
        starts = np.flatnonzero(near & ~np.concatenate([[False], near[:-1]]))
        found = []
        for start in starts:
            end = start
            while end < len(near) and near[end]:
                end += 1
            best = start + int(np.argmin(gaps[start:end]))
            if abs(wrap_angle(float(self._road.yaw_rad[best]) - pose.yaw_rad)) < WITH_LANE_RAD:
                found.append(best * GRID_M)
        return found
