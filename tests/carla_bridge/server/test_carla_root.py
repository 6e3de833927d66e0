"""`tools/carla_root/CarlaUE4.sh`, started as an evaluator starts CARLA."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carla_bridge.leases import lease_ports
from wamdiff2_core.processes import child_environment

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = pytest.mark.carla
ROOT = Path(__file__).resolve().parents[3]
STARTER = ROOT / "tools" / "carla_root" / "CarlaUE4.sh"
SHIPPED = ROOT / "carla_bridge" / "server" / "towns" / "Wamtown01.xodr"
FLAGS = "-RenderOffScreen -nosound -graphicsadapter=0 -quality-level=Epic -carla-streaming-port=0 -benchmark -fps=20"


def environment(**extra: str) -> dict[str, str]:
    """What an evaluator under another Python would hand on."""
    return child_environment({"WAMDIFF2_PYTHON": sys.executable, "PYTHONPATH": "/of/python3.8", **extra})


@contextmanager
def started(command: list[str] | str, cwd: Path, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its first line; killed with its group at the end."""
    process = subprocess.Popen(
        command, shell=isinstance(command, str), cwd=cwd, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def test_shell_command_of_an_evaluator_becomes_the_server(tmp_path: Path) -> None:
    port, pid_file = lease_ports().number, tmp_path / "server pid"
    maps = tmp_path / "my maps"
    maps.mkdir()
    shutil.copy(SHIPPED, maps / "Yard.xodr")
    link = tmp_path / "carla root"  # a path with a space, reached through a link
    link.symlink_to(STARTER.parent)
    command = f'"{link}/CarlaUE4.sh" /Game/Carla/Maps/Yard {FLAGS} -carla-rpc-port={port}'
    extra = {"WAMDIFF2_MAPS": str(maps), "WAMDIFF2_PID_FILE": str(pid_file)}
    with started(command, tmp_path, environment(**extra)) as (process, line):
        assert line == f"ready 127.0.0.1:{port} streams {port + 1} town Yard CARLA protocol 0.9.15\n"
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_server_ends_when_the_evaluator_is_killed(tmp_path: Path) -> None:
    port = lease_ports().number
    script = f"import subprocess; subprocess.run(['{STARTER}', '-carla-rpc-port={port}'])"
    env = environment(WAMDIFF2_PID_FILE=str(tmp_path / "pid"), WAMDIFF2_DIALECT="0.9.16")
    with started([sys.executable, "-c", script], tmp_path, env) as (evaluator, line):
        assert line.endswith("CARLA protocol 0.9.16\n"), line
        server = int((tmp_path / "pid").read_text())
        evaluator.kill()
        deadline = time.monotonic() + 10
        while _runs(server) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _runs(server)


def _runs(pid: int) -> bool:
    """Whether the process is there and no zombie (there may be nobody to reap it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
