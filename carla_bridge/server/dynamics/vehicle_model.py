"""Parameters of vehicles, and what they are for a kind and size of vehicle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class VehicleModel:
    """Parameters of one kind of vehicle.

    Attributes:
        wheelbase_m: distance between the axles.
        track_m: distance between left and right wheels.
        mass_kg: for collision impulses.
        gyration_m2: moment of inertia about the vertical axis over the mass.
        max_steer_rad: front-wheel angle at steer = 1.
        full_throttle_mps2: acceleration at throttle = 1, below the power limit.
        power_per_mass_wpkg: limits acceleration to this over speed.
        full_brake_mps2: deceleration at brake = 1; the hand brake adds `hand_brake_mps2`.
        rolling_mps2: constant resistance.
        drag_per_m: aerodynamic resistance is this times speed squared.
        longitudinal_limit_mps2, lateral_limit_mps2: half axes of the friction ellipse on dry ground.
        tyre_friction: scales both; 1 as delivered.
        steer_lag_s, pedal_lag_s: time constants of the first-order actuators.
        wheels: 4, or 2 for bikes.
    """

    wheelbase_m: float = 2.86
    track_m: float = 1.6
    mass_kg: float = 1800.0
    gyration_m2: float = 2.4
    max_steer_rad: float = math.radians(35.0)
    full_throttle_mps2: float = 4.0
    power_per_mass_wpkg: float = 60.0
    full_brake_mps2: float = 8.0
    hand_brake_mps2: float = 6.0
    rolling_mps2: float = 0.1
    drag_per_m: float = 0.0005
    longitudinal_limit_mps2: float = 9.81
    lateral_limit_mps2: float = 8.0
    tyre_friction: float = 1.0
    steer_lag_s: float = 0.1
    pedal_lag_s: float = 0.1
    wheels: int = 4


_CAR = VehicleModel()
_KINDS = {
    "car": _CAR,
    "van": VehicleModel(
        full_throttle_mps2=2.5, power_per_mass_wpkg=30.0, full_brake_mps2=7.5, drag_per_m=0.0006,
        lateral_limit_mps2=6.5,
    ),
    "truck": VehicleModel(
        full_throttle_mps2=1.8, power_per_mass_wpkg=20.0, full_brake_mps2=6.0, rolling_mps2=0.08,
        longitudinal_limit_mps2=8.0, lateral_limit_mps2=5.0, steer_lag_s=0.15, pedal_lag_s=0.2,
    ),
    "bus": VehicleModel(
        full_throttle_mps2=1.5, power_per_mass_wpkg=15.0, full_brake_mps2=6.0, rolling_mps2=0.08,
        longitudinal_limit_mps2=8.0, lateral_limit_mps2=4.5, steer_lag_s=0.15, pedal_lag_s=0.2,
    ),
    "motorcycle": VehicleModel(
        full_throttle_mps2=5.0, power_per_mass_wpkg=200.0, full_brake_mps2=7.5, drag_per_m=0.001,
        lateral_limit_mps2=7.0,
    ),
    "bicycle": VehicleModel(
        full_throttle_mps2=1.5, power_per_mass_wpkg=6.0, full_brake_mps2=4.0, hand_brake_mps2=3.0, drag_per_m=0.003,
        longitudinal_limit_mps2=8.0, lateral_limit_mps2=4.0,
    ),
}  # fmt: skip


def model_for(
    base_type: str,
    extent_m: tuple[float, float, float],
    mass_kg: float,
    wheels: int = 4,
    wheelbase_m: float | None = None,
) -> VehicleModel:
    """Parameters of a vehicle of a kind.

    Args:
        base_type: CARLA's attribute: car, van, truck, bus, motorcycle or bicycle; any other drives like a car.
        extent_m: half sizes of its body.
        mass_kg: its mass.
        wheels: 4 or 2.
        wheelbase_m: where it is known; else 60 % of the length.
    """
    half_length, half_width, _ = extent_m
    return replace(
        _KINDS.get(base_type, _CAR),
        wheelbase_m=round(half_length * 1.2, 2) if wheelbase_m is None else wheelbase_m,
        track_m=round(half_width * 1.6, 2) if wheels == 4 else 0.0,
        mass_kg=mass_kg,
        gyration_m2=round((half_length**2 + half_width**2) / 3, 4),  # of a uniform box
        wheels=wheels,
    )
