"""The route follower: where a careful driver would be over the next three seconds.

It sees the route, which no planner does; it makes training answers, and it stands in for a planner when a drive is to
be tested without one. A plan is the roll-out of a kinematic bicycle that chases the route by pure pursuit under a speed
profile limited by curvature, started from the true pose and speed. Steering starts from no remembered state, so the
answer is a function of what a planner is told. It does not brake for the route's end: routes go on behind their goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wamdiff2_core.control.pure_pursuit import curvature_to
from wamdiff2_core.types import EgoState, Pose2D, Waypoints

GRID_M = 0.5
STEP_S = 0.1


class Route(Protocol):
    """What the follower needs of a route; `route_planner.RoutePlan` has it."""

    @property
    def xy_m(self) -> np.ndarray:
        """(N, 2) points in the map frame, in driving order, overrun included."""


@dataclass(frozen=True)
class FollowerConfig:
    """How the follower drives.

    Attributes:
        cruise_mps: speed on straights.
        max_lateral_mps2: sets the speed in curves.
        max_accel_mps2: acceleration limit.
        comfort_decel_mps2: deceleration the speed profile is planned with.
        max_decel_mps2: deceleration used when the vehicle is faster than the profile.
        lookahead_s, min_lookahead_m: look-ahead distance is min + speed * s.
        max_recovery_mps2: lateral acceleration limit of steering back to the route.
        max_curvature_radpm: tightest circle of the rear axle.
        rear_axle_m: distance of the rear axle behind base_link.
        waypoints, dt_s: shape of the answer.
    """

    cruise_mps: float = 8.0
    max_lateral_mps2: float = 2.0
    max_accel_mps2: float = 2.0
    comfort_decel_mps2: float = 2.0
    max_decel_mps2: float = 3.0
    lookahead_s: float = 0.4
    min_lookahead_m: float = 2.0
    max_recovery_mps2: float = 3.5
    max_curvature_radpm: float = 0.2
    rear_axle_m: float = 1.43
    waypoints: int = 6
    dt_s: float = 0.5


class RouteFollower:
    """Follows one route. `plan` remembers how far it came, so a route may cross itself."""

    def __init__(self, route: Route, config: FollowerConfig = FollowerConfig()) -> None:
        self.config = config
        xy = uniform(np.asarray(route.xy_m, dtype=np.float64), GRID_M)
        self._x, self._y = xy[:, 0].tolist(), xy[:, 1].tolist()
        self._speed = speed_profile(xy, config).tolist()
        self._xy = xy
        self._progress_m: float | None = None

    def plan(self, ego: EgoState) -> Waypoints:
        """Future positions in base_link at `ego.stamp_ns`; the ego is expected near where it was a moment ago."""
        self._progress_m = self.project(ego.map_from_base, self._progress_m)
        return self.roll_out(ego.map_from_base, ego.speed_mps, self._progress_m)

    def project(self, map_from_base: Pose2D, near_m: float | None = None) -> float:
        """Arc length of the route point nearest to a pose, in metres from the route's start.

        Args:
            map_from_base: the pose.
            near_m: search only from 5 m before to 15 m behind this arc length; None searches the whole route.
        """
        first, last = 0, len(self._xy)
        if near_m is not None:
            first, last = max(0, int((near_m - 5.0) / GRID_M)), min(last, int((near_m + 15.0) / GRID_M) + 1)
        offset = self._xy[first:last] - [map_from_base.x_m, map_from_base.y_m]
        return (first + int(np.argmin((offset**2).sum(axis=1)))) * GRID_M

    def speed_limit_mps(self, progress_m: float) -> float:
        """The profile's speed at an arc length."""
        return self._speed[min(len(self._speed) - 1, max(0, round(progress_m / GRID_M)))]

    def roll_out(self, map_from_base: Pose2D, speed_mps: float, progress_m: float) -> Waypoints:
        """Future positions from any state, without memory.

        Args:
            map_from_base: where the vehicle is.
            speed_mps: its forward speed; a negative one counts as standing.
            progress_m: arc length of its projection on the route (`project`).
        """
        c, profile, last = self.config, self._speed, len(self._x) - 2

        def accel(step: int, index: int, v: float) -> float:
            wanted = profile[min(last, index + round(v * 0.2 / GRID_M))]
            return max(-c.max_decel_mps2, min(c.max_accel_mps2, (wanted - v) / 0.4))

        return chase(self._x, self._y, progress_m, map_from_base, speed_mps, accel, c)


