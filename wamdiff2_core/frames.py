"""Frames: planar transforms, and the only place where handedness changes.

Core is REP-103 (x forward, y left, yaw counter-clockwise, radians). CARLA is left-handed (y right, yaw clockwise,
degrees), and the model text of some data sets has y to the right. Names read by cancelling: `map_from_base` applied to
a point in base gives a point in map.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.types import Pose2D


def wrap_angle(angle_rad: float) -> float:
    """Wrap an angle to [-pi, pi)."""
    return float((angle_rad + np.pi) % (2 * np.pi) - np.pi)


def wrap_angles(angles_rad: np.ndarray) -> np.ndarray:
    """Wrap angles of an array to [-pi, pi)."""
    wrapped: np.ndarray = (np.asarray(angles_rad) + np.pi) % (2 * np.pi) - np.pi
    return wrapped


def rotation(yaw_rad: float) -> np.ndarray:
    """(2, 2) rotation that turns child axes into parent axes for a child yawed by `yaw_rad`."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    return np.array([[c, -s], [s, c]])


def transform_points(parent_from_child: Pose2D, points_m: np.ndarray) -> np.ndarray:
    """Express (N, 2) child points in the parent frame."""
    turned: np.ndarray = np.asarray(points_m) @ rotation(parent_from_child.yaw_rad).T
    turned += parent_from_child.x_m, parent_from_child.y_m
    return turned


def compose(a_from_b: Pose2D, b_from_c: Pose2D) -> Pose2D:
    """`a_from_c` from `a_from_b` and `b_from_c`."""
    x, y = transform_points(a_from_b, np.array([[b_from_c.x_m, b_from_c.y_m]]))[0]
    return Pose2D(float(x), float(y), wrap_angle(a_from_b.yaw_rad + b_from_c.yaw_rad))


def inverse(a_from_b: Pose2D) -> Pose2D:
    """`b_from_a` from `a_from_b`."""
    x, y = -rotation(a_from_b.yaw_rad).T @ [a_from_b.x_m, a_from_b.y_m]
    return Pose2D(float(x), float(y), wrap_angle(-a_from_b.yaw_rad))


def flip_y(points_m: np.ndarray) -> np.ndarray:
    """Negate the second component of (..., 2 or 3) vectors: y left <-> y right. Its own inverse."""
    flipped = np.array(points_m, dtype=np.float64)
    flipped[..., 1] = 0.0 - flipped[..., 1]
    return flipped


def xy_from_carla(x_m: float, y_m: float) -> np.ndarray:
    """(2,) point or vector in REP-103 axes from the first two components of CARLA's."""
    return np.array([float(x_m), 0.0 - float(y_m)])


def xy_to_carla(x_m: float, y_m: float) -> tuple[float, float]:
    """The first two components in CARLA's axes of a point or vector given in REP-103 axes."""
    return float(x_m), 0.0 - float(y_m)


def yaw_from_carla(yaw_deg: float) -> float:
    """Yaw in radians, counter-clockwise and not wrapped, from CARLA's clockwise degrees."""
    return float(-np.deg2rad(yaw_deg))


def yaw_to_carla(yaw_rad: float) -> float:
    """CARLA's clockwise degrees, not wrapped, from a yaw in radians, counter-clockwise."""
    return float(-np.rad2deg(yaw_rad))


def pose_from_carla(x_m: float, y_m: float, yaw_deg: float) -> Pose2D:
    """REP-103 pose from CARLA's left-handed location and clockwise yaw in degrees."""
    return Pose2D(float(x_m), 0.0 - float(y_m), wrap_angle(yaw_from_carla(yaw_deg)))


def pose_to_carla(pose: Pose2D) -> tuple[float, float, float]:
    """CARLA `(x_m, y_m, yaw_deg)` from a REP-103 pose."""
    return pose.x_m, 0.0 - pose.y_m, yaw_to_carla(pose.yaw_rad)


def yaw_rate_from_carla(degps: float) -> float:
    """Yaw rate in rad/s, left positive, from CARLA's clockwise degrees per second."""
    return float(-np.deg2rad(degps))


def yaw_rate_to_carla(radps: float) -> float:
    """CARLA's clockwise degrees per second from a yaw rate in rad/s, left positive."""
    return float(-np.rad2deg(radps))


def rotation_to_carla(roll_deg: float, pitch_deg: float, yaw_deg: float) -> tuple[float, float, float]:
    """CARLA `(pitch_deg, yaw_deg, roll_deg)` of an orientation given as REP-103 roll, pitch, yaw in degrees.

    Mirroring y turns the senses of pitch and yaw about; roll keeps its own: the right side goes down in both.
    """
    return 0.0 - pitch_deg, 0.0 - yaw_deg, roll_deg


def steer_to_carla(left_share: float) -> float:
    """CARLA's steering, right positive, from a share of the full lock, left positive."""
    return 0.0 - left_share


def angular_velocity_from_carla(xyz_radps: np.ndarray) -> np.ndarray:
    """(3,) REP-103 rad/s from CARLA's left-handed axes; a rotation's axis mirrors opposite to a vector."""
    x, y, z = xyz_radps
    return np.array([0.0 - x, y, 0.0 - z], dtype=np.float64)


def yaw_from_compass(compass_rad: float) -> float:
    """Yaw in the map frame from CARLA's compass: 0 at north, which is +y of the map, growing clockwise."""
    return wrap_angle(np.pi / 2 - compass_rad)
