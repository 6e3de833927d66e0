"""Requests: right envelopes, checked arguments, and whatever bytes a stranger sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol.doorkeeper import Doorkeeper
from carla_bridge.server.protocol.rpc import RpcConnection, answer
from carla_bridge.server.protocol.worker import Worker
from carla_bridge.server.world import World
from tests.carla_bridge.server.rpc_calls import METHODS, call, value

POSE = [[0.0, 0.0, 0.5], [0.0, 0.0, 0.0]]
CAR = [0, "vehicle.lincoln.mkz_2020", []]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


class FakeTransport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.written, self.aborted = b"", False

    def setsockopt(self, *args: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def connect(world: World) -> tuple[RpcConnection, FakeTransport]:
    connection, transport = RpcConnection(METHODS, world, Doorkeeper(), Worker("test")), FakeTransport()
    connection.connection_made(transport)
    return connection, transport


def test_unknown_method_is_named_in_the_error_slot(world: World) -> None:
    error, result = answer(METHODS, world, "fly_away", [])
    assert error is not None
    assert "fly_away" in error
    assert result is None


def test_wrong_number_of_arguments_goes_to_the_error_slot(world: World) -> None:
    assert "3 arguments" in str(answer(METHODS, world, "tick_cue", [1, 2, 3])[0])


def test_failure_envelope_has_the_shape_of_the_method(world: World) -> None:
    assert call(world, "get_actor_bounding_box", 99)[0][0] == 0
    ((failed, (message,)),) = call(world, "set_actor_location", 99, [0, 0, 0])
    assert failed is True
    assert "99" in message


def test_request_split_into_single_bytes_is_answered(world: World) -> None:
    connection, transport = connect(world)
    for byte in msgpack.packb([0, 41, "version", [[False]]]):
        connection.data_received(bytes([byte]))
    assert msgpack.unpackb(transport.written) == [1, 41, None, [[1, "0.9.16"]]]


def test_two_requests_in_one_packet_are_answered_in_order(world: World) -> None:
    connection, transport = connect(world)
    connection.data_received(b"".join(msgpack.packb([0, i, "tick_cue", [[False]]]) for i in (1, 2)))
    unpacker = msgpack.Unpacker()
    unpacker.feed(transport.written)
    first, second = unpacker
    assert (first[1], second[1]) == (1, 2)
    assert second[3][0][1] == first[3][0][1] + 1


@pytest.mark.parametrize(
    "message",
    [[0, 1, "version"], [5, 1, "version", []], ["x"], {"a": 1}, 7, [0, "id", "version", [[False]]], [0, 1, 2, 3]],
)
def test_what_is_no_request_closes_the_connection(world: World, message: Any) -> None:
    connection, transport = connect(world)
    connection.data_received(msgpack.packb(message))
    assert transport.aborted


def test_claimed_giant_array_is_refused_without_reserving_memory(world: World) -> None:
    connection, transport = connect(world)
    connection.data_received(b"\xdd\xff\xff\xff\xff")
    assert transport.aborted


POISON: dict[str, tuple[str, list]] = {
    "position beyond single precision": ("spawn_actor", [CAR, [[1e300, 0.0, 0.0], [0.0, 0.0, 0.0]]]),
    "integer beyond 64 bits in an echoed description": ("spawn_actor", [[2**63, CAR[1], []], POSE]),
    "nested attribute value": ("spawn_actor", [[0, CAR[1], [["color", 5, [[]]]]], POSE]),
    "attribute that is no Unicode": ("spawn_actor", [[0, CAR[1], [["role_name", 4, "\udcff"]]], POSE]),
    "velocity beyond single precision": ("set_actor_target_velocity", [2, [1e200, 0.0, 0.0]]),
    "light bits beyond 32": ("set_vehicle_light_state", [2, [2**40]]),
    "tick of no length": ("set_episode_settings", [[True, False, [True, 1e-300], *[0] * 8]]),
}


@pytest.mark.parametrize("request_", POISON.values(), ids=POISON)
def test_what_other_clients_could_not_be_sent_is_refused(world: World, request_: tuple[str, list]) -> None:
    car = value(world, "spawn_actor", CAR, [[50.0, 0.0, 0.5], [0.0, 0.0, 0.0]])[0]
    assert car == 2
    name, arguments = request_
    ((code, *_),) = call(world, name, *arguments)
    assert code is True or code == 0, "accepted"
    world.step(0.05)
    msgpack.packb(value(world, "get_actors_by_id", list(world.actors)))


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_never_raise(world: World, data: bytes) -> None:
    connection, _ = connect(world)
    connection.data_received(data)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(sorted(METHODS)), st.lists(json_like, max_size=5))
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_method_with_any_arguments_leaves_a_world_that_ticks(world: World, name: str, arguments: list) -> None:
    if not any(actor.type_id == CAR[1] for actor in world.actors.values()):
        answer(METHODS, world, "spawn_actor", [CAR, POSE])
    answer(METHODS, world, name, arguments)
    world.step(0.05)
    for actor in world.actors.values():
        assert all(math.isfinite(v) for part in actor.pose.as_transform() for v in part)
    msgpack.packb(answer(METHODS, world, "get_episode_settings", []))


def test_nan_controls_of_the_traffic_manager_are_tamed(world: World) -> None:
    car = value(world, "spawn_actor", CAR, POSE)[0]
    nan = float("nan")
    assert call(world, "apply_control_to_vehicle", car, [nan, nan, nan, False, False, False, 0]) == [[False]]
    assert world.actor(car).control()[:3] == [0.0, 0.0, 1.0]
    call(world, "apply_control_to_vehicle", car, [7.0, -9.0, float("inf"), False, False, False, 0])
    assert world.actor(car).control()[:3] == [1.0, -1.0, 1.0]


def test_nan_transform_is_refused(world: World) -> None:
    car = value(world, "spawn_actor", CAR, POSE)[0]
    ((failed, _),) = call(world, "set_actor_transform", car, [[float("nan"), 0, 0], [0, 0, 0]])
    assert failed is True
    assert world.actor(car).pose == Pose(0.0, 0.0, 0.5)


def test_destroyed_ids_never_fail(world: World) -> None:
    car = value(world, "spawn_actor", CAR, POSE)[0]
    assert value(world, "destroy_actor", car) is True
    for name, arguments in (
        ("destroy_actor", []), ("get_actor_bounding_box", []), ("get_physics_control", []),
        ("get_vehicle_light_state", []),
    ):  # fmt: skip
        value(world, name, car, *arguments)
    for name, arguments in (
        ("apply_control_to_vehicle", [[0, 0, 0, False, False, False, 0]]), ("set_actor_simulate_physics", [True]),
        ("set_actor_transform", [POSE]), ("set_actor_target_velocity", [[0, 0, 0]]), ("set_vehicle_light_state", [[1]]),
    ):  # fmt: skip
        assert call(world, name, car, *arguments) == [[False]]
    assert value(world, "get_actors_by_id", [car]) == []


def test_wheelbase_and_steering_limit_can_be_read_off_the_physics(world: World) -> None:
    car = value(world, "spawn_actor", CAR, [[10.0, 5.0, 0.0], [0.0, 30.0, 0.0]])[0]
    physics = value(world, "get_physics_control", car)
    assert len(physics) == 17
    wheels = physics[15]
    assert [len(wheel) for wheel in wheels] == [10] * 4
    front_left, _, back_left, _ = (wheel[9] for wheel in wheels)
    assert math.dist(front_left[:2], back_left[:2]) / 100 == pytest.approx(2.86)
    assert [wheel[2] for wheel in wheels] == [pytest.approx(35.0)] * 2 + [0.0] * 2


def test_batch_results_stand_alone_and_future_actor_is_the_spawned_one(world: World) -> None:
    spawn = [[0, [CAR, POSE, [False], 0, "", [[[18, [0, [5]]]]]]]]
    results = call(world, "apply_batch", [spawn, spawn, [[1, [12345]]], [[99, [1]]], "junk"], False)
    car = results[0][0][1]
    assert results[0] == [[1, car]]
    assert [result[0][0] for result in results[1:]] == [0, 0, 0, 0]
    assert value(world, "get_vehicle_light_state", car) == [5]
    control = [0.5, 0.1, 0.0, False, False, False, 0]
    assert call(world, "apply_batch", [[[2, [car, control]]]], True) == [[[1, car]]]
    assert world.actor(car).pose.x > 0


def test_settings_round_trip_and_bad_step_is_refused(world: World) -> None:
    wire = value(world, "get_episode_settings")
    assert len(wire) == 11
    wire[0], wire[2] = True, [True, 0.05]
    assert value(world, "set_episode_settings", wire) == world.frame
    assert value(world, "get_episode_settings") == wire
    wire[2] = [True, -1.0]
    assert call(world, "set_episode_settings", wire)[0][0] == 0


@pytest.mark.parametrize(("field", "bad"), [(3, "yes"), (4, None), (5, -1), (6, [0.0]), (7, 1), (9, 1e300), (10, {})])
def test_settings_that_other_clients_could_not_read_are_refused(world: World, field: int, bad: Any) -> None:
    before = value(world, "get_episode_settings")
    wire = [*before]
    wire[field] = bad
    assert call(world, "set_episode_settings", wire)[0][0] == 0
    assert value(world, "get_episode_settings") == before


def test_traffic_manager_on_a_port_that_cannot_be_is_refused(world: World) -> None:
    assert call(world, "add_traffic_manager_running", ["127.0.0.1", 65536])[0][0] == 0
    assert value(world, "add_traffic_manager_running", ["127.0.0.1", 65535]) is True


@pytest.mark.parametrize(
    ("name", "arguments"), [("destroy_actor", [99]), ("set_actor_dead", [99]), ("apply_batch", [[[[1, [99]]]]])]
)
def test_failure_of_an_asynchronous_call_is_logged_once(
    world: World, name: str, arguments: list, caplog: pytest.LogCaptureFixture
) -> None:
    connection, _ = connect(world)
    for _ in range(2):
        connection.data_received(msgpack.packb([0, 1, name, [[True], *arguments]]))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"an asynchronous {name} failed: ")
    assert "99" in record.getMessage()


def test_sensor_token_exists_only_for_streams_that_do(world: World) -> None:
    assert len(value(world, "get_sensor_token", world.state_stream)[0]) == 24
    assert call(world, "get_sensor_token", 4000)[0][0] == 0
