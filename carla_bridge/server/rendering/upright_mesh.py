"""Polygons of things that stand: buildings with windows and roofs, hedges, trees and lamps.

Facades are cut into panels, so that ordering by the distance of each panel's middle is a sound depth order between a
long wall and a tree in front of it. Trees and posts are billboards: they turn to the camera.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from carla_bridge.server.geometry.labels import SCENERY
from carla_bridge.server.geometry.polygons import Material, PolygonBuilder, Polygons
from carla_bridge.server.geometry.scene import BoxKind, Rgb, StaticBox

PANEL_M = 6.0
FLOOR_M = 3.1
WINDOW_RANGE_M, BAND_RANGE_M = 75.0, 170.0
LIT_SHARE = 0.3  # of the windows, at night
GLASS: tuple[Rgb, ...] = ((74, 92, 110), (88, 106, 122), (60, 74, 92), (104, 120, 130), (196, 186, 140))
ROOFS: tuple[Rgb, ...] = ((150, 82, 62), (120, 66, 54), (96, 96, 102), (134, 112, 92), (84, 78, 80))


def build_uprights(name: str, boxes: Sequence[StaticBox]) -> tuple[Polygons, Polygons]:
    """(solid polygons, billboards) of all scenery; `name` seeds the small variations."""
    rng = np.random.default_rng(zlib.crc32(f"{name}/uprights".encode()))
    solid, billboards = PolygonBuilder(4), PolygonBuilder(8)
    for box in boxes:
        solid.label = billboards.label = SCENERY[box.kind]
        if box.kind is BoxKind.BUILDING:
            _building(solid, box, rng)
        elif box.kind is BoxKind.TREE:
            _tree(billboards, box, rng)
        elif box.kind is BoxKind.LAMP:
            _lamp(solid, billboards, box)
        elif box.kind is BoxKind.HEDGE:
            _hedge(solid, box, rng)
    return solid.build(), billboards.build()


class _Local:
    """A box's own frame: x along the road, y away from it, z up from its foot."""

    def __init__(self, box: StaticBox) -> None:
        c, s = np.cos(np.deg2rad(box.yaw)), np.sin(np.deg2rad(box.yaw))
        self._axes = np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
        self._foot = np.array([box.x, box.y, box.z - box.extent_z])

    def point(self, points: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
        return np.asarray(points, dtype=float) @ self._axes + self._foot

    def vector(self, v: Sequence[float]) -> np.ndarray:
        return np.asarray(v, dtype=float) @ self._axes


def _walls(box: StaticBox) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """(corner, direction, outward normal, width) of the four walls, local frame; the first faces the road."""
    ex, ey = box.extent_x, box.extent_y
    return [
        (np.array([-ex, -ey]), np.array([1.0, 0.0]), np.array([0.0, -1.0, 0.0]), 2 * ex),
        (np.array([ex, -ey]), np.array([0.0, 1.0]), np.array([1.0, 0.0, 0.0]), 2 * ey),
        (np.array([ex, ey]), np.array([-1.0, 0.0]), np.array([0.0, 1.0, 0.0]), 2 * ex),
        (np.array([-ex, ey]), np.array([0.0, -1.0]), np.array([-1.0, 0.0, 0.0]), 2 * ey),
    ]


def _rectangle(
    corner: np.ndarray,
    along: np.ndarray,
    normal: np.ndarray,
    x0: float,
    x1: float,
    z0: float,
    z1: float,
    lift: float = 0.0,
) -> np.ndarray:
    """(4, 3) upright rectangle on a wall, local frame; `lift` metres in front of it."""
    a, b = corner + along * x0 + normal[:2] * lift, corner + along * x1 + normal[:2] * lift
    return np.array([[*a, z0], [*b, z0], [*b, z1], [*a, z1]])


def _building(solid: PolygonBuilder, box: StaticBox, rng: np.random.Generator) -> None:
    local = _Local(box)
    height = 2 * box.extent_z
    pitched = box.floors <= 2
    eave = height - 0.4 if pitched else height
    roof = ROOFS[int(rng.integers(len(ROOFS)))]
    ridge = eave + min(box.extent_y, 5.0) * rng.uniform(0.45, 0.7)
    base = np.array(box.color_rgb, dtype=float)
    window_w, window_h = rng.uniform(1.0, 1.7), rng.uniform(1.2, 1.7)
    for side, (corner, along, normal, width) in enumerate(_walls(box)):
        panels = max(1, round(width / PANEL_M))
        step = width / panels
        out = local.vector(normal)
        for p in range(panels):
            x0, x1 = p * step, (p + 1) * step
            wall = local.point(_rectangle(corner, along, normal, x0, x1, 0.0, eave))
            anchor = wall.mean(0)
            solid.add(wall, base, normal=out, anchor_m=anchor, to_m=320.0)
            plinth = local.point(_rectangle(corner, along, normal, x0, x1, 0.0, 0.5, 0.02))
            solid.add(plinth, base * 0.72, normal=out, anchor_m=anchor, to_m=70.0)
            _windows(
                solid,
                local,
                (corner, along, normal),
                (x0, x1),
                box.floors,
                window_w,
                window_h,
                out,
                anchor,
                rng,
                door=side == 0 and p == panels // 2,
            )
            if pitched and side in (0, 2):
                _roof_panel(solid, local, box, (corner, along, normal), (x0, x1), eave, ridge, roof, anchor)
            elif not pitched:
                cornice = local.point(_rectangle(corner, along, normal, x0, x1, eave - 0.45, eave, 0.12))
                solid.add(cornice, base * 0.82, normal=out, anchor_m=anchor, to_m=140.0)
        if pitched and side in (1, 3):
            a, b = corner, corner + along * width
            middle = (a + b) / 2
            gable = local.point([[*a, eave], [*b, eave], [*middle, ridge]])
            low = local.point([[*a, eave / 2], [*b, eave / 2]]).mean(0)
            solid.add(gable, base, normal=out, anchor_m=low, to_m=320.0)
    if not pitched:
        ex, ey = box.extent_x, box.extent_y
        top = local.point([[-ex, -ey, height], [ex, -ey, height], [ex, ey, height], [-ex, ey, height]])
        solid.add(top, np.array(roof) * 0.4 + 90.0, normal=(0, 0, 1), to_m=320.0)


def _roof_panel(
    solid: PolygonBuilder,
    local: _Local,
    box: StaticBox,
    wall: tuple[np.ndarray, np.ndarray, np.ndarray],
    span: tuple[float, float],
    eave: float,
    ridge: float,
    color: Rgb,
    anchor: np.ndarray,
) -> None:
    corner, along, normal = wall
    overhang = 0.35
    low0, low1 = corner + along * span[0] + normal[:2] * overhang, corner + along * span[1] + normal[:2] * overhang
    high0, high1 = (corner + along * s - normal[:2] * box.extent_y for s in span)
    slope = local.vector([*(normal[:2] * (ridge - eave)), box.extent_y])
    quad = local.point([[*low0, eave - 0.15], [*low1, eave - 0.15], [*high1, ridge], [*high0, ridge]])
    solid.add(quad, color, normal=slope / np.linalg.norm(slope), anchor_m=anchor, to_m=320.0)


def _windows(
    solid: PolygonBuilder,
    local: _Local,
    wall: tuple[np.ndarray, np.ndarray, np.ndarray],
    span: tuple[float, float],
    floors: int,
    window_w: float,
    window_h: float,
    out: np.ndarray,
    anchor: np.ndarray,
    rng: np.random.Generator,
    *,
    door: bool,
) -> None:
    """Single windows near by; one band per floor farther off."""
    corner, along, normal = wall
    x0, x1 = span
    # who is at home draws from a generator of its own: the town by day does not depend on it
    homes = np.random.default_rng(zlib.crc32(np.round(anchor, 2).tobytes()))
    columns = max(1, int((x1 - x0) / (window_w + 1.1)))
    pitch = (x1 - x0) / columns
    for floor in range(floors):
        z0 = floor * FLOOR_M + 1.0
        band = _rectangle(corner, along, normal, x0 + 0.2 * pitch, x1 - 0.2 * pitch, z0 + 0.1, z0 + window_h, 0.03)
        glass = np.array(GLASS[0], dtype=float) + 26.0
        solid.add(
            local.point(band),
            glass,
            normal=out,
            anchor_m=anchor,
            material=Material.ROOM if homes.random() < LIT_SHARE / 2 else Material.PLAIN,
            from_m=WINDOW_RANGE_M,
            to_m=BAND_RANGE_M,
        )
        for column in range(columns):
            middle = x0 + (column + 0.5) * pitch
            color = GLASS[int(rng.choice(5, p=[0.34, 0.26, 0.22, 0.14, 0.04]))]
            is_door = door and floor == 0 and column == columns // 2
            lit = homes.random() < LIT_SHARE and not is_door
            if is_door:
                shape = _rectangle(corner, along, normal, middle - 0.55, middle + 0.55, 0.0, 2.2, 0.04)
                color = (96, 62, 44)
            else:
                frame = _rectangle(
                    corner,
                    along,
                    normal,
                    middle - window_w / 2 - 0.09,
                    middle + window_w / 2 + 0.09,
                    z0 - 0.09,
                    z0 + window_h + 0.09,
                    0.03,
                )
                solid.add(local.point(frame), (214, 210, 202), normal=out, anchor_m=anchor, to_m=32.0)
                shape = _rectangle(
                    corner, along, normal, middle - window_w / 2, middle + window_w / 2, z0, z0 + window_h, 0.04
                )
            solid.add(
                local.point(shape),
                color,
                normal=out,
                anchor_m=anchor,
                material=Material.ROOM if lit else Material.PLAIN,
                to_m=WINDOW_RANGE_M,
            )


def _hedge(solid: PolygonBuilder, box: StaticBox, rng: np.random.Generator) -> None:
    local = _Local(box)
    base = np.array(box.color_rgb, dtype=float) * rng.uniform(0.9, 1.15)
    height = 2 * box.extent_z
    for corner, along, normal, width in _walls(box):
        wall = _rectangle(corner, along, normal, 0.0, width, 0.0, height)
        solid.add(local.point(wall), base, normal=local.vector(normal), to_m=130.0)
    ex, ey = box.extent_x, box.extent_y
    top = local.point([[-ex, -ey, height], [ex, -ey, height], [ex, ey, height], [-ex, ey, height]])
    solid.add(top, base * 1.15, normal=(0, 0, 1), to_m=130.0)


def _blob(radius_x: float, radius_y: float, centre: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """(8, 2) convex blob as billboard offsets (right, up)."""
    angles = (np.arange(8) + rng.uniform(-0.2, 0.2, 8)) * np.pi / 4
    return np.column_stack([centre[0] + radius_x * np.cos(angles), centre[1] + radius_y * np.sin(angles)])


def _tree(billboards: PolygonBuilder, box: StaticBox, rng: np.random.Generator) -> None:
    """Trunk and a crown of overlapping blobs, darker below and lighter towards the sun."""
    anchor = np.array([box.x, box.y, box.z - box.extent_z])
    trunk_m, radius = 2 * box.extent_z, box.crown_radius
    trunk = [[-0.16, 0], [0.16, 0], [0.12, trunk_m + 0.4], [-0.12, trunk_m + 0.4]]
    billboards.add_billboard(trunk, (94, 74, 56), anchor, to_m=200.0)
    color = np.array(box.color_rgb, dtype=float)
    middle = trunk_m + radius * 0.75
    tall = rng.uniform(0.9, 1.25)
    blobs = [(1.0, 0.95 * tall, 0.0, 0.0, 0.74, 250.0)]
    for _ in range(3):
        x, y = rng.uniform(-0.45, 0.45), rng.uniform(-0.3, 0.45)
        blobs.append((rng.uniform(0.5, 0.7), rng.uniform(0.45, 0.65) * tall, x, y, rng.uniform(0.84, 0.98), 110.0))
    blobs.append((0.5, 0.42 * tall, rng.uniform(-0.35, 0.0), 0.42 * tall, 1.16, 160.0))
    blobs.append((0.3, 0.25 * tall, rng.uniform(-0.2, 0.3), rng.uniform(-0.2, 0.3), 1.06, 60.0))
    for rx, ry, x, y, shade, to_m in blobs:
        shape = _blob(rx * radius, ry * radius, (x * radius, middle + y * radius), rng)
        billboards.add_billboard(shape, color * shade, anchor, to_m=to_m)


def _lamp(solid: PolygonBuilder, billboards: PolygonBuilder, box: StaticBox) -> None:
    """Post, arm towards the road and lamp head."""
    local = _Local(box)
    top = 2 * box.extent_z
    anchor = local.point([[0, 0, 0]])[0]
    post = [[-0.08, 0], [0.08, 0], [0.055, top], [-0.055, top]]
    billboards.add_billboard(post, box.color_rgb, anchor, to_m=140.0)
    arm = local.point([[0, 0, top - 0.1], [0, -1.9, top + 0.15], [0, -1.9, top + 0.25], [0, 0, top]])
    solid.add(arm, box.color_rgb, anchor_m=anchor, to_m=80.0)
    head = local.point(
        [[-0.14, -1.6, top + 0.12], [0.14, -1.6, top + 0.12], [0.14, -2.3, top + 0.2], [-0.14, -2.3, top + 0.2]]
    )
    solid.add(head, (232, 228, 206), anchor_m=anchor, material=Material.STREET_LAMP, to_m=160.0)
