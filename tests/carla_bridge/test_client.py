"""The simulation client against the embedded server: frames, exactness, cleaning up, and a whole drive."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.route_follower import RouteFollower  # noqa: E402
from carla_bridge.client.client import CameraMount, Simulation, warm_up_waits_s  # noqa: E402
from carla_bridge.client.measurements import Stream  # noqa: E402
from carla_bridge.client.server_watch import Fault  # noqa: E402
from carla_bridge.leases import lease_ports  # noqa: E402
from carla_bridge.ports import wait_for_port  # noqa: E402
from carla_bridge.routes.navigation import Navigator  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from carla_bridge.scenarios.places import Spot  # noqa: E402
from carla_bridge.scenarios.stage import Stage  # noqa: E402
from wamdiff2_core.config import CameraSpec, TargetRule  # noqa: E402
from wamdiff2_core.control.controller import Controller, PlanInMap  # noqa: E402
from wamdiff2_core.errors import InfrastructureError, UserError  # noqa: E402
from wamdiff2_core.processes import ManagedProcess  # noqa: E402
from wamdiff2_core.types import Plan, Pose2D, VehicleCommand  # noqa: E402

pytestmark = pytest.mark.carla
DEMO = Path(__file__).resolve().parents[2] / "carla_bridge" / "routes" / "demo.xml"
RULE = TargetRule("arc_length", (10.0, 20.0))
FRONT = CameraMount(CameraSpec(), 5)
TALL = CameraMount(CameraSpec(name="display", width_px=64, height_px=48, yaw_deg=90.0), 3)


@pytest.fixture
def simulation(server_port: int, demo_start: Pose2D) -> Iterator[Simulation]:
    with Simulation(port=server_port, ego_pose=demo_start, cameras=[FRONT, TALL], timeout_s=20.0) as simulation:
        yield simulation


def test_the_ego_stands_where_it_was_asked_to_with_y_to_the_left(simulation: Simulation, demo_start: Pose2D) -> None:
    pose = simulation.tick().ego.map_from_base
    assert (pose.x_m, pose.y_m) == pytest.approx((demo_start.x_m, demo_start.y_m), abs=0.05)
    assert pose.yaw_rad == pytest.approx(demo_start.yaw_rad, abs=1e-3)
    vehicle = next(a for a in simulation.world.get_actors() if a.id == simulation.ego_id)
    assert vehicle.attributes["role_name"] == "hero"
    assert vehicle.get_location().y == pytest.approx(-pose.y_m, abs=1e-4)


def test_time_moves_by_one_step_a_tick(simulation: Simulation) -> None:
    frames = [simulation.tick() for _ in range(6)]
    assert np.diff([frame.stamp_ns for frame in frames]) == pytest.approx(np.full(5, 50_000_000), abs=2)
    assert np.diff([frame.frame for frame in frames]).tolist() == [1] * 5


def test_cameras_come_exactly_at_their_own_pace_with_the_stamp_of_the_frame(simulation: Simulation) -> None:
    frames = [simulation.tick() for _ in range(31)]
    for name, period, shape in (("front", 5, (128, 256, 3)), ("display", 3, (48, 64, 3))):
        due = [k for k, frame in enumerate(frames) if name in frame.images]
        assert np.diff(due).tolist() == [period] * (len(due) - 1)
        assert len(due) >= 30 // period
        image = frames[due[0]].images[name]
        assert image.rgb.shape == shape
        assert image.stamp_ns == frames[due[0]].stamp_ns


def test_a_left_turn_is_left_in_every_sensor(simulation: Simulation) -> None:
    for _ in range(34):
        simulation.apply(VehicleCommand(0.0, 2.0))
        frame = simulation.tick()
    yaw = frame.ego.map_from_base.yaw_rad
    for _ in range(15):
        simulation.apply(VehicleCommand(0.15, 0.0))
        frame = simulation.tick()
    ego, imu = frame.ego, frame.imu
    assert imu is not None
    assert frame.gnss is not None
    expected = ego.speed_mps * math.tan(0.15) / 2.86
    assert ego.yaw_rate_radps == pytest.approx(expected, rel=0.05)
    assert imu.angular_velocity_radps[2] == pytest.approx(ego.yaw_rate_radps, rel=0.05)
    assert ego.acceleration_mps2[1] == pytest.approx(ego.speed_mps * expected, rel=0.2)
    assert imu.acceleration_mps2[1] == pytest.approx(ego.acceleration_mps2[1], abs=0.3)
    assert imu.acceleration_mps2[2] == pytest.approx(9.81, abs=0.1)
    turned = (ego.map_from_base.yaw_rad - yaw + math.pi) % (2 * math.pi) - math.pi
    assert turned > 0.1
    assert imu.yaw_rad == pytest.approx(ego.map_from_base.yaw_rad, abs=0.02)
    assert ego.velocity_mps[1] == pytest.approx(1.43 * ego.yaw_rate_radps, abs=0.05)


def test_commanded_acceleration_is_what_happens(simulation: Simulation) -> None:
    speeds = []
    for _ in range(40):
        simulation.apply(VehicleCommand(0.0, 1.5))
        speeds.append(simulation.tick().ego.speed_mps)
    assert (speeds[-1] - speeds[19]) / 1.0 == pytest.approx(1.5, abs=0.1)


def test_gnss_moves_with_the_ego(simulation: Simulation, demo_start: Pose2D) -> None:
    first = simulation.tick()
    simulation.place_ego(Pose2D(demo_start.x_m, demo_start.y_m + 100.0, demo_start.yaw_rad))
    second = simulation.tick()
    assert first.gnss is not None
    assert second.gnss is not None
    moved_deg = second.gnss.latitude_deg - first.gnss.latitude_deg
    assert moved_deg == pytest.approx(100.0 / 111_320.0, rel=0.02)  # +y is north


def test_running_into_something_is_reported(server_port: int, demo_start: Pose2D) -> None:
    with Simulation(port=server_port, ego_pose=demo_start, cameras=[], inertial=False, timeout_s=20.0) as simulation:
        contacts, places = [], {}
        for _ in range(300):
            simulation.apply(VehicleCommand(-0.1, 3.0))  # to the right, off the road
            step = simulation.tick()
            places[step.frame] = step.ego.map_from_base
            contacts += step.collisions
            if contacts:
                break
    assert contacts
    assert contacts[0].impulse_ns > 0.0
    there = places[contacts[0].frame]
    assert contacts[0].carla_xyz_m[:2] == pytest.approx((there.x_m, -there.y_m), abs=1e-3)


def test_placing_the_ego_gives_pose_and_speed(simulation: Simulation, demo_start: Pose2D) -> None:
    simulation.place_ego(demo_start, 6.0)
    ego = simulation.tick().ego
    assert ego.speed_mps == pytest.approx(6.0, abs=0.3)
    ahead = np.array([ego.map_from_base.x_m - demo_start.x_m, ego.map_from_base.y_m - demo_start.y_m])
    assert ahead @ [math.cos(demo_start.yaw_rad), math.sin(demo_start.yaw_rad)] == pytest.approx(0.3, abs=0.05)


def test_a_yawed_camera_looks_left(server_port: int, demo_start: Pose2D) -> None:
    # Left of a right-hand lane lies the road's middle and the other lane, right of it the kerb: the pictures differ,
    # and the left one is what a car turned left by 90 degrees sees ahead from the same spot.
    left = CameraMount(CameraSpec(name="left", x_m=0.0, yaw_deg=90.0, width_px=128, height_px=64), 1)
    ahead = CameraMount(CameraSpec(name="ahead", x_m=0.0, width_px=128, height_px=64), 1)
    with Simulation(port=server_port, ego_pose=demo_start, cameras=[left, ahead], timeout_s=20.0) as simulation:
        looked_left = simulation.tick().images["left"].rgb.astype(int)
        simulation.place_ego(Pose2D(demo_start.x_m, demo_start.y_m, demo_start.yaw_rad + math.pi / 2))
        turned = simulation.tick().images
    same = np.abs(looked_left - turned["ahead"].rgb).mean()
    other = np.abs(looked_left - turned["left"].rgb).mean()
    assert same < 0.2 * other


def test_leaving_destroys_the_actors_and_restores_the_settings(server_port: int, demo_start: Pose2D) -> None:
    client = carla.Client("127.0.0.1", server_port)
    client.set_timeout(20.0)
    with Simulation(port=server_port, ego_pose=demo_start, timeout_s=20.0) as simulation:
        assert client.get_world().get_settings().synchronous_mode
        ids = {simulation.ego_id}
    world = client.get_world()
    assert not world.get_settings().synchronous_mode
    world.wait_for_tick(10.0)
    kinds = [actor.type_id for actor in world.get_actors() if actor.id in ids or actor.type_id.startswith("sensor.")]
    assert kinds == []


def test_an_unknown_town_is_a_user_error(server_port: int, demo_start: Pose2D) -> None:
    with pytest.raises(UserError, match="Wamtown01"):
        Simulation(port=server_port, ego_pose=demo_start, town="Town99", timeout_s=20.0)


def test_no_server_is_an_infrastructure_error() -> None:
    with pytest.raises(InfrastructureError, match="CARLA server"):
        Simulation(port=lease_ports().number, ego_pose=Pose2D(0.0, 0.0, 0.0), timeout_s=1.0)


def test_the_expert_drives_a_demo_route_within_a_metre(server_port: int, demo_start: Pose2D) -> None:
    with Simulation(
        port=server_port, ego_pose=demo_start, cameras=[CameraMount(CameraSpec(width_px=64, height_px=32), 5)],
        inertial=False, timeout_s=20.0,
    ) as simulation:
        route = RoutePlanner(simulation.map).plan(load_routes(DEMO)[0])
        expert, navigator, controller = RouteFollower(route), Navigator(route, RULE), Controller()
        plan, deviations, contacts = None, [], []
        for _ in range(1600):
            frame = simulation.tick()
            navigator.update(frame.ego.map_from_base)
            deviations.append(navigator.deviation_m)
            contacts += frame.collisions
            if frame.images:
                plan = PlanInMap(Plan(frame.stamp_ns, expert.plan(frame.ego)), frame.ego.map_from_base)
            if navigator.completed:
                break
            simulation.apply(controller.step(plan, frame.ego, frame.stamp_ns))
    assert navigator.completed
    assert max(deviations) < 1.0
    assert not contacts


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[tuple[ManagedProcess, int]]:
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port)]
    with ManagedProcess("embedded server", command, tmp_path / "server.log") as process:
        wait_for_port(port, process.alive, 60.0)
        yield process, port


@pytest.fixture(scope="module")
def busy_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server of its own with traffic in it."""
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--vehicles", "12", "--walkers", "6"]
    log = tmp_path_factory.mktemp("busy") / "server.log"
    with ManagedProcess("embedded server", command, log) as process:
        wait_for_port(port, process.alive, 180.0)
        yield port


