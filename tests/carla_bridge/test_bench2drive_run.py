"""Runs of Bench2Drive's evaluator: with a stand-in that keeps its contract and fails in the ways it is known to."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from rich.console import Console

from carla_bridge.bench2drive.attempt import EvaluatorOptions, ShardEnd, _start_time, judge
from carla_bridge.bench2drive.checkout import EMBEDDED_ROOT, Checkout
from carla_bridge.bench2drive.evaluator import Bench2DriveRun, RunConfig
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.results import LeaderboardResults
from carla_bridge.report.run import load_run
from carla_bridge.score.bench2drive import score_files
from wamdiff2_core.errors import UserError

# Its word for what it does is the town of the route. It starts a "server" in a session of its own, as theirs does, and
# leaves its pid behind.
EVALUATOR = """
    import argparse, os, pathlib, shutil, subprocess, sys, time
    parser = argparse.ArgumentParser()
    for name in ("routes", "routes-subset", "track", "checkpoint", "debug-checkpoint", "agent", "agent-config", "port",
                 "traffic-manager-port", "traffic-manager-seed", "gpu-rank"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    assert pathlib.Path("leaderboard/data/weather.xml").exists(), "runs somewhere else"
    assert int(arguments.traffic_manager_port) == int(arguments.port) + 3
    route, here = arguments.routes_subset, pathlib.Path(arguments.checkpoint).parent
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (here / "server.pid").write_text(str(server.pid))
    time.sleep(1.5)
    print("=== [Agent] -- Wallclock", flush=True)
    what = (pathlib.Path("answers") / route).read_text()
    first = here.name.endswith("-1")
    if what == "hang":
        time.sleep(600)
    if what == "crash" or (what == "crash once" and first):
        raise IndexError("list index out of range")
    if what == "killed":
        os.kill(os.getpid(), 11)
    if what == "skip":
        print("Skipping scenario 'X' due to setup error: Couldn't spawn the walker")
    shutil.copy(pathlib.Path("answers") / (route + ".json"), arguments.checkpoint)
    sys.exit(255 if what == "simulation" else 0)
"""
BEHAVIOURS = {
    "1": ("drive", RouteStatus.COMPLETED), "2": ("crash once", RouteStatus.COMPLETED),
    "3": ("crash", RouteStatus.COMPLETED), "4": ("skip", RouteStatus.COMPLETED),
    "5": ("agent", RouteStatus.AGENT_CRASHED), "6": ("simulation", RouteStatus.SIMULATION_CRASHED),
    "7": ("drive", RouteStatus.TICK_LIMIT), "8": ("hang", RouteStatus.COMPLETED),
    "9": ("killed", RouteStatus.COMPLETED),
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "their checkout"
    for folder in ("leaderboard/leaderboard", "leaderboard/data", "scenario_runner/srunner", "answers"):
        (root / folder).mkdir(parents=True)
    (root / "leaderboard/leaderboard/leaderboard_evaluator.py").write_text(textwrap.dedent(EVALUATOR))
    (root / "scenario_runner/srunner/__init__.py").touch()
    (root / "leaderboard/data/weather.xml").write_text("<weathers/>")
    for route, (what, status) in BEHAVIOURS.items():
        (root / "answers" / route).write_text(what)
        reached = status is RouteStatus.COMPLETED
        completion_pct = 100.0 if reached else 40.0
        record = RouteRecord.of_drive(route, completion_pct, [], status, scenario_name="Accident_1", town="T")
        results = LeaderboardResults.of_run([record], 1)
        (root / "answers" / f"{route}.json").write_text(json.dumps(results.to_json(), indent=4))
    api = tmp_path / "api" / "agents" / "navigation"
    api.mkdir(parents=True)
    (api / "basic_agent.py").touch()
    return Checkout(root, EMBEDDED_ROOT, Path(sys.executable), tmp_path / "api")


def config(checkout: Checkout, out: Path, ids: str, stall_s: float = 60.0, retries: int = 1) -> RunConfig:
    routes = out.parent / "routes.xml"
    waypoints = "".join(f'<position x="{k}" y="0" z="0"/>' for k in range(5))
    scenario = '<scenarios><scenario name="Accident_1" type="Accident"><trigger_point x="1" y="0" z="0" yaw="0"/>'
    routes.write_text("<routes>" + "".join(
        f'<route id="{k}" town="T"><waypoints>{waypoints}</waypoints>{scenario}</scenario></scenarios></route>'
        for k in BEHAVIOURS) + "</routes>")
    options = EvaluatorOptions(checkout, routes, "127.0.0.1:9", stall_s=stall_s)
    return RunConfig(options, tuple((k, "T") for k in ids), out, workers=4, retries=retries, planner="p")


def drive(run: RunConfig) -> dict[str, dict]:
    return {item["route_id"]: item for item in Bench2DriveRun(run, Console(quiet=True)).drive()}


def servers(out: Path) -> list[int]:
    return [int(path.read_text()) for path in out.glob("attempts/*/server.pid")]


def test_planner_and_embedded_world_run_on_the_python_of_the_command(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAMDIFF2_PYTHON", raising=False)
    assert checkout.environment(tmp_path)["WAMDIFF2_PYTHON"] == sys.executable
    monkeypatch.setenv("WAMDIFF2_PYTHON", "/another/python")
    assert checkout.environment(tmp_path)["WAMDIFF2_PYTHON"] == "/another/python"


def test_ways_of_ending_are_told_apart_and_spoilt_attempts_made_again(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    last = drive(config(checkout, out, "12345679"))
    assert {route: (item["kind"], item["number"], item["kept"]) for route, item in last.items()} == {
        "1": ("driven", 1, True), "2": ("driven", 2, True), "3": ("infrastructure", 2, False), "4": ("void", 1, False),
        "5": ("agent failed", 2, True), "6": ("infrastructure", 2, False), "7": ("driven", 1, True),
        "9": ("infrastructure", 2, False),
    }  # fmt: skip
    assert "IndexError: list index out of range" in last["3"]["reason"]
    assert "Couldn't spawn the walker" in last["4"]["reason"]
    assert "SIGSEGV" in last["9"]["reason"]
    assert last["7"]["status"] == "Failed - TickRuntime"
    assert sorted(path.stem for path in (out / "shards").iterdir()) == ["1", "2", "5", "7"]

    pids = servers(out)
    assert len(pids) == 13
    assert [pid for pid in pids if _start_time(pid) >= 0] == [], "servers were left behind"

    # The scorer reads the shards, says which world they are of, and withholds what is not complete.
    score = score_files([out / "shards"], str(out / "routes.xml"))
    assert score.label == "embedded world"
    assert not score.headline
    assert score.to_json()["routes_scored"] == 4
    assert score.to_json()["routes_expected"] == 8
    assert score_files([out], str(out / "routes.xml")).to_json() == score.to_json(), "the run's own folder will do"
    assert sorted(entry.route_id for entry in load_run(out).entries) == ["1", "2", "5", "7"]

    # The same command again has nothing to do.
    began = time.monotonic()
    assert drive(config(checkout, out, "12345679")) == last
    assert time.monotonic() - began < 1.0
    assert len(servers(out)) == 13


RUNNER = """
import pickle, sys
from rich.console import Console
from carla_bridge.bench2drive.evaluator import Bench2DriveRun
Bench2DriveRun(pickle.load(open(sys.argv[1], "rb")), Console(quiet=True)).drive()
"""


def test_a_run_that_is_killed_goes_on_and_ends_what_it_had_left(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = dataclasses.replace(config(checkout, out, "1278"), workers=1)
    pickled = tmp_path / "config"
    pickled.write_bytes(pickle.dumps(run))
    process = subprocess.Popen([sys.executable, "-c", RUNNER, str(pickled)])
    deadline = time.monotonic() + 60
    while not (out / "attempts" / "8-1" / "processes.json").exists():  # the one that hangs, after the others
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    (left,) = [pid for pid in servers(out) if _start_time(pid) >= 0]
    (checkout.root / "answers" / "8").write_text("drive")
    last = drive(run)
    assert _start_time(left) == -1
    assert [item["kind"] for item in last.values()] == ["driven"] * 4
    assert sorted(path.stem for path in (out / "shards").iterdir()) == ["1", "2", "7", "8"]
    lines = (out / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 5, "the request, and each attempt that ended"


def test_an_evaluator_that_stands_still_is_given_up(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    item = drive(config(checkout, out, "8", stall_s=3.0, retries=0))["8"]
    assert (item["kind"], item["kept"]) == ("infrastructure", False)
    assert "no line for 3 s: === [Agent]" in item["reason"]
    (server,) = servers(out)
    assert _start_time(server) == -1


def test_results_of_a_real_carla_are_kept_byte_for_byte_and_without_a_mark(checkout: Checkout, tmp_path: Path) -> None:
    real = tmp_path / "carla"
    real.mkdir()
    (real / "CarlaUE4.sh").write_text("#!/bin/sh\nexec ./CarlaUE4-Linux-Shipping\n")
    theirs = Checkout(checkout.root, real, checkout.python, checkout.api)
    assert checkout.embedded
    assert not theirs.embedded
    out = tmp_path / "run"
    drive(config(theirs, out, "1"))
    assert (out / "shards" / "1.json").read_bytes() == (checkout.root / "answers" / "1.json").read_bytes()
    assert score_files([out / "shards"], str(out / "routes.xml")).label != "embedded world"


def test_another_planner_or_other_routes_do_not_go_on_with_a_journal(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    drive(config(checkout, out, "1"))
    with pytest.raises(UserError, match=r"routes .* or choose another --out$"):
        drive(config(checkout, out, "17"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(UserError, match="--out"):
        drive(config(checkout, foreign, "1"))


def test_what_is_missing_is_named(checkout: Checkout, tmp_path: Path) -> None:
    def changed(**parts: Path) -> Checkout:
        return dataclasses.replace(checkout, **parts)

    for field, wrong in (
        ("BENCH2DRIVE_ROOT", changed(root=tmp_path)), ("CARLA_ROOT", changed(carla_root=tmp_path)),
        ("--carla-api", changed(api=tmp_path)), ("--python", changed(python=tmp_path / "python")),
        ("--maps", changed(maps=tmp_path)),
    ):  # fmt: skip
        with pytest.raises(UserError, match=field):
            wrong.check()
    with pytest.raises(UserError, match=r"--python.*imports the evaluator.*Error"):
        checkout.check()


def test_a_half_written_result_file_is_no_result(tmp_path: Path) -> None:
    log = """Traceback (most recent call last):
  File "x.py", line 1, in f
    g()
RuntimeError: time-out of 300000ms while waiting for the simulator
"""
    (tmp_path / "evaluator.log").write_text(log)
    (tmp_path / "results.json").write_text('{"_checkpoint": {"records": [')
    ended = judge(tmp_path, -9, embedded=True)
    assert ended.kind is ShardEnd.INFRASTRUCTURE
    assert "SIGKILL" in ended.reason
    assert "time-out of 300000ms" in ended.reason
