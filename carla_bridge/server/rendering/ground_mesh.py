"""Ground polygons of a town, in painting order: grass detail, shadows on it, sidewalks, asphalt, wear, marks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import Material, PolygonBuilder, Polygons
from carla_bridge.server.geometry.polylines import across, length, resample
from carla_bridge.server.geometry.scene import BoxKind, LaneStrip, MarkLine, Rgb, StaticBox
from carla_bridge.server.rendering.road_paint import road_paint
from carla_bridge.server.town.scenery import rectangle

ASPHALT: Rgb = (92, 93, 97)
JUNCTION: Rgb = (88, 89, 93)
SHOULDER: Rgb = (104, 103, 101)
SIDEWALK: Rgb = (172, 168, 160)
KERB: Rgb = (206, 202, 194)
WHITE: Rgb = (236, 236, 232)
YELLOW: Rgb = (232, 184, 54)
GRASS: Rgb = (104, 136, 66)
DASH_M, GAP_M = 3.0, 4.5
YIELD_DASH_M = 0.5
GAP_FILL_M = 0.35
LANE_COLORS = {
    "sidewalk": SIDEWALK,
    "shoulder": SHOULDER,
    "border": SHOULDER,
    "stop": SHOULDER,
    "biking": (120, 86, 78),
}
LOWEST_SUN = 0.15  # sine of the altitude; shadows of a lower sun grow no longer
MARK_RANGE_M, WEAR_RANGE_M, GRASS_RANGE_M = 130.0, 45.0, 55.0


def build_shadows(boxes: Sequence[StaticBox], sun_direction: np.ndarray) -> Polygons:
    """Shadows of scenery on the grass, for a sun above the horizon."""
    shadows = PolygonBuilder(4)
    cast = -sun_direction[:2] / max(float(sun_direction[2]), LOWEST_SUN)
    for box in boxes:
        _shadow(shadows, box, cast)
    return shadows.build()


def build_ground(
    name: str,
    lanes: Sequence[LaneStrip],
    marks: Sequence[MarkLine],
    crosswalks: Sequence[np.ndarray] = (),
    islands: Sequence[np.ndarray] = (),
) -> tuple[Polygons, Polygons]:
    """(detail of the grass, everything paved with what is painted on it); shadows belong between the two.

    Args:
        name: seeds the small variations.
        lanes, marks: of the town.
        crosswalks: (4, 3) corners each, the first side along the road.
        islands: (4, 3) corners each of further asphalt.
    """
    rng = np.random.default_rng(zlib.crc32(f"{name}/ground".encode()))
    soil, ground = PolygonBuilder(4, Label.TERRAIN), PolygonBuilder(4, Label.ROADS)
    _grass(soil, lanes, rng)
    if islands:
        for lane in lanes:
            if lane.in_junction and lane.kind == "driving":
                _surface(ground, _widened(lane, GAP_FILL_M), JUNCTION)  # where a gap is too narrow for an island
    ground.label = Label.SIDEWALKS
    for lane in lanes:
        if lane.kind == "sidewalk":
            _surface(ground, lane, SIDEWALK)
    for lane in lanes:
        if lane.kind == "sidewalk":
            # the traffic side of a sidewalk is its left edge, whichever way it is walked
            _line(ground, lane.left_m, 0.18, KERB, None, 70.0)
            _joints(ground, lane)
    ground.label = Label.ROADS
    for island in islands:
        ground.add(island, JUNCTION, material=Material.PAVED, to_m=260.0)
    for lane in lanes:
        if lane.kind != "sidewalk":
            _surface(ground, lane, JUNCTION if lane.in_junction else LANE_COLORS.get(lane.kind, ASPHALT))
    for lane in lanes:
        if lane.kind == "driving":
            _wear(ground, lane, rng)
    for mark in marks:
        color = KERB if mark.kind == "curb" else YELLOW if mark.color == "yellow" else WHITE
        dash = {"broken": (DASH_M, GAP_M), "yield_line": (YIELD_DASH_M, YIELD_DASH_M)}.get(mark.kind)
        _line(ground, mark.line_m, mark.width_m, color, dash, MARK_RANGE_M)
    for quad in road_paint(lanes, marks, crosswalks):
        ground.add(quad, WHITE, material=Material.PAINT, to_m=90.0)
    return soil.build(), ground.build()


def _surface(ground: PolygonBuilder, lane: LaneStrip, color: Rgb) -> None:
    for i in range(len(lane.left_m) - 1):
        ground.add(
            [lane.left_m[i], lane.left_m[i + 1], lane.right_m[i + 1], lane.right_m[i]],
            color,
            material=Material.PAVED,
            to_m=260.0,
        )


def _widened(lane: LaneStrip, by_m: float) -> LaneStrip:
    across = lane.right_m - lane.left_m
    across *= by_m / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-9)
    return replace(lane, left_m=lane.left_m - across, right_m=lane.right_m + across)


def _line(
    ground: PolygonBuilder,
    line_m: np.ndarray,
    width_m: float,
    color: Rgb,
    dash: tuple[float, float] | None,
    to_m: float,
) -> None:
    """A painted line along a polyline; `dash` has the lengths of dash and gap, None is solid."""
    if dash is not None:
        dash_m, gap_m = dash
        total = length(line_m)
        starts = np.arange(gap_m / 2, total - dash_m / 2, dash_m + gap_m)
        pieces = [resample(line_m, np.array([s, min(s + dash_m, total)])) for s in starts]
    else:
        pieces = [line_m]
    for piece in pieces:
        tangent = np.gradient(piece[:, :2], axis=0)
        tangent /= np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-9)
        side = np.zeros_like(piece)
        side[:, 0], side[:, 1] = -tangent[:, 1], tangent[:, 0]
        left, right = piece - side * width_m / 2, piece + side * width_m / 2
        for i in range(len(piece) - 1):
            ground.add([left[i], left[i + 1], right[i + 1], right[i]], color, material=Material.PAINT, to_m=to_m)


def _joints(ground: PolygonBuilder, lane: LaneStrip) -> None:
    """Slab joints of a sidewalk, 3 m apart."""
    total = min(length(lane.left_m), length(lane.right_m))
    scale = (length(lane.left_m) / total, length(lane.right_m) / total)
    for s in np.arange(1.5, total, 3.0):
        left = resample(lane.left_m, np.array([s, s + 0.06]) * scale[0])
        right = resample(lane.right_m, np.array([s, s + 0.06]) * scale[1])
        ground.add([left[0], left[1], right[1], right[0]], (146, 142, 134), material=Material.WEAR, to_m=30.0)


def _wear(ground: PolygonBuilder, lane: LaneStrip, rng: np.random.Generator) -> None:
    """Darker tyre tracks, repair patches and manholes, so that the eye sees the road move."""
    total = length((lane.left_m + lane.right_m) / 2)
    base = np.array(JUNCTION if lane.in_junction else ASPHALT, dtype=float)
    if not lane.in_junction:
        for start in np.arange(0.0, total, 12.0):
            for middle in (0.27, 0.73):
                end = min(start + 12.0, total)
                ground.add(
                    across(lane, start, end, middle - 0.07, middle + 0.07),
                    base * 0.94,
                    material=Material.WEAR,
                    to_m=WEAR_RANGE_M,
                )
    for start in np.arange(rng.uniform(0, 6), total - 2.0, 6.0 if not lane.in_junction else 9.0):
        at, span = start + rng.uniform(0, 3), rng.uniform(0.5, 3.0)
        inner = rng.uniform(0.05, 0.6)
        outer = min(inner + rng.uniform(0.12, 0.5), 0.95)
        if at + span < total and rng.random() < 0.7:
            ground.add(
                across(lane, at, at + span, inner, outer),
                base * rng.choice([0.86, 0.92, 1.07]),
                material=Material.WEAR,
                to_m=WEAR_RANGE_M,
            )
    if not lane.in_junction and total > 30.0:
        at = rng.uniform(8.0, total - 8.0)
        ground.add(across(lane, at, at + 0.7, 0.42, 0.62), (62, 60, 60), material=Material.WEAR, to_m=WEAR_RANGE_M)


def _grass(ground: PolygonBuilder, lanes: Sequence[LaneStrip], rng: np.random.Generator) -> None:
    """Lighter and darker patches on the grass beside the outer lanes."""
    for lane in lanes:
        if lane.kind != "sidewalk":
            continue
        for s in np.arange(0.0, length(lane.right_m), 3.0):
            a, b = resample(lane.right_m, np.array([s, s + 0.5]))
            along = (b - a) / max(float(np.linalg.norm(b - a)), 1e-9)
            right = np.array([-along[1], along[0], 0.0])
            x, y, z = a + right * (1.5 + 20.0 * rng.random() ** 2)
            corners = rectangle(x, y, float(rng.uniform(0, 180)), *rng.uniform(0.4, 2.2, 2))
            shade = rng.choice([0.86, 0.92, 1.08, 1.14])
            ground.add(
                np.column_stack([corners, np.full(4, z)]),
                np.array(GRASS) * shade * (1.0, 1.0, 0.92),
                material=Material.SOIL,
                to_m=GRASS_RANGE_M,
            )


def _shadow(ground: PolygonBuilder, box: StaticBox, cast: np.ndarray) -> None:
    """Shadow on the grass; cut to 5 m so that a wide shadow never has to be blended onto a road.

    `cast` is the (2,) metres by which a point 1 m up throws its shadow.
    """
    foot_z = box.z - box.extent_z
    color = np.array(GRASS) * 0.66
    if box.kind is BoxKind.TREE:
        radius = box.crown_radius
        centre = np.array([box.x, box.y]) + 0.4 * cast
        for yaw in (0.0, 45.0):
            corners = rectangle(*centre, yaw, 0.75 * radius, 0.75 * radius)
            ground.add(np.column_stack([corners, np.full(4, foot_z)]), color, material=Material.SHADOW, to_m=90.0)
    elif box.kind in (BoxKind.BUILDING, BoxKind.HEDGE):
        reach = min(2 * box.extent_z, 5.0, 7.0 / max(float(np.linalg.norm(cast)), 1e-6))
        corners = rectangle(box.x, box.y, box.yaw, box.extent_x, box.extent_y)
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            quad = np.array([a, b, b + reach * cast, a + reach * cast])
            ground.add(np.column_stack([quad, np.full(4, foot_z)]), color, material=Material.SHADOW, to_m=120.0)
