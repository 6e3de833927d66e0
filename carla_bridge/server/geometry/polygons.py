"""Arrays of coloured convex polygons: what the renderer paints.

All polygons of one array have the same number of vertices; shorter ones repeat their last vertex, which changes nothing
when they are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.scene import Rgb

ALWAYS_M = 1.0e9
_NO_NORMAL = (0.0, 0.0, 0.0)
_MIDDLE = (np.nan, np.nan, np.nan)

Points = np.ndarray | Sequence[Sequence[float] | np.ndarray]


class Material(IntEnum):
    """What light, lamps and water do to a polygon."""

    PLAIN = 0
    SOIL = 1  # grass: gets wet, mirrors nothing
    SHADOW = 2  # on grass; goes when the sun does
    PAVED = 3  # asphalt and stone: darkens and mirrors when wet
    WEAR = 4  # patches and joints on it: the same
    PAINT = 5  # on the road: mirrors, hardly darkens
    ROOM = 6  # a window with somebody at home: shines when street lamps burn
    STREET_LAMP = 7  # shines when street lamps burn
    LAMP = 8  # shines always, in its own colour


GROUND = (Material.SOIL, Material.SHADOW, Material.PAVED, Material.WEAR, Material.PAINT)


@dataclass(frozen=True)
class Polygons:
    """N convex polygons of V vertices in CARLA's world.

    Attributes:
        vertices_m: (N, V, 3). Billboards are laid out with x to the right and y up from the anchor; they are
            turned to the camera when drawn.
        colors: (N, 3) float, RGB 0..255, before light.
        normals: (N, 3) outward unit normals; zeros for polygons that are seen from both sides.
        anchors_m: (N, 3) points whose distance decides depth order and level of detail.
        radii_m: (N,) farthest vertex from the anchor.
        from_m, to_m: (N,) range of horizontal distances at which the polygon is drawn.
        materials: (N,) uint8, `Material`.
        labels: (N,) uint8, `Label`; NONE for what a camera for depth or labels does not see, such as a shadow.
    """

    vertices_m: np.ndarray
    colors: np.ndarray
    normals: np.ndarray
    anchors_m: np.ndarray
    radii_m: np.ndarray
    from_m: np.ndarray
    to_m: np.ndarray
    materials: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.vertices_m)

    def take(self, index: np.ndarray) -> Polygons:
        """The polygons at `index`, in that order."""
        return Polygons(*(getattr(self, name)[index] for name in _FIELDS))

    def for_culling(self) -> Polygons:
        """The same with single precision where it decides no more than what is drawn, and in which order."""
        names = ("anchors_m", "radii_m", "from_m", "to_m")
        return replace(self, **{name: getattr(self, name).astype(np.float32) for name in names})

    def facing_up(self) -> Polygons:
        """The same polygons of 4 vertices with their own normals, turned up: they are not seen from below."""
        normals = np.cross(self.vertices_m[:, 2] - self.vertices_m[:, 0], self.vertices_m[:, 3] - self.vertices_m[:, 1])
        length = np.linalg.norm(normals, axis=1, keepdims=True)
        normals = np.where(length > 1e-9, normals / np.maximum(length, 1e-9), 0.0)
        return replace(self, normals=np.where(normals[:, 2:] < 0.0, -normals, normals))

    @staticmethod
    def join(parts: Iterable[Polygons]) -> Polygons:
        """All polygons of all parts, which have the same number of vertices, in order."""
        parts = list(parts)
        return Polygons(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))


_FIELDS = tuple(f.name for f in fields(Polygons))


@dataclass
class PolygonBuilder:
    """Collects polygons; anchors and sizes are worked out for all of them at once.

    Attributes:
        vertex_count: of each polygon.
        label: of what is added next; paint on roads has its own.
    """

    vertex_count: int
    label: Label = Label.NONE
    _points: list[Points] = field(default_factory=list)
    _rows: list[tuple[float, ...]] = field(default_factory=list)

    def add(
        self,
        vertices_m: Points,
        color: Rgb | np.ndarray,
        *,
        normal: Sequence[float] | np.ndarray | None = None,
        anchor_m: Sequence[float] | np.ndarray | None = None,
        material: Material = Material.PLAIN,
        from_m: float = 0.0,
        to_m: float = ALWAYS_M,
    ) -> None:
        """Add one polygon.

        Args:
            vertices_m: (n, 3), n at most `vertex_count`, convex, in order.
            color: RGB before light.
            normal: outward unit normal; None draws both sides, in the light of level ground.
            anchor_m: depth-order point; the middle of the polygon by default.
            material: what light and water do to it.
            from_m, to_m: range of distances at which it is drawn.
        """
        self._points.append(vertices_m)
        self._rows.append(
            (
                *color,
                *(_NO_NORMAL if normal is None else normal),
                *(_MIDDLE if anchor_m is None else anchor_m),
                float(material),
                from_m,
                to_m,
                float(Label.ROAD_LINES if material is Material.PAINT and self.label is Label.ROADS else self.label),
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
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 13)
        counts = np.array([len(points) for points in self._points], dtype=int)
        points = np.array([point for polygon in self._points for point in polygon], dtype=np.float64).reshape(-1, 3)
        first = np.cumsum(counts) - counts
        slots = np.minimum(np.arange(self.vertex_count), counts[:, None] - 1)
        vertices = points[first[:, None] + slots]
        normals, anchors = rows[:, 3:6], rows[:, 6:9]
        if len(counts):
            middles = np.add.reduceat(points, first) / counts[:, None]
            anchors = np.where(np.isnan(anchors), middles, anchors)
        radii = np.linalg.norm(vertices - anchors[:, None], axis=2).max(axis=1, initial=0.0)
        return Polygons(
            vertices,
            np.clip(rows[:, :3], 0, 255),
            normals,
            anchors,
            radii,
            rows[:, 10],
            rows[:, 11],
            rows[:, 9].astype(np.uint8),
            rows[:, 12].astype(np.uint8),
        )


def place(meshes: Sequence[Polygons], poses: Sequence[tuple[tuple[float, float, float], np.ndarray]]) -> Polygons:
    """Meshes, given in axes of their own, put into the world.

    Args:
        meshes: as many as poses.
        poses: origin in the world, and (3, 3) axes: rows are the mesh's forward, right and up.
    """
    local = Polygons.join(meshes)
    counts = [len(mesh) for mesh in meshes]
    origins = np.repeat([origin for origin, _ in poses], counts, axis=0)
    axes = np.repeat([a for _, a in poses], counts, axis=0)
    return replace(
        local,
        vertices_m=local.vertices_m @ axes + origins[:, None],
        normals=np.einsum("ni,nij->nj", local.normals, axes),
        anchors_m=np.einsum("ni,nij->nj", local.anchors_m, axes) + origins,
    )
