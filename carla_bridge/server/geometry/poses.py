"""Poses in CARLA's world: left-handed, x forward, y right, z up; degrees, yaw clockwise seen from above."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Pose:
    """`world_from_actor` (or `parent_from_child`): location in metres, rotation in degrees."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0

    def as_transform(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """((x, y, z), (pitch, yaw, roll)): field order of the wire."""
        return (self.x, self.y, self.z), (self.pitch, self.yaw, self.roll)

    @property
    def location(self) -> tuple[float, float, float]:
        """(x, y, z) in metres."""
        return self.x, self.y, self.z

    @property
    def level(self) -> bool:
        """True when there is neither pitch nor roll."""
        return self.pitch == 0.0 and self.roll == 0.0


def rotation_matrix(pose: Pose) -> np.ndarray:
    """(3, 3) matrix that takes child axes to parent axes, by Unreal's convention (pitch up and roll right positive)."""
    p, y, r = math.radians(pose.pitch), math.radians(pose.yaw), math.radians(pose.roll)
    cp, sp, cy, sy, cr, sr = math.cos(p), math.sin(p), math.cos(y), math.sin(y), math.cos(r), math.sin(r)
    return np.array(
        [
            [cp * cy, cy * sp * sr - sy * cr, -cy * sp * cr - sy * sr],
            [cp * sy, sy * sp * sr + cy * cr, -sy * sp * cr + cy * sr],
            [sp, -cp * sr, cp * cr],
        ]
    )


def compose(parent: Pose, child: Pose) -> Pose:
    """World pose of a child given in its parent's frame."""
    if parent.level:  # the usual case: vehicles on a flat world; exact, and without matrices
        c, s = math.cos(math.radians(parent.yaw)), math.sin(math.radians(parent.yaw))
        return Pose(
            parent.x + c * child.x - s * child.y,
            parent.y + s * child.x + c * child.y,
            parent.z + child.z,
            child.pitch,
            wrap_degrees(parent.yaw + child.yaw),
            child.roll,
        )
    parent_matrix = rotation_matrix(parent)
    x, y, z = parent_matrix @ child.location + parent.location
    m = parent_matrix @ rotation_matrix(child)
    pitch = math.degrees(math.asin(max(-1.0, min(1.0, m[2, 0]))))
    yaw = math.degrees(math.atan2(m[1, 0], m[0, 0]))
    roll = math.degrees(math.atan2(-m[2, 1], m[2, 2]))
    return Pose(float(x), float(y), float(z), pitch, yaw, roll)


def wrap_degrees(angle: float) -> float:
    """Wrap an angle to [-180, 180)."""
    return (angle + 180.0) % 360.0 - 180.0
