"""Checked reading of request arguments: what a client sends never reaches the state unless it has the right shape."""

from __future__ import annotations

import math
from typing import Any

from carla_bridge.server.dynamics.motion import Pedals
from carla_bridge.server.geometry.poses import Pose, wrap_degrees

LARGEST_NUMBER = 1e9


class RpcError(Exception):
    """A request that cannot be answered; the message travels to the client, which raises it as RuntimeError."""


def number(value: Any, name: str = "number") -> float:
    """A float that single precision holds with room to spare: it is sent on to every client in that form."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise RpcError(f"{name}: expected a number within ±{LARGEST_NUMBER:g}, got {_shown(value)}")
    return float(value)


def whole(value: Any, name: str = "id", largest: int = 2**32 - 1) -> int:
    """An integer from 0 to `largest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise RpcError(f"{name}: expected an integer from 0 to {largest}, got {_shown(value)}")
    return value


def flag(value: Any, name: str = "flag") -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise RpcError(f"{name}: expected true or false, got {_shown(value)}")
    return value


def text(value: Any, name: str = "text") -> str:
    """A string of valid Unicode; another client could not decode any other."""
    if not isinstance(value, str) or not _is_unicode(value):
        raise RpcError(f"{name}: expected a string, got {_shown(value)}")
    return value


def actor_description(value: Any) -> list:
    """`ActorDescription`: [uid, id, [[attribute, type, value], ...]]; it is echoed to every client."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        raise RpcError(f"actor description: expected [uid, id, attributes], got {_shown(value)}")
    attributes = []
    for item in value[2]:
        if not isinstance(item, list) or len(item) != 3:
            raise RpcError(f"actor attribute: expected [id, type, value], got {_shown(item)}")
        attributes.append([text(item[0], "attribute"), whole(item[1], "attribute type", 255), text(item[2], "value")])
    return [whole(value[0], "blueprint uid"), text(value[1], "blueprint id"), attributes]


def numbers(value: Any, count: int, name: str) -> list[float]:
    """A list of exactly `count` finite floats."""
    if not isinstance(value, list | tuple) or len(value) != count:
        raise RpcError(f"{name}: expected {count} numbers, got {_shown(value)}")
    return [number(item, name) for item in value]


def vector(value: Any, name: str = "vector") -> tuple[float, float, float]:
    """A location, rotation or velocity."""
    x, y, z = numbers(value, 3, name)
    return x, y, z


def transform(value: Any) -> Pose:
    """A transform: [[x, y, z], [pitch, yaw, roll]]; angles come out within 180 degrees (CARLA's map has pitch 360)."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise RpcError(f"transform: expected [location, rotation], got {_shown(value)}")
    return Pose(*vector(value[0], "location"), *(wrap_degrees(angle) for angle in vector(value[1], "rotation")))


def optional(value: Any, name: str = "optional") -> Any | None:
    """What an optional carries: [true, v] or [false]."""
    if not isinstance(value, list | tuple) or not value or (value[0] and len(value) != 2):
        raise RpcError(f"{name}: expected [true, value] or [false], got {_shown(value)}")
    return value[1] if value[0] else None


def vehicle_control(value: Any) -> tuple[Pedals, bool, int]:
    """Pedals, manual_gear and gear of a `VehicleControl`.

    The client's TrafficManager really sends NaN (a brake of 0 over 0 for a stopped car): NaN throttle and steer mean 0,
    a NaN brake means 1. Anything out of range is clipped, as CARLA does.
    """
    if not isinstance(value, list | tuple) or len(value) != 7:
        raise RpcError(f"control: expected 7 fields, got {_shown(value)}")
    throttle, steer, brake = (_demand(v, if_nan) for v, if_nan in zip(value[:3], (0.0, 0.0, 1.0), strict=True))
    gear = value[6]
    if isinstance(gear, bool) or not isinstance(gear, int) or not -(2**31) <= gear < 2**31:
        raise RpcError(f"gear: expected a 32-bit integer, got {_shown(gear)}")
    pedals = Pedals(
        min(max(throttle, 0.0), 1.0),
        min(max(steer, -1.0), 1.0),
        min(max(brake, 0.0), 1.0),
        bool(value[3]),
        bool(value[4]),
    )
    return pedals, bool(value[5]), gear


def walker_control(value: Any) -> tuple[tuple[float, float, float], float, bool]:
    """Direction, speed in m/s and jump of a `WalkerControl`."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise RpcError(f"walker control: expected 3 fields, got {_shown(value)}")
    return vector(value[0], "direction"), number(value[1], "speed"), bool(value[2])


def _demand(value: Any, if_nan: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RpcError(f"control: expected a number, got {_shown(value)}")
    return if_nan if math.isnan(value) else float(max(-LARGEST_NUMBER, min(LARGEST_NUMBER, value)))


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
