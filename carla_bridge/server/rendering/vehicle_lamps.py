"""Lamps of vehicles: what burns when, and where it sits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.geometry.scene import Lamp, Rgb
from carla_bridge.server.rendering.shapes import Shape

HEADLIGHT: Rgb = (244, 242, 224)
TAILLIGHT: Rgb = (196, 30, 26)
SHINING_HEAD: Rgb = (255, 252, 238)
SHINING_TAIL: Rgb = (206, 26, 20)
SHINING_BRAKE: Rgb = (255, 44, 30)
AMBER: Rgb = (255, 176, 34)
BLUE: Rgb = (40, 90, 255)
DARK: Rgb = (36, 37, 40)


@dataclass(frozen=True)
class LampState:
    """What burns right now: blinkers and blue lights in their phase."""

    head: bool = False
    tail: bool = False
    brake: bool = False
    left: bool = False
    right: bool = False
    reverse: bool = False
    blue: int = 0  # 0 dark, 1 or 2 the two halves of the bar

    @classmethod
    def at(cls, lamps: Lamp, time_s: float) -> LampState:
        """Lamps at a time: blinkers at 1.5 Hz, blue lights at 2 Hz."""
        blink = time_s * 1.5 % 1.0 < 0.5
        return cls(
            head=bool(lamps & (Lamp.LOW_BEAM | Lamp.HIGH_BEAM)),
            tail=bool(lamps & (Lamp.POSITION | Lamp.LOW_BEAM | Lamp.HIGH_BEAM | Lamp.FOG)),
            brake=bool(lamps & Lamp.BRAKE),
            left=bool(lamps & Lamp.LEFT_BLINKER) and blink,
            right=bool(lamps & Lamp.RIGHT_BLINKER) and blink,
            reverse=bool(lamps & Lamp.REVERSE),
            blue=(1 if time_s * 2.0 % 1.0 < 0.5 else 2) if lamps & (Lamp.SPECIAL1 | Lamp.SPECIAL2) else 0,
        )


NO_LAMPS = LampState()


def between(low: float, high: float, share: float) -> float:
    """The value at a share of the way from low to high."""
    return low + (high - low) * share


def add_lamps(
    shape: Shape,
    lamps: LampState,
    x: float,
    y: tuple[float, float],
    z: tuple[float, float],
    rear_x: float | None = None,
) -> None:
    """Head and tail lamps in the corners, blinkers at their outer ends."""
    rear = -x if rear_x is None else rear_x
    inner, outer = y
    blink_from = between(inner, outer, 0.62)
    for side in (-1.0, 1.0):
        across = (side * inner, side * outer)
        if lamps.head:
            shape.end_panel(x, across, z, SHINING_HEAD, material=Material.LAMP)
        else:
            shape.end_panel(x, across, z, HEADLIGHT, 160.0)
        if lamps.brake:
            tall = (z[0] - 0.2 * (z[1] - z[0]), z[1] + 0.2 * (z[1] - z[0]))
            shape.end_panel(rear, across, tall, SHINING_BRAKE, material=Material.LAMP)
        elif lamps.tail:
            shape.end_panel(rear, across, z, SHINING_TAIL, material=Material.LAMP)
        else:
            shape.end_panel(rear, across, z, TAILLIGHT, 160.0)
        if lamps.left if side < 0 else lamps.right:
            corner = (side * blink_from, side * outer * 1.02)
            for end in (x, rear):
                shape.end_panel(end + np.sign(end) * 0.01, corner, z, AMBER, material=Material.LAMP)
            mirror = [(0.5 * x, side * 1.01 * shape.ey, z[1]), (0.36 * x, side * 1.01 * shape.ey, z[1])]
            mirror += [(px, py, pz + 0.07) for px, py, pz in reversed(mirror)]
            shape.face(mirror, AMBER, (0.0, side, 0.0), material=Material.LAMP)
        if lamps.reverse:
            shape.end_panel(
                rear - 0.01, (side * inner, side * between(inner, outer, 0.3)), z, SHINING_HEAD, material=Material.LAMP
            )


def add_front_lamps(shape: Shape, lamps: LampState, x: float, y: tuple[float, float], z: tuple[float, float]) -> None:
    """Head lamps in the corners of a cab, blinkers above them."""
    for side in (-1.0, 1.0):
        across = (side * y[0], side * y[1])
        if lamps.head:
            shape.end_panel(x, across, z, SHINING_HEAD, material=Material.LAMP)
        else:
            shape.end_panel(x, across, z, HEADLIGHT, 160.0)
        if lamps.left if side < 0 else lamps.right:
            high = (z[1], z[1] + 0.6 * (z[1] - z[0]))
            shape.end_panel(x + 0.01, across, high, AMBER, material=Material.LAMP)


def add_light_bar(shape: Shape, lamps: LampState, x: float, z: float, half: float) -> None:
    """A bar across the roof; its halves flash in turn."""
    shape.box((x - 0.14, x + 0.14), (-half, half), (z, z + 0.06), DARK)
    for half_number, (y0, y1) in ((1, (-half, -0.12)), (2, (0.12, half))):
        on = lamps.blue == half_number
        color = (120, 160, 255) if on else BLUE
        material = Material.LAMP if on else Material.PLAIN
        shape.box((x - 0.12, x + 0.12), (y0, y1), (z + 0.05, z + 0.17), color, material=material)