def what_happens(port: int, start: Pose2D) -> list[object]:
    """Everything that is to be the same on every start, of 2 s of driving."""
    with Simulation(port=port, ego_pose=start, cameras=[FRONT, TALL], timeout_s=20.0, fresh=True) as simulation:
        told: list[object] = []
        for _ in range(40):
            simulation.apply(VehicleCommand(0.02, 1.5))
            frame = simulation.tick()
            pose = frame.ego.map_from_base
            told.append((frame.stamp_ns, pose.x_m, pose.y_m, pose.yaw_rad, sorted(frame.images)))
        snapshot = simulation.world.get_snapshot()
        places = [actor.get_transform().location for actor in snapshot if actor.id != simulation.ego_id]
        told.append(sorted((place.x, place.y) for place in places))
        return told


@pytest.mark.parametrize(("name", "late_s"), [("front", 0.4), ("imu", 0.4), ("imu", 3.0)])
def test_a_subscription_that_is_slow_changes_nothing_in_what_is_driven(
    busy_port: int, demo_start: Pose2D, monkeypatch: pytest.MonkeyPatch, name: str, late_s: float
) -> None:
    class LateStream(Stream):
        """A stream whose subscription reaches the server late."""

        def __init__(self, stream_name: str, actor: object, period: int, fault: Fault) -> None:
            if stream_name == name:
                listen = actor.listen  # type: ignore[attr-defined]
                actor = SimpleNamespace(listen=lambda put: threading.Timer(late_s, listen, (put,)).start())
            super().__init__(stream_name, actor, period, fault)

    prompt = what_happens(busy_port, demo_start)
    monkeypatch.setattr("carla_bridge.client.client.Stream", LateStream)
    assert what_happens(busy_port, demo_start) == prompt


