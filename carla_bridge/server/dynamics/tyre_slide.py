"""Tyres torn loose: a rigid body on two axles whose sideways friction is limited (Coulomb), until it holds again.

Each sub-step looks for the sideways impulses at the two axles that would stop them from slipping. When the tyres can
give them, they hold from then on; else they give all they can. Friction found this way never adds energy.
"""

from __future__ import annotations

import math

from carla_bridge.server.dynamics.motion import Motion
from carla_bridge.server.dynamics.vehicle_model import VehicleModel

ROUNDS = 4


def slide(
    motion: Motion, model: VehicleModel, h: float, limit_mps2: float, rear_x_m: float, rear_y_m: float
) -> tuple[float, float]:
    """Advance yaw and velocity of a sliding vehicle by one sub-step.

    Args:
        motion: velocity, yaw and `sliding` are changed in place; the place is not, the rear axle is passed instead.
        model: the vehicle.
        h: seconds.
        limit_mps2: sideways friction of all tyres over the mass.
        rear_x_m, rear_y_m: rear axle.

    Returns:
        The new rear axle.
    """
    arm = model.wheelbase_m / 2
    vx, rate = motion.speed_mps, motion.yaw_rate_radps
    vy = motion.slip_mps + rate * arm
    s, c = math.sin(motion.steer_rad), math.cos(motion.steer_rad)
    # Impulses over the mass; `ff`, `fr`, `rr` say how much an impulse at one axle moves the front or rear axle.
    lever = arm * arm / model.gyration_m2
    ff, fr, rr = 1.0 + c * c * lever, c * (1.0 - lever), 1.0 + lever
    front, rear = c * (vy + rate * arm) - s * vx, vy - rate * arm
    most = 0.5 * limit_mps2 * h
    at_front, at_rear = 0.0, 0.0
    determinant = ff * rr - fr * fr
    if determinant > 1e-9:
        at_front = (fr * rear - rr * front) / determinant
        at_rear = (fr * front - ff * rear) / determinant
    holds = determinant > 1e-9 and abs(at_front) <= most and abs(at_rear) <= most
    if not holds:
        at_front = at_rear = 0.0
        for _ in range(ROUNDS):
            at_front = max(-most, min(most, -(front + fr * at_rear) / ff))
            at_rear = max(-most, min(most, -(rear + fr * at_front) / rr))
    vx -= s * at_front
    vy += c * at_front + at_rear
    rate += arm * (c * at_front - at_rear) / model.gyration_m2
    cy, sy = math.cos(motion.yaw_rad), math.sin(motion.yaw_rad)
    x = rear_x_m + arm * cy + (vx * cy - vy * sy) * h
    y = rear_y_m + arm * sy + (vx * sy + vy * cy) * h
    turn = rate * h
    motion.yaw_rad += turn
    if holds:
        motion.speed_mps, motion.slip_mps, motion.yaw_rate_radps, motion.sliding = vx, 0.0, rate, False
    else:  # the body turns under its velocity
        ct, st = math.cos(turn), math.sin(turn)
        vx, vy = vx * ct + vy * st, vy * ct - vx * st
        motion.speed_mps, motion.slip_mps, motion.yaw_rate_radps = vx, vy - rate * arm, rate
    return x - arm * math.cos(motion.yaw_rad), y - arm * math.sin(motion.yaw_rad)
