"""Oriented boxes: do two overlap, where, how to part them, and what impulse that takes.

Boxes stand upright (yaw only), so the test is a separating-axis test in the plane and an interval test in height.
Impulses act in the plane too. Nothing bounces: bodies crumple, and a collision only ever takes energy away.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

CONTACT_FRICTION = 0.3


class Box(NamedTuple):
    """Upright box: centre in metres, yaw in degrees clockwise, half sizes in metres."""

    x: float
    y: float
    z: float
    yaw: float
    extent_x: float
    extent_y: float
    extent_z: float

    @property
    def radius(self) -> float:
        """Radius of the circle around the footprint."""
        return math.hypot(self.extent_x, self.extent_y)

    def grown(self, by_m: float) -> Box:
        """The same box, wider on all four sides."""
        return self._replace(extent_x=self.extent_x + by_m, extent_y=self.extent_y + by_m)

    def corners(self) -> list[tuple[float, float]]:
        """Footprint, in the order of growing angle."""
        c, s = math.cos(math.radians(self.yaw)), math.sin(math.radians(self.yaw))
        return [
            (self.x + c * u - s * v, self.y + s * u + c * v)
            for u, v in (
                (self.extent_x, self.extent_y),
                (-self.extent_x, self.extent_y),
                (-self.extent_x, -self.extent_y),
                (self.extent_x, -self.extent_y),
            )
        ]


@dataclass(frozen=True, slots=True)
class Contact:
    """Overlap of two boxes: the shortest way to part them.

    Attributes:
        normal_x, normal_y: unit vector from the second box towards the first.
        depth_m: how far the first must move along it.
    """

    normal_x: float
    normal_y: float
    depth_m: float


def overlap(a: Box, b: Box) -> Contact | None:
    """Contact of two boxes, or None when they are apart (touching counts as apart)."""
    dx, dy = a.x - b.x, a.y - b.y
    reach = a.radius + b.radius
    if dx * dx + dy * dy >= reach * reach or abs(a.z - b.z) >= a.extent_z + b.extent_z:
        return None
    best: tuple[float, float, float] | None = None
    axes = [(math.cos(t), math.sin(t)) for t in (math.radians(a.yaw), math.radians(b.yaw))]
    (ca, sa), (cb, sb) = axes
    for ux, uy in (axes[0], (-sa, ca), axes[1], (-sb, cb)):
        along = dx * ux + dy * uy
        half_a = a.extent_x * abs(ca * ux + sa * uy) + a.extent_y * abs(ca * uy - sa * ux)
        half_b = b.extent_x * abs(cb * ux + sb * uy) + b.extent_y * abs(cb * uy - sb * ux)
        depth = half_a + half_b - abs(along)
        if depth <= 0:
            return None
        if best is None or depth < best[2]:
            best = (ux, uy, depth) if along >= 0 else (-ux, -uy, depth)
    assert best is not None
    return Contact(*best)


def touch_point(a: Box, b: Box) -> tuple[float, float]:
    """Middle of the common area of two overlapping footprints: where their impulse acts."""
    area = _clip(a.corners(), b)
    if len(area) < 3:
        return (a.x + b.x) / 2, (a.y + b.y) / 2
    x0, y0 = area[0]
    total = sum_x = sum_y = 0.0
    for (x1, y1), (x2, y2) in itertools.pairwise(area[1:]):
        twice = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
        total += twice
        sum_x += twice * (x0 + x1 + x2)
        sum_y += twice * (y0 + y1 + y2)
    if abs(total) < 1e-12:
        return x0, y0
    return sum_x / (3 * total), sum_y / (3 * total)


def _clip(polygon: list[tuple[float, float]], box: Box) -> list[tuple[float, float]]:
    """Part of a convex polygon that lies inside a box (Sutherland-Hodgman)."""
    c, s = math.cos(math.radians(box.yaw)), math.sin(math.radians(box.yaw))
    for ux, uy, extent in ((c, s, box.extent_x), (-c, -s, box.extent_x), (-s, c, box.extent_y), (s, -c, box.extent_y)):
        inside = [extent - ((x - box.x) * ux + (y - box.y) * uy) for x, y in polygon]
        kept: list[tuple[float, float]] = []
        for i, (x, y) in enumerate(polygon):
            before = inside[i - 1]
            if (inside[i] < 0) != (before < 0):
                share = before / (before - inside[i])
                px, py = polygon[i - 1]
                kept.append((px + share * (x - px), py + share * (y - py)))
            if inside[i] >= 0:
                kept.append((x, y))
        polygon = kept
    return polygon


class Body(NamedTuple):
    """A rigid body in the plane, seen from a point of contact.

    Attributes:
        vx, vy, rate: velocity of its centre in m/s, and clockwise yaw rate in rad/s.
        arm_x, arm_y: from its centre to the point of contact.
        inverse_mass, inverse_inertia: 1/kg and 1/(kg m^2); 0 for what cannot be moved or turned.
    """

    vx: float
    vy: float
    rate: float
    arm_x: float
    arm_y: float
    inverse_mass: float
    inverse_inertia: float

    def lever(self, ux: float, uy: float) -> float:
        """Torque about the centre of a unit force along a unit vector."""
        return self.arm_x * uy - self.arm_y * ux

    def softness(self, ux: float, uy: float) -> float:
        """Speed along a unit vector that the point gains per unit of impulse along it."""
        return self.inverse_mass + self.lever(ux, uy) ** 2 * self.inverse_inertia

    def point_speed(self, ux: float, uy: float) -> float:
        """Speed of the point along a unit vector."""
        return (self.vx - self.rate * self.arm_y) * ux + (self.vy + self.rate * self.arm_x) * uy


def contact_impulse(a: Body, b: Body, normal_x: float, normal_y: float) -> tuple[float, float]:
    """Impulse on `a` in N s (world axes) that stops two bodies from closing at the point of contact, with friction.

    Args:
        a, b: the bodies; not both immovable.
        normal_x, normal_y: unit vector from b towards a.

    Returns:
        (0, 0) when they part already.
    """
    closing = -(a.point_speed(normal_x, normal_y) - b.point_speed(normal_x, normal_y))
    if closing <= 0:
        return 0.0, 0.0
    push = closing / (a.softness(normal_x, normal_y) + b.softness(normal_x, normal_y))
    tx, ty = -normal_y, normal_x
    scraping = a.point_speed(tx, ty) - b.point_speed(tx, ty)
    for body in (a, b):  # the push turns the bodies, so the points scrape otherwise than before
        scraping += push * body.lever(normal_x, normal_y) * body.lever(tx, ty) * body.inverse_inertia
    drag = -scraping / (a.softness(tx, ty) + b.softness(tx, ty))
    drag = max(-CONTACT_FRICTION * push, min(CONTACT_FRICTION * push, drag))
    return push * normal_x + drag * tx, push * normal_y + drag * ty


def gaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far pairs of boxes are surely apart in the plane.

    Args:
        a, b: (N, 6): x, y, cos yaw, sin yaw, extent_x, extent_y.

    Returns:
        (N,) metres: the largest gap along the four face normals; negative where the boxes overlap.
    """
    d = a[:, 0:2] - b[:, 0:2]
    result = np.full(len(a), -np.inf)
    for own, other in ((a, b), (b, a)):
        c, s = own[:, 2], own[:, 3]
        along, across = c * d[:, 0] + s * d[:, 1], c * d[:, 1] - s * d[:, 0]
        cos = np.abs(c * other[:, 2] + s * other[:, 3])
        sin = np.abs(c * other[:, 3] - s * other[:, 2])
        reach_x = own[:, 4] + other[:, 4] * cos + other[:, 5] * sin
        reach_y = own[:, 5] + other[:, 4] * sin + other[:, 5] * cos
        np.maximum(result, np.abs(along) - reach_x, out=result)
        np.maximum(result, np.abs(across) - reach_y, out=result)
    return result
