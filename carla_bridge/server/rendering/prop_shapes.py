"""Walkers, and things that scenarios put on the road."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.geometry.scene import Rgb
from carla_bridge.server.rendering.shapes import Shape

SKINS: tuple[Rgb, ...] = ((206, 160, 130), (150, 108, 82), (228, 186, 156), (104, 74, 58))
TROUSERS: tuple[Rgb, ...] = ((52, 56, 74), (84, 78, 66), (40, 42, 46), (70, 92, 120))
HAIR: tuple[Rgb, ...] = ((58, 42, 32), (28, 24, 22), (150, 116, 70), (130, 128, 126))
STRIDE_M = 0.75
STRIDE_PHASES = 8
ORANGE: Rgb = (236, 104, 28)
WHITE: Rgb = (238, 238, 234)
RED: Rgb = (204, 32, 30)


def stride_phase(x: float, y: float, yaw: float, speed_mps: float) -> int:
    """Phase 1..8 of a walker's step by the way it has come, 0 when it stands."""
    if speed_mps < 0.2:
        return 0
    heading = np.deg2rad(yaw)
    along = (x * np.cos(heading) + y * np.sin(heading)) / (2 * STRIDE_M)
    return 1 + int(along % 1.0 * STRIDE_PHASES) % STRIDE_PHASES


