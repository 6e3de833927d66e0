"""The bicycle against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.dynamics.motion import Motion, Pedals, Surface
from carla_bridge.server.dynamics.vehicle_dynamics import advance
from carla_bridge.server.dynamics.vehicle_model import VehicleModel, model_for

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


# x, y, yaw, speed and yaw rate of the ego after 200 ticks of each program, as they were when the shipped checkpoint was
# trained: below the limits of grip on level ground its response must not change.
TRAINED_WITH = (
    (5.716590997648108, -78.24936660034008, -1.5424557355281165, 15.173715059396262, 0.19915452812118134),
    (71.65499370704171, -39.233725408128194, -0.4826162394934137, 15.592929108770853, 0.24076817147149474),
    (61.535237881313535, 33.765537216218334, 0.5321181421591614, 13.00260006630842, 0.07326319334256819),
    (-4.343566699044348, -60.85221667142585, 1.482397329204666, -12.48466707430378, 0.09033041243353844),
)


@pytest.mark.parametrize("program", range(4))
def test_ego_answers_as_when_the_shipped_checkpoint_was_trained(program: int) -> None:
    model = LIBRARY["vehicle.lincoln.mkz_2020"].model
    assert model is not None
    motion = Motion(yaw_rad=program - 1.5)
    for tick in range(200):
        throttle = (0.3, 0.6, 1.0, 0.2)[(tick // 20 + program) % 4]
        brake = (0.0, 0.0, 0.0, 0.3)[(tick // 30 + program) % 4]
        steer = 0.08 * math.sin(0.1 * tick * (program + 1))
        advance(motion, Pedals(throttle, steer, brake, reverse=program == 3), model, DT_S)
    state = (motion.x_m, motion.y_m, motion.yaw_rad, motion.speed_mps, motion.yaw_rate_radps)
    assert state == pytest.approx(TRAINED_WITH[program], abs=1e-9)


def test_braking_leaves_less_grip_for_the_turn_by_the_friction_ellipse() -> None:
    motion = Motion(speed_mps=25.0, steer_rad=0.5, brake_mps2=8.0)
    advance(motion, Pedals(steer=0.5 / MODEL.max_steer_rad, brake=1.0), MODEL, 0.01)
    lateral = motion.speed_mps * motion.yaw_rate_radps
    assert (8.0 / 9.81) ** 2 + (lateral / 8.0) ** 2 == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("grip", [0.3, 0.6])
def test_slippery_ground_lengthens_the_braking_distance_and_widens_the_turn(grip: float) -> None:
    motion = Motion(speed_mps=15.0)
    for _ in range(300):
        advance(motion, Pedals(brake=1.0), MODEL, DT_S, surface=Surface(grip=grip))
    assert motion.x_m == pytest.approx(15.0**2 / (2 * (0.95 * 9.81 * grip + 0.1)), rel=0.06)
    motion = Motion(speed_mps=15.0)
    for _ in range(20):
        advance(motion, Pedals(steer=0.5), MODEL, DT_S, surface=Surface(grip=grip))
    assert motion.speed_mps * motion.yaw_rate_radps == pytest.approx(8.0 * grip, rel=1e-6)


def test_on_ice_neither_pedals_nor_wheel_do_anything() -> None:
    motion = Motion(speed_mps=10.0)
    for _ in range(20):
        advance(motion, Pedals(throttle=1.0, steer=1.0), MODEL, DT_S, surface=Surface(grip=0.0))
    assert (motion.y_m, motion.yaw_rad) == (0.0, 0.0)
    assert motion.x_m == pytest.approx(10.0, rel=0.01)


def test_steady_circle_at_the_limit_widens_to_v_squared_over_the_limit() -> None:
    motion = Motion(speed_mps=12.0, steer_rad=MODEL.max_steer_rad)
    places = drive(motion, Pedals(steer=1.0), 10.0, hold_speed_mps=12.0)
    assert circle_radius(places) == pytest.approx(12.0**2 / MODEL.lateral_limit_mps2, rel=2e-3)


def test_slope_pulls_a_free_vehicle_down_and_a_braked_one_stands() -> None:
    slope = math.atan(0.1)
    motion = Motion()
    for _ in range(40):
        advance(motion, Pedals(), MODEL, DT_S, surface=Surface(slope_rad=slope))
    assert motion.speed_mps == pytest.approx(-(9.81 * math.sin(slope) - 0.1) * 2.0, rel=0.01)
    assert motion.x_m == pytest.approx(0.5 * motion.speed_mps * 2.0 * math.cos(slope), rel=0.02)
    for pedals in (Pedals(brake=0.3), Pedals(hand_brake=True)):
        motion = Motion(brake_mps2=2.4)
        for _ in range(200):
            advance(motion, pedals, MODEL, DT_S, surface=Surface(slope_rad=slope))
        assert (motion.x_m, motion.speed_mps) == (0.0, 0.0)


def test_climbing_costs_the_acceleration_of_the_slope() -> None:
    level, uphill = Motion(drive_mps2=2.0), Motion(drive_mps2=2.0)
    for _ in range(40):
        advance(level, Pedals(throttle=0.5), MODEL, DT_S)
        advance(uphill, Pedals(throttle=0.5), MODEL, DT_S, surface=Surface(slope_rad=0.08))
    assert level.speed_mps - uphill.speed_mps == pytest.approx(9.81 * math.sin(0.08) * 2.0, rel=0.01)


def kinetic_energy(motion: Motion, model: VehicleModel) -> float:
    """Over the mass."""
    vx, vy = motion.velocity_mps(model.wheelbase_m)
    return 0.5 * (vx * vx + vy * vy + model.gyration_m2 * motion.yaw_rate_radps**2)


def test_vehicle_thrown_sideways_slides_to_rest_over_v_squared_over_twice_the_friction() -> None:
    motion = Motion()
    motion.kick(MODEL, 0.0, 6.0, 0.0)
    for _ in range(60):
        advance(motion, Pedals(), MODEL, DT_S)
    assert motion.y_m == pytest.approx(6.0**2 / (2 * MODEL.lateral_limit_mps2), rel=0.03)
    assert (motion.x_m, motion.yaw_rad) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert not motion.sliding


def test_spin_is_braked_by_the_tyres_at_their_distance_from_the_middle() -> None:
    motion = Motion()
    motion.kick(MODEL, 0.0, 0.0, 4.0)
    advance(motion, Pedals(), MODEL, DT_S)
    slowed = MODEL.lateral_limit_mps2 * MODEL.wheelbase_m / 2 / MODEL.gyration_m2
    assert 4.0 - motion.yaw_rate_radps == pytest.approx(slowed * DT_S, rel=1e-6)
    assert (motion.x_m, motion.y_m) == pytest.approx((0.0, 0.0), abs=1e-9)


@given(
    speed=st.floats(-20, 20), dvx=st.floats(-15, 15), dvy=st.floats(-15, 15), spin=st.floats(-6, 6),
    grip=st.floats(0, 1.2), length=st.floats(0.7, 5.2),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_loose_tyres_never_add_energy(
    speed: float, dvx: float, dvy: float, spin: float, grip: float, length: float
) -> None:
    model = model_for("car", (length, 0.4 * length, 0.7), 1500.0)
    motion = Motion(speed_mps=speed)
    motion.kick(model, dvx, dvy, spin)
    for _ in range(40):
        before = kinetic_energy(motion, model)
        advance(motion, Pedals(), model, 0.01, surface=Surface(grip=grip))
        assert kinetic_energy(motion, model) <= before + 1e-9


@pytest.mark.parametrize("base_type", ["car", "van", "truck", "bus", "motorcycle", "bicycle"])
def test_every_kind_of_vehicle_starts_turns_and_stops(base_type: str) -> None:
    model = model_for(base_type, (2.0, 0.8, 0.8), 1000.0, wheels=2 if base_type.endswith("cycle") else 4)
    motion = Motion()
    for _ in range(100):
        advance(motion, Pedals(throttle=0.7, steer=0.1), model, DT_S)
    top = motion.speed_mps
    assert 4.0 < top < 25.0
    assert motion.yaw_rad != 0.0
    for _ in range(200):
        advance(motion, Pedals(brake=1.0), model, DT_S)
    assert motion.speed_mps == 0.0
