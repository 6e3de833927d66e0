"""Traffic lights and signs: pole, arm and head.

Heads are somewhat larger than real ones, so that a lamp's colour can be told from 40 m away in a small picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import Material, Polygons, place
from carla_bridge.server.geometry.scene import LampColor, RenderSignal, Rgb, SignalKind
from carla_bridge.server.rendering.shapes import Shape
from carla_bridge.server.rendering.view import Seen, View, carla_axes

SIGNAL_RANGE_M = 160.0
LAMP_RADIUS_M, LAMP_PITCH_M = 0.21, 0.47
SIGN_RADIUS_M = 0.42
POLE: Rgb = (96, 100, 104)
HOUSING: Rgb = (34, 36, 38)
PLATE: Rgb = (22, 23, 24)
BACK: Rgb = (128, 132, 136)
STOP_RED: Rgb = (190, 24, 28)
WHITE: Rgb = (240, 240, 236)
LAMPS: tuple[tuple[LampColor, Rgb], ...] = (  # from the top
    (LampColor.RED, (255, 36, 28)),
    (LampColor.YELLOW, (255, 196, 20)),
    (LampColor.GREEN, (32, 255, 120)),
)
DARK_SHARE, GLOW_SHARE = 0.20, 0.55


def see_signals(signals: Sequence[RenderSignal], view: View) -> list[Seen]:
    """Polygons of the signals that a camera may see."""
    if not signals:
        return []
    feet = np.array([(s.x, s.y, (s.z + s.head_z) / 2) for s in signals])
    radii = np.array([np.hypot(np.hypot(s.head_x - s.x, s.head_y - s.y), (s.head_z - s.z) / 2) + 1.2 for s in signals])
    shown = [signals[i] for i in np.flatnonzero(view.spheres_in_view(feet, radii, SIGNAL_RANGE_M))]
    if not shown:
        return []
    poses = [((s.x, s.y, s.z), carla_axes(0.0, s.yaw, 0.0)) for s in shown]
    return [view.see(place([_mesh(_in_own_axes(signal)) for signal in shown], poses))]


def _in_own_axes(signal: RenderSignal) -> RenderSignal:
    """The signal with its pole's foot at the origin and its yaw 0: signals of one make share a mesh."""
    ahead, right, up = carla_axes(0.0, signal.yaw, 0.0) @ (
        signal.head_x - signal.x,
        signal.head_y - signal.y,
        signal.head_z - signal.z,
    )
    head = (round(float(ahead), 2), round(float(right), 2), round(float(up), 2))
    return RenderSignal(signal.kind, 0.0, 0.0, 0.0, 0.0, *head, signal.lamp)


@lru_cache(maxsize=512)
def _mesh(signal: RenderSignal) -> Polygons:
    shape = Shape(0.0, 0.0, 0.0)
    ahead, right, up = signal.head_x, signal.head_y, signal.head_z
    reach = float(np.hypot(ahead, right))
    light = signal.kind is SignalKind.TRAFFIC_LIGHT
    top = up + (0.3 if light and reach > 0.5 else 0.0)
    thick = 0.08 if light else 0.035
    shape.anchor = (0.0, 0.0, top / 2)
    shape.label(Label.POLES)
    shape.box((-thick, thick), (-thick, thick), (0.0, top), POLE)
    if reach > 0.3:
        shape.anchor = (ahead / 2, right / 2, top)
        side = np.array([-right, ahead]) / reach * 0.05
        corners = [(side[0], side[1]), (ahead + side[0], right + side[1])]
        corners += [(ahead - side[0], right - side[1]), (-side[0], -side[1])]
        for (x0, y0), (x1, y1) in ((corners[0], corners[1]), (corners[3], corners[2])):
            upright = [(x0, y0, top - 0.12), (x1, y1, top - 0.12), (x1, y1, top), (x0, y0, top)]
            shape.face(upright, POLE, None)
        shape.face([(x, y, top - 0.12) for x, y in corners], np.array(POLE) * 0.8, (0.0, 0.0, -1.0))
        shape.face([(x, y, top) for x, y in corners], POLE, (0.0, 0.0, 1.0))
    shape.anchor = (ahead - 0.1, right, up)
    shape.label(Label.TRAFFIC_LIGHT if light else Label.TRAFFIC_SIGNS)
    _HEADS[signal.kind](shape, (ahead, right, up), signal.lamp)
    return shape.build()


