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


@dataclass(frozen=True)
class Polygons:
    """N convex polygons of V vertices in CARLA's world.

    Attributes:
        vertices_m: (N, V, 3). For billboards: offsets (right, up, 0) from the anchor, turned to the camera when drawn.
        colors: (N, 3) float, RGB 0..255, light included.
        normals: (N, 3) outward unit normals; zeros for polygons that are seen from both sides.
        anchors_m: (N, 3) points whose distance decides depth order and level of detail.
        radii_m: (N,) farthest vertex from the anchor.
        from_m, to_m: (N,) range of distances at which the polygon is drawn.
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
    """Collects polygons, then makes the arrays at once."""

    vertex_count: int
    _vertices: list[np.ndarray] = field(default_factory=list)
    _rows: list[tuple[float, ...]] = field(default_factory=list)

    def add(
        self,
        vertices_m: np.ndarray | Sequence[Sequence[float]],
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
            normal: outward normal; None draws both sides in full light.
            anchor_m: depth-order point; the middle of the polygon by default.
            lit: whether the sun shades the colour.
            from_m, to_m: range of distances at which it is drawn.
        """
        points = np.asarray(vertices_m, dtype=float)
        anchor = points.mean(0) if anchor_m is None else np.asarray(anchor_m, dtype=float)
        direction = np.zeros(3) if normal is None else np.asarray(normal, dtype=float)
        light = 0.60 + 0.42 * max(0.0, float(direction @ SUN)) if lit and normal is not None else 1.0
        reach = float(np.linalg.norm(points - anchor, axis=1).max())
        padded = np.concatenate([points, np.repeat(points[-1:], self.vertex_count - len(points), axis=0)])
        self._vertices.append(padded)
        self._rows.append(
            (*np.clip(np.asarray(color, dtype=float) * light, 0, 255), *direction, *anchor, reach, from_m, to_m)
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
        points = np.column_stack([np.asarray(offsets_m, dtype=float), np.zeros(len(offsets_m))])
        self.add(points, color, anchor_m=(0.0, 0.0, 0.0), to_m=to_m)
        self._rows[-1] = (*self._rows[-1][:6], *map(float, anchor_m), *self._rows[-1][9:])

    def build(self) -> Polygons:
        """All polygons added so far, in order."""
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 12)
        vertices = np.array(self._vertices, dtype=np.float64).reshape(-1, self.vertex_count, 3)
        return Polygons(vertices, rows[:, :3], rows[:, 3:6], rows[:, 6:9], rows[:, 9], rows[:, 10], rows[:, 11])


def concatenate(groups: Sequence[Polygons]) -> Polygons:
    """Join arrays of polygons with the same number of vertices."""
    return Polygons(*(np.concatenate([getattr(g, f.name) for g in groups]) for f in fields(Polygons)))
