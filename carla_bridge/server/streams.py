"""Sensor streams: subscribers of stream ids, and writing payloads to them.

A client connects, sends the id as 4 bytes, and from then on only reads. A dropped socket makes the client connect
again, so a subscription to a destroyed sensor stays open and silent; only ids that were never given out are refused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import defaultdict
from collections.abc import Callable

from carla_bridge.server.wire import frame_message, stream_token

LOG = logging.getLogger(__name__)
MAX_BACKLOG_BYTES = 64 << 20  # a reader this far behind misses payloads, instead of filling the memory


class StreamHub:
    """All streams of the server.

    Args:
        host, port: where clients subscribe; written into tokens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._next_id = 1
        self._subscribers: dict[int, set[_Subscriber]] = defaultdict(set)
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
        return bool(self._subscribers.get(stream_id))

    def send(self, stream_id: int, payload: bytes) -> None:
        """Send a payload to all subscribers of a stream."""
        subscribers = self._subscribers.get(stream_id)
        if subscribers:
            message = frame_message(payload)
            for subscriber in tuple(subscribers):
                subscriber.write(message)

    def protocol(self) -> asyncio.Protocol:
        """Protocol of one connection, for `loop.create_server`."""
        return _Subscriber(self)

    def attach(self, subscriber: _Subscriber, stream_id: int) -> None:
        """Add a subscriber; it at once gets what `on_subscribe` returns for the stream."""
        self._subscribers[stream_id].add(subscriber)
        first = self.on_subscribe(stream_id)
        if first is not None:
            subscriber.write(frame_message(first))

    def detach(self, subscriber: _Subscriber, stream_id: int) -> None:
        """Forget a subscriber."""
        self._subscribers[stream_id].discard(subscriber)

    def close(self) -> None:
        """Drop all subscribers."""
        for subscribers in self._subscribers.values():
            for subscriber in tuple(subscribers):
                subscriber.abort()


class _Subscriber(asyncio.Protocol):
    """One connection on the stream port."""

    def __init__(self, hub: StreamHub) -> None:
        self._hub = hub
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._stream_id = 0
        self._behind = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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

    def write(self, message: bytes) -> None:
        """Send one framed payload, or drop it when the reader is too far behind."""
        if self._transport is None or self._transport.is_closing():
            return
        behind = self._transport.get_write_buffer_size() > MAX_BACKLOG_BYTES
        if behind and not self._behind:
            LOG.warning("stream %d: reader is %d bytes behind, payloads dropped", self._stream_id, MAX_BACKLOG_BYTES)
        self._behind = behind
        if not behind:
            self._transport.write(message)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
