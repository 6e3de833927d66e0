"""Rays against closed forms and against a slow oracle; payloads of lidar, semantic lidar, radar and obstacle sensor."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import BoxKind, StaticBox
from carla_bridge.server.sensors.ray_scene import GROUND, NOTHING, RayScenery
from carla_bridge.server.world import World

DT_S = 0.05


def box(x: float, y: float, z: float = 1.0, yaw: float = 0.0, extent: tuple = (2.0, 1.0, 1.0)) -> StaticBox:
    return StaticBox(BoxKind.BUILDING, x, y, z, yaw, *extent, (1, 2, 3))


def inside(b: StaticBox, p: np.ndarray) -> bool:
    c, s = math.cos(math.radians(b.yaw)), math.sin(math.radians(b.yaw))
    dx, dy = p[0] - b.x, p[1] - b.y
    along, across = abs(c * dx + s * dy), abs(c * dy - s * dx)
    return along <= b.extent_x and across <= b.extent_y and abs(p[2] - b.z) <= b.extent_z


def level(x: float, y: float, z: float) -> float:
    return 0.0


angle = st.floats(-180, 180)
boxes = st.builds(
    box, st.floats(-20, 20), st.floats(-20, 20), st.floats(0.5, 3), angle,
    st.tuples(st.floats(0.5, 4), st.floats(0.5, 4), st.floats(0.5, 3)),
)  # fmt: skip


@given(st.lists(boxes, max_size=5), st.lists(st.tuples(angle, st.floats(-60, 60)), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_rays_end_where_walking_along_them_first_enters_something(
    scenery: list[StaticBox], aims: list[tuple[float, float]]
) -> None:
    origin, reach, step = np.array([0.0, 0.0, 6.5]), 30.0, 0.02  # above every box
    yaw, pitch = np.radians(np.array(aims)).T
    directions = np.stack([np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)], axis=1)
    distance, target = RayScenery(scenery, level).with_actors([]).cast(origin, directions, reach)
    for direction, d, t in zip(directions, distance, target, strict=True):
        walked = np.arange(step, reach, step)
        places = origin + walked[:, None] * direction
        hit = next(((w, i) for w, p in zip(walked, places, strict=True) if (i := _what(scenery, p)) is not None), None)
        if hit is None:
            assert t == NOTHING or d > reach - 2 * step or _grazed(scenery, origin + d * direction)
        elif t == NOTHING:
            assert _grazed(scenery, origin + hit[0] * direction)
        else:
            assert d <= hit[0] + 1e-6
            assert d > hit[0] - 2 * step or _grazed(scenery, origin + d * direction)


def _what(scenery: list[StaticBox], place: np.ndarray) -> int | None:
    if place[2] <= 0:
        return GROUND
    return next((i for i, b in enumerate(scenery) if inside(b, place)), None)


def _grazed(scenery: list[StaticBox], place: np.ndarray) -> bool:
    """Whether a place lies so close to an edge of a box that walking in steps may miss it."""
    grown = [
        StaticBox(b.kind, b.x, b.y, b.z, b.yaw, b.extent_x + 0.05, b.extent_y + 0.05, b.extent_z + 0.05, b.color_rgb)
        for b in scenery
    ]
    return any(inside(b, place) for b in grown)


def test_ground_on_a_slope_is_met_where_it_is() -> None:
    scene = RayScenery([], lambda x, y, z: 0.08 * x).with_actors([])
    directions = np.array([[math.cos(a), 0.0, -math.sin(a)] for a in np.radians([3.0, 10.0, 45.0, 90.0])])
    distance, target = scene.cast(np.array([5.0, 3.0, 2.4]), directions, 200.0)
    assert target.tolist() == [GROUND] * 4
    met = np.array([5.0, 3.0, 2.4]) + distance[:, None] * directions
    assert met[:, 2] == pytest.approx(0.08 * met[:, 0], abs=1e-3)


def test_of_two_levels_of_road_the_one_below_the_sensor_is_met() -> None:
    def crossing(x: float, y: float, z: float) -> float:
        return 8.0 if z > 5.0 else 0.0

    scene = RayScenery([], crossing).with_actors([])
    down = np.array([[0.0, 0.0, -1.0]])
    assert scene.cast(np.array([0.0, 0.0, 10.0]), down, 50.0)[0] == pytest.approx(2.0)
    assert scene.cast(np.array([0.0, 0.0, 2.0]), down, 50.0)[0] == pytest.approx(2.0)


class Bench:
    """A car with one sensor in a world without sockets."""

    def __init__(self, world: World, type_id: str, **attributes: str) -> None:
        self.world = world
        self.car = world.spawn([0, "vehicle.lincoln.mkz_2020", []], Pose())
        rows = [[name, 2, value] for name, value in attributes.items()]
        self.sensor = world.spawn([0, type_id, rows], Pose(z=2.0), self.car.id)
        world.hub.listened.add(self.sensor.stream_id)  # type: ignore[attr-defined]

    def spawn(self, type_id: str, **pose: float) -> Actor:
        return self.world.spawn([0, type_id, []], Pose(**pose))

    def measure(self) -> bytes:
        """Body of the payload of one tick."""
        self.world.step(DT_S)
        return self.world.hub.take(self.sensor.stream_id)[-1][48:]  # type: ignore[attr-defined]


LIDAR = {
    "channels": "4", "points_per_second": "28800", "rotation_frequency": "20", "upper_fov": "0", "lower_fov": "-30",
    "range": "50", "dropoff_general_rate": "0", "dropoff_intensity_limit": "0", "dropoff_zero_intensity": "0",
}  # fmt: skip


def lidar_points(body: bytes) -> tuple[float, np.ndarray, np.ndarray]:
    angle_rad, channels = struct.unpack_from("<fI", body)
    counts = np.frombuffer(body, "<u4", channels, 8)
    return angle_rad, counts, np.frombuffer(body, "<f4", offset=8 + 4 * channels).reshape(-1, 4)


def test_lidar_sees_level_ground_in_rings_of_its_beam_angles(make_world: Callable[..., World]) -> None:
    _, counts, points = lidar_points(Bench(make_world(), "sensor.lidar.ray_cast", **LIDAR).measure())
    assert counts.tolist() == [0, 360, 360, 360]  # the level beam meets nothing
    radius = np.hypot(points[:, 0], points[:, 1]).reshape(3, 360)
    expected = [2.0 / math.tan(math.radians(a)) for a in (10.0, 20.0, 30.0)]
    assert radius.min(axis=1) == pytest.approx(expected, rel=1e-4)
    assert radius.max(axis=1) == pytest.approx(expected, rel=1e-4)
    assert points[:, 2] == pytest.approx(-2.0, abs=1e-4)
    azimuth = np.sort(np.degrees(np.arctan2(points[:360, 1], points[:360, 0])))
    assert np.diff(azimuth) == pytest.approx(1.0, abs=1e-3)


def test_lidar_intensity_fades_with_distance_as_carla_says(make_world: Callable[..., World]) -> None:
    attributes = LIDAR | {"atmosphere_attenuation_rate": "0.01"}
    _, _, points = lidar_points(Bench(make_world(), "sensor.lidar.ray_cast", **attributes).measure())
    assert points[:, 3] == pytest.approx(np.exp(-0.01 * np.linalg.norm(points[:, :3], axis=1)), rel=1e-5)


def test_lidar_of_half_a_turn_per_tick_joins_its_sectors_without_gap(make_world: Callable[..., World]) -> None:
    bench = Bench(make_world(), "sensor.lidar.ray_cast", **(LIDAR | {"rotation_frequency": "10", "channels": "1",
                  "upper_fov": "-30", "points_per_second": "3600"}))  # fmt: skip
    seen = np.concatenate([lidar_points(bench.measure())[2] for _ in range(2)])
    azimuth = np.sort(np.degrees(np.arctan2(seen[:, 1], seen[:, 0])))
    assert len(azimuth) == 360
    assert np.diff(azimuth) == pytest.approx(1.0, abs=1e-3)


def test_general_drop_off_loses_its_share(make_world: Callable[..., World]) -> None:
    attributes = LIDAR | {"dropoff_general_rate": "0.45", "points_per_second": "288000"}
    _, counts, _ = lidar_points(Bench(make_world(), "sensor.lidar.ray_cast", **attributes).measure())
    assert counts[1:].sum() / 10800 == pytest.approx(0.55, abs=0.03)


def test_faint_returns_drop_off_by_their_intensity(make_world: Callable[..., World]) -> None:
    faint = {"atmosphere_attenuation_rate": "0.2", "dropoff_intensity_limit": "1", "dropoff_zero_intensity": "1"}
    attributes = LIDAR | faint | {"points_per_second": "288000"}
    _, counts, _ = lidar_points(Bench(make_world(), "sensor.lidar.ray_cast", **attributes).measure())
    intensity = [math.exp(-0.2 * 2.0 / math.sin(math.radians(a))) for a in (10.0, 20.0, 30.0)]
    assert counts[1:] / 3600 == pytest.approx(intensity, abs=0.03)


def test_semantic_lidar_names_actor_label_and_incidence(make_world: Callable[..., World]) -> None:
    house = box(0.0, 12.0, 3.0, extent=(5.0, 1.0, 3.0))
    bench = Bench(make_world(boxes=(house,)), "sensor.lidar.ray_cast_semantic", **LIDAR)
    truck = bench.spawn("vehicle.carlamotors.carlacola", x=15.0, z=0.0)
    bench.spawn("walker.pedestrian.0001", x=-8.0, z=0.93)
    body = bench.measure()
    points = np.frombuffer(
        body, np.dtype([("xyz", "<3f4"), ("cos", "<f4"), ("actor", "<u4"), ("tag", "<u4")]), offset=8 + 16
    )
    ahead = points[(points["xyz"][:, 0] > 0) & (np.abs(points["xyz"][:, 1]) < 0.1)]
    on_truck = ahead[ahead["actor"] == truck.id]
    assert set(on_truck["tag"]) == {Label.TRUCK}
    assert on_truck["xyz"][:, 0] == pytest.approx(15.0 - 2.6, abs=0.01)
    straight = on_truck["xyz"] / np.linalg.norm(on_truck["xyz"], axis=1)[:, None]
    assert on_truck["cos"] == pytest.approx(straight[:, 0], abs=1e-3)
    assert {int(tag) for tag in points["tag"]} == {Label.ROADS, Label.BUILDINGS, Label.TRUCK, Label.PEDESTRIANS}
    assert not (points["actor"] == bench.car.id).any(), "the carrier is seen"


def test_radar_measures_depth_and_the_speed_at_which_things_part(make_world: Callable[..., World]) -> None:
    bench = Bench(make_world(), "sensor.other.radar", points_per_second="20000", horizontal_fov="10", vertical_fov="10")
    other = bench.spawn("vehicle.mitsubishi.fusorosa", x=30.0)
    other.constant_velocity = (8.0, 0.0, 0.0)  # type: ignore[attr-defined]
    for _ in range(20):
        body = bench.measure()
    velocity, azimuth, altitude, depth = np.frombuffer(body, "<f4").reshape(-1, 4).T
    rear_m = other.pose.x - 5.14
    level = np.abs(altitude) < 0.01
    assert level.sum() > 20
    assert (depth * np.cos(azimuth) * np.cos(altitude))[level] == pytest.approx(rear_m, abs=0.05)
    assert velocity[level] == pytest.approx(8.0 * np.cos(azimuth[level]), abs=0.05)
    assert np.abs(azimuth).max() <= math.radians(5.0)


def test_obstacle_sensor_names_what_is_ahead_and_how_far(make_world: Callable[..., World]) -> None:
    house = box(9.0, 0.0, 3.0, extent=(1.0, 5.0, 3.0))
    attributes = {"distance": "20", "hit_radius": "0.5"}
    bench = Bench(make_world(boxes=(house,)), "sensor.other.obstacle", only_dynamics="true", **attributes)
    with pytest.raises(IndexError):
        bench.measure()  # scenery does not count
    tall = bench.spawn("vehicle.mitsubishi.fusorosa", x=17.0)
    own, other, distance = msgpack.unpackb(bench.measure())
    assert (own[0], other[0]) == (bench.car.id, tall.id)
    assert distance == pytest.approx(17.0 - 5.14 - 0.5, abs=0.01)


@pytest.mark.parametrize("type_id", ["sensor.lidar.ray_cast", "sensor.lidar.ray_cast_semantic", "sensor.other.radar"])
def test_same_seed_measures_the_same_and_strange_attributes_do_no_harm(
    make_world: Callable[..., World], type_id: str
) -> None:
    strange: list[dict[str, Any]] = [
        {}, {"channels": "0"}, {"points_per_second": "-5"}, {"range": "-1"}, {"channels": "999999"},
        {"rotation_frequency": "-3"}, {"points_per_second": "1000000000"}, {"upper_fov": "1e9", "lower_fov": "-1e9"},
        {"horizontal_fov": "0"}, {"dropoff_zero_intensity": "1e9", "noise_stddev": "-1"},
    ]  # fmt: skip
    for attributes in strange:
        first, second = (Bench(make_world(), type_id, **attributes).measure() for _ in range(2))
        assert first == second
