"""A hero that somebody else owns, driven in a world that somebody else ticks: whole drives, and what is not done."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from carla_bridge.recording.results import DriveResults, read_plans, read_ticks
from wamdiff2_core.cli.main import main
from wamdiff2_core.processes import ManagedProcess, child_environment

pytestmark = [pytest.mark.carla, pytest.mark.slow, pytest.mark.timeout(240)]
HERE = Path(__file__).parent
ROUTE = """<routes><route id="short" town="Wamtown01"><waypoints>
<position x="40.8" y="-118.2" z="0.0"/><position x="60.5" y="-118.2" z="0.0"/><position x="80.3" y="-118.2" z="0.0"/>
</waypoints><weathers><weather route_percentage="0" cloudiness="90"/></weathers></route></routes>"""
# Everything that would change time, the world or another's actors.
FORBIDDEN = {"tick_cue", "set_episode_settings", "load_new_episode", "copy_opendrive_to_file", "set_weather_parameters",
             "set_actor_transform", "set_actor_autopilot", "add_traffic_manager_running", "spawn_actor"}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server whose time the tests' owners move."""
    number = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(number)]
    with ManagedProcess("server", command, tmp_path_factory.mktemp("server") / "log") as process:
        wait_for_port(number, process.alive, 90.0)
        yield number


@contextmanager
def owner(port: int, **options: object) -> Iterator[dict]:
    """An owner while the block runs; what it says at the end is in the dictionary after that."""
    command = [sys.executable, str(HERE / "hero_owner.py"), str(port), json.dumps(options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=child_environment())
    said: dict = {}
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield said
        out, _ = process.communicate("", timeout=60)
        said.update(json.loads(out.splitlines()[-1]))
    finally:
        process.kill()
        process.wait()


class Listener:
    """Stands between a client and the server's RPC port, and counts the client's calls.

    Attributes:
        calls: by the name of the method.
        destroyed: actor ids of `destroy_actor`.
    """

    def __init__(self, port: int) -> None:
        self.calls: Counter[str] = Counter()
        self.destroyed: list[int] = []
        self.port = lease_ports().number
        self._to = port
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            upstream = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._forward, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(upstream, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, listen: bool) -> None:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="surrogateescape")
        with suppress(OSError):  # the other direction has closed both
            while data := source.recv(1 << 16):
                target.sendall(data)
                if listen:
                    unpacker.feed(data)
                    for message in unpacker:
                        name, parameters = message[-2:]
                        self.calls[name] += 1
                        if name == "destroy_actor":
                            self.destroyed.append(parameters[1])
        target.close()


def arguments_of(folder: Path, port: int, *more: str, route: str = ROUTE) -> list[str]:
    (folder / "routes.xml").write_text(route)
    return ["closed-loop", "--passive", "--carla", f"127.0.0.1:{port}", "--routes", str(folder / "routes.xml"),
            "--out", str(folder / "run"), *more]


