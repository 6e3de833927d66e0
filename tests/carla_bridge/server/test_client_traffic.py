"""The server's own traffic as the real `carla` client sees it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.processes import ManagedProcess, child_environment

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = [pytest.mark.carla, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "client_scripts" / "traffic.py"
VEHICLES, WALKERS = 8, 4


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw; one run serves all tests below."""
    port = lease_ports().number
    log = tmp_path_factory.mktemp("traffic") / "server.log"
    command = [
        sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--town", "Wamtown02",
        "--vehicles", str(VEHICLES), "--walkers", str(WALKERS),
    ]  # fmt: skip
    with ManagedProcess("embedded server", command, log) as server:
        wait_for_port(port, server.alive, 60.0)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(port)],
            env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_client_sees_the_background_and_it_moves(seen: dict[str, Any]) -> None:
    assert sum(name.startswith("vehicle.") for name in seen["types"]) == VEHICLES
    assert sum(name.startswith("walker.") for name in seen["types"]) == WALKERS
    assert seen["drivers"] == ["server"]
    ways = [math.dist(a, b) for a, b in zip(seen["start"], seen["after"], strict=True)]
    assert sum(way > 3.0 for way in ways) >= 9


def test_every_episode_starts_alike(seen: dict[str, Any]) -> None:
    assert seen["again"] == seen["start"]


def test_a_clients_vehicle_takes_the_place_of_one_of_the_background(seen: dict[str, Any]) -> None:
    assert seen["hero_at_m"] < 0.5
    assert seen["moved_m"] > 50.0


def test_vehicles_that_a_client_spawns_for_the_server_to_drive_drive(seen: dict[str, Any]) -> None:
    assert len(seen["own_speeds"]) >= 5
    assert sum(speed > 2.0 for speed in seen["own_speeds"]) >= len(seen["own_speeds"]) / 2


@pytest.mark.parametrize("options", [["--vehicles", "-1"], ["--vehicles", "many"], ["--vehicle", "1"]])
def test_wrong_use_is_told_in_one_line(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carla_bridge.server", *options],
        env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--vehicle" in done.stderr
    assert len(done.stderr.splitlines()) == 1
