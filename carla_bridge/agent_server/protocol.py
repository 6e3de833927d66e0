"""Messages between the leaderboard's agent and the planner process: framed msgpack over one TCP connection.

A frame is a header of magic, version and length, and a msgpack map as its body. Each request gets one reply, in order.
The agent's side is in `leaderboard_agent`, which must run on Python 3.8 with numpy alone and has its own msgpack.

Requests, by their `type`:
    hello   `client`: who asks. Reply `ready`: `checkpoint`, `sensors` (the leaderboard's specifications), and
            `plan_every_ticks`.
    route   `name`, `positions` (N x 3, CARLA's world), `options` (N values of RoadOption), `degrees` (N x 2),
            `max_steer_deg`, `progress_m` (where to go on after a restart). Reply `route_ready`: `length_m`.
    step    `time_s`, `speed_mps`, `gnss` (3), `imu` (7), as the leaderboard gives them, not-a-number or nil when
            missing; `images`: name -> `height`, `width`, `rgb`, empty on ticks that need none. Reply `control`:
            `throttle`, `steer`, `brake`, `reason` (why it brakes, else empty), `wants_images` (on the next tick),
            `progress_m`.
A request that cannot be answered gets `error` with `message`; what is no message at all ends the connection.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import msgpack

MAGIC = b"WMD2"
VERSION = 1
HEADER = struct.Struct(">4sHI")
MAX_BODY_BYTES = 64 * 2**20
# Nobody who has not said hello in the right version may make this process allocate more.
MAX_HELLO_BYTES = 4096


class ProtocolError(Exception):
    """What came is no message of this protocol; the connection is of no use any more."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: the connection is gone, or did not take it within its timeout.
    """
    body = msgpack.packb(message, use_bin_type=True)
    connection.sendall(HEADER.pack(MAGIC, VERSION, len(body)) + body)


def receive(connection: socket.socket, limit: int = MAX_BODY_BYTES, body_timeout_s: float = 30.0) -> dict[str, Any]:
    """The next message; waits for its beginning as long as the connection's timeout says.

    Args:
        connection: the socket.
        limit: of the body, bytes.
        body_timeout_s: for the whole message once it has begun.

    Raises:
        ProtocolError: another protocol or version, longer than `limit`, cut off, or not a map with a `type`.
        EOFError: the other side has closed the connection in good order.
        OSError: the connection is gone; `TimeoutError` when nothing came in time.
    """
    first = connection.recv(HEADER.size)
    if not first:
        raise EOFError("connection closed")
    idle_s = connection.gettimeout()
    try:
        deadline = time.monotonic() + body_timeout_s
        header = first + _exactly(connection, HEADER.size - len(first), deadline)
        magic, version, length = HEADER.unpack(header)
        if magic != MAGIC:
            raise ProtocolError("this port speaks the planner protocol of wamdiff2")
        if version != VERSION:
            raise ProtocolError(f"protocol version: expected {VERSION}, got {version}; use agent and server of one "
                                "release")
        if length > limit:
            raise ProtocolError(f"message length: expected at most {limit} bytes, got {length}")
        body = _exactly(connection, length, deadline)
    finally:
        connection.settimeout(idle_s)
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises many kinds, none of which it promises
        raise ProtocolError(f"message body: expected msgpack, got {type(error).__name__}: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("message body: expected a map with a type")
    return message


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ProtocolError(f"message cut off: {len(received)} of {count} bytes in time")
        connection.settimeout(left_s)
        try:
            part = connection.recv(min(count - len(received), 1 << 20))
        except TimeoutError:
            continue
        if not part:
            raise ProtocolError(f"message cut off after {len(received)} of {count} bytes")
        received += part
    return bytes(received)