def test_a_sensor_that_never_speaks_is_an_infrastructure_error_that_names_it(
    server_port: int, demo_start: Pose2D, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SilentStream(Stream):
        """Nothing comes of the camera's pictures."""

        def __init__(self, name: str, actor: object, period: int, fault: Fault) -> None:
            super().__init__(name, SimpleNamespace(listen=str) if name == "front" else actor, period, fault)

    monkeypatch.setattr("carla_bridge.client.client.Stream", SilentStream)
    with pytest.raises(InfrastructureError, match=r"sensors gave nothing within 2 s and 10 ticks: front$"):
        Simulation(port=server_port, ego_pose=demo_start, cameras=[FRONT], timeout_s=2.0)


@given(st.integers(1, 10).map(lambda tens: 10 * tens), st.floats(0.5, 60.0))
def test_waits_before_the_start_grow_and_use_up_the_time(ticks: int, total_s: float) -> None:
    waits = warm_up_waits_s(ticks, total_s)
    assert len(waits) == ticks
    assert sum(waits) == pytest.approx(total_s)
    assert waits == sorted(waits)
    assert sum(waits[:5]) > 0.2 * total_s or ticks > 10  # a camera of 5 ticks may miss its first picture


def test_a_foreign_server_that_dies_ends_in_an_infrastructure_error(own_server, demo_start: Pose2D) -> None:
    process, port = own_server
    simulation = Simulation(port=port, ego_pose=demo_start, cameras=[], inertial=False, timeout_s=3.0)
    try:
        process.stop()
        with pytest.raises(InfrastructureError):
            simulation.tick()
    finally:
        simulation.close()


def test_the_end_of_a_server_of_ones_own_is_noticed_within_two_seconds(own_server, demo_start: Pose2D) -> None:
    process, port = own_server
    with Simulation(port=port, ego_pose=demo_start, fault=process.fault) as simulation:
        os.kill(process.pid, signal.SIGSTOP)
        killer = threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match=r"^embedded server was ended by SIGKILL$"):
            simulation.tick()
    assert 0.3 <= time.monotonic() - began < 2.0  # leaving the world behind is part of it


