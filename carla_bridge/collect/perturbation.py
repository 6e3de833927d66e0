"""States off the nominal path, made on purpose, so that a planner learns the way back.

Four ways: bursts of noise on the command (as DART does, Laskey et al. 2017), stops without a reason, vehicles that are
put aside or set to another speed, and pictures taken from beside the vehicle. The first three change what is driven,
the last only what is seen; its label is the same path, joined from where the picture was taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.frames import compose, inverse, transform_points
from wamdiff2_core.types import Pose2D, VehicleCommand, Waypoints

BURST_RATE_PER_STEP, STEP_S = 0.004, 0.05
STALL_RATE_PER_STEP, STALL_MPS2, STALLED_MPS = 0.002, -3.0, 0.15
MAX_ASIDE_M, MAX_TURNED_RAD = 0.9, math.radians(12.0)
OFFSET_SHARE, MAX_OFFSET_M, MAX_OFFSET_RAD = 0.3, 0.9, math.radians(10.0)
REJOIN_S, SHORTEST_REJOIN_M, LONGEST_REJOIN_M = 1.6, 6.0, 16.0


class NoiseBursts:
    """Short disturbances of a driver's command: the vehicle leaves its path, then the expert brings it back.

    A burst begins at any step with probability `rate_per_step`, lasts 0.3 to 0.8 s, and adds a steering angle worth up
    to 2.5 m/s^2 sideways and an acceleration of -3 to 2 m/s^2.
    """

    def __init__(self, rng: np.random.Generator, rate_per_step: float = BURST_RATE_PER_STEP) -> None:
        self._rng, self._rate = rng, rate_per_step
        self._steps_left = 0
        self._sideways_mps2 = self._accel_mps2 = 0.0

    def disturb(
        self, command: VehicleCommand, speed_mps: float, allowed: bool = True, wheelbase_m: float = 2.86
    ) -> VehicleCommand:
        """The command with the burst of this step, if there is one; none begins where it is not allowed."""
        begins = self._rng.random() < self._rate
        if self._steps_left == 0 and begins and allowed:
            self._steps_left = int(self._rng.uniform(0.3, 0.8) / STEP_S)
            self._sideways_mps2 = float(self._rng.uniform(-2.5, 2.5))
            self._accel_mps2 = float(self._rng.uniform(-3.0, 2.0))
        if self._steps_left == 0:
            return command
        self._steps_left -= 1
        steer = math.atan(wheelbase_m * self._sideways_mps2 / max(speed_mps, 3.0) ** 2)
        return VehicleCommand(command.steer_rad + steer, command.accel_mps2 + self._accel_mps2)


class Stalls:
    """Stops without a reason: at rest with a free way, the label says to go.

    Who drives well stands only where something asks for it. A planner that has seen nothing else learns to stay where
    its own speed is zero, and never sets off (the inertia problem of Codevilla et al. 2019, arXiv 1904.08980).

    A stall begins at any step with probability `rate_per_step`. The vehicle brakes with 3 m/s^2 until it stands, and
    stays for 0.5 to 1.5 s.
    """

    def __init__(self, rng: np.random.Generator, rate_per_step: float = STALL_RATE_PER_STEP) -> None:
        self._rng, self._rate = rng, rate_per_step
        self._left_s = 0.0

    def begin(self) -> None:
        """Begin one now."""
        self._left_s = float(self._rng.uniform(0.5, 1.5))

    def disturb(self, command: VehicleCommand, speed_mps: float, allowed: bool = True) -> VehicleCommand:
        """The command with the stall of this step, if there is one; none begins where it is not allowed."""
        begins = self._rng.random() < self._rate
        if self._left_s <= 0.0 and begins and allowed:
            self.begin()
        if self._left_s <= 0.0:
            return command
        if speed_mps < STALLED_MPS:
            self._left_s -= STEP_S
        return VehicleCommand(command.steer_rad, min(command.accel_mps2, STALL_MPS2))


@dataclass(frozen=True)
class Aside:
    """A place beside a vehicle: to its left, and turned left."""

    left_m: float
    turned_rad: float

    @property
    def base_from_aside(self) -> Pose2D:
        """As a pose in base_link."""
        return Pose2D(0.0, self.left_m, self.turned_rad)


NOWHERE = Aside(0.0, 0.0)


def draw_push(rng: np.random.Generator) -> tuple[Aside, float]:
    """Where a vehicle is put, and the factor on its speed."""
    left = float(np.clip(rng.normal(0.0, 0.45), -MAX_ASIDE_M, MAX_ASIDE_M))
    turned = float(np.clip(rng.normal(0.0, math.radians(5.0)), -MAX_TURNED_RAD, MAX_TURNED_RAD))
    return Aside(left, turned), float(rng.uniform(0.6, 1.2))


def draw_camera(rng: np.random.Generator) -> Aside:
    """From where a picture is taken: from the vehicle itself, mostly."""
    share, left, turned = rng.random(), rng.normal(0.0, 0.4), rng.normal(0.0, math.radians(4.0))
    if share >= OFFSET_SHARE:
        return NOWHERE
    return Aside(float(np.clip(left, -MAX_OFFSET_M, MAX_OFFSET_M)),
                 float(np.clip(turned, -MAX_OFFSET_RAD, MAX_OFFSET_RAD)))


def rejoined(waypoints: Waypoints, aside: Aside) -> Waypoints:
    """The same drive begun aside: over 6 to 16 m, as long as 1.6 s take, it comes back to the path.

    Args:
        waypoints: in base_link.
        aside: where it begins.

    Returns:
        In the frame of that place. Who stands still stands there too.
    """
    xy = np.vstack([[0.0, 0.0], waypoints.xy_m])
    steps = np.diff(xy, axis=0)
    lengths = np.hypot(*steps.T)
    s = np.concatenate([[0.0], np.cumsum(lengths)])
    mean_mps = s[-1] / (len(waypoints.xy_m) * waypoints.dt_s)
    rejoin_m = float(np.clip(REJOIN_S * mean_mps, SHORTEST_REJOIN_M, LONGEST_REJOIN_M))
    u = np.clip(s / rejoin_m, 0.0, 1.0)
    # Hermite cubic: starts at the offset with its slope, ends on the path and along it.
    shift = (2 * u**3 - 3 * u**2 + 1) * aside.left_m + (u**3 - 2 * u**2 + u) * rejoin_m * math.tan(aside.turned_rad)
    ways = [0.0]
    for (dx, dy), length in zip(steps, lengths, strict=True):
        ways.append(math.atan2(dy, dx) if length > 0.05 else ways[-1])
    shifted = xy + shift[:, None] * np.stack([-np.sin(ways), np.cos(ways)], axis=1)
    return Waypoints(transform_points(inverse(aside.base_from_aside), shifted[1:]), waypoints.dt_s)


def beside(map_from_base: Pose2D, aside: Aside) -> Pose2D:
    """The place in the map."""
    return compose(map_from_base, aside.base_from_aside)
