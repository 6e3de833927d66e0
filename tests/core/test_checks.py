from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.checks import PlanLimits, check_waypoints
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import Waypoints


def arc(speed: float, curvature: float, accel: float = 0.0, count: int = 6, dt_s: float = 0.5) -> Waypoints:
    """Exact positions on a circle, at constant acceleration."""
    times = dt_s * np.arange(1, count + 1)
    way = speed * times + accel * times**2 / 2
    if curvature == 0:
        return Waypoints(np.stack([way, 0 * way], 1), dt_s)
    return Waypoints(np.stack([np.sin(curvature * way), 1 - np.cos(curvature * way)], 1) / curvature, dt_s)


POSSIBLE = [
    (speed, curvature, accel)
    for speed in (0.0, 0.5, 3.0, 10.0, 30.0)
    for curvature in (0.0, 0.15, -0.15, 0.02)
    for accel in (0.0, 1.0, 3.0)
    if (speed + 3 * accel) ** 2 * abs(curvature) < 8  # a car's grip
]


@pytest.mark.parametrize(("speed", "curvature", "accel"), POSSIBLE)
@pytest.mark.parametrize("decimals", [1, 2])
def test_what_a_car_can_do_passes_even_when_rounded(speed, curvature, accel, decimals):
    exact = arc(speed, curvature, accel)
    plan = Waypoints(np.round(exact.xy_m, decimals), exact.dt_s)
    check = check_waypoints(plan, speed, 6)
    assert check.ok, check.message
    assert check.message == ""


def test_hard_braking_to_a_stand_passes():
    way = [3.5, 5.0, 5.0, 5.0, 5.0, 5.0]
    assert check_waypoints(Waypoints([[x, 0.0] for x in way], 0.5), 10.0, 6).ok


def test_jitter_while_standing_passes():
    jitter = [[0.1, 0.0], [0.0, 0.1], [0.1, -0.1], [0.0, 0.0], [-0.1, 0.1], [0.0, 0.0]]
    assert check_waypoints(Waypoints(jitter, 0.5), 0.0, 6).ok


@pytest.mark.parametrize(
    ("points", "speed", "word"),
    [
        ([[1.0, 0.0]] * 5, 2.0, "6 waypoints, got 5"),
        ([[x, 0.0] for x in (25, 50, 75, 100, 125, 150)], 50.0, "speed"),
        ([[x, 0.0] for x in (1, 2, 3, 4, 15, 30)], 2.0, "acceleration"),
        ([[x, 0.0] for x in (8, 16, 24, 32, 40, 48)], 0.0, "acceleration 21.3 m/s^2 at waypoint 1"),
        ([[x, 0.0] for x in (10, 20, 20, 20, 20, 20)], 20.0, "deceleration"),
        ([[x, 0.0] for x in (2, 4, 6, 4, 2, 0)], 4.0, "yaw rate"),
        ([[-2.0 * i, 0.0] for i in range(1, 7)], 4.0, "yaw rate"),
        ([[0.0, 3.0 * i] for i in range(1, 7)], 6.0, "yaw rate"),
    ],
)
def test_what_no_car_can_do_is_named(points, speed, word):
    check = check_waypoints(Waypoints(points, 0.5), speed, 6)
    assert not check.ok
    assert word in check.message


@pytest.mark.parametrize("name", ["max_speed_mps", "max_decel_mps2", "min_step_m"])
def test_limits_that_are_none_are_refused(name):
    for value in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match=f"{name}: expected > 0"):
            PlanLimits(**{name: value})


def test_the_first_change_of_speed_may_be_three_times_as_large():
    limits = PlanLimits(max_accel_mps2=2.0, max_speed_mps=100.0)

    def straight(first_accel_mps2):
        """Constant acceleration up to the middle of the first step, then that speed: the rest has no change."""
        speed = 5.0 + first_accel_mps2 * 0.25
        return Waypoints(np.stack([speed * 0.5 * np.arange(1, 7), np.zeros(6)], 1), 0.5)

    assert check_waypoints(straight(5.99), 5.0, limits=limits).ok
    assert "acceleration" in check_waypoints(straight(6.01), 5.0, limits=limits).message


def test_limits_are_the_callers():
    plan = arc(10.0, 0.0)
    assert check_waypoints(plan, 10.0).ok
    assert not check_waypoints(plan, 10.0, limits=PlanLimits(max_speed_mps=9.0)).ok
