"""Arrays of coloured convex polygons: what the renderer paints.

All polygons of one array have the same number of vertices; shorter ones repeat their last vertex, which changes nothing
when they are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from carla_bridge.server.scene import Rgb

SUN = np.array([-0.45, -0.55, 0.70]) / np.linalg.norm([-0.45, -0.55, 0.70])  # towards the sun, CARLA's world
ALWAYS_M = 1.0e9
_NO_NORMAL = (0.0, 0.0, 0.0)
_MIDDLE = (np.nan, np.nan, np.nan)

Points = np.ndarray | Sequence[Sequence[float] | np.ndarray]


@dataclass(frozen=True)
class Polygons:
    """N convex polygons of V vertices in CARLA's world.

    Attributes:
        vertices_m: (N, V, 3). Billboards are laid out with x to the right and y up from the anchor; they are
            turned to the camera when drawn.
        colors: (N, 3) float, RGB 0..255, light included.
        normals: (N, 3) outward unit normals; zeros for polygons that are seen from both sides.
        anchors_m: (N, 3) points whose distance decides depth order and level of detail.
        radii_m: (N,) farthest vertex from the anchor.
        from_m, to_m: (N,) range of horizontal distances at which the polygon is drawn.
    """

    vertices_m: np.ndarray
    colors: np.ndarray
    normals: np.ndarray
    anchors_m: np.ndarray
    radii_m: np.ndarray
    from_m: np.ndarray
    to_m: np.ndarray

    def __len__(self) -> int:
        return len(self.vertices_m)

    def take(self, index: np.ndarray) -> Polygons:
        """The polygons at `index`, in that order."""
        return Polygons(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass
class PolygonBuilder:
    """Collects polygons; light, anchors and sizes are worked out for all of them at once."""

    vertex_count: int
    _points: list[Points] = field(default_factory=list)
    _rows: list[tuple[float, ...]] = field(default_factory=list)

    def add(
        self,
        vertices_m: Points,
        color: Rgb | np.ndarray,
        *,
        normal: Sequence[float] | np.ndarray | None = None,
        anchor_m: Sequence[float] | np.ndarray | None = None,
        lit: bool = True,
        from_m: float = 0.0,
        to_m: float = ALWAYS_M,
    ) -> None:
        """Add one polygon.

        Args:
            vertices_m: (n, 3), n at most `vertex_count`, convex, in order.
            color: RGB before light.
            normal: outward unit normal; None draws both sides in full light.
            anchor_m: depth-order point; the middle of the polygon by default.
            lit: whether the sun shades the colour.
            from_m, to_m: range of distances at which it is drawn.
        """
        self._points.append(vertices_m)
        self._rows.append(
            (
                *color,
                *(_NO_NORMAL if normal is None else normal),
                *(_MIDDLE if anchor_m is None else anchor_m),
                float(lit),
                from_m,
                to_m,
            )
        )

    def add_billboard(
        self,
        offsets_m: np.ndarray | Sequence[Sequence[float]],
        color: Rgb | np.ndarray,
        anchor_m: Sequence[float] | np.ndarray,
        *,
        to_m: float = ALWAYS_M,
    ) -> None:
        """Add a polygon that turns to the camera: (n, 2) offsets to the right of and above its anchor."""
        self.add(
            [(anchor_m[0] + x, anchor_m[1] + y, anchor_m[2]) for x, y in offsets_m], color, anchor_m=anchor_m, to_m=to_m
        )

    def build(self) -> Polygons:
        """All polygons added so far, in order."""
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 12)
        counts = np.array([len(points) for points in self._points], dtype=int)
        points = np.array([point for polygon in self._points for point in polygon], dtype=np.float64).reshape(-1, 3)
        first = np.cumsum(counts) - counts
        slots = np.minimum(np.arange(self.vertex_count), counts[:, None] - 1)
        vertices = points[first[:, None] + slots]
        normals, anchors = rows[:, 3:6], rows[:, 6:9]
        if len(counts):
            middles = np.add.reduceat(points, first) / counts[:, None]
            anchors = np.where(np.isnan(anchors), middles, anchors)
        colors = np.where(rows[:, 9:10] > 0, rows[:, :3] * sunlight(normals)[:, None], rows[:, :3])
        radii = np.linalg.norm(vertices - anchors[:, None], axis=2).max(axis=1, initial=0.0)
        return Polygons(vertices, np.clip(colors, 0, 255), normals, anchors, radii, rows[:, 10], rows[:, 11])


def sunlight(normals: np.ndarray) -> np.ndarray:
    """(N,) share of its colour that a face shows by its (N, 3) normal; faces without a normal show all of it."""
    return np.where(normals.any(axis=1), 0.60 + 0.42 * np.maximum(normals @ SUN, 0.0), 1.0)
