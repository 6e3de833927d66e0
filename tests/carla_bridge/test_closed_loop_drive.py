"""Whole drives: the command, a server, ROS topics and a planner process."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs the [ros] extra")
pytest.importorskip("wamdiff2.msg", reason="needs the built messages: WAMDIFF2_ROS=1 pip install")
pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.ros_planner import planner_command
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.results import DriveResults, read_plans, read_ticks
from tests.carla_bridge.test_closed_loop_processes import gone
from wamdiff2_core.cli.main import main
from wamdiff2_core.errors import UserError
from wamdiff2_core.processes import ManagedProcess, child_environment

pytestmark = [pytest.mark.ros, pytest.mark.carla, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SHORT_ROUTE = """<routes><route id="short" town="Wamtown01"><waypoints>
<position x="40.8" y="-118.2" z="0.0"/><position x="60.5" y="-118.2" z="0.0"/><position x="80.3" y="-118.2" z="0.0"/>
</waypoints></route></routes>"""
LONG_ROUTE = SHORT_ROUTE.replace("</waypoints>", """<position x="100.0" y="-118.2" z="0.0"/>
<position x="121.8" y="-140.0" z="0.0"/><position x="121.8" y="-185.0" z="0.0"/></waypoints>""")


def command(folder, *arguments, route=SHORT_ROUTE, name="run"):
    routes = folder / "routes.xml"
    routes.write_text(route)
    return [sys.executable, "-m", "wamdiff2_core.cli.main", "closed-loop", "--routes", str(routes),
            "--out", str(folder / name), *arguments]


def environment(**extra):
    return child_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra})


def run(folder, *arguments, **options):
    done = subprocess.run(command(folder, *arguments, **options), capture_output=True, text=True, timeout=150,
                          env=environment(), cwd=folder, check=False)
    print(done.stdout, done.stderr)
    return done


def eventually(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def lines(path):
    return len(path.read_text().splitlines()) if path.is_file() else 0


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_expert_completes_a_route_with_the_embedded_server_and_leaves_report_film_and_logs(tmp_path):
    done = run(tmp_path, "--planner", "expert")
    assert done.returncode == 0
    out = tmp_path / "run"
    results = DriveResults.load(out)
    assert [route.outcome for route in results.routes] == [Outcome.COMPLETED]
    assert results.source == "expert"
    assert results.routes[0].plans == results.routes[0].frames_sent
    assert results.routes[0].max_deviation_m < 0.5
    for name in ("index.html", "drive.mp4", "map.json", "logs/server.log"):
        assert (out / name).stat().st_size > 0 or name.startswith("logs"), name
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("1/1 routes completed")
    assert "latency mode lockstep" in last


@pytest.mark.parametrize(("switch", "hits"), [("--scenarios", True), ("--no-scenarios", False)])
def test_scenarios_of_the_routes_can_be_left_out(tmp_path, switch, hits, server_port):
    routes = Path(ROOT, "carla_bridge", "routes", "embedded-20.xml")
    done = run(tmp_path, "--planner", "route-only", switch, "--no-video", "--routes", str(routes), "--routes-subset",
               "20001", "--carla", f"127.0.0.1:{server_port}")
    result = DriveResults.load(tmp_path / "run")
    assert result.scenarios is hits
    assert (done.returncode, bool(result.routes[0].infractions)) == ((1, True) if hits else (0, False))


def test_the_film_does_not_change_the_driving_of_an_agent_without_cameras(tmp_path, server_port):
    shared = ("--planner", "route-only", "--carla", f"127.0.0.1:{server_port}")
    assert run(tmp_path, *shared, name="film").returncode == 0
    assert run(tmp_path, *shared, "--no-video", name="blind").returncode == 0
    film, blind = ((tmp_path / name / "routes" / "short" / "trajectory.csv").read_bytes() for name in ("film", "blind"))
    assert film == blind


def test_without_a_planner_the_car_stands_and_the_drive_fails(tmp_path, server_port):
    done = run(tmp_path, "--planner", "none", "--carla", f"127.0.0.1:{server_port}", "--no-video")
    assert done.returncode == 1
    route = DriveResults.load(tmp_path / "run").routes[0]
    assert (route.outcome, route.completion_pct) == (Outcome.BLOCKED, 0.0)
    assert route.driven_m < 0.1


def test_lockstep_trajectory_is_the_same_to_the_bit_with_the_route_remapped_away(
    tmp_path, server_port, straight_planner
):
    shared = ("--planner", "external", "--carla", f"127.0.0.1:{server_port}", "--no-video")
    assert run(tmp_path, *shared, name="a").returncode == 0
    remap = ("--", "--ros-args", "-r", "/wamdiff2/bridge/route:=/nowhere")
    assert run(tmp_path, *shared, *remap, name="b").returncode == 0
    a, b = ((tmp_path / name / "routes" / "short" / "trajectory.csv").read_bytes() for name in "ab")
    assert a == b
    assert len(a.splitlines()) > 100
    plans = read_plans(tmp_path / "a" / "routes" / "short")
    ticks = read_ticks(tmp_path / "a" / "routes" / "short")
    assert len(plans) >= 2 * ticks[-1].t_ns * 1e-9
    assert {plan.t_ns for plan in plans} <= {tick.t_ns for tick in ticks}


def test_planner_killed_in_mid_drive_stops_the_car_within_three_simulated_seconds_and_the_results_say_why(
    tmp_path, server_port, straight_planner
):
    arguments = ("--planner", "external", "--carla", f"127.0.0.1:{server_port}", "--no-video", "--plan-wait", "2")
    line = command(tmp_path, *arguments, route=LONG_ROUTE)
    with ManagedProcess("drive", line, tmp_path / "drive.log", environment()) as drive:
        folder = tmp_path / "run" / "routes" / "short"
        assert eventually(lambda: lines(folder / "trajectory.csv") > 100), drive.log_tail()
        os.kill(straight_planner.pid, signal.SIGKILL)
        assert eventually(lambda: not drive.alive()), drive.log_tail()
        assert drive.returncode == 1
    route = DriveResults.load(tmp_path / "run").routes[0]
    assert route.outcome is Outcome.PLANNER_LOST
    assert "no plan within 2 s of wall time" in route.reason
    lost_ns = next(plan.t_ns for plan in read_plans(folder) if not plan.received)
    after = [tick for tick in read_ticks(folder) if tick.t_ns >= lost_ns]
    assert after[0].speed_mps > 5.0
    assert next(tick.t_ns for tick in after if tick.speed_mps < 0.05) - lost_ns <= 3 * 10**9
    assert route.reason in (tmp_path / "run" / "index.html").read_text()


def test_lost_server_ends_the_drive_with_code_3_and_keeps_what_was_driven(tmp_path):
    line = command(tmp_path, "--planner", "expert", "--no-video", route=LONG_ROUTE)
    with ManagedProcess("drive", line, tmp_path / "drive.log", environment()) as drive:
        folder = tmp_path / "run" / "routes" / "short"
        assert eventually(lambda: lines(folder / "trajectory.csv") > 60), drive.log_tail()
        server = next(pid for pid in children(drive.pid) if "carla_bridge.server" in command_line(pid))
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda: DriveResults.load(tmp_path / "run").routes, 4.0), drive.log_tail()
        assert eventually(lambda: not drive.alive()), drive.log_tail()
        assert drive.returncode == 3
    results = DriveResults.load(tmp_path / "run")
    assert results.routes[0].outcome is Outcome.SERVER_LOST
    assert results.error == results.routes[0].reason == "embedded server was ended by SIGKILL"
    assert results.routes[0].completion_pct > 5.0
    assert results.error in (tmp_path / "run" / "index.html").read_text()


def test_sigterm_takes_the_children_down_and_leaves_the_results(tmp_path):
    line = command(tmp_path, "--planner", "expert", "--no-video", route=LONG_ROUTE)
    drive = subprocess.Popen(line, env=environment())
    try:
        trajectory = tmp_path / "run" / "routes" / "short" / "trajectory.csv"
        assert eventually(lambda: lines(trajectory) > 60)
        started = children(drive.pid)
        assert len(started) == 1
        drive.send_signal(signal.SIGTERM)
        assert drive.wait(60) == 1
    finally:
        drive.kill()
    assert all(gone(pid) for pid in started)
    assert DriveResults.load(tmp_path / "run").routes[0].outcome is Outcome.INTERRUPTED
    with trajectory.open() as file:
        assert all(None not in row.values() for row in csv.DictReader(file))


@pytest.mark.parametrize(("arguments", "names"), [
    (("--planner", "nanoo"), ("planner", "did you mean 'nano'")),
    (("--planner", "none", "--latency", "fast"), ("latency", "lockstep")),
    (("--planner", "none", "--carla", "localhost"), ("carla", "HOST:PORT")),
    (("--planner", "none", "--routes", "/no/such/file.xml"), ("routes", "/no/such/file.xml")),
    (("--planner", "none", "--", "--wrong"), ("--ros-args", "--wrong")),
])
def test_wrong_use_ends_with_code_2_and_one_line(tmp_path, monkeypatch, capsys, arguments, names):
    monkeypatch.chdir(tmp_path)
    assert main(command(tmp_path, *arguments)[3:]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
    for name in names:
        assert name in said


def test_planner_that_does_not_load_is_wrong_use_and_its_own_words_are_shown(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "wamdiff2.json").write_text(json.dumps({"planning": {}}))
    done = run(tmp_path, "--planner", str(folder))
    assert done.returncode == 2
    assert "planner: expected one that can be loaded" in done.stderr
    assert "config.json" in done.stderr
    assert json.loads((tmp_path / "run" / "results.json").read_text())["error"]


def test_folder_with_other_things_in_it_is_not_taken(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("all of it")
    done = run(tmp_path, "--planner", "none")
    assert done.returncode == 2
    assert "thesis" not in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_checkpoint_that_does_not_plan_is_refused(tmp_path):
    (tmp_path / "wamdiff2.json").write_text(json.dumps({"notes": "answers questions"}))
    with pytest.raises(UserError, match="trained to plan"):
        AgentChoice.parse(str(tmp_path))


def test_drive_sees_the_rig_and_targets_of_the_checkpoint(tmp_path):
    record = {"planning": {"target_rule": {"kind": "plan_points", "distances_m": [7.5]}},
              "rig": [{"name": "wide", "width_px": 320, "height_px": 160, "hfov_deg": 110.0}]}
    (tmp_path / "wamdiff2.json").write_text(json.dumps(record))
    choice = AgentChoice.parse(str(tmp_path))
    assert (choice.camera.name, choice.camera.hfov_deg) == ("wide", 110.0)
    assert choice.target_rule.kind == "plan_points"
    assert f'planner:="{tmp_path}"' in planner_command(choice, seed=0, device="cpu")


def test_a_deadline_reaches_the_planner_over_either_link(nano_folder):
    over_ros = AgentChoice.parse(str(nano_folder), deadline_ms=80)
    assert "deadline_ms:=80.000000" in planner_command(over_ros, seed=0, device="cpu")
    assert not any("deadline" in word for word in planner_command(replace(over_ros, deadline_ms=0.0), 0, "cpu"))
    in_process = AgentChoice.parse(str(nano_folder), "in-process", 80)
    decode = in_process.make(0, "cpu")._planner.decode
    assert (decode.deadline_ms, decode.grammar) == (80, "task")


def test_a_backend_reaches_the_planner_over_either_link(nano_folder):
    over_ros = AgentChoice.parse(str(nano_folder), backend="eager")
    assert "backend:=eager" in planner_command(over_ros, seed=0, device="cpu")
    assert not any("backend" in word for word in planner_command(replace(over_ros, backend="auto"), 0, "cpu"))
    planner = AgentChoice.parse(str(nano_folder), "in-process", backend="eager").make(0, "cpu")._planner
    assert planner._checkpoint.backend == "eager"
    with pytest.raises(UserError, match="--backend: expected none for planner random"):
        AgentChoice.parse("random", backend="eager")
    with pytest.raises(UserError, match="backend: expected one that runs on cpu"):
        AgentChoice.parse(str(nano_folder), backend="npu").check_device("cpu")


@pytest.mark.parametrize(("planner", "deadline_ms", "expected"), [
    ("expert", 80.0, "none for planner expert"), ("random", 80.0, "none for planner random"),
    ("external", 80.0, "none for planner external"), ("expert", -1.0, "milliseconds >= 0"),
    ("expert", float("nan"), "milliseconds >= 0"),
])
def test_a_deadline_that_has_no_meaning_is_refused(planner, deadline_ms, expected):
    with pytest.raises(UserError, match=f"--deadline-ms: expected {expected}"):
        AgentChoice.parse(planner, deadline_ms=deadline_ms)
