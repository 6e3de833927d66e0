"""Motion of a vehicle: a bicycle with lagging actuators, limited power, and tyres whose grip braking and turning share.

Axes are CARLA's (x forward, y right), so a positive steer turns right and yaw grows clockwise; angles are radians.
The reference point of the state is the actor's origin, midway between the axles; the speed is that of the rear axle.

While the tyres hold, the axles do not slip sideways: the bicycle is kinematic, and beyond the limit of grip its turn
widens (understeer). A blow from the side tears the tyres loose; then `tyre_slide` takes over until they hold again.
"""

from __future__ import annotations

import math

from carla_bridge.server import tyre_slide
from carla_bridge.server.motion import DRY_AND_LEVEL, GRAVITY_MPS2, Motion, Pedals, Surface
from carla_bridge.server.vehicle_model import VehicleModel

SUBSTEP_S = 0.01
ANTILOCK_SHARE = 0.95  # motor and brakes take no more of the grip than this, so that the wheels still steer


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
    lateral_limit = model.lateral_limit_mps2 * grip
    pull = -GRAVITY_MPS2 * math.sin(surface.slope_rad) if surface.slope_rad else 0.0
    level = math.cos(surface.slope_rad)
    half_base = model.wheelbase_m / 2
    if hold_speed_mps is not None:
        motion.sliding, motion.slip_mps = False, 0.0
    rear_x = motion.x_m - half_base * math.cos(motion.yaw_rad)
    rear_y = motion.y_m - half_base * math.sin(motion.yaw_rad)
    for _ in range(steps):
        motion.steer_rad += (steer_target - motion.steer_rad) * steer_gain
        motion.drive_mps2 += (drive_target - motion.drive_mps2) * pedal_gain
        motion.brake_mps2 += (brake_target - motion.brake_mps2) * pedal_gain
        before = motion.speed_mps
        if hold_speed_mps is None:
            speed, used = _next_speed(motion, model, h, grip, pull)
        else:
            speed, used = hold_speed_mps, 0.0
        if motion.sliding:
            motion.speed_mps = speed
            side_limit = lateral_limit * math.sqrt(1.0 - used * used)
            rear_x, rear_y = tyre_slide.slide(motion, model, h, side_limit, rear_x, rear_y)
            continue
        travel = 0.5 * (before + speed) * h * level
        curvature = math.tan(motion.steer_rad) / model.wheelbase_m
        if speed * speed * abs(curvature) > 0.3 * lateral_limit:  # the anti-lock leaves at least this share to turning
            side_limit = lateral_limit * math.sqrt(1.0 - used * used)
            curvature = _clip(curvature, side_limit / max(speed * speed, 1e-6))
        turn = travel * curvature
        rear_x += travel * math.cos(motion.yaw_rad + turn / 2)
        rear_y += travel * math.sin(motion.yaw_rad + turn / 2)
        motion.yaw_rad += turn
        motion.speed_mps, motion.yaw_rate_radps = speed, speed * curvature
    motion.yaw_rad = (motion.yaw_rad + math.pi) % (2 * math.pi) - math.pi
    motion.x_m = rear_x + half_base * math.cos(motion.yaw_rad)
    motion.y_m = rear_y + half_base * math.sin(motion.yaw_rad)


def _next_speed(
    motion: Motion, model: VehicleModel, h: float, grip: float, pull_mps2: float
) -> tuple[float, float]:
    """Speed after one sub-step, and the share of the grip that motor and brakes use.

    The motor and the slope push, then resistance takes away what it can, never past zero.
    """
    speed = motion.speed_mps
    most = ANTILOCK_SHARE * model.longitudinal_limit_mps2 * grip
    drive = _clip(motion.drive_mps2, min(model.power_per_mass_wpkg / max(abs(speed), 1.0), most))
    brake = min(motion.brake_mps2, most)
    pushed = speed + (drive + pull_mps2) * h
    lost = (brake + model.rolling_mps2 + model.drag_per_m * speed * speed) * h
    used = min(abs(drive - math.copysign(brake, speed)) / most, 1.0) * ANTILOCK_SHARE if most > 0 else 0.0
    return math.copysign(max(abs(pushed) - lost, 0.0), pushed), used


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
