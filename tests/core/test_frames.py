"""Frames against complex numbers (a rotation is a unit complex factor), and against CARLA's documented signs."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.frames import (
    compose,
    flip_y,
    inverse,
    pose_from_carla,
    pose_to_carla,
    rotation,
    steer_to_carla,
    transform_points,
    wrap_angle,
    xy_from_carla,
    xy_to_carla,
    yaw_from_carla,
    yaw_rate_from_carla,
    yaw_to_carla,
)
from wamdiff2_core.types import Pose2D

metres = st.floats(-1e4, 1e4)
angles = st.floats(-50.0, 50.0)
poses = st.builds(Pose2D, metres, metres, angles)


def same_pose(a: Pose2D, b: Pose2D, tolerance_m: float = 1e-6) -> bool:
    return math.hypot(a.x_m - b.x_m, a.y_m - b.y_m) < tolerance_m and abs(wrap_angle(a.yaw_rad - b.yaw_rad)) < 1e-9


@given(angles)
def test_wrapped_angle_is_in_range_and_the_same_direction(angle_rad):
    wrapped = wrap_angle(angle_rad)
    assert -math.pi <= wrapped <= math.pi
    assert cmath.exp(1j * wrapped) == pytest.approx(cmath.exp(1j * angle_rad), abs=1e-9)


def test_half_turn_wraps_to_minus_pi():
    assert wrap_angle(math.pi) == -math.pi
    assert wrap_angle(3 * math.pi) == pytest.approx(-math.pi)


@given(poses, st.lists(st.tuples(metres, metres), min_size=1, max_size=4))
def test_transformed_points_equal_complex_arithmetic(pose, points):
    expected = [complex(pose.x_m, pose.y_m) + cmath.exp(1j * pose.yaw_rad) * complex(*p) for p in points]
    moved = transform_points(pose, np.array(points))
    np.testing.assert_allclose(moved, [[p.real, p.imag] for p in expected], atol=1e-6)


def test_a_child_turned_left_sees_its_forward_axis_on_the_parents_left():
    np.testing.assert_allclose(rotation(math.pi / 2) @ [1.0, 0.0], [0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(transform_points(Pose2D(5.0, 2.0, math.pi / 2), np.array([[3.0, 0.0]])), [[5.0, 5.0]])


@given(poses, poses, st.tuples(metres, metres))
def test_composition_is_one_transform_after_the_other(a_from_b, b_from_c, point):
    points = np.array([point])
    both = transform_points(a_from_b, transform_points(b_from_c, points))
    np.testing.assert_allclose(transform_points(compose(a_from_b, b_from_c), points), both, atol=1e-5)


@given(poses)
def test_inverse_undoes_a_pose_from_both_sides(pose):
    identity = Pose2D(0.0, 0.0, 0.0)
    assert same_pose(compose(pose, inverse(pose)), identity)
    assert same_pose(compose(inverse(pose), pose), identity)


@given(poses)
def test_poses_survive_the_way_to_carla_and_back(pose):
    assert same_pose(pose_from_carla(*pose_to_carla(pose)), pose)


def test_carla_has_y_to_the_right_and_yaw_clockwise_in_degrees():
    pose = pose_from_carla(3.0, 4.0, 90.0)
    assert (pose.x_m, pose.y_m) == (3.0, -4.0)
    assert pose.yaw_rad == pytest.approx(-math.pi / 2)
    assert pose_to_carla(Pose2D(1.0, -2.0, math.pi / 4)) == pytest.approx((1.0, 2.0, -45.0))
    assert yaw_rate_from_carla(180.0) == pytest.approx(-math.pi)


def test_points_angles_and_steering_have_carlas_signs():
    assert xy_from_carla(3.0, 4.0).tolist() == [3.0, -4.0]
    assert xy_to_carla(3.0, -4.0) == (3.0, 4.0)
    assert yaw_from_carla(270.0) == pytest.approx(-1.5 * math.pi)  # not wrapped
    assert yaw_to_carla(1.5 * math.pi) == pytest.approx(-270.0)
    assert steer_to_carla(0.25) == -0.25  # to the left is negative in CARLA


@given(metres, metres, angles)
def test_a_pose_is_its_point_and_its_angle(x_m, y_m, yaw_rad):
    x, y, yaw_deg = pose_to_carla(Pose2D(x_m, y_m, yaw_rad))
    assert ((x, y), yaw_deg) == (xy_to_carla(x_m, y_m), yaw_to_carla(yaw_rad))
    assert same_pose(pose_from_carla(x, y, yaw_deg), Pose2D(*xy_from_carla(x, y), yaw_from_carla(yaw_deg)))


@given(metres, metres, metres, metres, st.floats(-180, 180))
def test_distances_and_turn_sense_agree_between_carla_and_the_map(x, y, dx, dy, yaw_deg):
    """A vector given in CARLA's own axes and one given in base_link describe the same place, mirrored."""
    yaw = math.radians(yaw_deg)
    carla_point = (x + dx * math.cos(yaw) - dy * math.sin(yaw), y + dx * math.sin(yaw) + dy * math.cos(yaw))
    base_point = flip_y(np.array([[dx, dy]]))
    there = transform_points(pose_from_carla(x, y, yaw_deg), base_point)[0]
    np.testing.assert_allclose(there, [carla_point[0], -carla_point[1]], atol=1e-6)


@given(st.lists(st.tuples(metres, metres, metres), min_size=1, max_size=4))
def test_flip_negates_the_second_component_only_and_undoes_itself(vectors):
    array = np.array(vectors)
    kept = array.copy()
    np.testing.assert_array_equal(flip_y(array), array * [1, -1, 1])
    np.testing.assert_array_equal(flip_y(flip_y(array)), array)
    np.testing.assert_array_equal(array, kept)


def test_no_flip_makes_a_negative_zero():
    assert not np.signbit(flip_y(np.array([[1.0, 0.0]]))).any()
    assert not math.copysign(1, pose_from_carla(0.0, 0.0, 0.0).y_m) < 0
    assert not math.copysign(1, pose_to_carla(Pose2D(0.0, 0.0, 0.0))[1]) < 0
    assert not np.signbit([*xy_from_carla(0.0, 0.0), *xy_to_carla(0.0, 0.0), steer_to_carla(0.0)]).any()
