"""Ackermann control: a wheel angle and a speed to reach, turned into pedals.

CARLA runs two PID controllers here, whose gains a client may set. The motion model of the embedded world is known, so
it is inverted instead: gains are kept and returned, and have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from carla_bridge.server.dynamics.motion import Motion, Pedals
from carla_bridge.server.dynamics.vehicle_model import VehicleModel

DEFAULT_GAINS = (0.15, 0.0, 0.25, 0.01, 0.0, 0.01)  # speed P, I, D, acceleration P, I, D: CARLA's defaults
RESPONSE_S = 0.5  # a speed error is to vanish in this time, if no acceleration limits it
STOPPED_MPS = 0.1
LEAST_STEER_RAD = 1e-3  # a client may set the limit of the wheels' angle to 0


@dataclass(frozen=True)
class AckermannTarget:
    """`VehicleAckermannControl` of the protocol, without the jerk, which is not used.

    Attributes:
        steer_rad: wheel angle, right positive.
        steer_speed_radps: how fast to turn the wheels; 0 for as fast as they go.
        speed_mps: negative for reverse.
        acceleration_mps2: limit of both acceleration and braking; 0 for none.
    """

    steer_rad: float = 0.0
    steer_speed_radps: float = 0.0
    speed_mps: float = 0.0
    acceleration_mps2: float = 0.0


def pedals_for(target: AckermannTarget, motion: Motion, model: VehicleModel, now: Pedals, dt_s: float) -> Pedals:
    """Pedals of the next `dt_s` seconds.

    Args:
        target: what the client asks for.
        motion: of the vehicle now.
        model: the vehicle.
        now: present pedals; a limited steering speed starts from them.
        dt_s: seconds.
    """
    limit_rad = max(model.max_steer_rad, LEAST_STEER_RAD)
    steer = max(-1.0, min(1.0, target.steer_rad / limit_rad))
    if target.steer_speed_radps > 0:
        most = target.steer_speed_radps * dt_s / limit_rad
        steer = max(now.steer - most, min(now.steer + most, steer))
    speed, wanted = motion.speed_mps, target.speed_mps
    if abs(wanted) < STOPPED_MPS and abs(speed) < STOPPED_MPS:
        return Pedals(0.0, steer, 1.0)
    reverse = wanted < 0
    if speed * wanted < 0 and abs(speed) > STOPPED_MPS:
        wanted = 0.0  # first stop, then change the gear
    sign = -1.0 if speed < 0 or (speed == 0 and reverse) else 1.0
    demand = (wanted - speed) * sign / RESPONSE_S  # positive: faster the way it goes
    if target.acceleration_mps2 > 0:
        demand = max(-target.acceleration_mps2, min(target.acceleration_mps2, demand))
    demand += model.rolling_mps2 + model.drag_per_m * speed * speed
    if demand >= 0:
        return Pedals(min(demand / model.full_throttle_mps2, 1.0), steer, 0.0, reverse=sign < 0)
    return Pedals(0.0, steer, min(-demand / model.full_brake_mps2, 1.0), reverse=sign < 0)