def _traffic_light(shape: Shape, middle: tuple[float, float, float], shown: LampColor) -> None:
    x, y, z = middle
    half_height = 1.5 * LAMP_PITCH_M + 0.06
    plate = 0.14
    face = x - 0.16
    sides = (y - LAMP_RADIUS_M - 0.07, y + LAMP_RADIUS_M + 0.07)
    _upright(
        shape, face + 0.02, (sides[0] - plate, sides[1] + plate), (z - half_height - plate, z + half_height + plate)
    )
    shape.box((face, x + 0.12), sides, (z - half_height, z + half_height), HOUSING)
    for row, (color, rgb) in enumerate(LAMPS):
        lamp_z = z + (1 - row) * LAMP_PITCH_M
        if color is shown:
            shape.disc(face - 0.01, y, lamp_z, 1.3 * LAMP_RADIUS_M, np.array(rgb) * GLOW_SHARE, forward=-1.0)
            shape.disc(face - 0.02, y, lamp_z, LAMP_RADIUS_M, rgb, forward=-1.0)
        else:
            dark = np.array(rgb) * DARK_SHARE
            shape.disc(face - 0.02, y, lamp_z, LAMP_RADIUS_M, dark, forward=-1.0, material=Material.PLAIN)


def _upright(shape: Shape, x: float, y: tuple[float, float], z: tuple[float, float]) -> None:
    """The back plate: dark towards traffic, grey behind."""
    corners = [(x, y[0], z[0]), (x, y[1], z[0]), (x, y[1], z[1]), (x, y[0], z[1])]
    shape.face(corners, PLATE, (-1.0, 0.0, 0.0))
    shape.face([(px + 0.01, py, pz) for px, py, pz in corners], BACK, (1.0, 0.0, 0.0))


def _octagon(radius: float, x: float, y: float, z: float) -> list[tuple[float, float, float]]:
    angles = np.arange(8) * np.pi / 4 + np.pi / 8
    return [(x, y + radius * np.cos(a), z + radius * np.sin(a)) for a in angles]


def _stop(shape: Shape, middle: tuple[float, float, float], shown: LampColor) -> None:
    x, y, z = middle
    shape.face(_octagon(SIGN_RADIUS_M, x - 0.05, y, z), WHITE, (-1.0, 0.0, 0.0))
    shape.face(_octagon(0.90 * SIGN_RADIUS_M, x - 0.055, y, z), STOP_RED, (-1.0, 0.0, 0.0))
    # the word, as four blocks
    for i in range(4):
        left = y + (-0.66 + 0.34 * i) * SIGN_RADIUS_M
        low, high = z - 0.2 * SIGN_RADIUS_M, z + 0.2 * SIGN_RADIUS_M
        corners = [(x - 0.06, left, low), (x - 0.06, left + 0.26 * SIGN_RADIUS_M, low)]
        corners += [(px, py, high) for px, py, _ in reversed(corners)]
        shape.face(corners, WHITE, (-1.0, 0.0, 0.0), 60.0)
    shape.face(_octagon(SIGN_RADIUS_M, x - 0.045, y, z), BACK, (1.0, 0.0, 0.0))


def _yield(shape: Shape, middle: tuple[float, float, float], shown: LampColor) -> None:
    x, y, z = middle
    for share, color, lift in ((1.0, STOP_RED, 0.05), (0.62, WHITE, 0.055)):
        radius = share * 1.15 * SIGN_RADIUS_M
        corners = [(x - lift, y + radius * np.cos(a), z + radius * np.sin(a)) for a in np.deg2rad([30, 150, 270])]
        shape.face(corners, color, (-1.0, 0.0, 0.0))
        if share == 1.0:
            shape.face([(px + 0.005, py, pz) for px, py, pz in corners], BACK, (1.0, 0.0, 0.0))


_HEADS = {SignalKind.TRAFFIC_LIGHT: _traffic_light, SignalKind.STOP: _stop, SignalKind.YIELD: _yield}
