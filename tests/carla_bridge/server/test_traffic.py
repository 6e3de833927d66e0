"""Traffic as a whole, watched by a judge that knows nothing of its code."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("carla", reason="needs the carla client library")
from benchmarks.traffic_watch import DT_S, Judge, build_world
from carla_bridge.server.actors import Vehicle, Walker
from carla_bridge.server.arguments import RpcError
from carla_bridge.server.poses import Pose
from carla_bridge.server.signals import TrafficLight
from carla_bridge.server.town import Town
from carla_bridge.server.wire import TrafficLightState
from carla_bridge.server.world import World

SERVER = ["driver", 3, "server"]


@pytest.fixture(scope="module")
def town() -> Town:
    return Town.load("Wamtown02")


@pytest.fixture(scope="module")
def judged(town: Town) -> Judge:
    """A minute of busy traffic."""
    judge = Judge(build_world(town, 40, 15, seed=5))
    for _ in range(round(60 / DT_S)):
        judge.world.step(DT_S)
        judge.watch()
    return judge


def test_nobody_collides(judged: Judge) -> None:
    assert judged.collisions == []


def test_nobody_runs_a_red_light_or_a_stop_sign(judged: Judge) -> None:
    assert judged.red_lights == []
    assert judged.stop_signs == []
    assert judged.stops_obeyed >= 5
    assert judged.lines_passed >= 40


def test_traffic_flows(judged: Judge) -> None:
    cars = [a for a in judged.world.actors.values() if isinstance(a, Vehicle)]
    assert len(cars) == 40
    assert judged.driven_m / 40 / judged.world.time_s > 4.0
    assert judged.longest_wait_s < 60.0
    assert judged.walked_m / 15 / judged.world.time_s > 0.8


def test_vehicles_stay_within_the_limit_of_their_road(judged: Judge) -> None:
    for actor in judged.world.actors.values():
        if isinstance(actor, Vehicle):
            # a limit that has just become lower is being braked for
            assert actor.motion.speed_mps < actor.speed_limit_kmh / 3.6 + 4.0


def test_the_same_seed_gives_the_same_traffic_and_another_does_not(town: Town) -> None:
    def places(seed: int) -> list[tuple[float, float, float, float]]:
        world = build_world(town, 15, 8, seed)
        for _ in range(200):
            world.step(DT_S)
        return [(a.pose.x, a.pose.y, a.pose.yaw, a.velocity[0]) for a in world.actors.values()]

    assert places(3) == places(3)
    assert places(3) != places(4)


def test_an_episode_has_the_same_traffic_each_time(town: Town) -> None:
    world = build_world(town, 6, 4, 0)
    first = [(a.type_id, a.pose.x, a.pose.y) for a in world.actors.values()]
    world.step(DT_S)
    world.start_episode(town, True)
    assert [(a.type_id, a.pose.x, a.pose.y) for a in world.actors.values()] == first


def lane_pose(world: World, road_id: int, lane_id: int, s_m: float) -> Pose:
    """Pose on the middle of a lane."""
    place = world.town.map.get_waypoint_xodr(road_id, lane_id, s_m).transform
    at = place.location
    return Pose(at.x, at.y, at.z + 0.05, yaw=place.rotation.yaw)


def free_road(town: Town) -> tuple[int, int]:
    """A road of at least 90 m with a lane that runs along it."""
    for before, _ in town.map.get_topology():
        if not before.is_junction and before.lane_id == -1 and len(before.next_until_lane_end(1.0)) > 90:
            return before.road_id, before.lane_id
    raise AssertionError("no such road")


def test_a_standing_vehicle_in_the_lane_is_not_hit(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    road = free_road(town)
    world.spawn([0, "vehicle.tesla.model3", []], lane_pose(world, *road, 80.0))
    car = world.spawn([0, "vehicle.audi.tt", [SERVER]], lane_pose(world, *road, 10.0))
    judge = Judge(world)
    for _ in range(400):
        world.step(DT_S)
        judge.watch()
    assert judge.collisions == []
    assert car.motion.speed_mps < 0.05
    ahead = lane_pose(world, *road, 80.0)
    gap = math.hypot(ahead.x - car.pose.x, ahead.y - car.pose.y) - car.blueprint.extent_m[0] - 2.40
    assert 1.0 < gap < 4.0


def test_a_walker_who_steps_onto_the_road_is_braked_for(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    road = free_road(town)
    place = lane_pose(world, *road, 65.0)
    yaw = math.radians(place.yaw)
    right = (-math.sin(yaw), math.cos(yaw))
    at = Pose(place.x + 5.0 * right[0], place.y + 5.0 * right[1], place.z + 1.0)
    walker = world.spawn([0, "walker.pedestrian.0001", []], at)
    car = world.spawn([0, "vehicle.audi.tt", [SERVER]], lane_pose(world, *road, 10.0))
    assert isinstance(walker, Walker)
    slowest = math.inf
    judge = Judge(world)
    for tick in range(500):
        # it crosses at the pace that brings it into the way of the car, had the car not braked
        if tick == 90:
            walker.direction, walker.speed_mps = (-right[0], -right[1], 0.0), 1.4
        world.step(DT_S)
        judge.watch()
        if tick > 90:
            slowest = min(slowest, car.motion.speed_mps)
    assert judge.collisions == []
    assert slowest < 4.0
    assert car.motion.speed_mps > 3.0  # and goes on


def test_background_makes_room_at_every_spawn_point_but_other_vehicles_do_not(town: Town) -> None:
    world = build_world(town, 60, 0, seed=2)
    for _ in range(100):
        world.step(DT_S)
    background = [a for a in world.actors.values() if a.attributes.get("role_name") == "background"]
    moved = background[0]
    hero = world.spawn([0, "vehicle.lincoln.mkz_2020", []], Pose(*moved.pose.location, yaw=moved.pose.yaw))
    assert math.hypot(moved.pose.x - hero.pose.x, moved.pose.y - hero.pose.y) > 50.0
    judge = Judge(world)
    for _ in range(100):
        world.step(DT_S)
        judge.watch()
    assert judge.collisions == []
    assert len([a for a in world.actors.values() if a.attributes.get("role_name") == "background"]) == 60
    with pytest.raises(RpcError, match="collision"):
        world.spawn([0, "vehicle.lincoln.mkz_2020", []], Pose(*hero.pose.location, yaw=hero.pose.yaw))


def test_the_judge_sees_collisions_red_lights_and_stop_signs(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    judge = Judge(world)
    assert world.signals is not None
    stop_sign = world.signals.stop_signs[0]
    light = world.signals.lights[0]
    assert isinstance(light, TrafficLight)
    world.signals.freeze(True)
    light.state = TrafficLightState.RED
    for signal in (light, stop_sign):
        stop = signal.spec.stops[0]
        pose = lane_pose(world, stop.road_id, stop.lane_id, stop.s_m)
        yaw = math.radians(pose.yaw)
        car = world.spawn(
            [0, "vehicle.audi.tt", []], Pose(pose.x - 8 * math.cos(yaw), pose.y - 8 * math.sin(yaw), 0.1, yaw=pose.yaw)
        )
        car.constant_velocity = (8.0, 0.0, 0.0)
        for _ in range(30):
            world.step(DT_S)
            judge.watch()
        car.constant_velocity = None
        world.destroy(car.id)
    assert [actor_id for _, actor_id in judge.red_lights] == [car.id - 1]
    assert [actor_id for _, actor_id in judge.stop_signs] == [car.id]
    road = free_road(town)
    world.spawn([0, "vehicle.tesla.model3", []], lane_pose(world, *road, 40.0))
    other = world.spawn([0, "vehicle.tesla.model3", []], lane_pose(world, *road, 30.0))
    other.constant_velocity = (10.0, 0.0, 0.0)
    for _ in range(20):
        world.step(DT_S)
        judge.watch()
    assert len(judge.collisions) == 1


def test_an_unknown_driver_is_refused(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    with pytest.raises(RpcError, match="driver: expected client or server, got 'robot'"):
        world.spawn([0, "vehicle.audi.tt", [["driver", 3, "robot"]]], Pose(0, 0, 1))
