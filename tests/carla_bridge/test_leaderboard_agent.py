"""The agent file under Python 3.8 with CARLA 0.9.15, called as the leaderboard calls it, in the embedded world."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carla_bridge.agent_server.server import AgentServer
from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.planner import RandomPlanner
from wamdiff2_core.processes import ManagedProcess
from wamdiff2_core.types import Observation, Plan

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = [pytest.mark.carla, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
REPLAY = Path(__file__).parent / "leaderboard_replay"
AGENT = ROOT / "carla_bridge" / "leaderboard_agent.py"
TICKS = 140


@pytest.fixture(scope="module")
def save_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("save path")


@pytest.fixture(scope="module")
def seen(python38: Path, nano_folder: Path, save_path: Path) -> dict[str, Any]:
    """What a replay of two routes saw; in the first one the planner is killed half-way."""
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--client-version", "0.9.15"]
    with ManagedProcess("embedded server", command, save_path / "server.log") as server:
        wait_for_port(port, server.alive, 60.0)
        done = subprocess.run(
            [str(python38), str(REPLAY / "replay.py"), str(port), str(AGENT), str(nano_folder), str(TICKS)],
            env={"PATH": os.environ["PATH"], "HOME": str(save_path), "PYTHONPATH": str(REPLAY),
                 "SAVE_PATH": str(save_path), "WAMDIFF2_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.alive(), server.log_tail()
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


@pytest.mark.slow
def test_sensors_are_the_rig_of_the_checkpoint_in_the_leaderboards_form(seen: dict[str, Any]) -> None:
    assert seen["python"] == [3, 8]
    assert seen["first"]["track"] == "SENSORS"
    camera, *others = seen["first"]["specs"]
    assert camera == {
        "type": "sensor.camera.rgb", "id": "front", "x": 1.0, "y": 0.0, "z": 1.8, "roll": 0.0, "pitch": 0.0, "yaw": 0.0,
        "width": 256, "height": 128, "fov": 90.0,
    }
    assert [sensor["type"] for sensor in others] == ["sensor.other.gnss", "sensor.other.imu", "sensor.speedometer"]


@pytest.mark.slow
def test_the_route_is_driven_on_noisy_gnss_and_through_a_planner_that_was_killed(seen: dict[str, Any]) -> None:
    first = seen["first"]
    assert first["travelled_m"] > 15.0
    assert first["off_lane_m"] < 1.0
    killed, after = first["planner_pids"]
    assert killed != after
    assert "restart 1 of 3" in seen["stderr"]
    moving = [throttle > 0 for throttle, _, _ in first["controls"][TICKS // 2 + 30 :]]
    assert sum(moving) > len(moving) / 4, "it never drove on after the restart"


@pytest.mark.slow
def test_it_brakes_until_it_knows_where_it_is(seen: dict[str, Any]) -> None:
    assert seen["first"]["controls"][0][::2] == [0.0, pytest.approx(0.75, abs=0.3)]
    assert "position known to" in seen["stderr"]


@pytest.mark.slow
def test_planner_processes_end_with_their_routes(seen: dict[str, Any]) -> None:
    assert seen["first"]["planner_ended"]
    assert seen["second"]["planner_ended"]
    assert not set(seen["first"]["planner_pids"]) & set(seen["second"]["planner_pids"])


@pytest.mark.slow
def test_metric_info_has_every_tick_in_the_folder_of_each_route(seen: dict[str, Any], save_path: Path) -> None:
    for name, ticks in (("RouteScenario_1_rep0", TICKS), ("RouteScenario_2_rep0", 30)):
        info = json.loads((save_path / name / "metric_info.json").read_text())
        assert list(info) == [str(tick) for tick in range(ticks)]
        assert set(info["0"]) == {
            "acceleration", "angular_velocity", "forward_vector", "right_vector", "location", "rotation",
        }
        assert "route " + name in (save_path / name / "planner.log").read_text()


PROBE = """
import os, sys, time
import numpy as np
sys.path.insert(0, {folder!r})
import leaderboard_agent as module
import leaderboard
assert "leaderboard_replay" in leaderboard.__file__, leaderboard.__file__  # not the folder beside the agent's file
agent = module.WamDiff2Agent("127.0.0.1", 0, 0)
class Place: x = y = z = 0.0
class Pose: location = Place
plan = [type("P", (), {{"location": type("L", (), {{"x": float(k), "y": 0.0, "z": 0.0}})}}) for k in range(20)]
agent.set_global_plan(
    [({{"lat": 0.0, "lon": k / 111319.49079327357, "z": 0.0}}, 4) for k in range(20)], [(pose, 4) for pose in plan])
began = time.monotonic()
try:
    agent.setup({config!r})
    print("set up", [s["id"] for s in agent.sensors()])
    data = {{"speed": (1, {{"speed": 3.0}}), "front": (1, np.zeros((128, 256, 4), np.uint8))}}
    {then}
except module.PlannerError as error:
    print(type(error).__name__, error)
    {failed}
