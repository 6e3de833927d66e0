"""Bytes of the CARLA protocol: response envelopes, stream tokens, sensor headers, world-state records.

Layouts were read from the client wheels; those that depend on the version are in `dialect`. Structs on the RPC port
are msgpack arrays in field order; the streams are packed little-endian. A client that receives an unknown sensor type
dies, so `SensorType` holds only what is sent.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

Vector = tuple[float, float, float]


class SensorType(IntEnum):
    """First field of a sensor's stream payload."""

    COLLISION = 0
    CAMERA_DEPTH = 1
    GNSS = 4
    IMU = 5
    OBSTACLE = 7
    RADAR = 9
    SEMANTIC_LIDAR = 10
    LIDAR = 11
    CAMERA_RGB = 13
    CAMERA_SEMANTIC = 14


class AttributeType(IntEnum):
    """Type of a blueprint attribute; the dialect says what the first one's number is on the wire."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    STRING = 3
    COLOR = 4


class TrafficLightState(IntEnum):
    """State byte of a traffic light; a vehicle without a light reports GREEN."""

    RED = 0
    YELLOW = 1
    GREEN = 2
    OFF = 3
    UNKNOWN = 4


MAP_CHANGED = 1  # bit of the simulation-state word: the client drops its cached map
ACTOR_ACTIVE = 1
DETAIL_BYTES = 54

_HEADER = struct.Struct("<QQd6f")
_WORLD_HEADER = struct.Struct("<Qdf3iI")
_RECORD = struct.Struct("<IB6f3f3f3f")
_IMAGE = struct.Struct("<IIf")
_VEHICLE = struct.Struct("<fff???ifB?IB")
_WALKER = struct.Struct("<3ff?")
_TOKEN = struct.Struct("<IHBB4s12x")
_LENGTH = struct.Struct("<I")


def value(result: Any) -> list:
    """Envelope of a successful call that returns something."""
    return [[1, result]]


def value_error(message: str) -> list:
    """Envelope of a failed call that would have returned something."""
    return [[0, [message]]]


def void() -> list:
    """Envelope of a successful call that returns nothing."""
    return [[False]]


def void_error(message: str) -> list:
    """Envelope of a failed call that would have returned nothing."""
    return [[True, [message]]]


def failure_of(envelope: list) -> str | None:
    """Message of a failed call's envelope, None of a successful one's."""
    ((head, *rest),) = envelope
    return rest[0][0] if rest and (head is True or head == 0) else None


def stream_token(stream_id: int, host: str, port: int) -> bytes:
    """24-byte token: where to subscribe to a stream, over TCP and IPv4."""
    return _TOKEN.pack(stream_id, port, 1, 1, ipaddress.IPv4Address(host).packed)


def frame_message(payload: bytes) -> bytes:
    """Stream message: length, then payload."""
    return _LENGTH.pack(len(payload)) + payload


def sensor_header(sensor: int, frame: int, time_s: float, transform: Iterable[Iterable[float]]) -> bytes:
    """48-byte header of every stream payload; `transform` is ((x, y, z) m, (pitch, yaw, roll) degrees)."""
    location, rotation = transform
    return _HEADER.pack(sensor, frame, time_s, *location, *rotation)


def image_body(width_px: int, height_px: int, fov_deg: float, bgra: bytes) -> bytes:
    """Body of a camera payload. A short body would be accepted silently and fail later in user code: refused here."""
    if len(bgra) != width_px * height_px * 4:
        raise ValueError(f"bgra: expected {width_px * height_px * 4} bytes, got {len(bgra)}")
    return _IMAGE.pack(width_px, height_px, fov_deg) + bgra


def world_state_body(episode_id: int, platform_time_s: float, delta_s: float, flags: int, records: bytes) -> bytes:
    """Body of the world-state stream: 36-byte header (map origin is zero), then one record per actor."""
    return _WORLD_HEADER.pack(episode_id, platform_time_s, delta_s, 0, 0, 0, flags) + records


def actor_record(
    actor_id: int,
    transform: Iterable[Iterable[float]],
    velocity_mps: Vector,
    angular_velocity_degps: Vector,
    acceleration_mps2: Vector,
    detail: bytes = b"",
) -> bytes:
    """119-byte record of one actor; `detail` is the part that depends on its kind, padded to 54 bytes."""
    location, rotation = transform
    fixed = _RECORD.pack(
        actor_id, ACTOR_ACTIVE, *location, *rotation, *velocity_mps, *angular_velocity_degps, *acceleration_mps2
    )
    return fixed + detail.ljust(DETAIL_BYTES, b"\0")


def vehicle_detail(
    control: list, speed_limit_kmh: float, light: tuple[int, TrafficLightState] | None = None
) -> bytes:
    """Detail of a vehicle record.

    Args:
        control: throttle, steer, brake, hand_brake, reverse, manual_gear, gear.
        speed_limit_kmh: what `get_speed_limit` returns.
        light: id and state of the traffic light that governs the vehicle, if any.
    """
    light_id, state = light or (0, TrafficLightState.GREEN)
    return _VEHICLE.pack(*control, speed_limit_kmh, state, light is not None, light_id, 0)


def walker_detail(direction: Vector, speed_mps: float, jump: bool) -> bytes:
    """Detail of a walker record."""
    return _WALKER.pack(*direction, speed_mps, jump)
