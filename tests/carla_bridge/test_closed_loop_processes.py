"""Children do not outlive the drive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carla_bridge.drive.run_setup import prepare_folder
from carla_bridge.leases import PORTS_PER_LEASE, lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.processes import ManagedProcess, child_environment

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def first_line(path: Path, within_s: float = 20.0) -> str:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        text = path.read_text()
        if "\n" in text:
            return text.splitlines()[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing in {path}")


def test_child_that_ignores_signals_is_killed_with_its_own_children(tmp_path):
    process = ManagedProcess("stubborn", [sys.executable, "-c", STUBBORN], tmp_path / "log")
    grandchild = int(first_line(tmp_path / "log"))
    process.stop(patience_s=0.2)
    assert process.returncode == -signal.SIGKILL
    assert process.describe_end() == "stubborn was ended by SIGKILL"
    assert gone(grandchild)
    process.stop()  # a second time is harmless


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_child_dies_when_its_parent_is_killed_with_sigkill(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", f"""
import sys, time
from pathlib import Path
from wamdiff2_core.processes import ManagedProcess
child = ManagedProcess("c", [sys.executable, "-c", "import time; time.sleep(60)"], Path({str(tmp_path / "log")!r}))
print(child.pid, flush=True)
time.sleep(60)
"""], stdout=subprocess.PIPE, text=True, env=child_environment())
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(child)


def test_children_get_no_trace_of_the_ros_wheels_restart(monkeypatch):
    inside, outside = os.path.join(sys.prefix, "lib"), "/opt/colcon/lib"
    monkeypatch.setenv("_ROS_WHEELS_BOOTSTRAP_COMPLETE", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([inside, outside]))
    environment = child_environment({"EXTRA": "1"})
    assert "_ROS_WHEELS_BOOTSTRAP_COMPLETE" not in environment
    assert environment["LD_LIBRARY_PATH"] == outside
    assert environment["EXTRA"] == "1"


def test_leased_ports_can_all_be_bound():
    first = lease_ports().number
    sockets = [socket.socket() for _ in range(PORTS_PER_LEASE)]
    try:
        for offset, probe in enumerate(sockets):
            probe.bind(("127.0.0.1", first + offset))
    finally:
        for probe in sockets:
            probe.close()


def test_waiting_for_the_port_of_a_process_that_ended_fails_at_once():
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match="ended"):
        wait_for_port(lease_ports().number, lambda: False, 30.0)
    assert time.monotonic() - started < 5.0


def test_an_earlier_run_moves_aside_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    run, foreign = tmp_path / "run", tmp_path / "foreign"
    for folder in (run, foreign):
        (folder / "routes").mkdir(parents=True)
        (folder / "routes" / "kept").write_text("kept")
    result = {"schema": 1, "planner": "nano", "routes": [], "latency_mode": "lockstep",
              "started": "2026-11-29T07:08:09+00:00"}
    (run / "results.json").write_text(json.dumps(result))
    (foreign / "results.json").write_text('{"mine": 1}')

    assert prepare_folder(run) == run / "previous" / "20261129-070809"
    assert (run / "previous" / "20261129-070809" / "routes" / "kept").read_text() == "kept"
    assert not (run / "routes").exists()
    assert prepare_folder(run) is None
    for _ in range(2):  # whatever ran in between, every run is kept
        (run / "results.json").write_text(json.dumps(result))
        prepare_folder(run)
    assert {path.name for path in (run / "previous").iterdir()} == {f"20261129-070809{end}" for end in ("", "-2", "-3")}
    assert (run / "previous" / "20261129-070809" / "routes" / "kept").read_text() == "kept"

    with pytest.raises(UserError, match="empty folder, or that of an earlier run"):
        prepare_folder(foreign)
    assert (foreign / "routes" / "kept").exists()


def test_a_drive_does_not_take_the_folder_of_an_evaluation(tmp_path: Path) -> None:
    result = {"schema": 1, "planner": "nano", "routes": [], "latency_mode": "lockstep"}
    (tmp_path / "results.json").write_text(json.dumps(result))
    (tmp_path / "journal.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="that of an evaluation; choose another --out, or add --workers"):
        prepare_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "journal.jsonl"}
