"""Which states a training set shows: off the nominal path on purpose, so that a planner learns the way back.

One distribution serves both ways of collecting: states placed directly along a route, and starts of driven episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from carla_bridge.agents.route_follower import RouteFollower
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.types import Pose2D, VehicleCommand

MAX_LATERAL_M, MAX_HEADING_RAD = 1.2, math.radians(15.0)
WIDE_LATERAL_M, WIDE_HEADING_RAD = 2.0, math.radians(25.0)
MAX_SPEED_MPS = 9.0


@dataclass(frozen=True)
class StartState:
    """A state of the ego vehicle beside a route.

    Attributes:
        map_from_base: pose.
        speed_mps: forward speed.
        progress_m: arc length of the route point it was placed beside.
    """

    map_from_base: Pose2D
    speed_mps: float
    progress_m: float


def sample_state(route: RoutePlan, expert: RouteFollower, rng: np.random.Generator) -> StartState:
    """Draw a state along a route.

    Place: uniform from start to goal, but curves and the way to them count twice. Offset: half of the states within
    0.35 m and 4 degrees (standard deviations), most others uniform to 1.2 m and 15 degrees, one in twelve to 2 m and
    25 degrees. Speed: half near what the expert would drive there, the rest uniform to 9 m/s or slow, as after a start.
    """
    while True:
        progress_m = rng.uniform(0.0, route.length_m)
        if expert.speed_limit_mps(progress_m) < 0.95 * expert.config.cruise_mps or rng.random() < 0.5:
            break
    kind = rng.random()
    if kind < 0.5:
        lateral, heading = rng.normal(0.0, 0.35), rng.normal(0.0, math.radians(4.0))
    elif kind < 1 - 1 / 12:
        lateral, heading = rng.uniform(-1, 1) * MAX_LATERAL_M, rng.uniform(-1, 1) * MAX_HEADING_RAD
    else:
        lateral, heading = rng.uniform(-1, 1) * WIDE_LATERAL_M, rng.uniform(-1, 1) * WIDE_HEADING_RAD
    pace = rng.random()
    if pace < 0.5:
        speed = min(MAX_SPEED_MPS, expert.speed_limit_mps(progress_m) * rng.uniform(0.7, 1.1))
    elif pace < 0.8:
        speed = rng.uniform(0.0, MAX_SPEED_MPS)
    else:
        speed = max(0.0, rng.uniform(-1.0, 3.0))
    x, y = route.at(np.array([progress_m]))[0]
    dx, dy = (route.at(np.array([progress_m + 0.5])) - route.at(np.array([max(0.0, progress_m - 0.5)])))[0]
    yaw = math.atan2(dy, dx)
    pose = Pose2D(float(x - lateral * math.sin(yaw)), float(y + lateral * math.cos(yaw)), yaw + heading)
    return StartState(pose, float(speed), float(progress_m))


class NoiseBursts:
    """Short disturbances of a driver's command: the vehicle leaves its path, then the expert brings it back.

    A burst begins at any step with probability `rate_per_step`, lasts 0.3 to 0.8 s, and adds a steering angle worth up
    to 2.5 m/s^2 sideways and an acceleration of -3 to 2 m/s^2.
    """

    def __init__(self, rng: np.random.Generator, rate_per_step: float = 0.03, step_s: float = 0.05) -> None:
        self._rng, self._rate, self._step_s = rng, rate_per_step, step_s
        self._steps_left = 0
        self._curvature_mps2 = self._accel_mps2 = 0.0

    def disturb(self, command: VehicleCommand, speed_mps: float, wheelbase_m: float = 2.86) -> VehicleCommand:
        """The command with the burst of this step, if there is one."""
        if self._steps_left == 0 and self._rng.random() < self._rate:
            self._steps_left = int(self._rng.uniform(0.3, 0.8) / self._step_s)
            self._curvature_mps2 = float(self._rng.uniform(-2.5, 2.5))
            self._accel_mps2 = float(self._rng.uniform(-3.0, 2.0))
        if self._steps_left == 0:
            return command
        self._steps_left -= 1
        steer = math.atan(wheelbase_m * self._curvature_mps2 / max(speed_mps, 3.0) ** 2)
        return VehicleCommand(command.steer_rad + steer, command.accel_mps2 + self._accel_mps2)