def chase(
    xs: Sequence[float], ys: Sequence[float], progress_m: float, map_from_base: Pose2D, speed_mps: float,
    accel: Callable[[int, int, float], float], config: FollowerConfig,
) -> Waypoints:
    """Roll a kinematic bicycle out along a path by pure pursuit.

    Args:
        xs, ys: the path, map frame, `GRID_M` apart.
        progress_m: arc length of the vehicle's projection on it.
        map_from_base: where the vehicle is.
        speed_mps: its forward speed; a negative one counts as standing.
        accel: acceleration in m/s^2 of a step of 0.1 s, from its number, the index of the path's nearest point and the
            speed.
        config: shape of the answer, and what limits the steering.
    """
    c = config
    x, y, yaw, v = map_from_base.x_m, map_from_base.y_m, map_from_base.yaw_rad, max(0.0, speed_mps)
    last = len(xs) - 2
    i = min(last, max(0, int(progress_m / GRID_M)))
    per_waypoint = max(1, math.ceil(c.dt_s / STEP_S))
    dt = c.dt_s / per_waypoint
    points = []
    for step in range(1, c.waypoints * per_waypoint + 1):
        here = (xs[i] - x) ** 2 + (ys[i] - y) ** 2
        while i < last:
            following = (xs[i + 1] - x) ** 2 + (ys[i + 1] - y) ** 2
            if following > here:
                break
            i, here = i + 1, following
        cos, sin = math.cos(yaw), math.sin(yaw)
        along = cos * (x - xs[i]) + sin * (y - ys[i])
        position = i + (along + c.min_lookahead_m + c.lookahead_s * v) / GRID_M
        j = min(last, max(0, int(position)))
        part = position - j
        dx = xs[j] + part * (xs[j + 1] - xs[j]) - x
        dy = ys[j] + part * (ys[j + 1] - ys[j]) - y
        limit = min(c.max_curvature_radpm, c.max_recovery_mps2 / max(1e-3, v * v))
        curvature = curvature_to(cos * dx + sin * dy, cos * dy - sin * dx, c.rear_axle_m)
        curvature = max(-limit, min(limit, curvature))
        pushed = accel(step, i, v)
        ahead, turn = max(0.0, v + 0.5 * pushed * dt) * dt, v * curvature * dt
        middle = yaw + 0.5 * turn
        x += ahead * math.cos(middle) - c.rear_axle_m * turn * math.sin(middle)
        y += ahead * math.sin(middle) + c.rear_axle_m * turn * math.cos(middle)
        yaw, v = yaw + turn, max(0.0, v + pushed * dt)
        if step % per_waypoint == 0:
            points.append((x, y))
    cos, sin = math.cos(map_from_base.yaw_rad), math.sin(map_from_base.yaw_rad)
    offset = np.array(points) - [map_from_base.x_m, map_from_base.y_m]
    return Waypoints(offset @ np.array([[cos, -sin], [sin, cos]]), c.dt_s)


def uniform(xy_m: np.ndarray, spacing_m: float) -> np.ndarray:
    """Resample a polyline to equal arc spacing and carry it 40 m straight on, so a roll-out never meets its end."""
    steps = np.hypot(*np.diff(xy_m, axis=0).T)
    xy_m = xy_m[np.concatenate([[True], steps > 1e-6])]
    tail = xy_m[-1] - xy_m[-2]
    xy_m = np.vstack([xy_m, xy_m[-1] + tail / np.hypot(*tail) * 40.0])
    arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(xy_m, axis=0).T))])
    grid = np.arange(0.0, arc[-1], spacing_m)
    return np.stack([np.interp(grid, arc, xy_m[:, 0]), np.interp(grid, arc, xy_m[:, 1])], axis=1)


def speed_profile(xy_m: np.ndarray, config: FollowerConfig) -> np.ndarray:
    """(N,) speed limits: by curvature over 4 m of arc (shorter spans see the joints of a 1 m polyline), then lowered
    backwards so that each can be reached by comfortable braking."""
    half = round(2.0 / GRID_M)
    yaw = np.unwrap(np.arctan2(*np.gradient(xy_m, axis=0).T[::-1]))
    padded = np.pad(yaw, half, mode="edge")
    curvature = np.abs(padded[2 * half :] - padded[: -2 * half]) / (2 * half * GRID_M)
    limit = np.minimum(config.cruise_mps, np.sqrt(config.max_lateral_mps2 / np.maximum(curvature, 1e-6)))
    gain = 2.0 * config.comfort_decel_mps2 * GRID_M
    for k in range(len(limit) - 2, -1, -1):
        limit[k] = min(limit[k], math.sqrt(limit[k + 1] ** 2 + gain))
    return limit
