"""Fixtures of the bridge's tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from carla_bridge.server.rendering.renderer import Renderer
    from carla_bridge.server.town.town import Town
    from wamdiff2_core.processes import ManagedProcess
    from wamdiff2_core.types import Pose2D

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """RPC port of an embedded server with the default town, in a process of its own, shared by the whole session."""
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.leases import lease_ports
    from carla_bridge.ports import wait_for_port
    from wamdiff2_core.processes import ManagedProcess

    port = lease_ports().number
    log = tmp_path_factory.mktemp("server") / "server.log"
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port)]
    with ManagedProcess("embedded server", command, log) as process:
        wait_for_port(port, process.alive, 180.0)
        yield port


@pytest.fixture(scope="session")
def demo_start(server_port: int) -> Pose2D:
    """Where the first route of the demonstration begins, on the server's own map."""
    import carla

    from carla_bridge.routes.route_file import load_routes
    from carla_bridge.routes.route_planner import RoutePlanner

    client = carla.Client("127.0.0.1", server_port)
    client.set_timeout(20.0)
    routes = load_routes(ROOT / "carla_bridge" / "routes" / "demo.xml")
    return RoutePlanner(client.get_world().get_map()).plan(routes[0]).start


@pytest.fixture
def straight_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedProcess]:
    """A planner node that somebody else has started, wired to the bridge as a drive wires its own; needs no PyTorch."""
    from carla_bridge.agents.choice import AgentChoice
    from carla_bridge.agents.ros_planner import planner_command
    from carla_bridge.drive.run_setup import choose_ros_domain
    from wamdiff2_core.processes import ManagedProcess, child_environment

    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_DOMAIN_ID", "")  # so that whatever is chosen is undone
    monkeypatch.delenv("ROS_DOMAIN_ID")
    choose_ros_domain(keep=False)
    arguments = planner_command(AgentChoice.parse("random"), seed=0, device="cpu")
    at = arguments.index("--ros-args")
    node = [sys.executable, str(Path(__file__).with_name("straight_node.py")), *arguments[at:]]
    environment = child_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    with ManagedProcess("straight planner", node, tmp_path / "planner.log", environment) as process:
        yield process


@pytest.fixture(scope="session")
def python38() -> Path:
    """A Python 3.8 with the CARLA 0.9.15 client."""
    python = ROOT / ".venv38" / "bin" / "python"
    if not os.access(python, os.X_OK):
        pytest.skip("needs .venv38: run tools/setup.sh py38, which needs a Python 3.8")
    return python


@pytest.fixture(scope="session")
def wamtown() -> Town:
    """The default town of the embedded world."""
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.server.town.town import Town

    return Town.load()


@pytest.fixture(scope="session")
def wamtown_renderer(wamtown: Town) -> Renderer:
    """Renderer of the default town: laying it out takes seconds."""
    from carla_bridge.server.rendering.renderer import Renderer

    return Renderer(wamtown)
