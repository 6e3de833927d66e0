"""Pure pursuit: circles, sides, and the point ahead on a path."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.control.pure_pursuit import curvature_to, point_ahead, steer_for_curvature

REAR_M = 1.43


@given(radius=st.floats(4.0, 200.0), side=st.sampled_from([-1, 1]), angle=st.floats(0.02, 1.2))
def test_the_curvature_carries_base_link_exactly_through_the_point(radius: float, side: int, angle: float) -> None:
    # Independent of the formula: turn base_link's position about the centre of the rear axle's circle.
    centre = np.array([-REAR_M, side * radius])
    c, s = math.cos(side * angle), math.sin(side * angle)
    point = centre + np.array([[c, -s], [s, c]]) @ -centre
    if point[0] > 0.01:
        assert curvature_to(*point, REAR_M) == pytest.approx(side / radius, rel=1e-6)


@given(x=st.floats(0.1, 30), y=st.floats(-10, 10))
def test_left_points_steer_left_and_mirrored_points_mirror(x: float, y: float) -> None:
    curvature = curvature_to(x, y, REAR_M)
    assert curvature * y >= 0
    assert curvature_to(x, -y, REAR_M) == -curvature


def test_a_point_behind_asks_for_the_tightest_turn_to_its_side() -> None:
    assert steer_for_curvature(curvature_to(-3.0, 1.0, REAR_M), 2.86, 0.6) == 0.6
    assert steer_for_curvature(curvature_to(-3.0, -1.0, REAR_M), 2.86, 0.6) == -0.6


def test_the_wheel_angle_is_the_bicycles() -> None:
    assert math.tan(steer_for_curvature(0.1, 2.86, 0.6)) / 2.86 == pytest.approx(0.1)


def test_point_ahead_counts_arc_from_the_projection() -> None:
    path = np.array([[-4.0, 1.0], [0.0, 1.0], [4.0, 1.0], [4.0, 9.0]])
    assert point_ahead(path, 3.0) == pytest.approx((3.0, 1.0))
    assert point_ahead(path, 6.0) == pytest.approx((4.0, 3.0))


def test_point_ahead_goes_straight_on_beyond_the_end() -> None:
    path = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0]])
    assert point_ahead(path, 10.0) == pytest.approx((4.0, 6.0))


def test_a_path_without_length_has_no_point_ahead() -> None:
    assert point_ahead(np.array([[0.0, 0.0], [0.1, 0.1], [0.2, 0.0], [0.2, 0.0]]), 3.0) is None
