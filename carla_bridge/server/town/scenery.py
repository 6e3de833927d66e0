"""Buildings, trees, lamp posts and hedges beside the roads of any town.

Everything is placed from the lanes' geometry and a generator seeded by the town's name, so every process that loads the
town sees and hits the same scenery. A raster of the occupied ground keeps scenery off lanes and apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import cv2
import numpy as np

from carla_bridge.server.geometry.polylines import length
from carla_bridge.server.geometry.scene import BoxKind, LaneStrip, Rgb, SignalKind, StaticBox
from carla_bridge.server.town.bridges import LowGround, outermost_lanes
from carla_bridge.server.town.road_signals import Post

FACADES: tuple[Rgb, ...] = (
    (196, 176, 150),
    (178, 120, 98),
    (206, 200, 188),
    (150, 140, 132),
    (188, 160, 112),
    (140, 108, 92),
    (172, 182, 188),
    (214, 190, 160),
    (126, 134, 142),
    (190, 148, 128),
    (158, 164, 140),
    (202, 170, 150),
)
POLE_CLEARANCE_M = 3.0
POLE_HALF_M = {SignalKind.TRAFFIC_LIGHT: 0.08, SignalKind.STOP: 0.035, SignalKind.YIELD: 0.035}
HEDGE: Rgb = (62, 98, 48)
LAMP: Rgb = (72, 76, 82)


class OccupancyRaster:
    """Ground that is taken, as a raster over the town's bounding box."""

    def __init__(self, lower_m: np.ndarray, upper_m: np.ndarray) -> None:
        """Cover a rectangle, CARLA x and y."""
        extent = float(np.max(upper_m - lower_m))
        self._cell_m = 0.5 if extent < 3000 else extent / 6000
        self._origin_m = lower_m
        width, height = np.ceil((upper_m - lower_m) / self._cell_m).astype(int) + 1
        self._taken = np.zeros((height, width), np.uint8)

    def _cells(self, polygon_m: np.ndarray) -> np.ndarray:
        return np.round((polygon_m - self._origin_m) / self._cell_m).astype(np.int32)

    def take(self, polygon_m: np.ndarray) -> None:
        """Mark a convex polygon (N, 2) as taken."""
        cv2.fillConvexPoly(self._taken, self._cells(polygon_m), 1)

    def is_free(self, polygon_m: np.ndarray) -> bool:
        """Whether no taken cell lies in a convex polygon (N, 2), and it lies inside the rectangle."""
        cells = self._cells(polygon_m)
        lower, upper = cells.min(0), cells.max(0) + 1
        if (lower < 0).any() or (upper > self._taken.shape[::-1]).any():
            return False
        window = np.zeros((upper - lower)[::-1], np.uint8)
        cv2.fillConvexPoly(window, cells - lower, 1)
        return not (window & self._taken[lower[1] : upper[1], lower[0] : upper[0]]).any()


def rectangle(x: float, y: float, yaw: float, extent_x: float, extent_y: float, margin: float = 0.0) -> np.ndarray:
    """(4, 2) corners of a rectangle with half sizes `extent + margin`; yaw in degrees, CARLA's world."""
    c, s = np.cos(np.deg2rad(yaw)), np.sin(np.deg2rad(yaw))
    corners = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * (extent_x + margin, extent_y + margin)
    return corners @ np.array([[c, s], [-s, c]]) + (x, y)


def _kerb_lines(lanes: Sequence[LaneStrip], ground: LowGround) -> list[np.ndarray]:
    """Right edges of the outermost lanes outside junctions: (N, 2), with free ground to their right; not on bridges."""
    pieces = []
    for lane in outermost_lanes(lanes):
        low = np.flatnonzero(~ground.raised(lane.right_m))
        runs = np.split(low, np.flatnonzero(np.diff(low) > 1) + 1)
        pieces += [lane.right_m[run, :2] for run in runs if len(run) > 1]
    return pieces


