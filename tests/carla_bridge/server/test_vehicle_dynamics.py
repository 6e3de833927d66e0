"""The bicycle against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.server.motion import Motion, Pedals
from carla_bridge.server.vehicle_dynamics import advance
from carla_bridge.server.vehicle_model import VehicleModel

MODEL = VehicleModel()
DT_S = 0.05


def drive(motion: Motion, pedals: Pedals, seconds: float, hold_speed_mps: float | None = None) -> np.ndarray:
    """(N, 2) positions of the rear axle."""
    places = []
    for _ in range(round(seconds / DT_S)):
        advance(motion, pedals, MODEL, DT_S, hold_speed_mps)
        half = MODEL.wheelbase_m / 2
        places.append((motion.x_m - half * math.cos(motion.yaw_rad), motion.y_m - half * math.sin(motion.yaw_rad)))
    return np.array(places)


def circle_radius(places: np.ndarray) -> float:
    """Radius of the circle fitted through points, by linear least squares."""
    a = np.column_stack([2 * places, np.ones(len(places))])
    x, y, c = np.linalg.lstsq(a, (places**2).sum(axis=1), rcond=None)[0]
    return math.sqrt(c + x * x + y * y)


@pytest.mark.parametrize("steer", [-1.0, -0.4, 0.15, 0.5, 1.0])
def test_slow_circle_has_radius_wheelbase_over_tan_of_the_wheel_angle(steer: float) -> None:
    motion = Motion(steer_rad=steer * MODEL.max_steer_rad, speed_mps=2.0)
    places = drive(motion, Pedals(steer=steer), 8.0, hold_speed_mps=2.0)
    assert circle_radius(places) == pytest.approx(
        MODEL.wheelbase_m / math.tan(abs(steer) * MODEL.max_steer_rad), rel=2e-3
    )


def test_positive_steer_turns_right_so_yaw_and_y_grow() -> None:
    motion = Motion()
    drive(motion, Pedals(throttle=0.3, steer=0.3), 2.0)
    assert 0 < motion.yaw_rad < math.pi
    assert motion.y_m > 0
    assert motion.yaw_rate_radps > 0


def test_fast_turn_is_held_to_the_lateral_limit() -> None:
    motion = Motion(speed_mps=20.0)
    drive(motion, Pedals(steer=1.0), 1.0, hold_speed_mps=20.0)
    assert motion.yaw_rate_radps * 20.0 == pytest.approx(MODEL.lateral_limit_mps2)


@pytest.mark.parametrize("speed", [3.0, 8.0, 15.0])
def test_full_brake_stops_within_the_braking_distance_and_stays(speed: float) -> None:
    motion = Motion(speed_mps=speed)
    drive(motion, Pedals(brake=1.0), 5.0)
    ideal = speed**2 / (2 * MODEL.full_brake_mps2)
    assert 0.9 * ideal < motion.x_m < ideal + speed * MODEL.pedal_lag_s
    assert motion.speed_mps == 0.0
    place = motion.x_m
    drive(motion, Pedals(brake=1.0), 1.0)
    assert motion.x_m == place


def test_full_throttle_reaches_its_acceleration_and_then_the_power_limit() -> None:
    motion = Motion()
    drive(motion, Pedals(throttle=1.0), 2.0)
    before = motion.speed_mps
    drive(motion, Pedals(throttle=1.0), DT_S)
    assert (motion.speed_mps - before) / DT_S == pytest.approx(4.0 - 0.1, abs=0.1)
    motion.speed_mps = 30.0
    drive(motion, Pedals(throttle=1.0), DT_S)
    assert (motion.speed_mps - 30.0) / DT_S == pytest.approx(60 / 30 - 0.1 - 0.0005 * 900, abs=0.02)


def test_actuators_lag_by_their_time_constants() -> None:
    motion = Motion()
    drive(motion, Pedals(throttle=1.0, steer=1.0), 0.1)
    share = 1 - math.exp(-1)
    assert motion.steer_rad == pytest.approx(share * MODEL.max_steer_rad, rel=1e-6)
    assert motion.drive_mps2 == pytest.approx(share * MODEL.full_throttle_mps2, rel=1e-6)


def test_reverse_gear_drives_backwards_and_steers_the_other_way_round() -> None:
    motion = Motion()
    drive(motion, Pedals(throttle=0.5, steer=0.5, reverse=True), 2.0)
    assert motion.speed_mps < 0
    assert motion.x_m < 0
    assert motion.yaw_rad < 0


def test_idle_vehicle_does_not_move() -> None:
    motion = Motion(x_m=3.0, y_m=4.0, yaw_rad=1.0)
    drive(motion, Pedals(steer=1.0), 1.0)
    assert (motion.x_m, motion.y_m, motion.yaw_rad) == pytest.approx((3.0, 4.0, 1.0))


def test_velocity_of_the_origin_is_the_derivative_of_its_position() -> None:
    motion = Motion(speed_mps=5.0, steer_rad=0.2)
    pedals = Pedals(steer=0.2 / MODEL.max_steer_rad)
    advance(motion, pedals, MODEL, 0.001, 5.0)
    x, y = motion.x_m, motion.y_m
    velocity = motion.velocity_mps(MODEL.wheelbase_m)
    advance(motion, pedals, MODEL, 1e-4, 5.0)
    assert ((motion.x_m - x) / 1e-4, (motion.y_m - y) / 1e-4) == pytest.approx(velocity, abs=1e-2)


@given(
    throttle=st.floats(-2, 2), steer=st.floats(-2, 2), brake=st.floats(-2, 2), speed=st.floats(-10, 40),
    hand=st.booleans(), reverse=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_pedals_keep_motion_finite_and_within_limits(
    throttle: float, steer: float, brake: float, speed: float, hand: bool, reverse: bool
) -> None:
    motion = Motion(speed_mps=speed)
    for _ in range(40):
        before = motion.speed_mps
        advance(motion, Pedals(throttle, steer, brake, hand, reverse), MODEL, DT_S)
        lost = MODEL.full_brake_mps2 + MODEL.hand_brake_mps2 + MODEL.rolling_mps2 + MODEL.drag_per_m * 1700
        assert abs(motion.speed_mps - before) <= (MODEL.full_throttle_mps2 + lost) * DT_S
        assert abs(motion.yaw_rate_radps * motion.speed_mps) <= MODEL.lateral_limit_mps2 + 1e-9
        assert abs(motion.steer_rad) <= MODEL.max_steer_rad + 1e-9
        assert math.isfinite(motion.x_m + motion.y_m + motion.yaw_rad)
