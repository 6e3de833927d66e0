"""`benchmarks.node_exits`: real nodes that end with 0, and programs whose ends are known beforehand."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from benchmarks import node_exits
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import InfrastructureError

pytestmark = pytest.mark.ros


def program(at_signal: str, say: str = "ready: x") -> list[str]:
    """A command that does something when it gets SIGINT, and says something before."""
    return [sys.executable, "-c", f"""
import os, signal, time
def end(*_):
    {at_signal}
signal.signal(signal.SIGINT, end)
print({say!r}, flush=True)
time.sleep(60)
"""]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["node_exits", *map(str, arguments)])
    return run_alone(node_exits.main, "benchmarks.node_exits")


def test_real_nodes_end_well_also_where_the_shell_ignores_sigint(ros_domain, tmp_path, monkeypatch, capsys):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = run(monkeypatch, "--rounds", 1, "--nodes", 2, "--within", 0.1, "--out", tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == "2 nodes, 2 at a time, SIGINT up to 0.1 s after ready: 2 with 0\n"
    assert code == 0
    assert not list(tmp_path.iterdir())


def test_crashes_are_counted_and_their_logs_kept(ros_domain, tmp_path, monkeypatch, capsys):
    import wamdiff2_ros.bench

    ends = iter(["os._exit(0)", "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)"])
    monkeypatch.setattr(wamdiff2_ros.bench, "node_command", lambda *_: program(next(ends)))
    assert run(monkeypatch, "--rounds", 2, "--nodes", 3, "--within", 0, "--out", tmp_path) == 1
    told = "6 nodes, 3 at a time, SIGINT up to 0 s after ready: 2 with 0, 2 with -11 (SIGSEGV), 2 with 3\n"
    assert capsys.readouterr().out == told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-0", "round-1"]
    assert (tmp_path / "round-0" / "1.log").read_text() == "ready: x\n"


@pytest.mark.parametrize(("at_signal", "say"), [("time.sleep(60)", "ready: x"), ("os._exit(0)", "loading")])
def test_a_node_that_is_not_ready_or_runs_on_is_told(tmp_path: Path, monkeypatch, at_signal, say):
    for limit in ("START_S", "END_S"):
        monkeypatch.setattr(node_exits, limit, 1.0)
    with pytest.raises(InfrastructureError, match="not ready, or run on after SIGINT"):
        node_exits.ended([program(at_signal, say)], [0.0], tmp_path)


def test_a_node_that_ends_before_its_signal_is_told(tmp_path: Path):
    with pytest.raises(InfrastructureError, match=r"node 0 ended with exit code 3 before its signal: torn"):
        node_exits.ended([[sys.executable, "-c", "print('torn'); raise SystemExit(3)"]], [0.0], tmp_path)


def test_a_planner_that_no_node_can_load_is_wrong_use(ros_domain, tmp_path, monkeypatch, capsys):
    arguments = "--rounds", 1, "--nodes", 1, "--planner", "nowhere", "--out", tmp_path
    assert run(monkeypatch, *arguments) == 2
    assert "error: planner: expected one that the node can load" in capsys.readouterr().err
