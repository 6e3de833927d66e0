"""Stream subscriptions over real sockets: who gets what, slow readers, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace

import pytest

from carla_bridge.server.protocol import streams
from carla_bridge.server.protocol.streams import StreamHub

PAYLOAD = bytes(1 << 20)


async def subscribe(port: int, stream_id: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(struct.pack("<I", stream_id))
    return reader, writer


async def until(condition: object, timeout_s: float = 10.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def test_payload_reaches_the_subscribers_of_its_stream_only() -> None:
    async def scenario() -> None:
        hub = StreamHub("127.0.0.1", 0)
        first, second = hub.open_stream(), hub.open_stream()
        async with await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            one, _one = await subscribe(port, first)
            two, _two = await subscribe(port, second)
            await until(lambda: hub.listening(first) and hub.listening(second))
            hub.send(first, b"for one")
            hub.send(second, b"2")
            assert await one.readexactly(11) == struct.pack("<I", 7) + b"for one"
            assert await two.readexactly(5) == struct.pack("<I", 1) + b"2"
            hub.close()

    asyncio.run(scenario())


def test_stream_that_was_never_opened_is_refused() -> None:
    async def scenario() -> None:
        hub = StreamHub("127.0.0.1", 0)
        async with await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0) as server:
            reader, _writer = await subscribe(server.sockets[0].getsockname()[1], 7)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)

    asyncio.run(scenario())


def test_reader_that_stalls_is_dropped_and_others_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_BACKLOG_BYTES", 4 << 20)
    monkeypatch.setattr(streams, "MAX_STALL_S", 0.05)

    async def scenario() -> None:
        hub = StreamHub("127.0.0.1", 0)
        stream_id, received = hub.open_stream(), 0
        async with await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            _stalled, writer = await subscribe(port, stream_id)
            writer.transport.pause_reading()
            good, _good = await subscribe(port, stream_id)
            await until(lambda: len(hub._subscribers.get(stream_id, ())) == 2)
            for _ in range(40):
                hub.send(stream_id, PAYLOAD)
                (length,) = struct.unpack("<I", await good.readexactly(4))
                received += len(await good.readexactly(length))
                await asyncio.sleep(0.005)
            assert received == 40 * len(PAYLOAD)
            assert len(hub._subscribers[stream_id]) == 1, "the stalled reader is still there"
            hub.close()

    asyncio.run(scenario())


class Pipe(asyncio.Transport):
    """A transport whose backlog is what the test says."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.backlog_bytes, self.aborted = 0, False

    def setsockopt(self, *args: int) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return self.backlog_bytes

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


def test_reader_that_catches_up_gets_its_whole_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, pipe = StreamHub("127.0.0.1", 0), Pipe()
    stream_id, reader = hub.open_stream(), hub.protocol()
    reader.connection_made(pipe)
    reader.data_received(struct.pack("<I", stream_id))
    full, limit_s = streams.MAX_BACKLOG_BYTES + 1, streams.MAX_STALL_S
    for share, backlog_bytes, dropped in (
        (0.0, full, False), (0.9, 0, False), (1.0, full, False), (1.9, full, False), (2.1, full, True),
    ):  # fmt: skip
        monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda now_s=share * limit_s: now_s))
        pipe.backlog_bytes = backlog_bytes
        hub.send(stream_id, b"x")
        assert pipe.aborted == dropped


def test_nothing_is_kept_of_a_client_that_is_gone() -> None:
    async def scenario() -> None:
        hub = StreamHub("127.0.0.1", 0)
        async with await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            for _ in range(20):
                stream_id = hub.open_stream()
                _, writer = await subscribe(port, stream_id)
                await until(lambda stream_id=stream_id: hub.listening(stream_id))
                writer.transport.abort()
                await until(lambda stream_id=stream_id: not hub.listening(stream_id))
            assert hub._subscribers == {}
            assert hub._doorkeeper._inside == {}

    asyncio.run(scenario())
