"""Building blocks of things that move: prisms, boxes, wheels, lamps; in the thing's own axes.

x is forward, y right, z up from the foot. All polygons of a part share one anchor, so that they keep the order in which
they were added; parts that hide each other from one side or the other get anchors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import ALWAYS_M, Material, PolygonBuilder, Polygons
from carla_bridge.server.geometry.scene import Rgb

Color = Rgb | np.ndarray
ACTOR_RANGE_M = 250.0
TYRE: Rgb = (28, 28, 30)
RIM: Rgb = (128, 130, 134)
SHADOW: Rgb = (54, 55, 58)
VERTICES = 8


class Shape:
    """Collects the polygons of one thing.

    Args:
        ex, ey, ez: half sizes, metres.
    """

    def __init__(self, ex: float, ey: float, ez: float) -> None:
        self.ex, self.ey, self.height = ex, ey, 2 * ez
        self.anchor = (0.0, 0.0, ez)
        self._builder = PolygonBuilder(VERTICES, Label.STATIC)

    def label(self, label: Label) -> None:
        """What the polygons are that are added next."""
        self._builder.label = label

    def build(self) -> Polygons:
        """Everything added so far."""
        return self._builder.build()

    def face(
        self,
        points: Sequence[tuple[float, float, float]],
        color: Color,
        normal: Sequence[float] | None,
        to_m: float = ACTOR_RANGE_M,
        material: Material = Material.PLAIN,
    ) -> None:
        """One convex polygon of at most 8 points; None for a normal draws both sides."""
        if normal is not None:
            normal = np.asarray(normal, dtype=float) / np.linalg.norm(normal)
        self._builder.add(points, color, normal=normal, anchor_m=self.anchor, material=material, to_m=to_m)

    def ground_shadow(self, ex: float, ey: float) -> None:
        """A dark patch on the ground; it comes before everything else."""
        ex, ey = ex + 0.12, ey + 0.18
        cut = min(0.3, ex / 2, ey / 2)
        corners = [
            *((ex, ey - cut), (ex - cut, ey), (cut - ex, ey), (-ex, ey - cut)),
            *((-ex, cut - ey), (cut - ex, -ey), (ex - cut, -ey), (ex, cut - ey)),
        ]
        self.label(Label.NONE)
        self.face([(x, y, 0.01) for x, y in corners], SHADOW, None, material=Material.PAVED)
        self.label(Label.STATIC)

    def prism(
        self,
        profile: Sequence[tuple[float, float]],
        y0: float,
        y1: float,
        color: Color,
        *,
        taper: float = 1.0,
        top_z: float = np.inf,
        to_m: float = ACTOR_RANGE_M,
        material: Material = Material.PLAIN,
    ) -> None:
        """A convex side profile (x, z) drawn out from y0 to y1; points at or above `top_z` narrow by `taper`."""
        middle_y, half = (y0 + y1) / 2, (y1 - y0) / 2

        def y(side: float, z: float) -> float:
            return middle_y + side * half * (taper if z >= top_z else 1.0)

        centre = np.mean(profile, axis=0)
        for side in (-1.0, 1.0):
            self.face([(x, y(side, z), z) for x, z in profile], color, (0.0, side, 0.0), to_m, material)
        for (x0, z0), (x1, z1) in zip(profile, [*profile[1:], profile[0]], strict=True):
            edge = np.array([x1 - x0, z1 - z0])
            if not edge.any():
                continue
            normal = np.array([edge[1], -edge[0]])
            if normal @ (np.array([(x0 + x1) / 2, (z0 + z1) / 2]) - centre) < 0:
                normal = -normal
            corners = [(x0, y(-1, z0), z0), (x0, y(1, z0), z0), (x1, y(1, z1), z1), (x1, y(-1, z1), z1)]
            self.face(corners, color, (normal[0], 0.0, normal[1]), to_m, material)

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        color: Color,
        to_m: float = ACTOR_RANGE_M,
        material: Material = Material.PLAIN,
    ) -> None:
        """An upright box between two corners."""
        (x0, x1), (z0, z1) = x, z
        self.prism([(x0, z0), (x1, z0), (x1, z1), (x0, z1)], *y, color, to_m=to_m, material=material)

    def side_panel(
        self,
        x: tuple[float, float],
        z: tuple[float, float],
        y: float,
        color: Color,
        to_m: float = ACTOR_RANGE_M,
    ) -> None:
        """A rectangle on both flanks, at +y and -y."""
        (x0, x1), (z0, z1) = x, z
        for side in (-1.0, 1.0):
            corners = [(x0, side * y, z0), (x1, side * y, z0), (x1, side * y, z1), (x0, side * y, z1)]
            self.face(corners, color, (0.0, side, 0.0), to_m)

    def end_panel(
        self,
        x: float,
        y: tuple[float, float],
        z: tuple[float, float],
        color: Color,
        to_m: float = ACTOR_RANGE_M,
        material: Material = Material.PLAIN,
    ) -> None:
        """A rectangle across the front (x > 0) or rear."""
        (y0, y1), (z0, z1) = y, z
        corners = [(x, y0, z0), (x, y1, z0), (x, y1, z1), (x, y0, z1)]
        self.face(corners, color, (np.sign(x), 0.0, 0.05), to_m, material)

    def wheel(self, x: float, y: float, radius: float, side: float) -> None:
        """A wheel on a flank: side -1 or 1."""
        angles = np.arange(8) * np.pi / 4 + np.pi / 8
        for scale, color, lift, to_m in ((1.0, TYRE, 0.0, 150.0), (0.6, RIM, 0.006, 45.0)):
            ring = [
                (x + scale * radius * np.cos(a), y + side * lift, radius + scale * radius * np.sin(a)) for a in angles
            ]
            self.face(ring, color, (0.0, side, 0.0), to_m)

    def hoop(self, x: float, y: float, radius: float, color: Color = TYRE, to_m: float = ALWAYS_M) -> None:
        """A thin wheel, seen from both sides."""
        angles = np.arange(8) * np.pi / 4
        ring = [(x + radius * np.cos(a), y, radius + radius * np.sin(a)) for a in angles]
        self.face(ring, color, None, min(to_m, 120.0))

    def disc(
        self,
        x: float,
        y: float,
        z: float,
        radius: float,
        color: Color,
        *,
        forward: float,
        material: Material = Material.LAMP,
    ) -> None:
        """A disc that faces forward (1) or back (-1), shining by default."""
        angles = np.arange(8) * np.pi / 4 + np.pi / 8
        ring = [(x, y + radius * np.cos(a), z + radius * np.sin(a)) for a in angles]
        self.face(ring, color, (forward, 0.0, 0.0), material=material)
