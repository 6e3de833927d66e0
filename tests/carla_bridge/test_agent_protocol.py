"""The agent's own msgpack against the real one, and what comes of messages that are none."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import random
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.agent_server import command as agent_command
from carla_bridge.agent_server import protocol
from carla_bridge.agent_server.server import AgentServer
from wamdiff2_core.planner import RandomPlanner

pytest.importorskip("carla", reason="the agent file needs the carla client library")


@pytest.fixture(scope="module")
def agent_file() -> Iterator[ModuleType]:
    """The agent's module, with the replay's base class in the leaderboard's place."""
    folder = str(Path(__file__).parent / "leaderboard_replay")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("carla_bridge.leaderboard_agent")
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.split(".")[0] == "leaderboard"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def server() -> Iterator[AgentServer]:
    served = AgentServer(RandomPlanner(), "random", every_ticks=2)
    thread = threading.Thread(target=served.serve, daemon=True)
    thread.start()
    yield served
    served.close()
    thread.join(5.0)
    assert not thread.is_alive()


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | st.text() | st.binary()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20)
)


@given(value=values)
def test_packed_values_are_read_by_msgpack(agent_file: ModuleType, value: Any) -> None:
    assert msgpack.unpackb(agent_file.pack(value), raw=False) == value


@given(value=values, single=st.floats(width=32, allow_nan=False))
def test_values_of_msgpack_are_read(agent_file: ModuleType, value: Any, single: float) -> None:
    assert agent_file.unpack(msgpack.packb(value, use_bin_type=True)) == value
    assert agent_file.unpack(msgpack.packb(single, use_single_float=True)) == single


@pytest.mark.parametrize("length", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
@pytest.mark.parametrize(
    "make", [lambda n: "x" * n, bytes, lambda n: [None] * n, lambda n: {str(k): k for k in range(n)}]
)
def test_every_width_of_length(agent_file: ModuleType, length: int, make: Any) -> None:
    value = make(length)
    assert agent_file.pack(value) == msgpack.packb(value, use_bin_type=True)
    assert agent_file.unpack(agent_file.pack(value)) == value


def test_numbers_of_numpy_are_numbers(agent_file: ModuleType) -> None:
    packed = agent_file.pack([np.float64(0.5), np.float32(0.5), np.int64(-3), np.uint8(200), np.bool_(True), (1, 2)])
    assert msgpack.unpackb(packed) == [0.5, 0.5, -3, 200, True, [1, 2]]
    assert math.isnan(agent_file.unpack(agent_file.pack(math.nan)))
    with pytest.raises(TypeError, match="cannot pack a set"):
        agent_file.pack({1, 2})
    with pytest.raises(ValueError, match="64 bits"):
        agent_file.pack(2**64)


@settings(max_examples=300)
@given(body=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(agent_file: ModuleType, body: bytes) -> None:
    try:
        agent_file.unpack(body)
    except ValueError:
        return
    msgpack.unpackb(body, raw=False, strict_map_key=False)  # what ours takes, the real one takes too


def test_cut_off_and_deep_messages_are_errors(agent_file: ModuleType) -> None:
    body = msgpack.packb({"type": "control", "list": [1.0, "text", b"bytes", {"a": 2**40}]})
    for cut in range(len(body)):
        with pytest.raises(ValueError, match="msgpack"):
            agent_file.unpack(body[:cut])
    with pytest.raises(ValueError, match="after the end"):
        agent_file.unpack(body + b"\x00")
    with pytest.raises(ValueError, match="too deep"):
        agent_file.unpack(b"\x91" * 5000)
    with pytest.raises(ValueError, match="cut off"):
        agent_file.unpack(b"\xdd\xff\xff\xff\xff")  # an array of 4 billion items, none of which is there


def test_both_sides_agree_on_the_frame(agent_file: ModuleType) -> None:
    for name in ("MAGIC", "VERSION", "MAX_BODY_BYTES"):
        assert getattr(agent_file, name) == getattr(protocol, name)
    assert agent_file.HEADER.format == protocol.HEADER.format


def talk(server: AgentServer, data: bytes) -> list[dict[str, Any]]:
    """Everything the server says to `data`; our side is closed for writing."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as connection:
        connection.sendall(data)
        with contextlib.suppress(OSError):  # it may have hung up already
            connection.shutdown(socket.SHUT_WR)
        replies = []
        while True:
            try:
                replies.append(protocol.receive(connection))
            except (EOFError, ConnectionError):
                return replies


def frame(message: Any, version: int = protocol.VERSION, magic: bytes = protocol.MAGIC) -> bytes:
    body = message if isinstance(message, bytes) else msgpack.packb(message)
    return protocol.HEADER.pack(magic, version, len(body)) + body


HELLO = frame({"type": "hello", "client": "test"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame({"type": "hello"}, version=2), "protocol version: expected 1, got 2"),
        (frame({"type": "hello"}, magic=b"GET "), "speaks the planner protocol"),
        (protocol.HEADER.pack(protocol.MAGIC, 1, 2**31), "at most 4096 bytes, got 2147483648"),
        (HELLO + protocol.HEADER.pack(protocol.MAGIC, 1, 2**32 - 1), "at most 67108864 bytes"),
        (frame({"type": "step"}), "expected hello first, got step"),
        (frame(b"\xc1"), "expected msgpack"),
        (frame([1, 2]), "expected a map with a type"),
        (frame({"type": 7}), "expected a map with a type"),
        (HELLO[:-3], "cut off"),
        (HELLO[:5], "cut off"),
        (HELLO + HELLO[:-1], "cut off"),
    ],
)
def test_what_is_no_message_ends_the_connection_with_a_reason(server: AgentServer, data: bytes, said: str) -> None:
    assert said in talk(server, data)[-1]["message"]


def test_requests_out_of_order_and_wrong_ones_are_told_and_the_connection_goes_on(server: AgentServer) -> None:
    wrong_route = {"type": "route", "positions": [[0, 0, 0]] * 5, "options": [4] * 5, "degrees": [[0.0, 0.0]] * 5}
    requests = [{"type": "step"}, {"type": "dance"}, {"type": "route"}, wrong_route]
    ready, *errors = talk(server, HELLO + b"".join(map(frame, requests)))
    assert ready["type"] == "ready"
    assert [error["type"] for error in errors] == ["error"] * 4
    words = ("a route before the first step", "dance", "positions", "at least 2 m")
    for error, word in zip(errors, words, strict=True):
        assert word in error["message"]


def test_random_bytes_leave_the_server_standing(server: AgentServer) -> None:
    noise = random.Random(0)
    for _ in range(200):
        prefix = HELLO if noise.random() < 0.5 else b""
        cut = prefix + noise.choice([b"", protocol.MAGIC, struct.pack(">4sH", protocol.MAGIC, 1)])
        talk(server, cut + noise.randbytes(noise.randrange(60)))
    assert talk(server, HELLO)[0]["type"] == "ready"


def test_the_planner_process_waits_without_spinning_and_tells_wrong_use_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "to be undone")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(sys, "argv", ["agent_command", "--checkpoint", "/nowhere"])
    assert agent_command.main() == 2
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert capsys.readouterr().err.startswith("error: --checkpoint: expected")
    monkeypatch.setattr(sys, "argv", ["agent_command", "--checkpoint", "random", "--port", "no"])
    assert agent_command.main() == 2
    assert "--port" in capsys.readouterr().err
