"""Speed asked for by a plan, and the PI that follows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.control.speed import SpeedController, planned_speed
from wamdiff2_core.types import Waypoints


@given(speed=st.floats(0, 20), accel=st.floats(0, 3), time_s=st.floats(0, 2.9))
def test_a_uniformly_accelerated_plan_gives_its_speed_at_every_time(speed: float, accel: float, time_s: float) -> None:
    t = np.arange(1, 7) * 0.5
    plan = Waypoints(np.stack([speed * t + 0.5 * accel * t**2, np.zeros(6)], axis=1), 0.5)
    assert planned_speed(plan, time_s) == pytest.approx(speed + accel * time_s, abs=1e-6)


def test_a_plan_that_comes_to_rest_asks_for_no_speed_and_never_for_a_negative_one() -> None:
    plan = Waypoints(np.array([[1.0, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0]]), 0.5)
    assert planned_speed(plan, 0.0) == pytest.approx(2.5)
    assert planned_speed(plan, 2.0) == 0.0
    assert min(planned_speed(plan, t) for t in np.linspace(0, 4, 50)) == 0.0


def test_speed_counts_distance_in_curves_not_only_x() -> None:
    plan = Waypoints(np.array([[0.0, 2.0], [0.0, 4.0], [0.0, 6.0]]), 0.5)
    assert planned_speed(plan, 0.5) == pytest.approx(4.0)


def test_one_waypoint_gives_its_mean_speed() -> None:
    assert planned_speed(Waypoints(np.array([[3.0, 0.0]]), 0.5), 1.0) == 6.0


def test_the_integral_takes_up_a_weak_engine() -> None:
    controller, speed = SpeedController(2.0, 0.5, 3.0, 5.0), 5.0
    for _ in range(2000):
        speed += (0.8 * controller.step(8.0, speed, 0.05) - 0.5) * 0.05
    assert speed == pytest.approx(8.0, abs=0.02)


def test_the_integral_does_not_wind_up_at_the_limit() -> None:
    controller = SpeedController(2.0, 0.5, 3.0, 5.0)
    for _ in range(400):
        assert controller.step(8.0, 0.0, 0.05) == 3.0
    assert controller.step(8.0, 8.5, 0.05) < 0.0


def test_output_stays_within_the_limits() -> None:
    controller = SpeedController(2.0, 0.5, 3.0, 5.0)
    assert controller.step(50.0, 0.0, 0.05) == 3.0
    assert controller.step(0.0, 50.0, 0.05) == -5.0
