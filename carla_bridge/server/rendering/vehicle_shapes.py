"""Vehicles: cars, vans, trucks, buses, two-wheelers, with windows, lamps and the marks of the emergency services."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.geometry.scene import Rgb
from carla_bridge.server.rendering.shapes import Color, Shape
from carla_bridge.server.rendering.vehicle_lamps import (
    AMBER,
    DARK,
    SHINING_BRAKE,
    SHINING_HEAD,
    SHINING_TAIL,
    LampState,
    add_front_lamps,
    add_lamps,
    add_light_bar,
    between,
)

GLASS: Rgb = (46, 58, 70)
PLATE: Rgb = (222, 222, 214)
SKIN: Rgb = (206, 160, 130)
BICYCLE_TUBES = (((-0.5, 0.24), (0.45, 0.50)), ((0.0, 0.20), (-0.16, 0.50)), ((-0.16, 0.48), (0.48, 0.52)))
WHITE = np.array((236.0, 237.0, 238.0))
RED = np.array((186.0, 26.0, 24.0))


class Body(Enum):
    """Kinds of bodywork."""

    CAR = "car"
    VAN = "van"
    TRUCK = "truck"
    BUS = "bus"
    MOTORCYCLE = "motorcycle"
    BICYCLE = "bicycle"


@dataclass(frozen=True)
class Livery:
    """What sets a vehicle apart: a stripe, a fixed colour, a light bar on the roof."""

    body: Color | None = None
    stripe: Color | None = None
    doors: Color | None = None
    bar: bool = False


_BODIES = {
    Body.BUS: ("fusorosa",),
    Body.TRUCK: ("carlacola", "firetruck", "european_hgv"),
    Body.VAN: ("ambulance", "sprinter", ".t2"),
    Body.MOTORCYCLE: ("kawasaki", "harley", "yamaha", "vespa", "zx125"),
    Body.BICYCLE: ("crossbike", "diamondback", "gazelle", "omafiets"),
}
_LIVERIES = {
    "ambulance": Livery(WHITE, RED, None, True),
    "firetruck": Livery(RED, WHITE, None, True),
    "police": Livery(np.array((28.0, 30.0, 36.0)), None, WHITE, True),
    "carlacola": Livery(RED, WHITE, None, False),
    "ford.crown": Livery(np.array((238.0, 190.0, 40.0)), None, None, False),
}


def body_of(type_id: str, ex: float) -> Body:
    """Bodywork of a blueprint; an unknown short one is a motorcycle, every other a car."""
    for body, words in _BODIES.items():
        if any(word in type_id for word in words):
            return body
    return Body.MOTORCYCLE if ex < 1.05 else Body.CAR


def vehicle(shape: Shape, type_id: str, color: np.ndarray, lamps: LampState) -> None:
    """Add a vehicle."""
    body = body_of(type_id, shape.ex)
    livery = next((look for word, look in _LIVERIES.items() if word in type_id), Livery())
    if livery.body is not None:
        color = np.asarray(livery.body)
    shape.ground_shadow(shape.ex, shape.ey)
    if body is Body.CAR:
        _car(shape, color, livery, lamps)
    elif body is Body.VAN:
        _van(shape, color, livery, lamps, windows=".t2" in type_id)
    elif body is Body.TRUCK:
        _truck(shape, color, livery, lamps)
    elif body is Body.BUS:
        _bus(shape, color, lamps)
    else:
        _two_wheeler(shape, color, lamps, motor=body is Body.MOTORCYCLE)


def _car(shape: Shape, color: np.ndarray, livery: Livery, lamps: LampState) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    belt = 0.60 * height
    body = [
        (-0.99 * ex, 0.16 * height),
        (0.97 * ex, 0.16 * height),
        (ex, 0.32 * height),
        (0.95 * ex, 0.50 * height),
        (0.42 * ex, belt),
        (-0.93 * ex, belt + 0.03 * height),
        (-ex, 0.36 * height),
    ]
    shape.prism(body, -ey, ey, color)
    if livery.doors is not None:
        shape.side_panel((-0.5 * ex, 0.30 * ex), (0.2 * height, belt), ey + 0.003, livery.doors)
    cabin = [(-0.86 * ex, belt), (0.46 * ex, belt), (0.10 * ex, height), (-0.56 * ex, height)]
    shape.prism(cabin, -0.95 * ey, 0.95 * ey, color, taper=0.82, top_z=0.9 * height)
    low, high = belt + 0.03 * height, 0.95 * height
    # glass: a share of each sloped cabin face, a little outside of it
    rise = (high - belt) / (height - belt)
    y_low, y_high = 0.955 * ey, between(0.955 * ey, 0.955 * ey * 0.82, rise)
    for side in (-1.0, 1.0):
        window = [
            (-0.76 * ex, side * y_low, low),
            (0.38 * ex, side * y_low, low),
            (between(0.40 * ex, 0.06 * ex, rise), side * y_high, high),
            (between(-0.78 * ex, -0.5 * ex, rise), side * y_high, high),
        ]
        shape.face(window, GLASS, (0, side, 0.2), 160.0)
        pillar = [
            (-0.18 * ex, side * (y_low + 0.004), low),
            (-0.12 * ex, side * (y_low + 0.004), low),
            (-0.16 * ex, side * (y_high + 0.004), high),
            (-0.21 * ex, side * (y_high + 0.004), high),
        ]
        shape.face(pillar, color * 0.8, (0, side, 0.2), 40.0)
        for axle in (0.60 * ex, -0.60 * ex):
            shape.wheel(axle, side * (ey + 0.005), min(0.34, 0.24 * height), side)
    for x_low, x_high, sign in ((0.46 * ex, 0.10 * ex, 1.0), (-0.86 * ex, -0.56 * ex, -1.0)):
        bottom, top = between(x_low, x_high, 0.08) + sign * 0.01, between(x_low, x_high, rise) + sign * 0.01
        pane = [(bottom, -0.86 * ey, low), (bottom, 0.86 * ey, low), (top, 0.74 * ey, high), (top, -0.74 * ey, high)]
        shape.face(pane, GLASS, (sign * (height - belt), 0, abs(x_low - x_high)), 200.0)
    add_lamps(shape, lamps, 1.005 * ex, (0.55 * ey, 0.93 * ey), (0.38 * height, 0.50 * height))
    if lamps.brake:
        x = between(-0.86 * ex, -0.56 * ex, 0.05) - 0.03
        shape.end_panel(x, (-0.3 * ey, 0.3 * ey), (low, low + 0.05 * height), SHINING_BRAKE, material=Material.LAMP)
    for sign in (1.0, -1.0):
        x = sign * (ex + 0.005)
        shape.end_panel(x, (-0.27, 0.27), (0.27 * height, 0.35 * height), PLATE, 45.0)
        shape.end_panel(x, (-0.5 * ey, 0.5 * ey), (0.20 * height, 0.25 * height), DARK, 60.0)
    if livery.bar:
        add_light_bar(shape, lamps, -0.25 * ex, height, 0.62 * ey)


def _van(shape: Shape, color: np.ndarray, livery: Livery, lamps: LampState, *, windows: bool) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    body = [
        (-0.99 * ex, 0.13 * height),
        (0.97 * ex, 0.13 * height),
        (ex, 0.34 * height),
        (0.94 * ex, 0.50 * height),
        (0.64 * ex, 0.93 * height),
        (0.52 * ex, height),
        (-0.97 * ex, height),
        (-ex, 0.90 * height),
    ]
    shape.prism(body, -ey, ey, color)
    out = ey + 0.006
    if livery.stripe is not None:
        shape.side_panel((-0.99 * ex, 0.93 * ex), (0.36 * height, 0.48 * height), out, livery.stripe)
        shape.end_panel(-ex - 0.01, (-ey, ey), (0.36 * height, 0.48 * height), livery.stripe)
        shape.end_panel(ex + 0.012, (-0.8 * ey, 0.8 * ey), (0.40 * height, 0.46 * height), livery.stripe, 90.0)
        cross_z, arm = 0.70 * height, 0.07 * height
        shape.side_panel((-0.4 * ex - 3 * arm, -0.4 * ex + 3 * arm), (cross_z - arm, cross_z + arm), out, livery.stripe)
        shape.side_panel((-0.4 * ex - arm, -0.4 * ex + arm), (cross_z - 3 * arm, cross_z + 3 * arm), out, livery.stripe)
    for side in (-1.0, 1.0):
        door = [
            (0.30 * ex, side * out, 0.54 * height),
            (0.84 * ex, side * out, 0.54 * height),
            (0.60 * ex, side * out, 0.88 * height),
            (0.30 * ex, side * out, 0.88 * height),
        ]
        shape.face(door, GLASS, (0, side, 0), 160.0)
        if windows:
            for x0, x1 in ((-0.92, -0.54), (-0.48, -0.12), (-0.06, 0.24)):
                shape.side_panel((x0 * ex, x1 * ex), (0.56 * height, 0.86 * height), out, GLASS, 160.0)
        for axle in (0.62 * ex, -0.60 * ex):
            shape.wheel(axle, side * (ey + 0.004), min(0.38, 0.2 * height), side)
    slope = (0.43 * height, 0.0, 0.30 * ex)
    pane = [
        (between(0.94, 0.64, 0.08) * ex + 0.02, -0.88 * ey, between(0.50, 0.93, 0.08) * height),
        (between(0.94, 0.64, 0.08) * ex + 0.02, 0.88 * ey, between(0.50, 0.93, 0.08) * height),
        (between(0.94, 0.64, 0.92) * ex + 0.02, 0.82 * ey, between(0.50, 0.93, 0.92) * height),
        (between(0.94, 0.64, 0.92) * ex + 0.02, -0.82 * ey, between(0.50, 0.93, 0.92) * height),
    ]
    shape.face(pane, GLASS, slope, 200.0)
    for y0, y1 in ((-0.86 * ey, -0.06 * ey), (0.06 * ey, 0.86 * ey)):
        shape.end_panel(-ex - 0.012, (y0, y1), (0.56 * height, 0.84 * height), GLASS, 160.0)
    add_lamps(shape, lamps, 1.008 * ex, (0.62 * ey, 0.94 * ey), (0.30 * height, 0.40 * height))
    shape.end_panel(ex + 0.008, (-0.55 * ey, 0.55 * ey), (0.24 * height, 0.33 * height), DARK, 90.0)
    for x in (ex + 0.012, -ex - 0.014):
        shape.end_panel(x, (-0.27, 0.27), (0.16 * height, 0.21 * height), PLATE, 45.0)
    if livery.bar:
        add_light_bar(shape, lamps, 0.40 * ex, height, 0.75 * ey)


def _truck(shape: Shape, color: np.ndarray, livery: Livery, lamps: LampState) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    box_color = color if livery.stripe is not None else np.array((214.0, 214.0, 210.0))
    shape.box((-0.98 * ex, 0.94 * ex), (-0.8 * ey, 0.8 * ey), (0.12 * height, 0.24 * height), DARK)
    # cab and load stand one behind the other: each sorts by its own middle
    middle = shape.anchor
    shape.anchor = (-0.25 * ex, 0.0, height / 2)
    shape.box((-ex, 0.46 * ex), (-ey, ey), (0.22 * height, height), box_color)
    out = ey + 0.006
    if livery.stripe is not None:
        shape.side_panel((-ex, 0.46 * ex), (0.50 * height, 0.64 * height), out, livery.stripe)
    shape.end_panel(-ex - 0.01, (-0.02, 0.02), (0.24 * height, 0.98 * height), DARK, 60.0)
    for side in (-1.0, 1.0):
        for axle in (-0.72 * ex, -0.46 * ex):
            shape.wheel(axle, side * (ey + 0.004), min(0.48, 0.19 * height), side)
    rear = LampState(tail=lamps.tail, brake=lamps.brake, left=lamps.left, right=lamps.right, reverse=lamps.reverse)
    add_lamps(shape, rear, -1.004 * ex, (0.60 * ey, 0.94 * ey), (0.14 * height, 0.22 * height), rear_x=-1.006 * ex)
    shape.anchor = (0.74 * ex, 0.0, height / 2)
    cab = [
        (0.50 * ex, 0.14 * height),
        (0.99 * ex, 0.14 * height),
        (ex, 0.46 * height),
        (0.92 * ex, 0.84 * height),
        (0.50 * ex, 0.84 * height),
    ]
    shape.prism(cab, -0.96 * ey, 0.96 * ey, color)
    for side in (-1.0, 1.0):
        y = side * (0.96 * ey + 0.006)
        window = [(0.60 * ex, y, 0.50 * height), (0.94 * ex, y, 0.50 * height)]
        window += [(0.90 * ex, y, 0.76 * height), (0.60 * ex, y, 0.76 * height)]
        shape.face(window, GLASS, (0, side, 0), 160.0)
        shape.wheel(0.74 * ex, side * (ey + 0.004), min(0.48, 0.19 * height), side)
    screen = [
        (0.995 * ex + 0.01, -0.86 * ey, 0.50 * height),
        (0.995 * ex + 0.01, 0.86 * ey, 0.50 * height),
        (0.93 * ex + 0.02, 0.86 * ey, 0.79 * height),
        (0.93 * ex + 0.02, -0.86 * ey, 0.79 * height),
    ]
    shape.face(screen, GLASS, (1.0, 0.0, 0.2), 200.0)
    front = LampState(head=lamps.head, left=lamps.left, right=lamps.right)
    add_front_lamps(shape, front, ex + 0.012, (0.62 * ey, 0.90 * ey), (0.22 * height, 0.30 * height))
    shape.end_panel(ex + 0.008, (-0.5 * ey, 0.5 * ey), (0.24 * height, 0.40 * height), DARK, 90.0)
    if livery.bar:
        add_light_bar(shape, lamps, 0.72 * ex, 0.84 * height, 0.8 * ey)
    shape.anchor = middle


def _bus(shape: Shape, color: np.ndarray, lamps: LampState) -> None:
    ex, ey, height = shape.ex, shape.ey, shape.height
    body = [(-ex, 0.10 * height), (ex, 0.10 * height), (ex, 0.55 * height), (0.975 * ex, height), (-ex, height)]
    shape.prism(body, -ey, ey, color)
    out = ey + 0.008
    shape.side_panel((-ex, ex), (0.10 * height, 0.16 * height), out, color * 0.6)
    panes = max(3, round(2 * ex / 1.5))
    for i in range(panes):
        x0 = -0.95 * ex + i * 1.82 * ex / panes
        shape.side_panel((x0, x0 + 1.66 * ex / panes), (0.48 * height, 0.82 * height), out + 0.004, GLASS, 200.0)
    door = [(0.70 * ex, out + 0.01, 0.12 * height), (0.90 * ex, out + 0.01, 0.12 * height)]
    door += [(0.90 * ex, out + 0.01, 0.84 * height), (0.70 * ex, out + 0.01, 0.84 * height)]
    shape.face(door, (70, 82, 92), (0.0, 1.0, 0.0), 120.0)
    for side in (-1.0, 1.0):
        for axle in (0.62 * ex, -0.56 * ex):
            shape.wheel(axle, side * (ey + 0.014), min(0.5, 0.14 * height), side)
    screen = [
        (ex + 0.012, -0.92 * ey, 0.44 * height),
        (ex + 0.012, 0.92 * ey, 0.44 * height),
        (0.985 * ex + 0.012, 0.90 * ey, 0.84 * height),
        (0.985 * ex + 0.012, -0.90 * ey, 0.84 * height),
    ]
    shape.face(screen, GLASS, (1.0, 0.0, 0.05), 220.0)
    shape.end_panel(ex, (-0.5 * ey, 0.5 * ey), (0.88 * height, 0.95 * height), (255, 190, 60), 120.0, Material.LAMP)
    shape.end_panel(-ex - 0.01, (-0.8 * ey, 0.8 * ey), (0.52 * height, 0.82 * height), GLASS, 200.0)
    add_lamps(shape, lamps, ex + 0.012, (0.66 * ey, 0.94 * ey), (0.20 * height, 0.28 * height))


def _two_wheeler(shape: Shape, color: np.ndarray, lamps: LampState, *, motor: bool) -> None:
    """A motorcycle or bicycle with its rider."""
    ex, height = shape.ex, shape.height
    radius = min(0.34, 0.4 * ex)
    for axle in (ex - radius, radius - ex):
        shape.hoop(axle, 0.0, radius)
        if not motor:
            shape.hoop(axle, 0.0, 0.8 * radius, (150, 150, 150), 40.0)
    half = 0.15 if motor else 0.04
    seat = 0.48 * height
    if motor:
        tank = [(-0.62 * ex, 0.26 * height), (0.40 * ex, 0.22 * height), (0.66 * ex, 0.50 * height)]
        shape.prism([*tank, (0.2 * ex, 0.56 * height), (-0.66 * ex, seat)], -half, half, color)
    else:
        for (x0, z0), (x1, z1) in BICYCLE_TUBES:
            tube = [(x0, z0), (x1, z1), (x1, z1 + 0.03), (x0, z0 + 0.03)]
            shape.prism([(x * ex, z * height) for x, z in tube], -half, half, color)
    clothes = np.array((60.0, 70.0, 92.0)) if motor else 0.5 * color + 0.5 * np.array((70.0, 90.0, 120.0))
    for side in (-1.0, 1.0):
        y0, y1 = sorted((side * 0.06, side * 0.20))
        leg = [
            (-0.22 * ex, seat),
            (0.02 * ex, seat - 0.02 * height),
            (0.22 * ex, 0.16 * height),
            (0.06 * ex, 0.14 * height),
        ]
        shape.prism(leg, y0, y1, np.array((44.0, 46.0, 58.0)))
    torso = [(-0.34 * ex, seat), (-0.06 * ex, seat), (0.20 * ex, 0.82 * height), (-0.10 * ex, 0.85 * height)]
    shape.prism(torso, -0.21, 0.21, clothes)
    arm = [
        (0.10 * ex, 0.74 * height),
        (0.48 * ex, 0.55 * height),
        (0.50 * ex, 0.60 * height),
        (0.14 * ex, 0.80 * height),
    ]
    for side in (-1.0, 1.0):
        y0, y1 = sorted((side * 0.18, side * 0.26))
        shape.prism(arm, y0, y1, clothes * 0.9, to_m=60.0)
    head = [(-0.02 * ex, 0.86 * height), (0.20 * ex, 0.86 * height), (0.20 * ex, height), (-0.02 * ex, height)]
    shape.prism(head, -0.11, 0.11, np.array((40.0, 42.0, 48.0)) if motor else np.array(SKIN, dtype=float))
    if motor:
        if lamps.head:
            shape.disc(0.68 * ex, 0.0, 0.48 * height, 0.11, SHINING_HEAD, forward=1.0)
        if lamps.brake or lamps.tail:
            shape.disc(
                -0.68 * ex, 0.0, 0.46 * height, 0.09, SHINING_BRAKE if lamps.brake else SHINING_TAIL, forward=-1.0
            )
        for side, on in ((-1.0, lamps.left), (1.0, lamps.right)):
            if on:
                shape.disc(0.60 * ex, side * 0.22, 0.48 * height, 0.06, AMBER, forward=1.0)
                shape.disc(-0.66 * ex, side * 0.22, 0.46 * height, 0.06, AMBER, forward=-1.0)
