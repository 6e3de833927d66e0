"""Sensor streams: subscribers of stream ids, and writing payloads to them.

A client connects, sends the id as 4 bytes, and from then on only reads. A dropped socket makes the client connect
again, so a subscription to a destroyed sensor stays open and silent; only ids that were never given out are refused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Callable

from carla_bridge.server.protocol.doorkeeper import Doorkeeper
from carla_bridge.server.protocol.wire import frame_message, stream_token

LOG = logging.getLogger(__name__)
MAX_BACKLOG_BYTES = 32 << 20  # a reader this far behind misses payloads, instead of filling the memory
MAX_STALL_S = 20.0  # a reader that stays that far behind for this long is dropped; one that lives connects again


class StreamHub:
    """All streams of the server.

    Args:
        host, port: where clients subscribe; written into tokens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._next_id = 1
        self._subscribers: dict[int, set[_Subscriber]] = {}  # only of streams that have some
        self._doorkeeper = Doorkeeper()
        self.on_subscribe: Callable[[int], bytes | None] = lambda _stream_id: None

    def open_stream(self) -> int:
        """A new stream id."""
        stream_id, self._next_id = self._next_id, self._next_id + 1
        return stream_id

    def token(self, stream_id: int) -> bytes:
        """Token that tells a client where to subscribe."""
        return stream_token(stream_id, self._host, self._port)

    def known(self, stream_id: int) -> bool:
        """Whether this id was ever given out."""
        return 0 < stream_id < self._next_id

    def listening(self, stream_id: int) -> bool:
        """Whether anyone reads this stream."""
        return stream_id in self._subscribers

    def send(self, stream_id: int, payload: bytes) -> None:
        """Send a payload to all subscribers of a stream."""
        subscribers = self._subscribers.get(stream_id)
        if subscribers:
            message = frame_message(payload)
            for subscriber in tuple(subscribers):
                subscriber.write(message)

    def protocol(self) -> asyncio.Protocol:
        """Protocol of one connection, for `loop.create_server`."""
        return _Subscriber(self, self._doorkeeper)

    def attach(self, subscriber: _Subscriber, stream_id: int) -> None:
        """Add a subscriber; it at once gets what `on_subscribe` returns for the stream."""
        self._subscribers.setdefault(stream_id, set()).add(subscriber)
        first = self.on_subscribe(stream_id)
        if first is not None:
            subscriber.write(frame_message(first))

    def detach(self, subscriber: _Subscriber, stream_id: int) -> None:
        """Forget a subscriber."""
        remaining = self._subscribers.get(stream_id, set())
        remaining.discard(subscriber)
        if not remaining:
            self._subscribers.pop(stream_id, None)

    def close(self) -> None:
        """Drop all connections."""
        self._doorkeeper.close()


class _Subscriber(asyncio.Protocol):
    """One connection on the stream port."""

    def __init__(self, hub: StreamHub, doorkeeper: Doorkeeper) -> None:
        self._hub, self._doorkeeper = hub, doorkeeper
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._stream_id = 0
        self._behind_since_s: float | None = None

    @property
    def loitering(self) -> bool:
        """Whether it has not said which stream it wants."""
        return not self._stream_id

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._doorkeeper.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._stream_id:
            return  # a subscriber has nothing more to say
        self._received += data[:4]
        if len(self._received) < 4:
            return
        (stream_id,) = struct.unpack("<I", self._received[:4])
        if not self._hub.known(stream_id):
            LOG.warning("subscription to stream %d refused: no such stream", stream_id)
            self.abort()
            return
        self._stream_id = stream_id
        self._hub.attach(self, stream_id)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream_id:
            self._hub.detach(self, self._stream_id)
        self._transport = None
        self._doorkeeper.leave(self)

    def write(self, message: bytes) -> None:
        """Send one framed payload; leave it out when the reader is too far behind, and drop a reader that stays so."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() <= MAX_BACKLOG_BYTES:
            self._behind_since_s = None
            self._transport.write(message)
        elif self._behind_since_s is None:
            self._behind_since_s = time.monotonic()
            LOG.warning("stream %d: reader is %d bytes behind, payloads dropped", self._stream_id, MAX_BACKLOG_BYTES)
        elif time.monotonic() - self._behind_since_s > MAX_STALL_S:
            LOG.warning("stream %d: reader stalled, dropped", self._stream_id)
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
