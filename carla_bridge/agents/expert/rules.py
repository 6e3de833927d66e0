"""Where the route's traffic lights and stop signs ask to stop.

A light that is off, or shows nothing that is known, is a stop sign; so is one that has not turned green for longer than
any cycle lasts while the vehicle stands before it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.expert.idm import Ahead
from carla_bridge.agents.expert.road import Road
from carla_bridge.agents.route_follower import GRID_M
from wamdiff2_core.frames import wrap_angle
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import StopSign, Surroundings, TrafficLight

ON_LANE_M, WITH_LANE_RAD = 1.5, math.radians(60.0)
LINE_GAP_M = 2.0  # left before a line
SIGN_AHEAD_M = 2.0  # the vehicle's middle stands this far before the middle of a sign's area
HARD_MPS2 = 4.0  # a yellow light that needs more than this is driven through
COMMITTED_M = 1.5  # with its middle this far over a line, the vehicle goes on
STOPPED_MPS = 0.08
LOOK_M = 70.0
BROKEN_LIGHT_S, AT_LINE_M = 55.0, 4.0  # no town that is known has a cycle with a longer red


class RouteRules:
    """Lights and stop signs of one route."""

    def __init__(self, road: Road, half_length_m: float) -> None:
        self._road, self._half_m = road, half_length_m
        self._lights: dict[int, tuple[float, ...]] = {}  # arc lengths of the lines that the route crosses, by id
        self._signs: dict[int, tuple[float, ...]] = {}
        self._obeyed: set[tuple[int, float]] = set()
        self._waits_since_ns: dict[int, int] = {}  # by light

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
            lines = self._light_lines(light)
            if not lines:
                continue
            if light.state.value == "green":
                self._waits_since_ns.pop(light.id, None)
                self._obeyed -= {(light.id, line_m) for line_m in lines}
                continue
            for line_m in lines:
                room_m = line_m - front_m
                if (light.id, line_m) in self._obeyed or not -self._half_m - COMMITTED_M < room_m < LOOK_M:
                    continue
                if speed_mps < STOPPED_MPS and room_m < AT_LINE_M and self._is_dark(light, around.stamp_ns):
                    self._obeyed.add((light.id, line_m))
                    continue
                hard = speed_mps**2 / (2.0 * max(room_m, 0.1))
                if (light.state.value == "yellow" and hard > HARD_MPS2) or (room_m < 0 and speed_mps > 3.0):
                    continue
                found.append(Ahead(line_m + 0.2, 0.0, LINE_GAP_M, f"{light.state.value} light"))
        for sign in around.stop_signs:
            for line_m in self._sign_lines(sign):
                middle_m = line_m - SIGN_AHEAD_M
                key = sign.id, line_m
                if key in self._obeyed or not -3.0 < line_m - progress_m < LOOK_M:
                    continue
                if speed_mps < STOPPED_MPS and line_m - progress_m < SIGN_AHEAD_M + 1.5:
                    self._obeyed.add(key)
                    continue
                found.append(Ahead(middle_m + self._half_m + 0.3, 0.0, 0.5, "stop sign"))
        return found

    def next_line_m(self, progress_m: float) -> float:
        """Arc length of the next light's line at or behind a place; infinite without one."""
        lines = [line_m for known in self._lights.values() for line_m in known if line_m >= progress_m - 1.0]
        return min(lines, default=math.inf)

    def _is_dark(self, light: TrafficLight, stamp_ns: int) -> bool:
        """Whether a light that the vehicle stands before says nothing."""
        if light.state.value not in ("red", "yellow"):
            return True
        since_ns = self._waits_since_ns.setdefault(light.id, stamp_ns)
        return (stamp_ns - since_ns) * 1e-9 > BROKEN_LIGHT_S

    def _light_lines(self, light: TrafficLight) -> tuple[float, ...]:
        if light.id not in self._lights:
            crossings = {s for stop_line in light.stop_lines for s in self._crossings(stop_line.pose)}
            self._lights[light.id] = tuple(sorted(crossings))
        return self._lights[light.id]

    def _sign_lines(self, sign: StopSign) -> tuple[float, ...]:
        """The place beside a sign's area. The area is a box that is not turned with the sign, as its criterion has it;
        whether the route runs through it is what decides, not which way the sign looks."""
        if sign.id not in self._signs:
            area, extent = sign.area, sign.extent_m
            inside = np.all(np.abs(self._road.xy_m - [area.x_m, area.y_m]) < 1.2 * np.array(extent[:2]), axis=1)
            first = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
            last = np.flatnonzero(inside & ~np.concatenate([inside[1:], [False]]))
            self._signs[sign.id] = tuple((a + b) / 2 * GRID_M for a, b in zip(first, last, strict=True))
        return self._signs[sign.id]

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
