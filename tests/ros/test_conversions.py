"""Messages to core types and back."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rclpy", reason="needs the [ros] extra")
pytest.importorskip("wamdiff2.msg", reason="needs the built messages")

from geometry_msgs.msg import Quaternion
from sensor_msgs.msg import CompressedImage, Image

from wamdiff2_core.config import CameraSpec
from wamdiff2_core.types import (
    CameraFrame,
    Check,
    DecodeStats,
    EgoState,
    NavCommand,
    Navigation,
    Plan,
    Pose2D,
    Waypoints,
)
from wamdiff2_ros import conversions
from wamdiff2_ros.conversions import ConversionError

STAMPS = st.integers(0, 2**31 * 1_000_000_000 - 1)
METRES = st.floats(-1e4, 1e4)
ANGLES = st.floats(-3.14, 3.14)
COUNTS = st.integers(0, 2**31)


def frame(height, width, seed=0, stamp_ns=0):
    return CameraFrame(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8), stamp_ns)


@given(STAMPS)
def test_stamp_round_trip(stamp_ns):
    assert conversions.stamp_to_ns(conversions.stamp_from_ns(stamp_ns)) == stamp_ns


@given(st.integers(1, 9), st.integers(1, 9), STAMPS)
def test_image_round_trip(height, width, stamp_ns):
    original = frame(height, width, stamp_ns=stamp_ns)
    back = conversions.image_from_msg(conversions.image_to_msg(original, "front_optical"))
    assert (back.rgb == original.rgb).all()
    assert back.stamp_ns == stamp_ns


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8"])
def test_every_colour_order_and_row_padding_gives_rgb(encoding, padding):
    rgb = frame(3, 4).rgb
    letters = encoding.removesuffix("8")
    planes = {"r": rgb[..., 0], "g": rgb[..., 1], "b": rgb[..., 2], "a": np.full((3, 4), 255, np.uint8)}
    rows = np.stack([planes[letter] for letter in letters], axis=-1).reshape(3, -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    message = Image(height=3, width=4, encoding=encoding, step=rows.shape[1], data=rows.tobytes())
    assert (conversions.image_from_msg(message).rgb == rgb).all()


@pytest.mark.parametrize("encoding", ["mono8", "16UC1", "bayer_rggb8", ""])
def test_image_without_colours_is_refused_by_name(encoding):
    message = Image(height=1, width=1, encoding=encoding, step=3, data=bytes(3))
    with pytest.raises(ConversionError, match=f"image.encoding: expected one of rgb8.*got '{encoding}'"):
        conversions.image_from_msg(message)


@pytest.mark.parametrize(("height", "width", "step", "size"), [(2, 2, 6, 11), (2, 2, 5, 12), (0, 2, 6, 0)])
def test_image_shorter_than_it_claims_is_refused(height, width, step, size):
    with pytest.raises(ConversionError, match=r"image\.data"):
        conversions.image_from_msg(Image(height=height, width=width, encoding="rgb8", step=step, data=bytes(size)))


def test_jpeg_round_trip_keeps_colours_within_compression():
    smooth = np.zeros((64, 96, 3), np.uint8)
    smooth[..., 0], smooth[..., 2] = 200, 40  # far from grey: swapped channels would be off by 160
    back = conversions.compressed_from_msg(conversions.compressed_to_msg(CameraFrame(smooth, 5), "front_optical"))
    assert np.abs(back.rgb.astype(int) - smooth).max() < 12
    assert back.stamp_ns == 5


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n"])
def test_compressed_image_that_is_no_jpeg_is_refused(data):
    with pytest.raises(ConversionError, match="expected a JPEG, got format 'png'"):
        conversions.compressed_from_msg(CompressedImage(format="png", data=data))


def test_cut_off_jpeg_is_refused():
    message = conversions.compressed_to_msg(frame(64, 64), "front_optical")
    message.data = message.data[:100]
    with pytest.raises(ConversionError, match="whole JPEG"):
        conversions.compressed_from_msg(message)


@given(METRES, METRES, METRES, METRES, ANGLES, ANGLES, STAMPS)
def test_odometry_round_trip(x, y, vx, vy, yaw_rate, yaw, stamp_ns):
    ego = EgoState(np.array([vx, vy]), yaw_rate_radps=yaw_rate, map_from_base=Pose2D(x, y, yaw), stamp_ns=stamp_ns)
    back = conversions.ego_from_msg(conversions.ego_to_msg(ego))
    assert (back.velocity_mps == ego.velocity_mps).all()
    assert (back.map_from_base.x_m, back.map_from_base.y_m) == (x, y)
    assert math.isclose(back.map_from_base.yaw_rad, yaw, abs_tol=1e-9)
    assert (back.yaw_rate_radps, back.stamp_ns) == (yaw_rate, stamp_ns)


def test_left_quarter_turn_has_positive_yaw():
    quaternion = Quaternion(z=math.sqrt(0.5), w=math.sqrt(0.5))
    assert math.isclose(conversions.yaw_from_quaternion(quaternion), math.pi / 2)


@given(ANGLES, st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_yaw_is_the_heading_of_the_forward_axis_on_a_slope(yaw, pitch, roll):
    from scipy.spatial.transform import Rotation

    rotation = Rotation.from_euler("ZYX", [yaw, pitch, roll])
    x, y, z, w = map(float, rotation.as_quat())
    forward = rotation.apply([1.0, 0.0, 0.0])
    heading = conversions.yaw_from_quaternion(Quaternion(x=x, y=y, z=z, w=w))
    assert math.isclose(math.cos(heading - math.atan2(forward[1], forward[0])), 1.0, abs_tol=1e-9)


@pytest.mark.parametrize("quaternion", [Quaternion(w=0.0), Quaternion(w=2.0), Quaternion(w=math.nan)])
def test_orientation_that_is_no_rotation_is_refused(quaternion):
    with pytest.raises(ConversionError, match=r"pose\.orientation"):
        conversions.yaw_from_quaternion(quaternion)


@pytest.mark.parametrize(
    "field", ["pose.pose.position.x", "pose.pose.position.y", "twist.twist.linear.y", "twist.twist.angular.z"]
)
def test_odometry_with_nan_is_refused_by_the_name_of_the_field(field):
    message = conversions.ego_to_msg(EgoState())
    *way, last = field.split(".")
    part = message
    for name in way:
        part = getattr(part, name)
    setattr(part, last, math.nan)
    with pytest.raises(ConversionError, match=rf"odometry\.{re.escape(field)}: expected a finite number, got nan"):
        conversions.ego_from_msg(message)


@given(st.lists(METRES, min_size=4, max_size=4), st.sampled_from(NavCommand), STAMPS)
def test_navigation_round_trip(targets, command, stamp_ns):
    navigation = Navigation(np.array(targets).reshape(2, 2), command)
    message = conversions.navigation_to_msg(navigation, stamp_ns)
    back = conversions.navigation_from_msg(message)
    assert (back.targets_m == navigation.targets_m).all()
    assert back.command is command
    assert message.header.frame_id == "base_link"
    assert conversions.stamp_to_ns(message.header.stamp) == stamp_ns


@pytest.mark.parametrize("command", [0, 7, 255])
def test_unset_or_unknown_command_is_refused(command):
    message = conversions.navigation_to_msg(Navigation(np.zeros((2, 2))), 0)
    message.command = command
    with pytest.raises(ConversionError, match=rf"navigation\.command.*got {command}"):
        conversions.navigation_from_msg(message)


def test_navigation_with_infinite_target_is_refused():
    message = conversions.navigation_to_msg(Navigation(np.zeros((2, 2))), 0)
    message.targets[1].x_m = math.inf
    with pytest.raises(ConversionError, match=r"navigation\.targets_m\[1, 0\]: .* got inf"):
        conversions.navigation_from_msg(message)


@pytest.mark.parametrize("frame_id", ["base_link", ""])
def test_inputs_in_the_base_frame_or_without_a_name_are_taken(frame_id):
    odometry = conversions.ego_to_msg(EgoState(velocity_mps=[2.0, 0.0]), base_frame=frame_id)
    assert conversions.ego_from_msg(odometry).speed_mps == 2.0
    navigation = conversions.navigation_to_msg(Navigation(np.ones((2, 2))), 0, frame_id)
    assert (conversions.navigation_from_msg(navigation).targets_m == 1).all()


def test_inputs_in_another_frame_are_refused():
    odometry = conversions.ego_to_msg(EgoState())
    navigation = conversions.navigation_to_msg(Navigation(np.ones((2, 2))), 0)
    with pytest.raises(ConversionError, match=r"odometry\.child_frame_id: expected hull, or none, got base_link"):
        conversions.ego_from_msg(odometry, "hull")
    with pytest.raises(ConversionError, match=r"navigation\.header\.frame_id: expected hull, or none, got base_link"):
        conversions.navigation_from_msg(navigation, "hull")


def test_navigation_without_a_command_has_no_message():
    with pytest.raises(ConversionError, match=r"navigation\.command: expected a command, got none"):
        conversions.navigation_to_msg(Navigation(np.zeros((2, 2)), None), 0)


WAYPOINTS = st.builds(
    lambda rows, dt_s: Waypoints(np.array(rows), dt_s),
    st.lists(st.tuples(METRES, METRES), min_size=1, max_size=12),
    st.floats(0.01, 5.0),
)
PLANS = st.builds(
    Plan,
    stamp_ns=STAMPS,
    waypoints=st.none() | WAYPOINTS,
    text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    stats=st.builds(DecodeStats, METRES, METRES, *[COUNTS] * 6, METRES),
    check=st.builds(Check, st.booleans(), st.sampled_from(["", "too fast"])),
    source=st.sampled_from(["", "c0ffee"]),
)


@given(PLANS)
def test_plan_round_trip_through_the_wire(plan):
    from rclpy.serialization import deserialize_message, serialize_message
    from wamdiff2.msg import Plan as PlanMsg

    wire = serialize_message(conversions.plan_to_msg(plan))
    back = conversions.plan_from_msg(deserialize_message(wire, PlanMsg))
    assert (back.stamp_ns, back.text, back.stats, back.check, back.source) == (
        plan.stamp_ns, plan.text, plan.stats, plan.check, plan.source
    )
    if plan.waypoints is None:
        assert back.waypoints is None
    else:
        assert (back.waypoints.xy_m == plan.waypoints.xy_m).all()
        assert back.waypoints.dt_s == plan.waypoints.dt_s


def test_plan_message_without_spacing_is_refused():
    message = conversions.plan_to_msg(Plan(0, Waypoints(np.zeros((2, 2)), 0.5)))
    message.dt_s = 0.0
    with pytest.raises(ConversionError, match=r"plan\.dt_s"):
        conversions.plan_from_msg(message)


def test_path_of_a_plan_has_its_points_times_and_headings():
    waypoints = Waypoints(np.array([[1.0, 0.0], [1.0, 2.0], [0.0, 2.0]]), 0.5)
    path = conversions.plan_path_to_msg(Plan(1_000_000_000, waypoints))
    assert [(p.pose.position.x, p.pose.position.y) for p in path.poses] == [(1.0, 0.0), (1.0, 2.0), (0.0, 2.0)]
    stamps = [conversions.stamp_to_ns(p.header.stamp) for p in path.poses]
    assert stamps == [1_500_000_000, 2_000_000_000, 2_500_000_000]
    yaws = [conversions.yaw_from_quaternion(p.pose.orientation) for p in path.poses]
    assert np.allclose(np.abs(yaws), [math.pi / 2, math.pi, math.pi])
    assert path.header.frame_id == "base_link"


@pytest.mark.parametrize("count", [0, 1])
def test_path_of_fewer_than_two_points(count):
    path = conversions.path_to_msg(np.ones((count, 2)), 0, "map")
    assert len(path.poses) == count


@pytest.mark.parametrize("plan", [
    Plan(7, None, check=Check(False, "unreadable")),
    Plan(7, Waypoints(np.ones((2, 2)), 0.5), check=Check(False, "too fast")),
])
def test_path_of_a_plan_that_must_not_be_driven_is_empty(plan):
    path = conversions.plan_path_to_msg(plan)
    assert list(path.poses) == []
    assert conversions.stamp_to_ns(path.header.stamp) == 7


@pytest.mark.parametrize(("change", "named"), [
    ({}, ""),
    ({"width_px": 512, "height_px": 256}, "256x128 pixels"),
    ({"hfov_deg": 80.0}, "focal length"),
])
def test_camera_info_is_checked_against_the_rig(change, named):
    from dataclasses import replace

    rig = CameraSpec()
    check = conversions.check_camera_info(conversions.camera_info_to_msg(replace(rig, **change), 0, "optical"), rig)
    assert check.ok == (not change)
    assert named in check.message


def test_camera_info_projects_a_point_where_the_field_of_view_says():
    message = conversions.camera_info_to_msg(CameraSpec(width_px=200, height_px=100, hfov_deg=90.0), 0, "optical")
    k = np.array(message.k).reshape(3, 3)
    u, v, w = k @ [1.0, 0.0, 1.0]  # 45 degrees to the right: the image's right edge
    assert (u / w, v / w) == pytest.approx((200.0, 50.0))