print("seconds", round(time.monotonic() - began))
agent.destroy()
"""


def probe(python38: Path, config: str, then: str = "pass", failed: str = "pass", **environment: str) -> str:
    code = PROBE.format(folder=str(AGENT.parent), config=config, then=then, failed=failed)
    done = subprocess.run(
        [str(python38), "-c", code], capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": str(REPLAY), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("config", "environment", "said"),
    [
        ("", {}, "PlannerError --agent-config: expected HOST:PORT or a checkpoint folder"),
        ("+RouteScenario_1", {}, "PlannerError --agent-config: expected HOST:PORT"),
        ("127.0.0.1:1+save", {}, "PlannerError no planner at 127.0.0.1:1"),
        ("/nowhere+save", {"WAMDIFF2_PYTHON": sys.executable}, "PlannerError the planner did not start"),
        ("/nowhere+save", {"WAMDIFF2_PYTHON": "/no/python"}, "set WAMDIFF2_PYTHON"),
        ("/nowhere+save", {"WAMDIFF2_PYTHON": "/bin/cat"}, "did not start"),
    ],
)
def test_setup_without_a_planner_says_what_is_missing(
    python38: Path, config: str, environment: dict[str, str], said: str
) -> None:
    assert said in probe(python38, config, **environment)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("print('loading', file=sys.stderr)", "the planner did not start: not ready within 1 s"),
        ("print('ready 127.0.0.1:1 planner', flush=True)", "no planner at 127.0.0.1:1"),
    ],
)
def test_a_planner_that_cannot_be_used_is_ended_and_the_reason_told(
    python38: Path, tmp_path: Path, does: str, said: str
) -> None:
    program, note = tmp_path / "python", tmp_path / "pid"
    program.write_text(f"""#!{sys.executable}
import os, pathlib, signal, sys, time
pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
{does}
time.sleep(50)
""")
    program.chmod(0o755)
    environment = {"WAMDIFF2_PYTHON": str(program), "WAMDIFF2_START_S": "1", "SAVE_PATH": str(tmp_path)}
    alive = f"print('alive', os.path.exists('/proc/' + open({str(note)!r}).read()))"
    output = probe(python38, "/nowhere+save", failed=alive, **environment)
    assert said in output
    assert "alive False" in output


def test_a_planner_that_ignores_its_end_and_its_children_are_killed_in_time(tmp_path: Path) -> None:
    """The child holds the pipe that the agent reads: closing it must not wait for that."""
    program, note = tmp_path / "python", tmp_path / "pids"
    program.write_text(f"""#!{sys.executable}
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    pathlib.Path({str(note)!r}).write_text(f"{{os.getpid()}} {{child}}")
time.sleep(50)
""")
    program.chmod(0o755)
    environment = {"WAMDIFF2_PYTHON": str(program), "WAMDIFF2_START_S": "1", "SAVE_PATH": str(tmp_path)}
    # Of one that has ended, and that nobody has asked for its exit code, the command line is empty.
    lines = f"[os.popen('cat /proc/' + pid + '/cmdline 2>&-').read() for pid in open({str(note)!r}).read().split()]"
    alive = f"print('alive', [bool(line) for line in {lines}])"
    said = probe(Path(sys.executable), "/nowhere+save", failed=f"time.sleep(0.2); {alive}", **environment)
    assert "not ready within 1 s" in said
    assert "alive [False, False]" in said
    assert int(said.split()[-1]) < 30  # and not as long as the child would have held the pipe


def test_a_planner_that_went_away_means_braking_to_a_stand_and_then_an_error(python38: Path) -> None:
    server = AgentServer(RandomPlanner(), "random")
    threading.Thread(target=server.serve, daemon=True).start()
    gone = "agent._link._address = ('127.0.0.1', 1); agent._link._connection.close()"
    braking = "control = agent.run_step(data, 0.05); print('brake', control.throttle, control.brake)"
    standing = "data['speed'] = (2, {'speed': 0.0}); agent.run_step(data, 0.1)"
    said = probe(python38, f"127.0.0.1:{server.port}+save", f"{gone}; {braking}; {standing}")
    server.close()
    assert "set up ['front', 'gnss', 'imu', 'speed']" in said
    assert "brake 0.0 1.0" in said
    assert "PlannerError no planner at 127.0.0.1:1" in said


class RecordingPlanner(RandomPlanner):
    """Keeps what it was shown."""

    def plan(self, observation: Observation) -> Plan:
        self.seen = observation
        return super().plan(observation)


def test_pictures_reach_the_planner_as_rgb_and_the_plan_as_targets(python38: Path) -> None:
    planner = RecordingPlanner()
    server = AgentServer(planner, "recording")
    threading.Thread(target=server.serve, daemon=True).start()
    picture = "data['front'][1][:] = (10, 20, 30, 255)"
    standing = "data.update(speed=(1, {'speed': 0.0}), gnss=(1, [0.0, 0.0, 0.0]), imu=(1, [0.0] * 6 + [np.pi / 2]))"
    steps = "print([round(agent.run_step(data, k * 0.05).brake, 2) for k in range(40)])"
    said = probe(python38, f"127.0.0.1:{server.port}+save", f"{picture}; {standing}; {steps}")
    server.close()
    assert "set up" in said
    assert planner.seen.frames[0].rgb.reshape(-1, 3).max(axis=0).tolist() == [30, 20, 10]
    assert planner.seen.frames[0].rgb.shape == (128, 256, 3)
    np.testing.assert_allclose(planner.seen.navigation.targets_m, [[10, 0], [20, 0]], atol=0.05)


def test_a_silent_planner_costs_its_deadline_and_no_more(python38: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = probe(python38, f"127.0.0.1:{silent.getsockname()[1]}+s", WAMDIFF2_STEP_S="2")
    assert "no answer from the planner within 2 s" in said
    assert "seconds 2" in said
