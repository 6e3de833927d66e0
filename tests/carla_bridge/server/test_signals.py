"""Traffic lights and signs as actors: the cycle, what a world does with them, and a real client that switches them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from carla_bridge.server.actors.signals import SignalControl, TrafficLight
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import LampColor, SignalKind
from carla_bridge.server.handlers import all_methods
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.rpc import answer
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.town.road_signals import LaneStop, Post, SignalSpec
from carla_bridge.server.world import place_signals
from wamdiff2_core.processes import ManagedProcess, child_environment

SCRIPTS = Path(__file__).parent / "client_scripts"
GREEN, YELLOW, RED = TrafficLightState.GREEN, TrafficLightState.YELLOW, TrafficLightState.RED


def spec(sign_id: str, phase: int, junction_id: int = 7, kind: SignalKind = SignalKind.TRAFFIC_LIGHT) -> SignalSpec:
    """A signal 100 m east per id, for eastbound traffic (yaw 0): its pole stands 3 m south of the lane."""
    x = 100.0 * int(sign_id)
    trigger = ((-3.0, 1.5, 1.5), (1.75, 3.0, 1.5))
    post = Post((x, 3.0, 0.0), (x, 3.0, 2.7), 0.0)
    stops = (LaneStop(int(sign_id), -1, 50.0, -1),)
    return SignalSpec(sign_id, kind, junction_id, phase, stops, Pose(x, 3.0, yaw=90.0), trigger, (post,), 0.0)


def control(*specs: SignalSpec, seed: int = 0) -> SignalControl:
    return SignalControl(specs, iter(range(10, 99)).__next__, seed)


def history(signals: SignalControl, seconds: float) -> list[tuple[TrafficLightState, ...]]:
    shown = []
    for _ in range(round(seconds / 0.05)):
        signals.step(0.05)
        shown.append(tuple(light.state for light in signals.lights))
    return shown


def test_phases_take_turns_with_all_red_between_and_never_show_green_together() -> None:
    signals = control(spec("1", 0), spec("2", 1), spec("3", 0))
    shown = history(signals, 60.0)
    assert all(a is c for a, _, c in shown)
    moving = [(a, b) for a, b, _ in shown]
    assert not any(a is not RED and b is not RED for a, b in moving)
    for pair, seconds in (((GREEN, RED), 20), ((YELLOW, RED), 6), ((RED, GREEN), 20), ((RED, RED), 8)):
        assert moving.count(pair) * 0.05 == pytest.approx(seconds, abs=0.01)


def test_long_ticks_do_not_shift_the_phases() -> None:
    fine, coarse = (control(spec("1", 0), spec("2", 1)) for _ in range(2))
    for _ in range(400):
        for _ in range(14):
            fine.step(0.05)
        coarse.step(0.7)
        assert [light.state for light in coarse.lights] == [light.state for light in fine.lights]
        assert coarse.lights[0].cycle.elapsed_s == pytest.approx(fine.lights[0].cycle.elapsed_s, abs=1e-6)


def test_a_cycle_without_any_time_does_not_stop_the_world() -> None:
    signals = control(spec("1", 0), spec("2", 1))
    for light in signals.lights:
        light.phase.green_s = light.phase.yellow_s = light.phase.red_s = 0.0
    signals.step(0.05)
    assert {light.state for light in signals.lights} <= set(TrafficLightState)


def test_same_seed_repeats_and_another_seed_starts_elsewhere() -> None:
    specs = [spec(str(i), i % 2, junction_id=i // 2) for i in range(1, 9)]
    first = history(control(*specs, seed=3), 40.0)
    assert history(control(*specs, seed=3), 40.0) == first
    assert history(control(*specs, seed=4), 40.0) != first
    assert len({history(control(*specs, seed=s), 0.1)[0] for s in range(8)}) > 2


def test_reset_returns_to_the_start_of_the_episode() -> None:
    signals = control(spec("1", 0), spec("2", 1))
    first = history(signals, 33.0)
    signals.reset()
    assert history(signals, 33.0) == first


def test_lanes_find_their_light() -> None:
    signals = control(spec("1", 0), spec("2", 0, kind=SignalKind.STOP))
    assert signals.light_for(1, -1) is signals.lights[0]
    assert signals.light_for(1, 1) is None
    assert signals.light_for(2, -1) is None


def test_record_holds_id_times_and_state_where_the_protocol_has_them() -> None:
    light = control(spec("21", 0)).lights[0]
    light.phase.green_s, light.phase.yellow_s, light.phase.red_s = 7.0, 2.0, 1.0
    light.state = YELLOW
    detail = light.record()[65:]
    assert len(detail) == 54
    assert detail[:32].rstrip(b"\0") == b"21"
    green, yellow, red, _, pole, frozen, state = struct.unpack("<4fIBB", detail[32:])
    assert (green, yellow, red, pole, frozen, state) == (7.0, 2.0, 1.0, 0, 0, 1)


def test_every_post_is_drawn_with_what_the_light_shows() -> None:
    light = control(spec("1", 0)).lights[0]
    for state, lamp in ((GREEN, LampColor.GREEN), (RED, LampColor.RED), (TrafficLightState.UNKNOWN, LampColor.OFF)):
        light.state = state
        (drawn,) = light.render_signals()
        assert (drawn.lamp, drawn.kind, drawn.yaw) == (lamp, SignalKind.TRAFFIC_LIGHT, 0.0)
        assert (drawn.x, drawn.y, drawn.z, drawn.head_z) == (100.0, 3.0, 0.0, 2.7)


@pytest.fixture
def lit(make_world: Any) -> Any:
    """A world with two lights of one junction and a stop sign, and its methods."""
    world = make_world()
    specs = (spec("1", 0), spec("2", 1), spec("3", 0, kind=SignalKind.STOP))
    world.town.signals, world._make_signals = specs, place_signals
    world.start_episode(world.stage, False)
    table = all_methods()
    world.call = lambda name, *arguments: answer(table, world, name, list(arguments))[1]
    return world


def test_signals_are_the_first_actors_of_every_episode(lit: Any) -> None:
    types = [actor.type_id for actor in lit.actors.values()]
    assert types == ["spectator", "traffic.traffic_light", "traffic.traffic_light", "traffic.stop"]
    old = {light.id for light in lit.signals.lights}
    lit.start_episode(lit.stage, False)
    assert not old & {light.id for light in lit.signals.lights}
    assert lit.call("get_group_traffic_lights", min(old)) == [[1, sorted(old)]]  # a late question of a TrafficManager


def test_no_client_destroys_or_moves_a_signal(lit: Any) -> None:
    light = lit.signals.lights[0]
    for actor in lit.signals.actors:
        assert lit.call("destroy_actor", actor.id)[0][0] == 0
        assert lit.call("apply_batch", [[[1, [actor.id]]]])[0][0][0] == 0
    lit.call("set_actor_transform", light.id, [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    lit.call("set_actor_simulate_physics", light.id, True)
    lit.call("set_actor_target_velocity", light.id, [1.0, 0.0, 0.0])
    for _ in range(20):
        lit.step(0.05)
    assert light.pose == Pose(100.0, 3.0, yaw=90.0)
    assert light.id in lit.actors


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("set_traffic_light_state", 5),
        ("set_traffic_light_state", "red"),
        ("set_traffic_light_green_time", -1.0),
        ("set_traffic_light_red_time", float("nan")),
        ("set_traffic_light_yellow_time", None),
    ],
)
def test_what_no_light_can_be_is_refused(lit: Any, method: str, argument: Any) -> None:
    light = lit.signals.lights[0]
    before = light.detail()
    assert lit.call(method, light.id, argument)[0][0] is True
    assert light.detail() == before


def test_light_methods_on_another_actor_are_refused_by_name(lit: Any) -> None:
    assert "no traffic light" in lit.call("set_traffic_light_state", lit.spectator.id, 0)[0][1][0]
    with pytest.raises(RpcError):
        lit.actor(999)
    assert lit.call("freeze_traffic_light", 999, True)[0][0] is True


def test_vehicle_meets_the_light_of_its_own_direction_only(lit: Any) -> None:
    light: TrafficLight = lit.signals.lights[0]
    car = lit.spawn([0, "vehicle.lincoln.mkz_2020", []], Pose(80.0, 0.0))
    front = car.blueprint.extent_m[0]
    for x, yaw, meets in ((80.0, 0.0, False), (98.0, 0.0, True), (98.0, 180.0, False), (98.0, 90.0, False)):
        # the front stands at x, in the middle of the trigger volume at 98.5 or outside of it
        dx, dy = {0.0: (front, 0.0), 180.0: (-front, 0.0), 90.0: (0.0, front)}[yaw]
        car.place(Pose(x - dx, -dy, 0.0, yaw=yaw))
        lit.step(0.05)
        assert car.light == ((light.id, light.state) if meets else None), (x, yaw)


def test_vehicle_on_a_bridge_above_a_light_does_not_meet_it(lit: Any) -> None:
    car = lit.spawn([0, "vehicle.lincoln.mkz_2020", []], Pose(80.0, 0.0))
    car.gravity = False
    for z, meets in ((0.0, True), (2.0, True), (6.0, False), (-6.0, False)):
        car.place(Pose(98.0 - car.blueprint.extent_m[0], 0.0, z))
        lit.step(0.05)
        assert (car.light is not None) == meets, z


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw in the shipped town's roads, with signals added."""
    pytest.importorskip("carla", reason="needs the carla client library")
    from carla_bridge.server.town.opendrive_signals import with_signals
    from carla_bridge.server.town.town_library import SHIPPED_FOLDER

    folder = tmp_path_factory.mktemp("signals")
    roads = (SHIPPED_FOLDER / "Wamtown01.xodr").read_text(encoding="utf-8")
    (folder / "Lit.xodr").write_text(with_signals("Lit", roads), encoding="utf-8")
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--map", str(folder / "Lit.xodr")]
    with ManagedProcess("embedded server", command, folder / "server.log") as process:
        wait_for_port(port, process.alive, 60.0)
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "signals.py"), str(port)],
            env=child_environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.carla