def _walk(line_m: np.ndarray, at_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (K, 2) and unit tangents (K, 2) at arc lengths `at_m` along a polyline."""
    steps = np.diff(line_m, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    arc = np.concatenate([[0.0], np.cumsum(lengths)])
    points = np.stack([np.interp(at_m, arc, line_m[:, k]) for k in (0, 1)], axis=1)
    index = np.clip(np.searchsorted(arc, at_m, side="right") - 1, 0, len(steps) - 1)
    return points, steps[index] / np.maximum(lengths[index], 1e-9)[:, None]


def build_scenery(
    name: str, lanes: Sequence[LaneStrip], poles_m: Sequence[tuple[float, float]] = ()
) -> tuple[StaticBox, ...]:
    """Scenery for a town.

    Args:
        name: seeds the generator.
        lanes: all surfaces that must stay free.
        poles_m: (x, y) of lights and signs, which no crown may cover.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    edges = np.concatenate([np.concatenate([lane.left_m, lane.right_m]) for lane in lanes])
    raster = OccupancyRaster(edges[:, :2].min(0) - 60.0, edges[:, :2].max(0) + 60.0)
    for lane in lanes:
        for i in range(len(lane.left_m) - 1):
            quad = np.stack([lane.left_m[i], lane.left_m[i + 1], lane.right_m[i + 1], lane.right_m[i]])[:, :2]
            raster.take(quad)
    for x, y in poles_m:
        raster.take(rectangle(x, y, 0.0, POLE_CLEARANCE_M, POLE_CLEARANCE_M))
    ground = LowGround(lanes)
    ground_z = _GroundHeight(lanes, ground)
    kerbs = _kerb_lines(lanes, ground)
    boxes: list[StaticBox] = []
    for kerb in kerbs:
        boxes += _lamps(kerb, raster, ground_z)
    for kerb in kerbs:
        boxes += _buildings(kerb, raster, ground_z, rng)
    for kerb in kerbs:
        boxes += _trees(kerb, raster, ground_z, rng)
    return tuple(boxes)


def pole_box(post: Post, kind: SignalKind) -> StaticBox:
    """The pole of a light or sign."""
    (x, y, foot_z), half_m = post.foot_m, POLE_HALF_M[kind]
    height_m = post.head_m[2] - foot_z
    return StaticBox(BoxKind.POLE, x, y, foot_z + height_m / 2, post.yaw_deg, half_m, half_m, height_m / 2, LAMP)


class _GroundHeight:
    """Height of the nearest lane point that is not on a bridge."""

    def __init__(self, lanes: Sequence[LaneStrip], ground: LowGround) -> None:
        points = np.concatenate([lane.right_m for lane in lanes])
        self._points = points[~ground.raised(points)]
        self._flat = ground.flat

    def __call__(self, x: float, y: float) -> float:
        if self._flat:
            return float(self._points[0, 2])
        return float(self._points[np.argmin(np.hypot(self._points[:, 0] - x, self._points[:, 1] - y)), 2])


def _lamps(kerb: np.ndarray, raster: OccupancyRaster, ground_z: _GroundHeight) -> list[StaticBox]:
    """A lamp post every 28 m, 0.5 m behind the kerb line, its arm over the road."""
    boxes = []
    for point, tangent in zip(*_walk(kerb, np.arange(10.0, length(kerb) - 6.0, 28.0)), strict=True):
        x, y = point + 0.5 * np.array([-tangent[1], tangent[0]])
        yaw = float(np.rad2deg(np.arctan2(tangent[1], tangent[0])))
        footprint = rectangle(x, y, yaw, 0.1, 0.1)
        if raster.is_free(footprint):
            raster.take(rectangle(x, y, yaw, 0.1, 0.1, margin=1.0))
            boxes.append(StaticBox(BoxKind.LAMP, x, y, ground_z(x, y) + 3.0, yaw, 0.09, 0.09, 3.0, LAMP))
    return boxes


def _buildings(
    kerb: np.ndarray, raster: OccupancyRaster, ground_z: _GroundHeight, rng: np.random.Generator
) -> list[StaticBox]:
    """Detached houses and blocks along a kerb, facing it, with gaps; about one plot in five stays green."""
    boxes = []
    along = float(rng.uniform(2.0, 8.0))
    total = length(kerb)
    while along < total:
        frontage, depth = float(rng.uniform(9.0, 20.0)), float(rng.uniform(8.0, 14.0))
        floors = int(rng.choice([1, 2, 2, 3, 3, 4, 5, 7], p=[0.12, 0.2, 0.16, 0.18, 0.12, 0.1, 0.08, 0.04]))
        setback = float(rng.uniform(3.5, 9.0))
        color = FACADES[int(rng.integers(len(FACADES)))]
        shade = float(rng.uniform(0.88, 1.08))
        green, gap = rng.random() < 0.2, float(rng.uniform(2.0, 10.0))
        (point,), (tangent,) = _walk(kerb, np.array([min(along + frontage / 2, total)]))
        x, y = point + (setback + depth / 2) * np.array([-tangent[1], tangent[0]])
        yaw = float(np.rad2deg(np.arctan2(tangent[1], tangent[0])))
        if not green and raster.is_free(rectangle(x, y, yaw, frontage / 2, depth / 2, margin=2.5)):
            raster.take(rectangle(x, y, yaw, frontage / 2, depth / 2, margin=1.0))
            height = 3.1 * floors + 0.6
            boxes.append(
                StaticBox(
                    BoxKind.BUILDING,
                    float(x),
                    float(y),
                    ground_z(x, y) + height / 2,
                    yaw,
                    frontage / 2,
                    depth / 2,
                    height / 2,
                    tuple(int(min(255, c * shade)) for c in color),
                    floors=floors,  # type: ignore[arg-type]
                )
            )
            along += frontage + gap
        else:
            along += 6.0
    return boxes


def _trees(
    kerb: np.ndarray, raster: OccupancyRaster, ground_z: _GroundHeight, rng: np.random.Generator
) -> list[StaticBox]:
    """Street trees behind the kerb and some in the gaps further back; hedges along green plots."""
    boxes = []
    for along in np.arange(4.0, length(kerb), 9.0):
        (point,), (tangent,) = _walk(kerb, np.array([along]))
        right = np.array([-tangent[1], tangent[0]])
        yaw = float(np.rad2deg(np.arctan2(tangent[1], tangent[0])))
        offset = float(rng.uniform(1.6, 2.4) if rng.random() < 0.6 else rng.uniform(6.0, 22.0))
        radius, trunk_m = float(rng.uniform(1.3, 2.6)), float(rng.uniform(1.8, 3.0))
        green = float(rng.uniform(0.8, 1.15))
        wanted, hedge = rng.random() < 0.75, rng.random() < 0.18
        x, y = point + offset * right
        if wanted and raster.is_free(rectangle(x, y, yaw, 0.2, 0.2, margin=0.8)):
            raster.take(rectangle(x, y, yaw, 0.2, 0.2, margin=2.0))
            color: Rgb = (int(66 * green), int(112 * green), int(50 * green))
            boxes.append(
                StaticBox(
                    BoxKind.TREE,
                    float(x),
                    float(y),
                    ground_z(x, y) + trunk_m / 2,
                    yaw,
                    0.16,
                    0.16,
                    trunk_m / 2,
                    color,
                    crown_radius=radius,
                )
            )
        x, y = point + 3.2 * right
        if hedge and raster.is_free(rectangle(x, y, yaw, 3.5, 0.4, margin=0.6)):
            raster.take(rectangle(x, y, yaw, 3.5, 0.4, margin=0.6))
            boxes.append(StaticBox(BoxKind.HEDGE, float(x), float(y), ground_z(x, y) + 0.5, yaw, 3.5, 0.4, 0.5, HEDGE))
    return boxes
