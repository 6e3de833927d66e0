"""While one client loads a town, or waits for its cameras, others are served."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from carla_bridge.server.app import EmbeddedServer, ServerConfig
from carla_bridge.server.town.town_shelf import TownShelf
from wamdiff2_core.errors import UserError
from wamdiff2_core.processes import ManagedProcess

CAMERA = [0, "sensor.camera.rgb", [["image_size_x", 2, "16"], ["image_size_y", 2, "8"]]]
POSE = [[0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
SETTINGS = [True, False, [True, 0.05], True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True]
PATIENCE_S = 20.0
PROMPT_S = 0.5
REAL_TOWNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "opendrive"


class Caller:
    """A client's connection."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._unpacker, self._sent = msgpack.Unpacker(), 0

    def send(self, name: str, *arguments: Any) -> None:
        self._sent += 1
        self._sock.sendall(msgpack.packb([0, self._sent, name, [[False], *arguments]]))

    def receive(self, timeout_s: float = PATIENCE_S) -> list:
        """[id, result] of the next answer."""
        self._sock.settimeout(timeout_s)
        while True:
            for _, message_id, error, result in self._unpacker:
                assert error is None
                return [message_id, result]
            data = self._sock.recv(1 << 16)
            assert data
            self._unpacker.feed(data)

    def ask(self, name: str, *arguments: Any, timeout_s: float = PATIENCE_S) -> Any:
        self.send(name, *arguments)
        return self.receive(timeout_s)[1]

    def answered(self) -> bool:
        """Whether an answer has arrived."""
        try:
            self._sock.settimeout(0.02)
            self._unpacker.feed(self._sock.recv(1 << 16))
        except TimeoutError:
            return False
        return True


class Gate:
    """Holds up whoever passes until it is opened."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(PATIENCE_S)


def flat(name: str) -> Any:
    return SimpleNamespace(name=name, opendrive="", spawn_points=[], static_boxes=[], signals=())


def served(port: int, make_town: Callable[[str], Any], gate: Gate | None = None) -> EmbeddedServer:
    """A server whose renderers, but the first town's, wait at the gate."""

    def make_renderer(town: Any, go_on: Callable[[], None]) -> Any:
        if gate is not None and town.name != "Wamtown01":
            gate.wait()
        return SimpleNamespace(render=lambda camera, *scene: np.zeros((camera.height, camera.width, 4), np.uint8))

    return EmbeddedServer(ServerConfig(port=port), make_town=make_town, make_renderer=make_renderer)


def test_others_are_answered_while_a_town_is_loaded_and_its_client_waits_in_turn() -> None:
    gate, port = Gate(), lease_ports().number

    def make_town(name: str) -> Any:
        if name == "Slow":
            gate.wait()
        return flat(name)

    with served(port, make_town) as server:
        loader, other = Caller(port), Caller(port)
        loader.send("load_new_episode", "Slow", True, 0)
        loader.send("get_map_info")
        assert gate.reached.wait(PATIENCE_S)
        frames = [other.ask("tick_cue")[0][1] for _ in range(20)]
        assert frames == sorted(set(frames))
        assert other.ask("get_map_info")[0][1][0] == "Carla/Maps/Wamtown01", "until the new town is there"
        assert not loader.answered()
        gate.open()
        assert loader.receive() == [1, [[False]]]
        assert loader.receive()[1][0][1][0] == "Carla/Maps/Slow"
        assert server.world is not None
        assert server.world.episode_id == 2


def test_load_that_fails_is_told_and_what_the_client_asks_next_is_answered() -> None:
    def make_town(name: str) -> Any:
        if name == "Missing":
            raise UserError("town", "the name of a town", name)
        return flat(name)

    port = lease_ports().number
    with served(port, make_town):
        loader = Caller(port)
        ((failed, (message,)),) = loader.ask("load_new_episode", "Missing", True, 0)
        assert failed is True
        assert "map not found" in message
        assert loader.ask("get_map_info")[0][1][0] == "Carla/Maps/Wamtown01"


def test_tick_that_waits_for_the_cameras_of_a_new_town_holds_up_nobody_else() -> None:
    gate, port = Gate(), lease_ports().number
    with served(port, flat, gate) as server:
        assert server.world is not None
        watcher, other = Caller(port), Caller(port)
        watcher.ask("set_episode_settings", SETTINGS)
        watcher.ask("load_new_episode", "Next", False, 0)
        actor = watcher.ask("spawn_actor", CAMERA, POSE)[0][1]
        with socket.create_connection(("127.0.0.1", port + 1), timeout=PATIENCE_S) as stream:
            stream.sendall(actor[5][:4])
            (stream_id,) = struct.unpack("<I", actor[5][:4])
            while not server.world.hub.listening(stream_id):
                time.sleep(0.001)
            watcher.send("tick_cue")
            for _ in range(20):
                other.ask("version")
            assert not watcher.answered()
            gate.open()
            assert watcher.receive()[1][0][0] == 1
            (length,) = struct.unpack("<I", stream.recv(4))
            assert length > 16 * 8 * 4


def test_file_that_is_loaded_again_is_not_read_again_unless_it_changed(tmp_path: Path) -> None:
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.server.town.town_library import TownLibrary

    shelf, path = TownShelf(), tmp_path / "Copy.xodr"
    path.write_bytes(TownLibrary().find("Wamtown01").read_bytes())
    town = shelf.load(path)
    assert shelf.load(path) is town
    os.utime(path, ns=(1, 1))
    assert shelf.load(path) is not town


def processor_s(pid: int) -> float:
    """Processor time of a process so far: what it does takes as long on a machine that has nothing else to do."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.carla
@pytest.mark.timeout(300)
def test_a_real_town_is_loaded_while_another_client_gets_every_answer_promptly(tmp_path: Path) -> None:
    pytest.importorskip("carla", reason="needs the carla client library")
    import sys

    town, options = ("Town03", ["--maps", str(REAL_TOWNS)]) if REAL_TOWNS.is_dir() else ("Wamtown03", [])
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), *options]
    with ManagedProcess("embedded server", command, tmp_path / "server.log") as process:
        wait_for_port(port, process.alive, 120.0)
        loader, other = Caller(port), Caller(port)
        loader.send("load_new_episode", town, True, 0)
        waits_s: list[float] = []
        while not loader.answered():
            started = processor_s(process.pid)
            other.ask("tick_cue")
            waits_s.append(processor_s(process.pid) - started)
        assert other.ask("get_map_info")[0][1][0] == f"Carla/Maps/{town}"
    assert len(waits_s) > 10
    assert max(waits_s) < PROMPT_S