def test_client_links_every_light_to_its_landmark_junction_and_lanes(seen: dict[str, Any]) -> None:
    assert len(seen["ids"]) == 40
    assert seen["ids"] == seen["landmark_ids"]
    assert seen["stops"] == seen["stop_landmarks"] == 6
    assert seen["junctions"] == 10
    for name in (
        "actor_of_landmark", "actor_of_id", "junctions_agree", "groups_agree", "stop_waypoints_are_affected_lanes",
        "ahead", "finite",
    ):  # fmt: skip
        assert seen[name] is True, name
    assert seen["crosswalk_points"] == 5 * 40
    assert seen["light_boxes"] == [2, pytest.approx(2.7)]
    assert seen["poles"] == [0, 1, 2, 3]
    # from 9 m before the stop line to the junction, 4.8 m behind it
    assert seen["trigger"] == [1.75, pytest.approx(6.9, abs=0.15)]


@pytest.mark.carla
def test_client_freezes_sets_times_and_sees_the_cycle(seen: dict[str, Any]) -> None:
    assert seen["elapsed_gains"] == pytest.approx([0.5] * len(seen["elapsed_gains"]), abs=1e-4)
    assert len(seen["elapsed_gains"]) > 20
    assert seen["frozen"] == [True, True, "Yellow", 0.0]
    assert seen["times"] == [4.0, 1.5, 0.5, False]
    # 4 + 1.5 + 0.5 of its own phase, 10 + 3 + 2 of the other
    expected = {"Green": 4.0, "Yellow": 1.5, "Red": 15.5}
    assert len(seen["runs"]) >= 6
    for name, seconds in seen["runs"]:
        assert seconds == pytest.approx(expected[name], abs=0.01)


@pytest.mark.carla
def test_client_sees_the_light_that_a_car_meets(seen: dict[str, Any]) -> None:
    assert seen["far_away"] == [False, True]
    ticks, right_light = seen["met"]
    assert right_light
    assert 33 <= ticks <= 36  # 13.8 m of trigger volume, 0.4 m a tick


@pytest.mark.carla
def test_client_can_neither_move_nor_destroy_a_light_and_reloading_makes_new_ones(seen: dict[str, Any]) -> None:
    assert seen["moved_m"] == 0.0
    assert seen["destroyed"] is False
    assert seen["batch_refused"] is True
    assert seen["off"] == "Off"
    assert seen["still_there"] is True
    assert seen["after_reload"] == [40, True]
