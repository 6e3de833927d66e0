"""Motion of a vehicle: a kinematic bicycle with lagging actuators, limited power, brakes and lateral acceleration.

Axes are CARLA's (x forward, y right), so a positive steer turns right and yaw grows clockwise; angles are radians.
The reference point of the state is the actor's origin, midway between the axles; the speed is that of the rear axle,
which never slips sideways.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SUBSTEP_S = 0.01


@dataclass(frozen=True)
class VehicleModel:
    """Parameters of one kind of vehicle.

    Attributes:
        wheelbase_m: distance between the axles.
        track_m: distance between left and right wheels.
        mass_kg: for collision impulses.
        max_steer_rad: front-wheel angle at steer = 1.
        full_throttle_mps2: acceleration at throttle = 1, below the power limit.
        power_per_mass_wpkg: limits acceleration to this over speed.
        full_brake_mps2: deceleration at brake = 1; the hand brake adds `hand_brake_mps2`.
        rolling_mps2: constant resistance.
        drag_per_m: aerodynamic resistance is this times speed squared.
        lateral_limit_mps2: tyres hold no more; the turn widens instead.
        steer_lag_s, pedal_lag_s: time constants of the first-order actuators.
        wheels: 4, or 2 for bikes.
    """

    wheelbase_m: float = 2.86
    track_m: float = 1.6
    mass_kg: float = 1800.0
    max_steer_rad: float = math.radians(35.0)
    full_throttle_mps2: float = 4.0
    power_per_mass_wpkg: float = 60.0
    full_brake_mps2: float = 8.0
    hand_brake_mps2: float = 6.0
    rolling_mps2: float = 0.1
    drag_per_m: float = 0.0005
    lateral_limit_mps2: float = 8.0
    steer_lag_s: float = 0.1
    pedal_lag_s: float = 0.1
    wheels: int = 4


@dataclass(slots=True)
class Pedals:
    """Driver's demand: throttle, brake in [0, 1]; steer in [-1, 1], right positive."""

    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False
    reverse: bool = False


@dataclass(slots=True)
class Motion:
    """State of a bicycle: pose of the actor's origin, rear-axle speed, actuator positions.

    Attributes:
        x_m, y_m, yaw_rad: origin in the world, yaw clockwise.
        speed_mps: of the rear axle, forward positive.
        yaw_rate_radps: clockwise positive, at the end of the last step.
        steer_rad: front-wheel angle, right positive.
        drive_mps2, brake_mps2: what motor and brakes deliver now.
    """

    x_m: float = 0.0
    y_m: float = 0.0
    yaw_rad: float = 0.0
    speed_mps: float = 0.0
    yaw_rate_radps: float = 0.0
    steer_rad: float = 0.0
    drive_mps2: float = 0.0
    brake_mps2: float = 0.0

    def velocity_mps(self, wheelbase_m: float) -> tuple[float, float]:
        """Velocity of the origin in world axes; it has a sideways part while turning."""
        c, s = math.cos(self.yaw_rad), math.sin(self.yaw_rad)
        sideways = self.yaw_rate_radps * wheelbase_m / 2
        return self.speed_mps * c - sideways * s, self.speed_mps * s + sideways * c


def advance(
    motion: Motion, pedals: Pedals, model: VehicleModel, dt_s: float, hold_speed_mps: float | None = None
) -> None:
    """Move `motion` by `dt_s`, in sub-steps of at most 10 ms.

    Args:
        motion: changed in place.
        pedals: held over the step.
        model: the vehicle.
        dt_s: seconds.
        hold_speed_mps: when given, the pedals are ignored and this speed is kept.
    """
    steps = max(1, math.ceil(dt_s / SUBSTEP_S - 1e-9))
    h = dt_s / steps
    steer_gain, pedal_gain = -math.expm1(-h / model.steer_lag_s), -math.expm1(-h / model.pedal_lag_s)
    steer_target = _clip(pedals.steer, 1.0) * model.max_steer_rad
    drive_target = max(0.0, min(1.0, pedals.throttle)) * model.full_throttle_mps2 * (-1.0 if pedals.reverse else 1.0)
    brake_target = max(0.0, min(1.0, pedals.brake)) * model.full_brake_mps2
    brake_target += model.hand_brake_mps2 if pedals.hand_brake else 0.0
    half_base = model.wheelbase_m / 2
    rear_x = motion.x_m - half_base * math.cos(motion.yaw_rad)
    rear_y = motion.y_m - half_base * math.sin(motion.yaw_rad)
    for _ in range(steps):
        motion.steer_rad += (steer_target - motion.steer_rad) * steer_gain
        motion.drive_mps2 += (drive_target - motion.drive_mps2) * pedal_gain
        motion.brake_mps2 += (brake_target - motion.brake_mps2) * pedal_gain
        before = motion.speed_mps
        speed = _next_speed(motion, model, h) if hold_speed_mps is None else hold_speed_mps
        travel = 0.5 * (before + speed) * h
        curvature = _clip(
            math.tan(motion.steer_rad) / model.wheelbase_m, model.lateral_limit_mps2 / max(speed * speed, 1e-6)
        )
        turn = travel * curvature
        rear_x += travel * math.cos(motion.yaw_rad + turn / 2)
        rear_y += travel * math.sin(motion.yaw_rad + turn / 2)
        motion.yaw_rad += turn
        motion.speed_mps, motion.yaw_rate_radps = speed, speed * curvature
    motion.yaw_rad = (motion.yaw_rad + math.pi) % (2 * math.pi) - math.pi
    motion.x_m = rear_x + half_base * math.cos(motion.yaw_rad)
    motion.y_m = rear_y + half_base * math.sin(motion.yaw_rad)


def _next_speed(motion: Motion, model: VehicleModel, h: float) -> float:
    """Speed after one sub-step: the motor pushes, then resistance takes away what it can, never past zero."""
    speed = motion.speed_mps
    pushed = speed + _clip(motion.drive_mps2, model.power_per_mass_wpkg / max(abs(speed), 1.0)) * h
    lost = (motion.brake_mps2 + model.rolling_mps2 + model.drag_per_m * speed * speed) * h
    return math.copysign(max(abs(pushed) - lost, 0.0), pushed)


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
