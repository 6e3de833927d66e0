"""The CARLA 0.9.15 client under Python 3.8, as Bench2Drive's evaluator uses it, against the 0.9.15 dialect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.leases import lease_ports
from tests.carla_bridge.server.whole_api_check import check_whole_api
from wamdiff2_core.processes import child_environment

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = [pytest.mark.carla, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).parent / "client_scripts"
SHIPPED = ROOT / "carla_bridge" / "server" / "towns" / "Wamtown01.xodr"


@pytest.fixture(scope="module")
def run(python38: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Runs a client script against a server of the 0.9.15 dialect; gives what it printed last, as JSON."""
    maps = tmp_path_factory.mktemp("my maps")
    shutil.copy(SHIPPED, maps / "Yard.xodr")
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--client-version", "0.9.15"]
    server = subprocess.Popen(
        [*command, "--maps", str(maps)], env=child_environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )

    def run(script: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(python38), str(SCRIPTS / script), str(port)],
            env={"PATH": os.environ["PATH"], "HOME": str(maps)},  # the client aborts where there is no HOME
            capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.poll() is None, "the server died"
        return json.loads(done.stdout.splitlines()[-1])

    try:
        assert server.stdout is not None
        assert server.stdout.readline().endswith("CARLA protocol 0.9.15\n")
        yield run
    finally:
        server.terminate()
        server.wait(timeout=10)


@pytest.fixture(scope="module")
def session(run: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What one session saw; the tests below read from it."""
    return run("session_0915.py")


def test_whole_api_is_served_or_refused_by_name(run: Callable[[str], dict[str, Any]]) -> None:
    check_whole_api(run("whole_api.py"))


def test_versions_match_so_that_the_client_does_not_warn(session: dict[str, Any]) -> None:
    assert session["versions"] == ["0.9.15", "0.9.15"]


def test_town_of_a_folder_is_loaded_by_name_and_settings_are_kept(session: dict[str, Any]) -> None:
    assert {"Wamtown01", "Yard"} <= set(session["maps"])
    assert session["kept"] == ["Carla/Maps/Yard", True, 0.1]


def test_blueprint_attributes_have_the_types_of_0915(session: dict[str, Any]) -> None:
    assert session["colors"] >= 3
    assert "vehicle.dodge.charger_police_2020" in session["emergency"]


def test_batch_spawns_and_commands_the_future_actor(session: dict[str, Any]) -> None:
    assert session["light"] == 8


def test_sensors_and_state_of_every_tick_carry_its_frame(session: dict[str, Any]) -> None:
    assert session["misses"] == 0
    assert session["travelled"]


def test_collision_event_names_both(session: dict[str, Any]) -> None:
    assert session["collision"] == [True, True]
