"""Traffic as a whole, watched by a judge that knows nothing of its code."""

from __future__ import annotations

import math

import pytest
from shapely.geometry import Point, Polygon

pytest.importorskip("carla", reason="needs the carla client library")
import carla

from benchmarks.traffic_watch import DT_S, Judge, build_world
from carla_bridge.server.actors.signals import StopSign, TrafficLight
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import Lamp
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.town.town import Town
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
    assert len([a for a in judged.world.actors.values() if isinstance(a, Walker)]) == 15
    assert judged.driven_m / 40 / judged.world.time_s > 4.0
    assert judged.longest_wait_s < 60.0
    assert judged.walked_m / 15 / judged.world.time_s > 0.8


def test_vehicles_stay_within_the_limit_of_their_road(judged: Judge) -> None:
    assert judged.most_over_limit_mps < 2.5  # in a minute; a limit that has just become lower is being braked for


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
    world.start_episode(world.stage, True)
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


def test_slow_traffic_is_passed_on_the_other_lane(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    road_id, lane_id = wide_road(town)
    slow = world.spawn([0, "vehicle.tesla.model3", []], lane_pose(world, road_id, lane_id, 50.0))
    slow.constant_velocity = (3.0, 0.0, 0.0)
    car = world.spawn([0, "vehicle.audi.tt", [SERVER]], lane_pose(world, road_id, lane_id, 15.0))
    judge, lanes, blinked = Judge(world), set(), False
    for _ in range(240):
        world.step(DT_S)
        judge.watch()
        place = town.map.get_waypoint(carla.Location(*car.pose.location))
        if place.road_id == road_id:
            lanes.add(place.lane_id)
        blinked = blinked or bool(car.light_flags & int(Lamp.LEFT_BLINKER | Lamp.RIGHT_BLINKER))
    assert judge.collisions == []
    assert len(lanes) == 2
    assert blinked
    yaw = math.radians(slow.pose.yaw)
    assert (car.pose.x - slow.pose.x) * math.cos(yaw) + (car.pose.y - slow.pose.y) * math.sin(yaw) > 5.0


def wide_road(town: Town) -> tuple[int, int]:
    """A road of at least 110 m with two lanes in a direction, along which its outer lane runs."""
    for before, _ in town.map.get_topology():
        long = len(before.next_until_lane_end(1.0)) > 110
        if long and not before.is_junction and before.lane_id == -2 and before.get_left_lane().lane_id == -1:
            return before.road_id, -2
    raise AssertionError("no such road")


def test_who_comes_from_a_stop_sign_lets_the_main_road_go_first(town: Town) -> None:
    world = build_world(town, 0, 0, 0)
    assert world.signals is not None
    minor, major = t_junction(world)
    stop = minor.spec.stops[0]
    car = world.spawn([0, "vehicle.audi.tt", [SERVER]], before(world, stop.road_id, stop.lane_id, stop.s_m, 12.0))
    others = [world.spawn([0, "vehicle.tesla.model3", []], before(world, *major, d)) for d in (30.0, 44.0, 58.0, 72.0)]
    for other in others:
        other.constant_velocity = (8.0, 0.0, 0.0)
    judge, lane = Judge(world), lane_pose(world, *major)
    cos, sin = math.cos(math.radians(lane.yaw)), math.sin(math.radians(lane.yaw))
    met_s = None
    for _ in range(500):
        world.step(DT_S)
        judge.watch()
        across = abs((car.pose.y - lane.y) * cos - (car.pose.x - lane.x) * sin)
        if across < car.blueprint.extent_m[0] + 1.1:
            met_s = world.time_s
            ahead = [(o.pose.x - car.pose.x) * cos + (o.pose.y - car.pose.y) * sin for o in others]
            assert min(ahead) > 3.0
            break
    assert met_s is not None
    assert met_s < 72.0 / 8.0 + 8.0  # the last one is at the junction after 9 s
    assert judge.collisions == []
    assert judge.stop_signs == []


def t_junction(world: World) -> tuple[StopSign, tuple[int, int, float]]:
    """A stop sign at a T, and a lane of the main road (road, lane, s of its end) with 85 m before the junction.

    The lane comes from the left, so both ways on from the stop sign meet it.
    """
    assert world.signals is not None
    for sign in world.signals.stop_signs:
        arms = [
            (a, b) for a, b in world.town.map.get_topology()
            if b.is_junction and b.junction_id == sign.junction_id and not a.is_junction
        ]  # fmt: skip
        for a, _ in arms:
            way = [a, *a.next_until_lane_end(1.0)]
            from_left = math.cos(math.radians(a.transform.rotation.yaw - sign.spec.yaw_deg - 90.0)) > 0.7
            if from_left and len(way) > 85 and len({w.section_id for w in way}) == 1:
                return sign, (a.road_id, a.lane_id, way[-1].s)
    raise AssertionError("no such junction")


def before(world: World, road_id: int, lane_id: int, s_m: float, distance_m: float) -> Pose:
    """Pose on a lane, some way before a place."""
    return lane_pose(world, road_id, lane_id, s_m - math.copysign(distance_m, -lane_id))


def test_walkers_cross_the_road_at_crosswalks_only(town: Town) -> None:
    world = build_world(town, 0, 40, seed=1)
    crosswalks = rings(town)
    crossed = 0
    for tick in range(1200):
        world.step(DT_S)
        if tick % 10:
            continue
        for actor in world.actors.values():
            if not isinstance(actor, Walker):
                continue
            place = town.map.get_waypoint(carla.Location(*actor.pose.location), False)
            if place is not None and place.lane_type == carla.LaneType.Driving:
                crossed += 1
                assert any(ring.distance(Point(actor.pose.x, actor.pose.y)) < 1.0 for ring in crosswalks)
    assert crossed > 20


def rings(town: Town) -> list[Polygon]:
    """Crosswalks as polygons."""
    corners = [(place.x, place.y) for place in town.map.get_crosswalks()]
    return [Polygon(corners[i : i + 4]) for i in range(0, len(corners), 5)]
