"""Oriented boxes: do two overlap, how to part them, and what impulse that takes.

Boxes stand upright (yaw only), so the test is a separating-axis test in the plane and an interval test in height.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass(frozen=True)
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
    best: Contact | None = None
    axes = [(math.cos(t), math.sin(t)) for t in (math.radians(a.yaw), math.radians(b.yaw))]
    (ca, sa), (cb, sb) = axes
    for ux, uy in (axes[0], (-sa, ca), axes[1], (-sb, cb)):
        along = dx * ux + dy * uy
        half_a = a.extent_x * abs(ca * ux + sa * uy) + a.extent_y * abs(ca * uy - sa * ux)
        half_b = b.extent_x * abs(cb * ux + sb * uy) + b.extent_y * abs(cb * uy - sb * ux)
        depth = half_a + half_b - abs(along)
        if depth <= 0:
            return None
        if best is None or depth < best.depth_m:
            sign = 1.0 if along >= 0 else -1.0
            best = Contact(ux * sign, uy * sign, depth)
    return best


def normal_impulse(closing_mps: float, inverse_mass_a: float, inverse_mass_b: float, restitution: float = 0.0) -> float:
    """Impulse in N s along the contact normal that stops two bodies from closing.

    Args:
        closing_mps: speed at which they approach along the normal; not positive means they part, and gives 0.
        inverse_mass_a, inverse_mass_b: 1/kg; 0 for what cannot move. Not both 0.
        restitution: share of the closing speed that is returned.
    """
    if closing_mps <= 0:
        return 0.0
    return (1 + restitution) * closing_mps / (inverse_mass_a + inverse_mass_b)