def walker(shape: Shape, color: np.ndarray, variant: int, phase: int) -> None:
    """A person: legs and arms swing with `phase`, skin, hair and trousers go by `variant`."""
    height = shape.height
    half = min(shape.ey, 0.26) if shape.ey > 0.1 else 0.2
    depth = 0.13 * height / 1.8
    shape.ground_shadow(0.2, 0.2)
    swing = 0.0 if phase == 0 else 0.24 * height * np.sin(2 * np.pi * (phase - 1) / STRIDE_PHASES)
    hip, shoulder = 0.48 * height, 0.82 * height
    skin, trousers = np.array(SKINS[variant % 4], float), np.array(TROUSERS[variant // 4 % 4], float)

    def limb(top: float, bottom: float, reach: float, y0: float, y1: float, thick: float, tone: np.ndarray) -> None:
        profile = [(-thick + reach, bottom), (thick + reach, bottom), (thick, top), (-thick, top)]
        shape.prism(profile, min(y0, y1), max(y0, y1), tone)

    middle = shape.anchor
    for side in (-1.0, 1.0):
        # left and right hide each other from the side
        shape.anchor = (0.0, 0.06 * side, middle[2])
        reach = -side * swing / 2
        limb(hip, 0.0, reach, side * 0.02, side * 0.62 * half, 0.65 * depth, trousers * (1.0 if side < 0 else 0.92))
        shoe = [(reach - 0.07, 0.0), (reach + 0.17, 0.0), (reach + 0.14, 0.07), (reach - 0.07, 0.08)]
        shape.prism(shoe, *sorted((side * 0.03, side * 0.55 * half)), np.array((36.0, 34.0, 34.0)), to_m=50.0)
    shape.anchor = middle
    torso = [(-depth, hip - 0.03), (depth, hip - 0.03), (1.1 * depth, shoulder), (-depth, shoulder)]
    shape.prism(torso, -half, half, color)
    for side in (-1.0, 1.0):
        shape.anchor = (0.0, 0.08 * side, middle[2] + 0.02)
        limb(shoulder, hip - 0.03, side * swing / 3, side * half, side * (half + 0.09), 0.055, color * 0.88)
    shape.anchor = (0.0, 0.0, middle[2] + 0.02)
    neck = 0.85 * height
    shape.prism([(-0.10, neck), (0.11, neck), (0.11, 0.97 * height), (-0.10, 0.97 * height)], -0.085, 0.085, skin)
    hair = np.array(HAIR[variant // 2 % 4], float)
    shape.prism([(-0.12, 0.91 * height), (0.06, 0.955 * height), (0.10, height), (-0.11, height)], -0.095, 0.095, hair)
    shape.anchor = middle


def prop(shape: Shape, type_id: str, color: np.ndarray) -> None:
    """A thing by its blueprint; a plain box when it is unknown."""
    name = type_id.rsplit(".", 1)[-1]
    for word, build in _PROPS.items():
        if word in name:
            build(shape)
            return
    box(shape, color)


def box(shape: Shape, color: np.ndarray) -> None:
    """A plain box."""
    shape.ground_shadow(shape.ex, shape.ey)
    shape.box((-shape.ex, shape.ex), (-shape.ey, shape.ey), (0.0, shape.height), color)


def _cone(shape: Shape) -> None:
    height, foot = shape.height, min(shape.ex, shape.ey)
    shape.ground_shadow(0.9 * foot, 0.9 * foot)
    shape.box((-foot, foot), (-foot, foot), (0.0, 0.06 * height), (46, 44, 44))
    bands = ((0.06, 0.34, ORANGE), (0.34, 0.54, WHITE), (0.54, 0.70, ORANGE), (0.70, 0.84, WHITE), (0.84, 1.0, ORANGE))
    for low, high, color in bands:
        wide, narrow = (0.78 * foot * (1.0 - 0.85 * share) for share in (low, high))
        ring = np.arange(6) * np.pi / 3
        for a, b in zip(ring, np.roll(ring, -1), strict=True):
            corners = [
                (wide * np.cos(a), wide * np.sin(a), low * height),
                (wide * np.cos(b), wide * np.sin(b), low * height),
                (narrow * np.cos(b), narrow * np.sin(b), high * height),
                (narrow * np.cos(a), narrow * np.sin(a), high * height),
            ]
            middle = a + np.pi / 6
            shape.face(corners, color, (np.cos(middle), np.sin(middle), 0.4), 160.0)


def _barrier(shape: Shape) -> None:
    """A barrier across: red and white planks on feet."""
    ex, ey, height = shape.ex, shape.ey, shape.height
    along_x = ex >= ey
    long, thin = max(ex, ey), min(min(ex, ey), 0.08)
    shape.ground_shadow(ex, ey)
    for end in (-0.85 * long, 0.85 * long):
        foot = (end - 0.05, end + 0.05)
        across = (-min(ex, ey), min(ex, ey))
        shape.box(foot if along_x else across, across if along_x else foot, (0.0, height), (96, 98, 100))
    pieces = 6
    for low, high in ((0.42, 0.64), (0.74, 0.96)):
        for i in range(pieces):
            span = (-long + 2 * long * i / pieces, -long + 2 * long * (i + 1) / pieces)
            tone = RED if i % 2 else WHITE
            thick = (-thin, thin)
            shape.box(
                span if along_x else thick, thick if along_x else span, (low * height, high * height), tone, 200.0
            )


def _container(shape: Shape) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    shape.ground_shadow(ex, ey)
    color = np.array((70.0, 104.0, 88.0))
    shape.box((-ex, ex), (-ey, ey), (0.0, height), color)
    for i in range(6):
        x0 = -ex + (i + 0.25) * 2 * ex / 6
        shape.side_panel((x0, x0 + 0.5 * 2 * ex / 6), (0.08 * height, 0.92 * height), ey + 0.004, color * 0.84, 70.0)
        for x in (ex + 0.004, -ex - 0.004):
            y0 = -ey + (i + 0.25) * 2 * ey / 6
            shape.end_panel(x, (y0, y0 + 0.5 * 2 * ey / 6), (0.08 * height, 0.92 * height), color * 0.84, 70.0)


def _triangle(shape: Shape, fill: Rgb, edge: Rgb, *, mark: Rgb | None) -> None:
    """A warning triangle on a stand, seen from both ends."""
    half, height = shape.ey, shape.height
    low = 0.12 * height
    shape.ground_shadow(0.3 * shape.ex, half)
    for x in (-0.04, 0.04):
        shape.box((x - 0.02, x + 0.02), (-0.6 * half, 0.6 * half), (0.0, low), (70, 70, 72), 60.0)
    for share, color, lift in ((1.0, edge, 0.0), (0.66, fill, 0.01)):
        inset = (1.0 - share) * half
        low_z, top_z = low + 0.5 * inset, height - 1.6 * inset
        for sign in (1.0, -1.0):
            x = sign * (0.03 + lift)
            corners = [(x, -share * half, low_z), (x, share * half, low_z), (x, 0.0, top_z)]
            shape.face(corners, color, (sign, 0.0, 0.0))
    if mark is not None:
        for sign in (1.0, -1.0):
            shape.end_panel(sign * 0.05, (-0.06 * half, 0.06 * half), (0.36 * height, 0.66 * height), mark, 120.0)


def _arrow_board(shape: Shape) -> None:
    """A lit arrow board on a trailer."""
    ex, ey, height = shape.ex, shape.ey, shape.height
    shape.ground_shadow(0.8 * ex, 0.9 * ey)
    shape.box((-0.7 * ex, 0.7 * ex), (-0.4 * ey, 0.4 * ey), (0.12 * height, 0.26 * height), (226, 132, 30))
    for side in (-1.0, 1.0):
        shape.wheel(0.0, side * 0.45 * ey, 0.1 * height, side)
    shape.box((-0.06, 0.06), (-0.08, 0.08), (0.2 * height, 0.6 * height), (90, 92, 94))
    shape.box((-0.07, 0.07), (-0.95 * ey, 0.95 * ey), (0.52 * height, height), (34, 34, 36))
    for sign in (1.0, -1.0):
        x = sign * 0.09
        for share in np.linspace(-0.7, 0.7, 7):
            shape.disc(x, share * ey, 0.76 * height, 0.05 * ey, (255, 186, 40), forward=sign)
        for share in (0.36, 0.52):
            for up in (-1.0, 1.0):
                z = 0.76 * height + up * (0.7 - share) * 0.22 * height * 2
                shape.disc(x, sign * -share * ey, z, 0.05 * ey, (255, 186, 40), forward=sign)


def _vending_machine(shape: Shape) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    shape.ground_shadow(ex, ey)
    shape.box((-ex, ex), (-ey, ey), (0.0, height), (176, 30, 36))
    shape.end_panel(ex + 0.005, (-0.85 * ey, 0.45 * ey), (0.35 * height, 0.92 * height), (206, 226, 236), 120.0)
    for i in range(3):
        z = (0.42 + 0.17 * i) * height
        shape.end_panel(ex + 0.01, (-0.75 * ey, 0.35 * ey), (z, z + 0.07 * height), (220, 160, 50), 50.0)
    shape.end_panel(ex + 0.005, (-0.7 * ey, 0.3 * ey), (0.10 * height, 0.24 * height), (30, 30, 32), 80.0)


def _advertisement(shape: Shape) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    shape.ground_shadow(ex, ey)
    shape.box((-0.2 * ex, 0.2 * ex), (-ey, ey), (0.0, height), (62, 66, 72))
    for sign in (1.0, -1.0):
        x = sign * (0.2 * ex + 0.01)
        shape.end_panel(
            x, (-0.86 * ey, 0.86 * ey), (0.14 * height, 0.96 * height), (70, 130, 190), 200.0, Material.ROOM
        )
        shape.end_panel(1.02 * x, (-0.7 * ey, 0.7 * ey), (0.30 * height, 0.52 * height), (246, 220, 90), 90.0)


def _debris(shape: Shape) -> None:
    """Dirt and stones, flat on the road."""
    rng = np.random.default_rng(3)
    for _ in range(14):
        x, y = rng.uniform(-0.85, 0.85, 2) * (shape.ex, shape.ey)
        size = rng.uniform(0.06, 0.22)
        tone = np.array((104.0, 82.0, 60.0)) * rng.uniform(0.7, 1.2)
        angles = np.arange(6) * np.pi / 3 + rng.uniform(0, 1)
        ring = [(x + size * np.cos(a) * rng.uniform(0.7, 1.2), y + size * np.sin(a), 0.015) for a in angles]
        shape.face(ring, tone, None, 90.0, Material.SOIL)
        top = 0.5 * size
        shape.prism([(x - top, 0.0), (x + top, 0.0), (x, 0.6 * size)], y - top, y + top, tone * 1.1, to_m=45.0)


def _bin(shape: Shape) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    shape.ground_shadow(ex, ey)
    shape.box((-ex, ex), (-ey, ey), (0.0, 0.86 * height), (52, 84, 62))
    shape.box((-1.05 * ex, 1.05 * ex), (-1.05 * ey, 1.05 * ey), (0.86 * height, height), (36, 58, 44))


_PROPS: dict[str, Callable[[Shape], None]] = {
    "trafficcone": _cone,
    "constructioncone": _cone,
    "cone": _cone,
    "trafficwarning": _arrow_board,
    "warningaccident": lambda shape: _triangle(shape, WHITE, RED, mark=None),
    "warningconstruction": lambda shape: _triangle(shape, (250, 200, 40), RED, mark=(30, 30, 30)),
    "barrier": _barrier,
    "vendingmachine": _vending_machine,
    "advertisement": _advertisement,
    "debris": _debris,
    "trashcan": _bin,
    "bin": _bin,
    "container": _container,
}
