"""Polygons of moving things: cars with cabin, glass, wheels and lights; walkers; plain boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from carla_bridge.server.polygons import PolygonBuilder, Polygons, sunlight
from carla_bridge.server.scene import RenderActor, Rgb

GLASS: Rgb = (46, 58, 70)
TYRE: Rgb = (28, 28, 30)
RIM: Rgb = (128, 130, 134)
HEADLIGHT: Rgb = (244, 242, 224)
TAILLIGHT: Rgb = (196, 30, 26)
SHADOW: Rgb = (54, 55, 58)
SKIN: Rgb = (206, 160, 130)
ACTOR_RANGE_M = 250.0


def carla_axes(pitch: float, yaw: float, roll: float) -> np.ndarray:
    """(3, 3): rows are the forward, right and up vectors of a `carla.Rotation`, degrees."""
    cp, sp = np.cos(np.deg2rad(pitch)), np.sin(np.deg2rad(pitch))
    cy, sy = np.cos(np.deg2rad(yaw)), np.sin(np.deg2rad(yaw))
    cr, sr = np.cos(np.deg2rad(roll)), np.sin(np.deg2rad(roll))
    return np.array(
        [
            [cp * cy, cp * sy, sp],
            [cy * sp * sr - sy * cr, sy * sp * sr + cy * cr, -cp * sr],
            [-cy * sp * cr - sy * sr, -sy * sp * cr + cy * sr, cp * cr],
        ]
    )


def actor_polygons(actor: RenderActor) -> Polygons:
    """Polygons of one actor in CARLA's world, all anchored at its middle; the first one is its shadow on the ground."""
    kind = actor.kind if actor.kind in _SHAPES else "box"
    local = _local_polygons(kind, actor.extent_x, actor.extent_y, actor.extent_z, actor.color_rgb)
    axes = carla_axes(actor.pitch, actor.yaw, actor.roll)
    origin = np.array([actor.x, actor.y, actor.z])
    normals = local.normals @ axes
    return Polygons(
        local.vertices_m @ axes + origin,
        local.colors * sunlight(normals)[:, None],
        normals,
        np.broadcast_to(origin + axes[2] * actor.extent_z, (len(local), 3)),
        local.radii_m,
        local.from_m,
        local.to_m,
    )


@lru_cache(maxsize=256)
def _local_polygons(kind: str, ex: float, ey: float, ez: float, color: Rgb) -> Polygons:
    builder = PolygonBuilder(8)
    _SHAPES[kind](builder, ex, ey, ez, np.array(color, dtype=float))
    return builder.build()


def _ground_shadow(builder: PolygonBuilder, ex: float, ey: float) -> None:
    ex, ey = ex + 0.12, ey + 0.18
    cut = 0.3
    corners = [
        (ex, ey - cut),
        (ex - cut, ey),
        (cut - ex, ey),
        (-ex, ey - cut),
        (-ex, cut - ey),
        (cut - ex, -ey),
        (ex - cut, -ey),
        (ex, cut - ey),
    ]
    builder.add([(x, y, 0.01) for x, y in corners], SHADOW, anchor_m=(0, 0, 0), to_m=ACTOR_RANGE_M)


def _prism(
    builder: PolygonBuilder,
    profile: Sequence[tuple[float, float]],
    y_low: float,
    y_high: float,
    color: np.ndarray,
    *,
    taper: float = 1.0,
    top_z: float = 0.0,
) -> None:
    """A convex side profile (x, z), counter-clockwise seen from the right, drawn out from -y to +y.

    `taper` narrows points at or above `top_z`, as a cabin narrows towards its roof.
    """

    def width(z: float) -> float:
        return y_high * taper if top_z and z >= top_z else y_low

    centre = np.array([*np.mean(profile, axis=0)])
    for side in (-1.0, 1.0):
        face = [(x, side * width(z), z) for x, z in profile]
        builder.add(face, color, normal=(0.0, side, 0.0), anchor_m=(0, 0, 0), lit=False, to_m=ACTOR_RANGE_M)
    for (x0, z0), (x1, z1) in zip(profile, [*profile[1:], profile[0]], strict=True):
        edge = np.array([x1 - x0, z1 - z0])
        normal = np.array([edge[1], -edge[0]]) / max(float(np.hypot(*edge)), 1e-9)
        if normal @ (np.array([(x0 + x1) / 2, (z0 + z1) / 2]) - centre) < 0:
            normal = -normal
        face = [(x0, -width(z0), z0), (x0, width(z0), z0), (x1, width(z1), z1), (x1, -width(z1), z1)]
        builder.add(face, color, normal=(normal[0], 0.0, normal[1]), anchor_m=(0, 0, 0), lit=False, to_m=ACTOR_RANGE_M)


