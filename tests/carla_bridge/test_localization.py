"""Localisation against a vehicle that is integrated finely, with sensors as noisy as the leaderboard's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.agent_server.localization import Georeference, Localizer
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import Pose2D

RADIUS_M = 6378137.0
TICK_S, FINE = 0.05, 10
REAR_M = 1.43


def to_degrees(map_m: np.ndarray, lat0: float, lon0: float) -> np.ndarray:
    """Degrees as the leaderboard makes them from world coordinates (its own formula, with y north)."""
    scale = math.cos(math.radians(lat0))
    east = scale * math.radians(lon0) * RADIUS_M + map_m[:, 0]
    north = scale * RADIUS_M * math.log(math.tan(math.radians((90 + lat0) / 2))) + map_m[:, 1]
    latitude = np.degrees(2 * np.arctan(np.exp(north / (RADIUS_M * scale)))) - 90
    return np.stack([latitude, np.degrees(east / (RADIUS_M * scale))], axis=1)


class Vehicle:
    """A bicycle whose rear axle rolls without slip; accelerates and steers smoothly, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.rear, self.yaw, self.speed, self.time_s = np.array([300.0, -120.0]), 0.7, 0.0, 0.0
        self.pace, self.turn = self.random.uniform([0.1, 0.1, 3], [0.5, 0.6, 14]), 0.0

    def tick(self) -> None:
        for _ in range(FINE):
            dt = TICK_S / FINE
            self.time_s += dt
            wave = 1 + 0.3 * math.sin(self.pace[0] * self.time_s)
            self.speed = self.pace[2] * (1 - math.exp(-self.time_s / 4)) * wave
            curvature = 0.1 * math.sin(self.pace[1] * self.time_s) / (1 + self.speed / 4)
            self.turn = self.speed * curvature
            self.rear = self.rear + dt * self.speed * np.array([math.cos(self.yaw), math.sin(self.yaw)])
            self.yaw += dt * self.turn

    @property
    def base(self) -> np.ndarray:
        return self.rear + REAR_M * np.array([math.cos(self.yaw), math.sin(self.yaw)])


class Sensors:
    def __init__(self, seed: int, lat0: float, lon0: float) -> None:
        self.random, self.place = np.random.default_rng(seed + 1), (lat0, lon0)
        corners = np.array([[0.0, 0.0], [400.0, -50.0], [150.0, 300.0]])
        self.localizer = Localizer(Georeference.fit(to_degrees(corners, *self.place), corners), REAR_M)

    def show(self, vehicle: Vehicle, compass: bool = True, fix: bool = True) -> Pose2D:
        degrees = to_degrees(vehicle.base[None], *self.place)[0] + self.random.normal(0, 5e-6, 2)
        return self.localizer.step(
            TICK_S, vehicle.speed, vehicle.turn + self.random.normal(0, 0.001), degrees if fix else [math.nan] * 2,
            math.remainder(vehicle.yaw, 2 * math.pi) if compass else math.nan,
        )


def error_m(pose: Pose2D, vehicle: Vehicle) -> float:
    return math.dist((pose.x_m, pose.y_m), vehicle.base)


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), lat0=st.sampled_from([0.0, 41.1, 49.0, -33.0]), lon0=st.sampled_from([0.0, -81.6]))
def test_position_is_known_to_half_a_metre_after_five_seconds_and_stays_so(seed: int, lat0: float, lon0: float) -> None:
    vehicle, sensors = Vehicle(seed), Sensors(seed, lat0, lon0)
    errors, yaw_errors = [], []
    for tick in range(400):
        vehicle.tick()
        pose = sensors.show(vehicle, compass=tick % 7 != 3)
        errors.append(error_m(pose, vehicle))
        yaw_errors.append(abs(math.remainder(pose.yaw_rad - vehicle.yaw, 2 * math.pi)))
    assert max(errors[100:]) < 0.5
    assert max(yaw_errors[100:]) < math.radians(1.0)
    # The filter's own opinion of itself is neither boastful nor timid.
    rms = float(np.sqrt(np.mean(np.square(errors[100:]))))
    assert 0.3 < rms / sensors.localizer.position_std_m < 3.0


def test_noise_alone_would_not_do() -> None:
    """What the property above is worth: readings as they come are off by far more."""
    noise_m = Georeference.fit(to_degrees(np.eye(2) * 100, 49.0, 8.0), np.eye(2) * 100).noise_m(49.0)
    assert 0.3 < noise_m[0] < 0.6
    assert noise_m[1] == pytest.approx(5e-6 * math.radians(1) * RADIUS_M, rel=1e-3)


def test_no_pose_before_gnss_and_compass_have_come() -> None:
    vehicle, sensors = Vehicle(1), Sensors(1, 49.0, 8.0)
    for compass, fix in ((False, True), (True, False), (False, False)):
        sensors.show(vehicle, compass, fix)
        assert sensors.localizer.position_std_m == math.inf
    sensors.show(vehicle)
    assert sensors.localizer.position_std_m < 1.0


def test_a_shove_is_noticed_within_two_seconds() -> None:
    vehicle, sensors = Vehicle(3), Sensors(3, 49.0, 8.0)
    for _ in range(200):
        vehicle.tick()
        sensors.show(vehicle)
    vehicle.rear = np.add(vehicle.rear, [3.0, -4.0])
    for _ in range(40):
        vehicle.tick()
        pose = sensors.show(vehicle)
    assert error_m(pose, vehicle) < 0.7


def test_a_gap_of_gnss_is_driven_over_by_dead_reckoning() -> None:
    vehicle, sensors = Vehicle(4), Sensors(4, 49.0, 8.0)
    for tick in range(300):
        vehicle.tick()
        pose = sensors.show(vehicle, fix=not 200 <= tick < 300)
    assert error_m(pose, vehicle) < 0.5


@given(
    lat0=st.floats(-70, 70), lon0=st.floats(-180, 180), seed=st.integers(0, 1000), extent_m=st.floats(30, 8000)
)
def test_projection_is_recovered_exactly(lat0: float, lon0: float, seed: int, extent_m: float) -> None:
    random = np.random.default_rng(seed)
    plan, elsewhere = random.uniform(-extent_m, extent_m, (2, 40, 2))
    found = Georeference.fit(to_degrees(plan, lat0, lon0), plan)
    # Far from the plan a hair of error in the scale is a longer one.
    np.testing.assert_allclose(found.to_map(to_degrees(elsewhere, lat0, lon0)), elsewhere, atol=1e-4)
    assert found.scale == pytest.approx(math.cos(math.radians(lat0)), rel=1e-6)


def test_degrees_that_do_not_belong_to_the_positions_are_refused() -> None:
    plan = np.random.default_rng(0).uniform(-200, 200, (30, 2))
    degrees = to_degrees(plan, 49.0, 8.0)
    with pytest.raises(UserError, match=r"Mercator.*m between them"):
        Georeference.fit(degrees, plan * [1, -1])
    with pytest.raises(UserError, match="apart"):
        Georeference.fit(degrees[:1].repeat(5, 0), plan[:1].repeat(5, 0))
