"""VehicleCommand -> CARLA's pedals and steering wheel, as plain numbers.

The longitudinal map is a straight line on each side of coasting. It is exact for the embedded server and rough for
CARLA's gear box; the integral in the speed controller takes up the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.frames import steer_to_carla
from wamdiff2_core.types import VehicleCommand

HOLD = VehicleCommand(0.0, -3.0)  # of a vehicle that nobody drives yet


@dataclass(frozen=True)
class Pedals:
    """CARLA's control: throttle and brake in [0, 1], steer in [-1, 1] with right positive."""

    throttle: float
    steer: float
    brake: float


@dataclass(frozen=True)
class PedalMap:
    """How a vehicle answers its pedals.

    Attributes:
        max_steer_rad: front-wheel angle at steer = 1.
        full_throttle_mps2: acceleration at throttle = 1.
        full_brake_mps2: deceleration at brake = 1.
        rolling_mps2: deceleration without either pedal; the throttle makes up for it.
    """

    max_steer_rad: float
    full_throttle_mps2: float = 4.0
    full_brake_mps2: float = 8.0
    rolling_mps2: float = 0.1


def to_pedals(command: VehicleCommand, pedal_map: PedalMap) -> Pedals:
    """The pedals that answer a command: never both at once, and the brake from zero acceleration demand downwards only
    as far as coasting does not do it."""
    steer = max(-1.0, min(1.0, steer_to_carla(command.steer_rad / pedal_map.max_steer_rad)))
    push = command.accel_mps2 + pedal_map.rolling_mps2
    if push >= 0:
        return Pedals(min(1.0, push / pedal_map.full_throttle_mps2), steer, 0.0)
    return Pedals(0.0, steer, min(1.0, -push / pedal_map.full_brake_mps2))
