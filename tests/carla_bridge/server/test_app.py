"""The server in a thread: ports, a plain request, the clock of asynchronous mode, and what is wrong use."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from carla_bridge.leases import lease_ports
from carla_bridge.server.app import EmbeddedServer, ServerConfig
from carla_bridge.server.protocol.doorkeeper import MAX_CONNECTIONS
from wamdiff2_core.errors import InfrastructureError, UserError


class Flat:
    """A renderer of one colour."""

    def render(self, camera: Any, *scene: Any) -> np.ndarray:
        return np.zeros((camera.height, camera.width, 4), np.uint8)


def embedded(port: int, opendrive: str = "") -> EmbeddedServer:
    town = SimpleNamespace(name="Flat", opendrive=opendrive, spawn_points=[], static_boxes=[], signals=())
    config = ServerConfig(port=port)
    return EmbeddedServer(config, make_town=lambda name: town, make_renderer=lambda town, go_on: Flat())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def request(port: int, name: str, *arguments: Any) -> Any:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(msgpack.packb([0, 9, name, [[False], *arguments]]))
        unpacker = msgpack.Unpacker()
        while True:
            unpacker.feed(sock.recv(65536))
            for kind, message_id, error, result in unpacker:
                assert (kind, message_id, error) == (1, 9, None)
                return result


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more
        data += more
    return data


def test_server_answers_streams_and_leaves_its_ports_free() -> None:
    port = lease_ports().number
    for _ in range(2):
        with embedded(port):
            ((_, (_, (token,))),) = request(port, "get_episode_info")
            stream_id, stream_port = struct.unpack_from("<IH", token)
            assert stream_port == port + 1
            with socket.create_connection(("127.0.0.1", stream_port), timeout=20) as stream:
                stream.sendall(struct.pack("<I", stream_id))
                frames = []
                for _ in range(3):  # the last state at once, then the clock of asynchronous mode
                    (length,) = struct.unpack("<I", read_exactly(stream, 4))
                    frames.append(struct.unpack_from("<Q", read_exactly(stream, length), 8)[0])
            assert frames == [frames[0], frames[0] + 1, frames[0] + 2]


def test_client_that_does_not_read_fills_no_memory_and_holds_up_nobody() -> None:
    port, text, requests = lease_ports().number, "x" * (1 << 20), 400
    with embedded(port, text), socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        before = resident_bytes()
        for i in range(requests):
            sock.sendall(msgpack.packb([0, i, "get_map_data", [[False]]]))
        for _ in range(20):  # time enough to answer all of them
            assert request(port, "version") == [[1, "0.9.16"]]
            time.sleep(0.02)
        assert resident_bytes() - before < 100 << 20, "answers pile up"
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        answers: list[int] = []
        while len(answers) < requests:  # and none of the answers is lost
            unpacker.feed(sock.recv(1 << 20))
            answers.extend(message_id for _, message_id, _, ((_, xodr),) in unpacker if xodr == text)
        assert answers == list(range(requests))


def test_flood_of_requests_leaves_turns_to_others() -> None:
    port, flood_size = lease_ports().number, 20_000
    with embedded(port) as server, socket.create_connection(("127.0.0.1", port), timeout=20) as flood:
        assert server.world is not None
        before = server.world.frame
        flood.sendall(msgpack.packb([0, 1, "tick_cue", [[False]]]) * flood_size)
        while server.world.frame < before + 100:
            time.sleep(0.001)
        assert request(port, "version") == [[1, "0.9.16"]]
        assert server.world.frame - before < flood_size / 2


def test_strangers_that_say_nothing_keep_no_client_out() -> None:
    port = lease_ports().number
    with embedded(port), contextlib.ExitStack() as strangers:
        early = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        early.sendall(msgpack.packb([0, 1, "version", [[False]]]))
        assert early.recv(1000)
        for offset in (0, 1):
            for _ in range(MAX_CONNECTIONS):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port + offset), timeout=20))
        assert request(port, "version") == [[1, "0.9.16"]]
        early.sendall(msgpack.packb([0, 2, "version", [[False]]]))
        assert msgpack.unpackb(early.recv(1000))[1] == 2, "who had asked before was thrown out"
        ((_, (_, (token,))),) = request(port, "get_episode_info")
        with socket.create_connection(("127.0.0.1", port + 1), timeout=20) as stream:
            stream.sendall(token[:4])
            assert len(read_exactly(stream, 4)) == 4


def test_taken_port_is_an_infrastructure_error_in_a_thread_too() -> None:
    port = lease_ports().number
    with embedded(port), pytest.raises(InfrastructureError, match=str(port)), embedded(port):
        pass


@pytest.mark.parametrize("wrong", [{"port": 0}, {"port": 65535}, {"host": "localhost"}, {"host": "::1"}, {"seed": -1}])
def test_wrong_address_is_a_user_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--"):
        ServerConfig(**wrong)


def test_address_of_another_machine_is_told_apart_from_a_taken_port() -> None:
    server = EmbeddedServer(ServerConfig(lease_ports().number, "192.0.2.1"), make_town=lambda name: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(InfrastructureError, match="--host must be an address of this machine"), server:
        pass


def test_file_that_is_no_town_is_named_by_its_option(tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text('{"a": ')
    server = EmbeddedServer(ServerConfig(lease_ports().number, map_file=cut))
    with pytest.raises(UserError, match=r"^--map: .*cut\.json"), server:
        pass
