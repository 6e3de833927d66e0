"""What bodies stand on: height, slope and grip of the ground."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from carla_bridge.server.dynamics.motion import DRY_AND_LEVEL, Surface

WET_GRIP_LOSS = 0.3  # asphalt under water keeps the rest


class Patch(Protocol):
    """A part of the ground with another grip."""

    grip: float

    def holds(self, x_m: float, y_m: float, z_m: float) -> bool:
        """Whether a place is on it."""


def _level(x_m: float, y_m: float, near_z_m: float) -> float:
    """Height of level ground."""
    return 0.0


class Terrain:
    """Ground of a town under the present weather.

    Args:
        height_m: (x, y, z) of CARLA's world -> height of the ground there, of several levels the one nearest to z; None
            where all of it is at 0.
    """

    def __init__(self, height_m: Callable[[float, float, float], float] | None = None) -> None:
        self.level = height_m is None
        self.height_m = height_m or _level
        self.patches: tuple[Patch, ...] = ()
        self.weather_grip = 1.0

    def wet(self, share: float) -> None:
        """Set the grip of ground that is wet to a share, as `Weather.wet` says: what shines is slippery."""
        self.weather_grip = 1.0 - WET_GRIP_LOSS * max(0.0, min(1.0, share))

    def surface(self, x_m: float, y_m: float, z_m: float, slope_rad: float) -> Surface:
        """Ground under a vehicle that stands at a place."""
        grip = self.weather_grip
        for patch in self.patches:
            if patch.holds(x_m, y_m, z_m):
                grip *= patch.grip
        if grip == 1.0 and slope_rad == 0.0:
            return DRY_AND_LEVEL
        return Surface(grip, slope_rad)

    def stand(
        self, x_m: float, y_m: float, z_m: float, yaw_rad: float, half_base_m: float, half_track_m: float
    ) -> tuple[float, float, float]:
        """How a vehicle stands: height of its origin, pitch and roll in radians (nose up and right side down positive).

        `z_m` is where it is now. Three points carry it: the middle of the front axle and both ends of the rear axle.
        """
        if self.level:
            return 0.0, 0.0, 0.0
        c, s = math.cos(yaw_rad), math.sin(yaw_rad)
        rear_x, rear_y = x_m - half_base_m * c, y_m - half_base_m * s
        front = self.height_m(x_m + half_base_m * c, y_m + half_base_m * s, z_m)
        if half_track_m > 0:
            left = self.height_m(rear_x + half_track_m * s, rear_y - half_track_m * c, z_m)
            right = self.height_m(rear_x - half_track_m * s, rear_y + half_track_m * c, z_m)
            roll = math.atan2(left - right, 2 * half_track_m)
        else:
            left = right = self.height_m(rear_x, rear_y, z_m)
            roll = 0.0
        rear = 0.5 * (left + right)
        return 0.5 * (front + rear), math.atan2(front - rear, 2 * half_base_m), roll