def _face(
    builder: PolygonBuilder,
    points: Sequence[tuple[float, float, float]],
    color: Rgb | np.ndarray,
    normal: Sequence[float],
    to_m: float,
) -> None:
    direction = np.asarray(normal, dtype=float) / np.linalg.norm(normal)
    builder.add(points, color, normal=direction, anchor_m=(0, 0, 0), lit=False, to_m=to_m)


def _car(builder: PolygonBuilder, ex: float, ey: float, ez: float, color: np.ndarray) -> None:
    height = 2 * ez
    _ground_shadow(builder, ex, ey)
    wheel_r = min(0.34, 0.24 * height)
    belt = 0.60 * height
    if ex < 1.4:
        _cycle(builder, ex, ey, height, color)
        return
    body = [
        (-0.99 * ex, 0.16 * height),
        (0.97 * ex, 0.16 * height),
        (ex, 0.32 * height),
        (0.95 * ex, 0.50 * height),
        (0.42 * ex, belt),
        (-0.93 * ex, belt + 0.03 * height),
        (-ex, 0.36 * height),
    ]
    _prism(builder, body, ey, ey, color)
    cabin = [(-0.86 * ex, belt), (0.46 * ex, belt), (0.10 * ex, height), (-0.56 * ex, height)]
    _prism(builder, cabin, 0.95 * ey, 0.95 * ey, color, taper=0.82, top_z=0.9 * height)
    low, high = belt + 0.03 * height, 0.95 * height

    def at(x_low: float, x_high: float, share: float) -> float:
        return x_low + (x_high - x_low) * share

    # glass: a share of each sloped cabin face, a little outside of it
    rise = (high - belt) / (height - belt)
    y_low, y_high = 0.955 * ey, at(0.955 * ey, 0.955 * ey * 0.82, rise)
    for side in (-1.0, 1.0):
        window = [
            (-0.76 * ex, side * y_low, low),
            (0.38 * ex, side * y_low, low),
            (at(0.40 * ex, 0.06 * ex, rise), side * y_high, high),
            (at(-0.78 * ex, -0.5 * ex, rise), side * y_high, high),
        ]
        _face(builder, window, GLASS, (0, side, 0.2), 160.0)
        pillar = [
            (-0.18 * ex, side * (y_low + 0.004), low),
            (-0.12 * ex, side * (y_low + 0.004), low),
            (-0.16 * ex, side * (y_high + 0.004), high),
            (-0.21 * ex, side * (y_high + 0.004), high),
        ]
        _face(builder, pillar, color * 0.8, (0, side, 0.2), 40.0)
        for axle in (0.60 * ex, -0.60 * ex):
            _wheel(builder, axle, side * (ey + 0.005), wheel_r, side)
    for x_low, x_high, sign in ((0.46 * ex, 0.10 * ex, 1.0), (-0.86 * ex, -0.56 * ex, -1.0)):
        bottom, top = at(x_low, x_high, 0.08) + sign * 0.01, at(x_low, x_high, rise) + sign * 0.01
        pane = [(bottom, -0.86 * ey, low), (bottom, 0.86 * ey, low), (top, 0.74 * ey, high), (top, -0.74 * ey, high)]
        _face(builder, pane, GLASS, (sign * (height - belt), 0, abs(x_low - x_high)), 200.0)
    for side in (-1.0, 1.0):
        for x, light, sign in ((0.985 * ex, HEADLIGHT, 1.0), (-0.985 * ex, TAILLIGHT, -1.0)):
            x += sign * 0.02
            lamp = [
                (x, side * 0.55 * ey, 0.38 * height),
                (x, side * 0.93 * ey, 0.38 * height),
                (x, side * 0.93 * ey, 0.50 * height),
                (x, side * 0.55 * ey, 0.50 * height),
            ]
            _face(builder, lamp, light, (sign, 0, 0.05), 160.0)
    for sign in (1.0, -1.0):
        x = sign * (ex + 0.005)
        plate = [
            (x, -0.27, 0.27 * height),
            (x, 0.27, 0.27 * height),
            (x, 0.27, 0.35 * height),
            (x, -0.27, 0.35 * height),
        ]
        _face(builder, plate, (222, 222, 214), (sign, 0, 0), 45.0)
        grille = [
            (x, -0.5 * ey, 0.20 * height),
            (x, 0.5 * ey, 0.20 * height),
            (x, 0.5 * ey, 0.25 * height),
            (x, -0.5 * ey, 0.25 * height),
        ]
        _face(builder, grille, (36, 37, 40), (sign, 0, 0), 60.0)


