"""What requests do: blows and forces, batches, late questions about destroyed actors, spawning in three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from carla_bridge.server.geometry.scene import BoxKind, StaticBox
from carla_bridge.server.handlers import batch, refused
from carla_bridge.server.protocol.dialect import DIALECTS
from carla_bridge.server.protocol.rpc import Envelope, Method
from carla_bridge.server.world import World
from tests.carla_bridge.server.rpc_calls import METHODS, call, value

CAR, WALKER, PROP = ([0, name, []] for name in (
    "vehicle.lincoln.mkz_2020", "walker.pedestrian.0001", "static.prop.container",
))  # fmt: skip
MASS_KG = 1800.0


def pose(x: float = 0.0, y: float = 0.0, z: float = 0.0, yaw: float = 0.0) -> list:
    return [[x, y, z], [0.0, yaw, 0.0]]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


def done(world: World, name: str, *arguments: Any) -> None:
    assert call(world, name, *arguments) == [[False]]


def spawn(world: World, what: list = CAR, **where: float) -> int:
    return value(world, "spawn_actor", what, pose(**where))[0]


def refusal(world: World, name: str, *arguments: Any) -> str:
    ((code, *rest),) = call(world, name, *arguments)
    assert code is True or code == 0, f"{name} was served"
    return rest[0][0]


def test_impulse_changes_the_velocity_by_impulse_over_mass(world: World) -> None:
    car = spawn(world, yaw=90.0)
    done(world, "add_actor_impulse", car, [0.0, 3.0 * MASS_KG, 0.0])
    assert world.actor(car).planar_velocity()[:2] == pytest.approx((0.0, 3.0), abs=1e-6)


def test_force_acts_for_one_tick(world: World) -> None:
    car = spawn(world)
    done(world, "add_actor_force", car, [2.0 * MASS_KG, 0.0, 0.0])
    assert world.actor(car).planar_velocity()[0] == pytest.approx(2.0 * world.delta_s)


def test_impulse_behind_the_middle_turns_the_way_its_lever_says(world: World) -> None:
    car = spawn(world)
    done(world, "add_actor_impulse_at_location", car, [0.0, 2.0 * MASS_KG, 0.0], [-1.0, 0.0, 0.5])
    spin = world.actor(car).planar_velocity()[2]
    expected = -1.0 * 2.0 / ((2.45**2 + 1.08**2) / 3)  # lever times impulse over the inertia of a uniform box
    assert spin == pytest.approx(expected, rel=1e-3)
    done(world, "add_actor_angular_impulse", car, [0.0, 0.0, MASS_KG * (2.45**2 + 1.08**2) / 3])
    assert world.actor(car).planar_velocity()[2] == pytest.approx(expected + 1.0, rel=1e-3)


def test_blows_move_no_prop_and_giant_ones_leave_numbers_to_go_on_with(world: World) -> None:
    prop, car = spawn(world, PROP, x=30.0), spawn(world)
    for name in ("add_actor_impulse", "add_actor_force", "add_actor_angular_impulse", "add_actor_torque"):
        for actor in (prop, car):
            done(world, name, actor, [1e9, -1e9, 1e9])
    for _ in range(20):
        world.step(0.05)
    assert world.actor(prop).pose.x == pytest.approx(30.0)
    assert all(math.isfinite(v) for v in world.actor(car).pose.location)


def test_ackermann_request_drives_until_pedals_are_set(world: World) -> None:
    car = spawn(world)
    done(world, "apply_ackermann_control_to_vehicle", car, [0.0, 0.0, 5.0, 0.0, 0.0])
    for _ in range(100):
        world.step(0.05)
    assert world.actor(car).planar_velocity()[0] == pytest.approx(5.0, abs=0.3)
    done(world, "apply_control_to_vehicle", car, [0.0, 0.0, 1.0, False, False, False, 0])
    for _ in range(60):
        world.step(0.05)
    assert world.actor(car).planar_velocity()[0] == pytest.approx(0.0, abs=0.01)


def test_physics_control_takes_over_what_the_model_knows(world: World) -> None:
    car = spawn(world)
    control = value(world, "get_physics_control", car)
    control[11], control[12] = 900.0, 2 * control[12]
    for wheel in control[15]:
        wheel[0] = 0.35
    before = world.actor(car).model  # type: ignore[attr-defined]
    done(world, "apply_physics_control", car, control)
    model = world.actor(car).model  # type: ignore[attr-defined]
    assert (model.mass_kg, model.tyre_friction) == (900.0, pytest.approx(0.1))
    assert model.drag_per_m * 900.0 == pytest.approx(2 * before.drag_per_m * before.mass_kg)
    assert value(world, "get_physics_control", car)[12] == pytest.approx(control[12])
    for field, bad in ((11, 0.0), (12, -1.0), (15, []), (15, [[1.0]])):
        wrong = value(world, "get_physics_control", car)
        wrong[field] = bad
        assert refusal(world, "apply_physics_control", car, wrong)
    assert world.actor(car).model.mass_kg == 900.0  # type: ignore[attr-defined]


def test_drag_that_was_taken_away_can_be_given_back(world: World) -> None:
    car = spawn(world)
    without, before = (value(world, "get_physics_control", car) for _ in range(2))
    without[12] = 0.0
    done(world, "apply_physics_control", car, without)
    done(world, "apply_physics_control", car, before)
    assert value(world, "get_physics_control", car)[12] == pytest.approx(before[12])


def test_a_bike_steers_its_front_wheel_only(world: World) -> None:
    bike = spawn(world, [0, "vehicle.kawasaki.ninja", []])
    done(world, "apply_control_to_vehicle", bike, [0.0, 1.0, 0.0, False, False, False, 0])
    for _ in range(20):
        world.step(0.05)
    assert value(world, "get_wheel_steer_angle", bike, 0) > 5.0
    assert value(world, "get_wheel_steer_angle", bike, 1) == 0.0


def batch_bodies(car: int, walker: int, world: World) -> dict[int, list]:
    control, zero = [0.0, 0.0, 0.0, False, False, False, 0], [0.0, 0.0, 0.0]
    physics = value(world, "get_physics_control", car)
    spawn_body = [PROP, pose(x=60.0), [False], 0, "", []]
    if world.dialect.batch_spawn_fields == 4:
        spawn_body = [PROP, pose(x=60.0), [False], []]
    return {
        0: spawn_body, 2: [car, control], 3: [car, [0.0] * 5], 4: [walker, [zero, 0.0, False]], 5: [car, physics],
        6: [car, pose()], 7: [walker, pose(y=9.0), 1.0], 8: [car, zero], 9: [car, zero], 10: [car, zero],
        11: [car, zero], 12: [car, zero], 13: [car, zero], 14: [car, True], 15: [car, True], 16: [car, False],
        17: [car, False], 18: [car, [0]], 19: [car, zero], 20: ["stat fps"], 1: [car],
    }  # fmt: skip


@pytest.mark.parametrize("version", DIALECTS)
def test_every_command_of_a_batch_is_understood(make_world: Callable[..., World], version: str) -> None:
    world = make_world(dialect=DIALECTS[version])
    bodies = batch_bodies(spawn(world), spawn(world, WALKER, y=9.0, z=1.0), world)
    results = call(world, "apply_batch", [[[index, body]] for index, body in bodies.items()], False)
    failed = {index: r for index, r in zip(bodies, results, strict=True) if r[0][0] != 1}
    assert failed == {}
    assert refusal_of(call(world, "apply_batch", [[[21, [99, 0]]]], False)[0]).find("99") >= 0
    assert refusal_of(call(world, "apply_batch", [[[22, [1]]]], False)[0]).find("22") >= 0


def test_a_batch_command_with_too_few_or_too_many_arguments_is_refused_and_a_handlers_fault_is_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(world: World, actor_id: int, state: int) -> None:
        raise TypeError("broken inside")

    car = spawn(world)
    for body in ([car], [car, [5], 1]):
        said = refusal_of(call(world, "apply_batch", [[[18, body]]], False)[0])
        assert said == f"batch command 18: cannot be called with {len(body) - 1} arguments"
    assert not caplog.records
    monkeypatch.setitem(batch._METHODS, 18, Method.of(broken, Envelope.VALUE))
    assert refusal_of(call(world, "apply_batch", [[[18, [car, [5]]]]], False)[0]) == "TypeError: broken inside"
    assert "broken inside" in caplog.text  # with its traceback
    after_spawn = [[0, [CAR, pose(x=80.0), [False], 0, "", [[[18, [0, [5]]]]]]]]
    ((ok, spawned),) = call(world, "apply_batch", [after_spawn], False)[0]
    assert (ok, world.actor(spawned).type_id) == (1, CAR[1])


def refusal_of(result: list) -> str:
    ((code, (message,)),) = result
    assert code == 0
    return message


def test_command_after_a_spawn_that_fails_leaves_the_spawned_actor_as_the_result(world: World) -> None:
    body = [CAR, pose(), [False], 0, "", [[[4, [0, [[0.0] * 3, 0.0, False]]]]]]  # a walker's control for a car
    ((ok, car),) = call(world, "apply_batch", [[[0, body]]], False)[0]
    assert ok == 1
    assert world.actor(car).type_id == CAR[1]


def test_walker_state_places_a_walker_that_goes_on_the_way_it_faces(world: World) -> None:
    walker = spawn(world, WALKER, z=1.0)
    done(world, "set_walker_state", walker, pose(x=5.0, z=1.0, yaw=90.0), 2.0)
    for _ in range(20):
        world.step(0.05)
    assert world.actor(walker).pose.location[:2] == pytest.approx((5.0, 2.0), abs=0.1)


def test_hidden_actor_far_below_blocks_nothing_above_and_a_destroyed_one_nothing_at_all(world: World) -> None:
    hidden = spawn(world, WALKER, z=-50.0)
    car = spawn(world)
    assert refusal(world, "spawn_actor", WALKER, pose(z=1.0))
    value(world, "destroy_actor", car)
    assert spawn(world, WALKER, z=1.0) != hidden


def test_body_beside_a_wall_is_told_from_one_inside_it_by_its_heading(make_world: Callable[..., World]) -> None:
    world = make_world(boxes=(StaticBox(BoxKind.BUILDING, 0.0, 3.0, 2.0, 0.0, 10.0, 1.0, 2.0, (1, 2, 3)),))
    assert refusal(world, "spawn_actor", CAR, pose(yaw=90.0))  # across, its nose is in the wall
    spawn(world)  # along, it fits


LATE: dict[str, list] = {
    "get_actor_bounding_box": [], "destroy_actor": [], "set_actor_transform": [pose()],
    "set_actor_location": [[0.0, 0.0, 0.0]], "set_actor_target_velocity": [[0.0] * 3],
    "set_actor_target_angular_velocity": [[0.0] * 3], "enable_actor_constant_velocity": [[0.0] * 3],
    "disable_actor_constant_velocity": [], "add_actor_impulse": [[0.0] * 3], "add_actor_force": [[0.0] * 3],
    "add_actor_impulse_at_location": [[0.0] * 3, [0.0] * 3], "add_actor_force_at_location": [[0.0] * 3, [0.0] * 3],
    "add_actor_angular_impulse": [[0.0] * 3], "add_actor_torque": [[0.0] * 3], "set_actor_simulate_physics": [True],
    "set_actor_enable_gravity": [True], "set_actor_collisions": [True], "set_actor_autopilot": [True],
    "set_actor_dead": [], "apply_control_to_vehicle": [[0.0, 0.0, 0.0, False, False, False, 0]],
    "apply_ackermann_control_to_vehicle": [[0.0] * 5], "get_ackermann_controller_settings": [],
    "apply_ackermann_controller_settings": [[0.0] * 6], "set_vehicle_light_state": [[1]],
    "get_vehicle_light_state": [], "get_telemetry_data": [], "get_physics_control": [],
    "show_vehicle_debug_telemetry": [True], "open_vehicle_door": [0], "close_vehicle_door": [6],
    "get_wheel_steer_angle": [0], "set_wheel_steer_direction": [0, 1.0], "get_wheel_pitch_angle": [0],
    "set_wheel_pitch_angle": [0, 1.0], "set_ignored_vehicles": [[]], "restore_physx_physics": [],
    "are_gbuffers_enabled": [],
}  # fmt: skip
NOT_ABOUT_A_VEHICLE = {
    "get_group_traffic_lights", "get_light_boxes", "set_traffic_light_state", "set_traffic_light_green_time",
    "set_traffic_light_yellow_time", "set_traffic_light_red_time", "freeze_traffic_light", "reset_traffic_light_group",
    "apply_control_to_walker", "set_walker_state",
}  # fmt: skip


def test_no_question_about_a_destroyed_vehicle_ever_fails(world: World) -> None:
    about_actors = {
        name
        for name, method in METHODS.items()
        if "actor_id" in method.function.__code__.co_varnames[: method.function.__code__.co_argcount]
    }
    car = spawn(world)
    value(world, "destroy_actor", car)
    late = LATE | {"apply_physics_control": [value(world, "get_physics_control", car)]}
    assert about_actors - NOT_ABOUT_A_VEHICLE == late.keys()
    for name, arguments in late.items():
        ((code, *_),) = call(world, name, car, *arguments)
        assert code is False or code == 1, name
    world.step(0.05)


@pytest.mark.parametrize("name", sorted(refused.METHODS))
def test_what_is_missing_is_refused_by_name_whatever_the_arguments(world: World, name: str) -> None:
    for arguments in ([], [1], [1, "x", [2.0]]):
        assert refusal(world, name, *arguments).startswith(f"{name}: ")