def drive(folder: Path, port: int, *arguments: str, route: str = ROUTE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wamdiff2_core.cli.main", *arguments_of(folder, port, *arguments, route=route)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=folder,
                          env=child_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}))
    print(done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_hero_is_driven_and_world_hero_and_settings_stay_its_owners(
    port: int, tmp_path: Path, synchronous: bool, nano_folder: Path
) -> None:
    listener = Listener(port)
    with owner(port, synchronous=synchronous, pause_s=0.03 if synchronous else 0.0) as said:
        done = drive(tmp_path, listener.port, "--planner", str(nano_folder), "--link", "in-process")
    assert done.returncode == 0
    (result,) = DriveResults.load(tmp_path / "run").routes
    assert result.outcome is Outcome.COMPLETED
    assert DriveResults.load(tmp_path / "run").latency_mode == "live"
    assert result.max_deviation_m < 1.0

    # Not one call that would change another's world, and nothing destroyed but our own.
    assert {name: count for name, count in listener.calls.items() if name in FORBIDDEN} == {}
    assert listener.calls["apply_control_to_vehicle"] > 50
    mine = listener.destroyed
    assert len(mine) == 4, "two cameras and the collision sensor, and one before that, to look for the hero"
    assert said["alive"] == [True]
    assert said["after"] == said["before"], "settings, weather, map and actors"
    assert not {actor_id for actor_id, _ in said["before"]["actors"]} & set(mine)
    assert said["control"] == [0.0, pytest.approx(0.3625, abs=0.01)], "the hero brakes when it is let go"

    # Plans are for pictures of the very steps they say, and act later than those.
    folder = tmp_path / "run" / "routes" / "short"
    plans, ticks = read_plans(folder), {tick.t_ns: tick for tick in read_ticks(folder)}
    assert len(plans) >= 10
    for plan in plans[1:]:
        assert plan.t_ns in ticks
        assert plan.pose[:2] == pytest.approx((ticks[plan.t_ns].x_m, ticks[plan.t_ns].y_m))
        assert plan.acts_after_ms > 0.0
        assert (folder / "frames" / plan.image).is_file()


def test_a_planner_node_drives_a_hero_over_ros(port: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("rclpy", reason="needs the [ros] extra")
    pytest.importorskip("wamdiff2.msg", reason="needs the built messages")
    request.getfixturevalue("straight_planner")
    with owner(port, pause_s=0.03) as said:
        done = drive(tmp_path, port, "--planner", "external", "--no-video")
    assert done.returncode == 0
    assert len(read_plans(tmp_path / "run" / "routes" / "short")) >= 10
    assert said["after"] == said["before"]


@pytest.mark.parametrize(("options", "role", "message"), [
    ({"roles": ["ego_vehicle"]}, "hero", "expected one vehicle with the role name hero, got none among 1 vehicles, "
                                         "which have the roles ego_vehicle"),
    ({"roles": ["hero", "hero"]}, "hero", "expected one vehicle with the role name hero, got 2: actors "),
    ({"x_m": 60.0}, "hero", "expected a vehicle within 10 m of the start of route short, looking along it, got one "
                            "19.2 m from it, turned by 0 degrees; place it at x 40.8, y -118.2, yaw 0"),
])  # fmt: skip
def test_a_hero_that_cannot_be_driven_is_wrong_use(
    port: int, tmp_path: Path, options: dict, role: str, message: str
) -> None:
    with owner(port, **options) as said:
        done = drive(tmp_path, port, "--planner", "route-only", "--no-video", "--hero", role)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert said["after"] == said["before"]


def test_a_route_in_another_town_is_wrong_use(port: int, tmp_path: Path) -> None:
    with owner(port):
        done = drive(tmp_path, port, "--planner", "route-only", route=ROUTE.replace("Wamtown01", "Wamtown02"))
    assert done.returncode == 2
    assert "route's town: expected Wamtown01, which the server has open, got Wamtown02" in done.stderr


def test_a_world_that_nobody_ticks_is_an_infrastructure_failure(port: int, tmp_path: Path) -> None:
    with owner(port, stop_after=60) as said:
        done = drive(tmp_path, port, "--planner", "route-only", "--no-video", "--tick-wait", "3")
    assert done.returncode == 3
    assert f"no tick for 3 s: nobody ticks the world at 127.0.0.1:{port}" in done.stdout + done.stderr
    assert said["alive"] == [True]
    assert [actor for actor in said["after"]["actors"] if actor[1].startswith("sensor.")] == []


def test_a_hero_that_disappears_is_an_infrastructure_failure(port: int, tmp_path: Path) -> None:
    with owner(port, destroy_after=250, pause_s=0.05):
        done = drive(tmp_path, port, "--planner", "none", "--no-video")
    assert done.returncode == 3
    assert "is gone; its owner has destroyed it, or has loaded another world" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (("--workers", "1"), "--passive: expected no --workers beside it"),
    (("--latency", "measured"), "--latency: expected none with --passive"),
    (("--vehicles", "3"), "--vehicles: expected 0 with --passive"),
    (("--carla", ""), "--passive: expected --carla HOST:PORT beside it"),
])  # fmt: skip
def test_options_that_would_change_the_world_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(arguments_of(tmp_path, 1, "--planner", "route-only", *arguments)) == 2
    assert message in capsys.readouterr().err


def test_several_routes_are_refused(port: int, tmp_path: Path) -> None:
    two = ROUTE.replace("</routes>", "") + ROUTE.replace("<routes>", "").replace("short", "again")
    with owner(port):
        done = drive(tmp_path, port, "--planner", "route-only", route=two)
    assert done.returncode == 2
    assert "--routes: expected one route for --passive, got 2 routes" in done.stderr
