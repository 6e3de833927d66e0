"""What a driver demands, what the ground gives, and how a vehicle moves.

Axes are CARLA's (x forward, y right), so a positive steer turns right and yaw grows clockwise; angles are radians.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from carla_bridge.server.dynamics.vehicle_model import VehicleModel

GRAVITY_MPS2 = 9.81


@dataclass(slots=True)
class Pedals:
    """Driver's demand: throttle, brake in [0, 1]; steer in [-1, 1], right positive."""

    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Surface:
    """Ground under a vehicle.

    Attributes:
        grip: friction as a share of that of dry asphalt.
        slope_rad: of the ground along the vehicle, positive uphill.
    """

    grip: float = 1.0
    slope_rad: float = 0.0


DRY_AND_LEVEL = Surface()


@dataclass(slots=True)
class Motion:
    """State of a bicycle: pose of the actor's origin, velocity, actuator positions.

    Attributes:
        x_m, y_m, yaw_rad: origin in the world, yaw clockwise.
        speed_mps: of the rear axle along the vehicle (and the slope), forward positive.
        slip_mps: of the rear axle to the right; not zero only while `sliding`.
        yaw_rate_radps: clockwise positive, at the end of the last step.
        sliding: the tyres are torn loose.
        steer_rad: front-wheel angle, right positive.
        drive_mps2, brake_mps2: what motor and brakes deliver now, if the tyres can take it.
    """

    x_m: float = 0.0
    y_m: float = 0.0
    yaw_rad: float = 0.0
    speed_mps: float = 0.0
    slip_mps: float = 0.0
    yaw_rate_radps: float = 0.0
    sliding: bool = False
    steer_rad: float = 0.0
    drive_mps2: float = 0.0
    brake_mps2: float = 0.0

    def sideways_mps(self, wheelbase_m: float) -> float:
        """Velocity of the origin to the right; it has one while turning."""
        return self.slip_mps + self.yaw_rate_radps * wheelbase_m / 2

    def velocity_mps(self, wheelbase_m: float) -> tuple[float, float]:
        """Velocity of the origin in world axes, on level ground."""
        c, s = math.cos(self.yaw_rad), math.sin(self.yaw_rad)
        sideways = self.sideways_mps(wheelbase_m)
        return self.speed_mps * c - sideways * s, self.speed_mps * s + sideways * c

    def kick(self, model: VehicleModel, dvx_mps: float, dvy_mps: float, spin_radps: float) -> None:
        """Change the velocity of the origin (world axes) and the yaw rate at once; the tyres may come loose."""
        c, s = math.cos(self.yaw_rad), math.sin(self.yaw_rad)
        self.speed_mps += c * dvx_mps + s * dvy_mps
        half_base = model.wheelbase_m / 2
        sideways = self.slip_mps + self.yaw_rate_radps * half_base + c * dvy_mps - s * dvx_mps
        self.yaw_rate_radps += spin_radps
        self.slip_mps = sideways - self.yaw_rate_radps * half_base
        self.sliding = True