def test_what_scenarios_have_put_into_a_server_that_hangs_costs_one_wait_for_all_of_them(
    own_server, demo_start: Pose2D, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carla_bridge.scenarios.stage.CLOSE_S", 1.0)
    process, port = own_server
    with Simulation(port=port, ego_pose=demo_start, cameras=[], inertial=False) as simulation:
        stages = [Stage(simulation, np.random.default_rng(k)) for k in range(3)]
        for k, stage in enumerate(stages):
            stage.spawn("vehicle.audi.tt", Spot(Pose2D(500.0 + 20.0 * k, 500.0, 0.0), 0.0))
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for stage in stages:
            stage.close()
        assert time.monotonic() - began < 2.0
    os.kill(process.pid, signal.SIGCONT)


def test_a_server_of_ones_own_that_has_ended_is_not_connected_to(own_server, demo_start: Pose2D) -> None:
    process, port = own_server
    process.stop()
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"^embedded server ended with exit code 0$"):
        Simulation(port=port, ego_pose=demo_start, fault=process.fault)
    assert time.monotonic() - began < 2.0


def test_a_server_that_lives_and_does_not_answer_gets_the_whole_time_out(own_server, demo_start: Pose2D) -> None:
    process, port = own_server
    with Simulation(port=port, ego_pose=demo_start, cameras=[], inertial=False, timeout_s=3.0,
                    fault=process.fault) as simulation:
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match=r"world\.tick failed: time-out"):
            simulation.tick()
        assert time.monotonic() - began >= 3.0
    assert time.monotonic() - began < 3.0 + 5.0  # putting back a server that hangs does not cost a time-out a call
    os.kill(process.pid, signal.SIGCONT)
