"""ROS messages from and to the core types.

Every number crosses as it is; only acceleration has no place in Odometry, and a command that is not known none in
Navigation.

Pixels cross as NumPy views, so neither cv_bridge nor OpenCV's bindings to ROS are needed. A message that cannot be
understood raises `ConversionError`, which names the field: a node logs it, and goes on with the next message.
"""

from __future__ import annotations

import array
import math

import numpy as np
import simplejpeg
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped, Quaternion
from nav_msgs.msg import Odometry, Path
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg
from wamdiff2.msg import Waypoint

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

BASE_FRAME = "base_link"
MAP_FRAME = "map"

# Channels of a pixel, and which of them are red, green and blue.
_ENCODINGS = {"rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)), "bgra8": (4, (2, 1, 0))}

_COMMANDS = {
    NavigationMsg.COMMAND_LEFT: NavCommand.LEFT,
    NavigationMsg.COMMAND_RIGHT: NavCommand.RIGHT,
    NavigationMsg.COMMAND_STRAIGHT: NavCommand.STRAIGHT,
    NavigationMsg.COMMAND_FOLLOW: NavCommand.FOLLOW,
    NavigationMsg.COMMAND_CHANGE_LEFT: NavCommand.CHANGE_LEFT,
    NavigationMsg.COMMAND_CHANGE_RIGHT: NavCommand.CHANGE_RIGHT,
}
_COMMAND_NUMBERS = {command: number for number, command in _COMMANDS.items()}


class ConversionError(ValueError):
    """A message holds something that the core types cannot express."""


def stamp_to_ns(stamp: Time) -> int:
    """Nanoseconds of a stamp."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def stamp_from_ns(stamp_ns: int) -> Time:
    """Stamp of a time in nanoseconds."""
    sec, nanosec = divmod(int(stamp_ns), 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


def header(stamp_ns: int, frame_id: str) -> Header:
    """Header with a stamp in nanoseconds."""
    return Header(stamp=stamp_from_ns(stamp_ns), frame_id=frame_id)


def image_from_msg(message: Image, camera: str = "front") -> CameraFrame:
    """Camera frame of an Image in one of the 8-bit colour encodings.

    Raises:
        ConversionError: other encoding, or fewer bytes than height and step promise.
    """
    if message.encoding not in _ENCODINGS:
        known = ", ".join(_ENCODINGS)
        raise ConversionError(f"image.encoding: expected one of {known}, got '{message.encoding}'; convert it to rgb8")
    channels, order = _ENCODINGS[message.encoding]
    height, width, step = message.height, message.width, message.step
    if not height or not width or step < width * channels or len(message.data) < height * step:
        raise ConversionError(
            f"image.data: expected {height} rows of {step} bytes, each at least {width * channels}, "
            f"got {len(message.data)} bytes"
        )
    rows = np.frombuffer(message.data, np.uint8, count=height * step).reshape(height, step)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    return CameraFrame(np.ascontiguousarray(pixels[..., order]), stamp_to_ns(message.header.stamp), camera)


def image_to_msg(frame: CameraFrame, frame_id: str) -> Image:
    """Image message (rgb8) of a camera frame."""
    height, width = frame.rgb.shape[:2]
    return Image(
        header=header(frame.stamp_ns, frame_id),
        height=height,
        width=width,
        encoding="rgb8",
        step=width * 3,
        data=array.array("B", frame.rgb.tobytes()),
    )


def compressed_from_msg(message: CompressedImage, camera: str = "front") -> CameraFrame:
    """Camera frame of a JPEG.

    Raises:
        ConversionError: not a JPEG, or a broken one.
    """
    data = bytes(message.data)
    if not data.startswith(b"\xff\xd8\xff"):
        raise ConversionError(f"image.data: expected a JPEG, got format '{message.format}' of {len(data)} bytes")
    try:
        rgb = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError as error:
        raise ConversionError(f"image.data: expected a whole JPEG, got one that does not decode ({error})") from error
    return CameraFrame(rgb, stamp_to_ns(message.header.stamp), camera)


def compressed_to_msg(frame: CameraFrame, frame_id: str, quality: int = 90) -> CompressedImage:
    """JPEG message of a camera frame; `quality` in 1..100."""
    jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(frame.rgb), quality=quality, colorspace="RGB")
    return CompressedImage(header=header(frame.stamp_ns, frame_id), format="jpeg", data=array.array("B", jpeg))


def camera_info_to_msg(spec: CameraSpec, stamp_ns: int, frame_id: str) -> CameraInfo:
    """CameraInfo of an ideal pinhole camera, principal point in the middle of the image."""
    f, cx, cy = spec.focal_px, spec.width_px / 2, spec.height_px / 2
    return CameraInfo(
        header=header(stamp_ns, frame_id),
        height=spec.height_px,
        width=spec.width_px,
        distortion_model="plumb_bob",
        d=[0.0] * 5,
        k=[f, 0.0, cx, 0.0, f, cy, 0.0, 0.0, 1.0],
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[f, 0.0, cx, 0.0, 0.0, f, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


def check_camera_info(message: CameraInfo, spec: CameraSpec) -> Check:
    """Whether a camera is the one a checkpoint was trained with: same size, focal length within 2 %."""
    if (message.width, message.height) != (spec.width_px, spec.height_px):
        expected, got = f"{spec.width_px}x{spec.height_px} pixels", f"{message.width}x{message.height}"
    elif not math.isclose(message.k[0], spec.focal_px, rel_tol=0.02):
        expected, got = f"focal length {spec.focal_px:.1f} px (hfov {spec.hfov_deg:g} deg)", f"{message.k[0]:.1f} px"
    else:
        return Check()
    return Check(False, f"camera_info: expected {expected} as the checkpoint's rig has, got {got}")


def yaw_from_quaternion(q: Quaternion) -> float:
    """Heading in radians, counter-clockwise positive.

    Raises:
        ConversionError: the quaternion is not of unit length (all zeros, as in an unset message, or not a number).
    """
    norm = math.sqrt(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w)
    if not abs(norm - 1.0) < 1e-2:
        raise ConversionError(f"pose.orientation: expected a unit quaternion, got one of length {norm:g}")
    return math.atan2(2.0 * (q.w * q.z + q.x * q.y), 1.0 - 2.0 * (q.y * q.y + q.z * q.z))


def quaternion_from_yaw(yaw_rad: float) -> Quaternion:
    """Unit quaternion of a heading."""
    return Quaternion(x=0.0, y=0.0, z=math.sin(yaw_rad / 2), w=math.cos(yaw_rad / 2))


def ego_from_msg(message: Odometry, base_frame: str = BASE_FRAME) -> EgoState:
    """Ego state of an Odometry; its twist is in the child frame (base_link), as REP-147 and nav_msgs say.

    Odometry holds no acceleration, so that is zero.

    Args:
        message: with the twist in its child frame.
        base_frame: what its child frame must be called, where it is named.

    Raises:
        ConversionError: another child frame, a value that is not finite, or an orientation that is no rotation.
    """
    _check_frame("odometry.child_frame_id", message.child_frame_id, base_frame)
    position, twist = message.pose.pose.position, message.twist.twist
    values = {
        "pose.pose.position.x": position.x, "pose.pose.position.y": position.y,
        "twist.twist.linear.x": twist.linear.x, "twist.twist.linear.y": twist.linear.y,
        "twist.twist.angular.z": twist.angular.z,
    }
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConversionError(f"odometry.{name}: expected a finite number, got {value}")
    return EgoState(
        velocity_mps=np.array([twist.linear.x, twist.linear.y]),
        yaw_rate_radps=twist.angular.z,
        map_from_base=Pose2D(position.x, position.y, yaw_from_quaternion(message.pose.pose.orientation)),
        stamp_ns=stamp_to_ns(message.header.stamp),
    )


def ego_to_msg(ego: EgoState, map_frame: str = MAP_FRAME, base_frame: str = BASE_FRAME) -> Odometry:
    """Odometry of an ego state; acceleration has no place in it."""
    message = Odometry(header=header(ego.stamp_ns, map_frame), child_frame_id=base_frame)
    message.pose.pose.position.x = float(ego.map_from_base.x_m)
    message.pose.pose.position.y = float(ego.map_from_base.y_m)
    message.pose.pose.orientation = quaternion_from_yaw(ego.map_from_base.yaw_rad)
    message.twist.twist.linear.x, message.twist.twist.linear.y = map(float, ego.velocity_mps)
    message.twist.twist.angular.z = float(ego.yaw_rate_radps)
    return message


def navigation_from_msg(message: NavigationMsg, base_frame: str = BASE_FRAME) -> Navigation:
    """Targets and command.

    Args:
        message: as `msg/Navigation.msg` describes it.
        base_frame: what the frame of the targets must be called, where it is named.

    Raises:
        ConversionError: another frame, an unknown command number, or a target that is not finite.
    """
    _check_frame("navigation.header.frame_id", message.header.frame_id, base_frame)
    if message.command not in _COMMANDS:
        raise ConversionError(f"navigation.command: expected one of {sorted(_COMMANDS)}, got {message.command}")
    try:
        return Navigation(_xy(message.targets), _COMMANDS[message.command])
    except ValueError as error:
        raise ConversionError(f"navigation.{error}") from None


def navigation_to_msg(navigation: Navigation, stamp_ns: int, frame_id: str = BASE_FRAME) -> NavigationMsg:
    """Navigation message for targets in base_link at `stamp_ns`.

    Raises:
        ConversionError: the command is None, for which there is no number.
    """
    if navigation.command is None:
        raise ConversionError("navigation.command: expected a command, got none")
    return NavigationMsg(
        header=header(stamp_ns, frame_id),
        targets=_waypoints(navigation.targets_m),
        command=_COMMAND_NUMBERS[navigation.command],
    )


def plan_from_msg(message: PlanMsg) -> Plan:
    """Plan of a message.

    Raises:
        ConversionError: waypoints without a spacing in time, or not finite.
    """
    try:
        waypoints = Waypoints(_xy(message.waypoints), message.dt_s) if message.waypoints else None
    except ValueError as error:
        raise ConversionError(f"plan.{error}") from None
    m = message
    return Plan(
        stamp_ns=stamp_to_ns(m.header.stamp),
        waypoints=waypoints,
        text=m.text,
        stats=DecodeStats(
            m.prefill_ms, m.decode_ms, m.forwards, m.steps, m.blocks, m.tokens, m.interventions, m.hurried_steps,
            m.overshoot_ms,
        ),
        check=Check(m.ok, m.message),
        source=m.source,
    )


def plan_to_msg(plan: Plan, frame_id: str = BASE_FRAME) -> PlanMsg:
    """Plan message, stamped with t0 of the observation the plan was made from."""
    return PlanMsg(
        header=header(plan.stamp_ns, frame_id),
        waypoints=[] if plan.waypoints is None else _waypoints(plan.waypoints.xy_m),
        dt_s=0.0 if plan.waypoints is None else float(plan.waypoints.dt_s),
        ok=plan.check.ok,
        message=plan.check.message,
        text=plan.text,
        source=plan.source,
        prefill_ms=float(plan.stats.prefill_ms),
        decode_ms=float(plan.stats.decode_ms),
        forwards=plan.stats.forwards,
        steps=plan.stats.steps,
        blocks=plan.stats.blocks,
        tokens=plan.stats.tokens,
        interventions=plan.stats.interventions,
        hurried_steps=plan.stats.hurried_steps,
        overshoot_ms=float(plan.stats.overshoot_ms),
    )


def path_to_msg(xy_m: np.ndarray, stamp_ns: int, frame_id: str, step_ns: int = 0) -> Path:
    """Path through (N, 2) points, each heading to the next; the last keeps the heading before it.

    Args:
        xy_m: (N, 2) metres in `frame_id`, x forward, y left.
        stamp_ns: stamp of the path.
        frame_id: frame of the points.
        step_ns: pose i is stamped `stamp_ns + (i + 1) * step_ns`; 0 when the points have no time.
    """
    xy_m = np.asarray(xy_m, dtype=np.float64).reshape(-1, 2)
    steps = np.diff(xy_m, axis=0) if len(xy_m) > 1 else xy_m
    yaw_rad = np.arctan2(steps[:, 1], steps[:, 0])
    path = Path(header=header(stamp_ns, frame_id))
    for i, (x, y) in enumerate(xy_m):
        pose = PoseStamped(header=header(stamp_ns + (i + 1) * step_ns if step_ns else stamp_ns, frame_id))
        pose.pose.position.x, pose.pose.position.y = float(x), float(y)
        pose.pose.orientation = quaternion_from_yaw(float(yaw_rad[min(i, len(yaw_rad) - 1)]))
        path.poses.append(pose)
    return path


def plan_path_to_msg(plan: Plan, frame_id: str = BASE_FRAME) -> Path:
    """The Path twin of a plan: empty when the plan must not be driven, since a Path cannot say so otherwise."""
    if plan.waypoints is None or not plan.check.ok:
        return Path(header=header(plan.stamp_ns, frame_id))
    return path_to_msg(plan.waypoints.xy_m, plan.stamp_ns, frame_id, step_ns=round(plan.waypoints.dt_s * 1e9))


def _check_frame(field: str, frame: str, base_frame: str) -> None:
    if frame and frame != base_frame:
        raise ConversionError(f"{field}: expected {base_frame}, or none, got {frame}")


def _xy(points: list[Waypoint]) -> np.ndarray:
    return np.array([(point.x_m, point.y_m) for point in points], dtype=np.float64).reshape(-1, 2)


def _waypoints(xy_m: np.ndarray) -> list[Waypoint]:
    return [Waypoint(x_m=float(x), y_m=float(y)) for x, y in xy_m]
