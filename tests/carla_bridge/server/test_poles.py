"""Poles of lights, signs and lamps can be hit, and stand in nobody's way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("carla", reason="needs the carla client library")
pytest.importorskip("shapely")
import shapely

from benchmarks.traffic_watch import build_world
from carla_bridge.server.dynamics.motion import Pedals
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import BoxKind, StaticBox
from carla_bridge.server.town.scenery import rectangle
from carla_bridge.server.town.town import Town

pytestmark = pytest.mark.carla
CAR_HALF_M = (2.5, 1.1)
TOWNS = ("Wamtown01", "Wamtown02", "Wamtown03", "Town01", "Town02", "Town03", "Town05")
DRIVEN = ("driving", "bidirectional", "parking", "stop")


@pytest.fixture(scope="module", params=TOWNS)
def town(request: pytest.FixtureRequest) -> Town:
    if request.param.startswith("Wamtown"):
        return Town.load(request.param)
    path: Path = request.getfixturevalue("shared_data") / "opendrive" / f"{request.param}.xodr"
    return Town.load(path)


def poles(town: Town) -> list[StaticBox]:
    return [box for box in town.static_boxes if box.kind in (BoxKind.POLE, BoxKind.LAMP)]


def test_every_light_and_sign_has_its_poles(town: Town) -> None:
    wanted = {post.foot_m[:2] for spec in town.signals for post in spec.posts}
    assert {(box.x, box.y) for box in town.static_boxes if box.kind is BoxKind.POLE} == wanted


def test_no_pole_stands_on_a_lane_for_wheels_or_at_a_spawn_point(town: Town) -> None:
    lanes = [
        (quad, float(lane.left_m[i, 2]))
        for lane in town.lanes
        if lane.kind in DRIVEN
        for i in range(len(lane.left_m) - 1)
        for quad in [shapely.Polygon([p[:2] for p in (*lane.left_m[i : i + 2], *lane.right_m[i : i + 2][::-1])])]
        if quad.is_valid
    ]
    tree = shapely.STRtree([quad for quad, _ in lanes])
    spawns = [
        (shapely.Polygon(rectangle(t.location.x, t.location.y, t.rotation.yaw, *CAR_HALF_M)), t.location.z)
        for t in town.spawn_points
    ]
    for box in poles(town):
        foot = shapely.Polygon(rectangle(box.x, box.y, box.yaw, box.extent_x, box.extent_y))
        low, high = box.z - box.extent_z - 1.0, box.z + box.extent_z
        on = [i for i in tree.query(foot, "intersects") if low < lanes[i][1] < high]
        assert not on, (box, [lanes[i][0].wkt for i in on])
        assert not [1 for body, z in spawns if low < z < high and body.intersects(foot)]


@pytest.mark.parametrize("kind", [BoxKind.POLE, BoxKind.LAMP])
def test_a_car_does_not_drive_through_a_pole(kind: BoxKind) -> None:
    town = Town.load("Wamtown02")
    box = next(box for box in town.static_boxes if box.kind is kind)
    world = build_world(town, 0, 0, 0)
    heading = math.radians(box.yaw + 90.0)  # from the road, which has it on the right
    start_m = box.x - 8.0 * math.cos(heading), box.y - 8.0 * math.sin(heading), box.z - box.extent_z
    start = Pose(*start_m, yaw=math.degrees(heading))
    car = world.spawn([0, "vehicle.lincoln.mkz_2020", []], start)
    car.set_velocity((10.0 * math.cos(heading), 10.0 * math.sin(heading), 0.0))
    car.pedals = Pedals(throttle=0.5)
    for _ in range(30):
        world.step(0.05)
    ahead_m = (car.pose.x - box.x) * math.cos(heading) + (car.pose.y - box.y) * math.sin(heading)
    assert ahead_m < 0.0
    assert car.velocity[0] ** 2 + car.velocity[1] ** 2 < 1.0
