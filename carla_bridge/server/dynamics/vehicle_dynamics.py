"""Motion of a vehicle: a bicycle with lagging actuators, limited power, and tyres whose grip braking and turning share.

Axes are CARLA's (x forward, y right), so a positive steer turns right and yaw grows clockwise; angles are radians.
The reference point of the state is the actor's origin, midway between the axles; the speed is that of the rear axle.

While the tyres hold, the axles do not slip sideways: the bicycle is kinematic, and beyond the limit of grip its turn
widens (understeer). A blow from the side tears the tyres loose; then `tyre_slide` takes over until they hold again.
"""

from __future__ import annotations

import math

from carla_bridge.server.dynamics import tyre_slide
from carla_bridge.server.dynamics.motion import DRY_AND_LEVEL, GRAVITY_MPS2, Motion, Pedals, Surface
from carla_bridge.server.dynamics.vehicle_model import VehicleModel

SUBSTEP_S = 0.01
ANTILOCK_SHARE = 0.95  # motor and brakes take no more of the grip than this, so that the wheels still steer
SURE_SHARE = 0.3  # of the sideways grip is left whatever they take


def advance(
    motion: Motion,
    pedals: Pedals,
    model: VehicleModel,
    dt_s: float,
    hold_speed_mps: float | None = None,
    surface: Surface = DRY_AND_LEVEL,
) -> None:
    """Move `motion` by `dt_s`, in sub-steps of at most 10 ms.

    Args:
        motion: changed in place.
        pedals: held over the step.
        model: the vehicle.
        dt_s: seconds.
        hold_speed_mps: when given, the pedals are ignored, this speed is kept, and the tyres hold.
        surface: ground under the vehicle.
    """
    steps = max(1, math.ceil(dt_s / SUBSTEP_S - 1e-9))
    h = dt_s / steps
    steer_gain, pedal_gain = -math.expm1(-h / model.steer_lag_s), -math.expm1(-h / model.pedal_lag_s)
    steer_target = _clip(pedals.steer, 1.0) * model.max_steer_rad
    drive_target = max(0.0, min(1.0, pedals.throttle)) * model.full_throttle_mps2 * (-1.0 if pedals.reverse else 1.0)
    brake_target = max(0.0, min(1.0, pedals.brake)) * model.full_brake_mps2
    brake_target += model.hand_brake_mps2 if pedals.hand_brake else 0.0
    grip = surface.grip * model.tyre_friction
    pull = -GRAVITY_MPS2 * math.sin(surface.slope_rad) if surface.slope_rad else 0.0
    if _rests(motion, model, drive_target, pull) and hold_speed_mps is None:
        steer_gain, pedal_gain = -math.expm1(-dt_s / model.steer_lag_s), -math.expm1(-dt_s / model.pedal_lag_s)
        motion.steer_rad += (steer_target - motion.steer_rad) * steer_gain
        motion.drive_mps2 += (drive_target - motion.drive_mps2) * pedal_gain
        motion.brake_mps2 += (brake_target - motion.brake_mps2) * pedal_gain
        motion.yaw_rate_radps = 0.0
        return
    lateral_limit = model.lateral_limit_mps2 * grip
    most = ANTILOCK_SHARE * model.longitudinal_limit_mps2 * grip
    level = math.cos(surface.slope_rad) if surface.slope_rad else 1.0
    half_base = model.wheelbase_m / 2
    if hold_speed_mps is not None:
        motion.sliding, motion.slip_mps = False, 0.0
    yaw = motion.yaw_rad
    rear_x, rear_y = motion.x_m - half_base * math.cos(yaw), motion.y_m - half_base * math.sin(yaw)
    for _ in range(steps):
        motion.steer_rad += (steer_target - motion.steer_rad) * steer_gain
        motion.drive_mps2 += (drive_target - motion.drive_mps2) * pedal_gain
        motion.brake_mps2 += (brake_target - motion.brake_mps2) * pedal_gain
        before = motion.speed_mps
        if hold_speed_mps is None:
            drive = _clip(motion.drive_mps2, min(model.power_per_mass_wpkg / max(abs(before), 1.0), most))
            brake = min(motion.brake_mps2, most)
            speed = _next_speed(before, drive + pull, brake, model, h)
        else:
            drive, brake, speed = 0.0, 0.0, hold_speed_mps
        if motion.sliding:
            motion.speed_mps = speed
            limit = lateral_limit * _left_for_turning(before, drive, brake, most)
            rear_x, rear_y = tyre_slide.slide(motion, model, h, limit, rear_x, rear_y)
            continue
        travel = 0.5 * (before + speed) * h * level
        curvature = math.tan(motion.steer_rad) / model.wheelbase_m
        if speed * speed * abs(curvature) > SURE_SHARE * lateral_limit:
            limit = lateral_limit * _left_for_turning(before, drive, brake, most)
            curvature = _clip(curvature, limit / max(speed * speed, 1e-6))
        turn = travel * curvature
        yaw = motion.yaw_rad
        rear_x += travel * math.cos(yaw + turn / 2)
        rear_y += travel * math.sin(yaw + turn / 2)
        motion.yaw_rad = yaw + turn
        motion.speed_mps, motion.yaw_rate_radps = speed, speed * curvature
    motion.yaw_rad = (motion.yaw_rad + math.pi) % (2 * math.pi) - math.pi
    motion.x_m = rear_x + half_base * math.cos(motion.yaw_rad)
    motion.y_m = rear_y + half_base * math.sin(motion.yaw_rad)


def _rests(motion: Motion, model: VehicleModel, drive_target_mps2: float, pull_mps2: float) -> bool:
    """Whether a standing vehicle stands for the whole step, by its rolling resistance alone."""
    if motion.speed_mps != 0.0 or motion.sliding or drive_target_mps2 != 0.0:
        return False
    return abs(motion.drive_mps2) + abs(pull_mps2) <= model.rolling_mps2


def _next_speed(speed: float, push_mps2: float, brake_mps2: float, model: VehicleModel, h: float) -> float:
    """Speed after one sub-step: motor and slope push, then resistance takes away what it can, never past zero."""
    pushed = speed + push_mps2 * h
    lost = (brake_mps2 + model.rolling_mps2 + model.drag_per_m * speed * speed) * h
    return math.copysign(max(abs(pushed) - lost, 0.0), pushed)


def _left_for_turning(speed: float, drive_mps2: float, brake_mps2: float, most_mps2: float) -> float:
    """Share of the sideways grip that motor and brakes leave, by the friction ellipse."""
    if most_mps2 <= 0:
        return 1.0
    used = ANTILOCK_SHARE * min(abs(drive_mps2 - math.copysign(brake_mps2, speed)) / most_mps2, 1.0)
    return math.sqrt(1.0 - used * used)


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
