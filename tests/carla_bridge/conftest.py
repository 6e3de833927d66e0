"""Fixtures of the bridge's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from carla_bridge.server.renderer import Renderer
    from carla_bridge.server.town import Town


@pytest.fixture(scope="session")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """RPC port of an embedded server with the default town, in a process of its own, shared by the whole session."""
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.processes import ManagedProcess, free_ports, wait_for_port

    port = free_ports(2)
    log = tmp_path_factory.mktemp("server") / "server.log"
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port)]
    with ManagedProcess("embedded server", command, log) as process:
        wait_for_port(port, process.alive, 60.0)
        yield port


@pytest.fixture(scope="session")
def wamtown() -> Town:
    """The default town of the embedded world."""
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.server.town import Town

    return Town.load()


@pytest.fixture(scope="session")
def wamtown_renderer(wamtown: Town) -> Renderer:
    """Renderer of the default town: laying it out takes seconds."""
    from carla_bridge.server.renderer import Renderer

    return Renderer(wamtown)
