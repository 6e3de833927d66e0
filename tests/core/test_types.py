from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Waypoints

FRAME = CameraFrame(np.zeros((2, 4, 3), np.uint8), stamp_ns=7)
NAVIGATION = Navigation(np.array([[10.0, 0.0], [20.0, 1.0]]))


def test_observation_is_stamped_by_its_first_camera_frame():
    second = CameraFrame(np.zeros((2, 4, 3), np.uint8), stamp_ns=99, camera="left")
    assert Observation((FRAME, second), EgoState(stamp_ns=5), NAVIGATION).stamp_ns == 7


def test_observation_without_a_camera_frame_is_refused():
    with pytest.raises(ValueError, match="frames"):
        Observation((), EgoState(), NAVIGATION)


@pytest.mark.parametrize(
    "rgb",
    [np.zeros((2, 4, 3)), np.zeros((2, 4), np.uint8), np.zeros((2, 4, 4), np.uint8), np.zeros((2, 4, 3), np.int8)],
)
def test_camera_frame_takes_only_rgb_bytes(rgb):
    with pytest.raises(ValueError, match="rgb: expected"):
        CameraFrame(rgb, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match=rf"xy_m\[0, 1\]: expected a finite number, got {bad}"):
        Waypoints(np.array([[1.0, bad]]), 0.5)
    with pytest.raises(ValueError, match=rf"velocity_mps\[0\]: expected a finite number, got {bad}"):
        EgoState(velocity_mps=np.array([bad, 0.0]))
    with pytest.raises(ValueError, match=rf"targets_m\[1, 0\]: expected a finite number, got {bad}"):
        Navigation(np.array([[1.0, 2.0], [bad, 0.0]]))


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"targets_m: expected shape \(2, 2\), got \(3, 2\)"):
        Navigation(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="xy_m"):
        Waypoints(np.zeros((4, 3)), 0.5)


@pytest.mark.parametrize("dt_s", [0.0, -0.5, float("nan")])
def test_waypoint_spacing_must_be_positive(dt_s):
    with pytest.raises(ValueError, match="dt_s"):
        Waypoints(np.zeros((1, 2)), dt_s)


def test_arrays_of_a_value_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        NAVIGATION.targets_m[0, 0] = 3.0


def test_speed_is_signed_forward_speed():
    assert EgoState(velocity_mps=np.array([-2.0, 5.0])).speed_mps == -2.0


def test_command_words_are_those_of_the_training_data():
    assert [command.value for command in NavCommand] == [
        "go left at the next intersection",
        "go right at the next intersection",
        "go straight at the next intersection",
        "follow the road",
        "do a lane change to the left",
        "do a lane change to the right",
    ]


def test_a_value_takes_a_copy_and_leaves_the_callers_array_writable():
    velocity, targets = np.array([3.0, 0.0]), np.array([[10.0, 0.0], [20.0, 1.0]])
    ego, navigation = EgoState(velocity_mps=velocity), Navigation(targets)
    velocity[0], targets[1, 1] = 9.0, 9.0
    assert ego.speed_mps == 3.0
    assert navigation.targets_m[1, 1] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        ego.velocity_mps[0] = 1.0