def _wheel(builder: PolygonBuilder, x: float, y: float, radius: float, side: float) -> None:
    angles = np.arange(8) * np.pi / 4 + np.pi / 8
    for scale, color, lift, to_m in ((1.0, TYRE, 0.0, 150.0), (0.6, RIM, 0.006, 45.0)):
        ring = [(x + scale * radius * np.cos(a), y + side * lift, radius + scale * radius * np.sin(a)) for a in angles]
        _face(builder, ring, color, (0, side, 0), to_m)


def _cycle(builder: PolygonBuilder, ex: float, ey: float, height: float, color: np.ndarray) -> None:
    """A two-wheeler with its rider."""
    radius = min(0.34, 0.4 * ex)
    angles = np.arange(8) * np.pi / 4
    for axle in (ex - radius, radius - ex):
        ring = [(axle + radius * np.cos(a), 0.0, radius + radius * np.sin(a)) for a in angles]
        builder.add(ring, TYRE, anchor_m=(0, 0, 0), to_m=120.0)
    _prism(
        builder,
        [(-0.6 * ex, 0.3 * height), (0.6 * ex, 0.3 * height), (0.6 * ex, 0.45 * height), (-0.6 * ex, 0.45 * height)],
        0.1,
        0.1,
        color,
    )
    _prism(
        builder,
        [(-0.3 * ex, 0.45 * height), (0.0, 0.45 * height), (0.15 * ex, 0.85 * height), (-0.15 * ex, 0.85 * height)],
        0.22,
        0.22,
        np.array((60.0, 70.0, 92.0)),
    )
    _prism(
        builder,
        [(-0.05 * ex, 0.86 * height), (0.15 * ex, 0.86 * height), (0.15 * ex, height), (-0.05 * ex, height)],
        0.11,
        0.11,
        np.array(SKIN, dtype=float),
    )


def _walker(builder: PolygonBuilder, ex: float, ey: float, ez: float, color: np.ndarray) -> None:
    height = 2 * ez
    depth, half = 0.6 * min(ex, 0.25), min(ey, 0.26)
    _ground_shadow(builder, 0.2, 0.2)

    def block(z0: float, z1: float, x: float, y: float, shade: np.ndarray) -> None:
        _prism(builder, [(-x, z0), (x, z0), (x, z1), (-x, z1)], y, y, shade)

    block(0.0, 0.47 * height, depth * 0.8, half * 0.7, np.array((52.0, 56.0, 74.0)))
    block(0.46 * height, 0.83 * height, depth, half, color)
    block(0.85 * height, height, 0.10, 0.09, np.array(SKIN, dtype=float))


def _box(builder: PolygonBuilder, ex: float, ey: float, ez: float, color: np.ndarray) -> None:
    _ground_shadow(builder, ex, ey)
    _prism(builder, [(-ex, 0.0), (ex, 0.0), (ex, 2 * ez), (-ex, 2 * ez)], ey, ey, color)


_SHAPES: dict[str, Callable[[PolygonBuilder, float, float, float, np.ndarray], None]] = {
    "vehicle": _car,
    "walker": _walker,
    "box": _box,
}
