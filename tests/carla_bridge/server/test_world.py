"""Ticks, spawning, collisions and sensors, without sockets."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from carla_bridge.server.actors.spawning import Sensor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.dynamics.ackermann import AckermannTarget
from carla_bridge.server.dynamics.motion import Pedals
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import BoxKind, Lamp, StaticBox
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.worker import working
from carla_bridge.server.rendering.looks import bodies
from carla_bridge.server.rendering.town_renderers import TownRenderers
from carla_bridge.server.stage import Stage
from carla_bridge.server.weather import CLEAR_NOON, Weather
from carla_bridge.server.world import World

MKZ = "vehicle.lincoln.mkz_2020"
WALL = StaticBox(BoxKind.BUILDING, 30.0, 0.0, 4.0, 0.0, 1.0, 10.0, 4.0, (1, 2, 3))


def spawn(world: World, type_id: str, pose: Pose, parent: int | None = None, **attributes: str):
    return world.spawn([0, type_id, [[name, 4, value] for name, value in attributes.items()]], pose, parent)


def listen(world: World, type_id: str, parent: int, **attributes: str) -> Sensor:
    sensor = spawn(world, type_id, Pose(x=1.0, z=1.8), parent, **attributes)
    world.hub.listened.add(sensor.stream_id)
    return sensor


def run(world: World, ticks: int) -> None:
    for _ in range(ticks):
        world.step(0.05)


def collisions(world: World, sensor: Sensor) -> list:
    return [msgpack.unpackb(payload[48:]) for payload in world.hub.take(sensor.stream_id)]


def test_every_payload_of_a_tick_has_its_frame_and_the_state_comes_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    kinds = ("sensor.camera.rgb", "sensor.other.imu", "sensor.other.gnss")
    streams = {listen(world, kind, car.id).stream_id for kind in kinds}
    for _ in range(3):
        world.hub.sent.clear()
        frame = world.step(0.05)
        assert next(sid for sid, _ in world.hub.sent) == world.state_stream
        assert {sid for sid, _ in world.hub.sent} == {world.state_stream} | streams
        assert {struct.unpack_from("<Q", payload, 8)[0] for _, payload in world.hub.sent} == {frame}


def test_camera_is_rendered_only_for_a_listener_and_only_when_due(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    spawn(world, "sensor.camera.rgb", Pose(), car.id)
    run(world, 10)
    assert world.renderer.calls == []
    listen(world, "sensor.camera.rgb", car.id, sensor_tick="0.25", image_size_x="8", image_size_y="4")
    run(world, 20)
    assert len(world.renderer.calls) == 4


def test_camera_rides_on_its_carrier_and_does_not_see_it(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose(10.0, 20.0, 0.0, yaw=90.0))
    other = spawn(world, "vehicle.audi.tt", Pose(10.0, 40.0))
    walker = spawn(world, "walker.pedestrian.0001", Pose(5.0, 40.0, 0.93))
    listen(world, "sensor.camera.rgb", car.id)
    run(world, 1)
    camera, seen = world.renderer.calls[0]
    assert (camera.x, camera.y, camera.z, camera.yaw) == pytest.approx((10.0, 21.0, 1.8, 90.0))
    assert [(a.kind, a.x, a.y) for a in seen if a.visible] == [
        ("vehicle", other.pose.x, other.pose.y), ("walker", walker.pose.x, walker.pose.y),
    ]  # fmt: skip
    assert seen[-1].z == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("mount", "seen"),
    [
        (Pose(x=-6.0, z=2.5, pitch=-10.0), True),  # a chase camera
        (Pose(z=30.0, pitch=-90.0), True),  # a bird's eye
        (Pose(y=1.9, z=1.0, yaw=-90.0), True),
        (Pose(x=0.4, z=1.2), False),  # at the driver's head
        (Pose(x=-1.5, z=2.0), False),  # above the roof
        (Pose(x=0.27, y=-0.55, z=1.6, yaw=-55.0), False),
        (Pose(x=2.6, z=0.6), False),  # on the bumper
    ],
)
def test_carrier_is_seen_by_cameras_that_are_not_mounted_on_it(
    make_world: Callable[..., World], mount: Pose, seen: bool
) -> None:
    for pose in (Pose(10.0, 20.0, 0.0, yaw=90.0), Pose(10.0, 20.0, 3.0, pitch=12.0, yaw=-130.0, roll=4.0)):
        world = make_world()
        car = spawn(world, MKZ, pose)
        camera = spawn(world, "sensor.camera.rgb", mount, car.id)
        assert [actor.visible for actor in bodies(world.actors.values(), camera)] == [seen]


def test_pictures_have_the_weather_that_was_set_and_the_lamps_that_burn(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose(10.0, 20.0, 0.0))
    car.pedals.brake, car.light_flags = 1.0, int(Lamp.LOW_BEAM)
    listen(world, "sensor.camera.rgb", car.id)
    run(world, 1)
    world.weather = Weather(sun_altitude_deg=-30.0, precipitation=80.0).as_protocol()
    run(world, 1)
    (_, first, _), (_, second, time_s) = world.renderer.scenes
    assert first == CLEAR_NOON
    assert second == Weather(sun_altitude_deg=-30.0, precipitation=80.0)
    assert time_s == world.time_s
    (carrier,) = world.renderer.calls[0][1]
    assert carrier.lamps == Lamp.LOW_BEAM | Lamp.BRAKE
    assert not carrier.visible


def test_same_commands_give_the_same_bytes(make_world: Callable[..., World]) -> None:
    def states() -> list[bytes]:
        world = make_world(seed=3)
        car = spawn(world, MKZ, Pose())
        spawn(world, "vehicle.audi.tt", Pose(15.0, 0.5, yaw=20.0))
        imu = listen(world, "sensor.other.imu", car.id, noise_accel_stddev_x="0.1", noise_seed="4")
        car.pedals = Pedals(throttle=1.0, steer=0.1)
        run(world, 100)
        # the state carries wall-clock time at bytes 56..64 of its payload
        return [p[:56] + p[64:] for p in world.hub.take(world.state_stream)] + world.hub.take(imu.stream_id)

    assert states() == states()


def test_spawning_into_a_body_or_a_wall_is_refused_and_beside_it_is_not(make_world: Callable[..., World]) -> None:
    world = make_world((WALL,))
    spawn(world, MKZ, Pose())
    for pose in (Pose(0.0, 0.0, 0.5), Pose(3.0, 1.5, yaw=45.0), Pose(30.0, 0.0)):
        with pytest.raises(RpcError, match="collision at spawn"):
            spawn(world, MKZ, pose)
    spawn(world, MKZ, Pose(0.0, 2.3))
    spawn(world, "walker.pedestrian.0001", Pose(0.0, 0.0, -60.0))


def test_destroyed_actor_stops_blocking_at_once_and_its_id_is_remembered(make_world: Callable[..., World]) -> None:
    world = make_world()
    first = spawn(world, MKZ, Pose())
    assert world.destroy(first.id)
    assert not world.destroy(first.id)
    second = spawn(world, MKZ, Pose())
    assert second.id != first.id
    assert world.actor_or_tombstone(first.id) is first
    with pytest.raises(RpcError):
        world.destroy(999)


def test_hitting_a_wall_stops_the_car_and_is_reported_once(make_world: Callable[..., World]) -> None:
    world = make_world((WALL,))
    car = spawn(world, MKZ, Pose())
    sensor = listen(world, "sensor.other.collision", car.id)
    car.set_velocity((10.0, 0.0, 0.0))
    run(world, 60)
    car.pedals = Pedals(throttle=0.2)  # lean on the wall
    run(world, 60)
    (own, other, impulse), *more = collisions(world, sensor)
    assert more == []
    assert (own[0], own[2][1], other[0], other[2][1]) == (car.id, MKZ, 0, "static.building")
    assert impulse[0] == pytest.approx(-1800 * 10, rel=0.05)
    assert car.pose.x + 2.45 <= 29.0 + 0.05
    assert abs(car.velocity[0]) < 0.5


def test_rear_end_collision_conserves_momentum_and_both_sides_see_it(make_world: Callable[..., World]) -> None:
    world = make_world()
    back, front = spawn(world, MKZ, Pose()), spawn(world, "vehicle.nissan.micra", Pose(12.0))
    sensors = [listen(world, "sensor.other.collision", car.id) for car in (back, front)]
    back.set_velocity((8.0, 0.0, 0.0))
    events: list = []
    while not events:
        before = back.mass_kg * back.motion.speed_mps + front.mass_kg * front.motion.speed_mps
        run(world, 1)
        events = collisions(world, sensors[0])
    after = back.mass_kg * back.motion.speed_mps + front.mass_kg * front.motion.speed_mps
    assert after == pytest.approx(before, rel=0.01)
    assert 0 < back.motion.speed_mps <= front.motion.speed_mps + 1e-9
    (seen_from_front,) = collisions(world, sensors[1])
    assert seen_from_front[1][0] == back.id
    assert seen_from_front[2] == pytest.approx([-v for v in events[0][2]])


def test_pedestrian_hit_names_the_walker(make_world: Callable[..., World]) -> None:
    world = make_world()
    car, walker = spawn(world, MKZ, Pose()), spawn(world, "walker.pedestrian.0002", Pose(8.0, 0.0, 0.93))
    sensor = listen(world, "sensor.other.collision", car.id)
    car.set_velocity((6.0, 0.0, 0.0))
    run(world, 30)
    hit = collisions(world, sensor)
    assert hit[0][1][2][1] == "walker.pedestrian.0002"
    assert hit[0][1][0] == walker.id


def test_debris_is_driven_over(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    spawn(world, "static.prop.dirtdebris01", Pose(8.0))
    sensor = listen(world, "sensor.other.collision", car.id)
    car.set_velocity((6.0, 0.0, 0.0))
    run(world, 40)
    assert collisions(world, sensor) == []
    assert car.pose.x > 10


def test_imu_feels_gravity_centripetal_force_and_heading(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose(yaw=-90.0))
    imu = spawn(world, "sensor.other.imu", Pose(), car.id)
    world.hub.listened.add(imu.stream_id)
    run(world, 1)
    force, rates, compass = msgpack.unpackb(world.hub.take(imu.stream_id)[-1][48:])
    assert force == pytest.approx([0.0, 0.0, 9.81])
    assert rates == [0.0, 0.0, 0.0]
    assert min(compass, 2 * math.pi - compass) == pytest.approx(0.0, abs=1e-6)  # yaw -90 looks north
    car.constant_velocity, car.pedals = (5.0, 0.0, 0.0), Pedals(steer=0.2)
    run(world, 60)
    force, rates, _ = msgpack.unpackb(world.hub.take(imu.stream_id)[-1][48:])
    rate = 5.0 * math.tan(0.2 * math.radians(35)) / 2.86
    assert rates[2] == pytest.approx(rate, rel=1e-3)
    assert force[1] == pytest.approx(5.0 * rate, rel=0.02)  # to the right, as the turn is


def test_imu_off_the_middle_feels_the_second_derivative_of_its_own_way(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    imu = spawn(world, "sensor.other.imu", Pose(x=1.5, y=0.6, z=1.0), car.id)
    world.hub.listened.add(imu.stream_id)
    car.motion.speed_mps = 6.0
    places, forces, yaws, rates = [], [], [], []
    for tick in range(120):
        car.pedals = Pedals(throttle=0.3, steer=0.25 * math.sin(0.07 * tick))
        run(world, 1)
        force, rate, _ = msgpack.unpackb(world.hub.take(imu.stream_id)[-1][48:])
        places.append((imu.pose.x, imu.pose.y))
        forces.append(force)
        yaws.append(math.radians(imu.pose.yaw))
        rates.append(rate[2])
    places, forces, yaws = np.array(places), np.array(forces), np.array(yaws)
    felt = np.column_stack([  # from the sensor's axes to the world's
        np.cos(yaws) * forces[:, 0] - np.sin(yaws) * forces[:, 1],
        np.sin(yaws) * forces[:, 0] + np.cos(yaws) * forces[:, 1],
    ])  # fmt: skip
    derived = (places[2:] - 2 * places[1:-1] + places[:-2]) / 0.05**2
    # a backward difference of velocities lies half a tick before the tick itself
    assert np.abs(0.5 * (felt[1:-1] + felt[2:]) - derived)[5:].max() < 0.15
    assert forces[:, 2] == pytest.approx(9.81)
    assert np.diff(yaws)[5:] == pytest.approx(0.05 * 0.5 * (np.array(rates)[1:] + np.array(rates)[:-1])[5:], abs=2e-3)


def test_gyroscope_feels_a_vehicle_nodding_up_a_ramp(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    imu = spawn(world, "sensor.other.imu", Pose(), car.id)
    world.hub.listened.add(imu.stream_id)
    world.physics.terrain.level = False
    world.physics.terrain.height_m = lambda x, y, *z: max(0.0, 0.1 * (x - 5.0))
    car.constant_velocity = (8.0, 0.0, 0.0)
    nodded = 0.0
    for _ in range(60):
        run(world, 1)
        _, rates, _ = msgpack.unpackb(world.hub.take(imu.stream_id)[-1][48:])
        assert rates[0] == pytest.approx(0.0, abs=1e-9)
        nodded -= rates[1] * 0.05
    assert nodded == pytest.approx(math.atan(0.1), abs=1e-3)
    assert car.pose.pitch == pytest.approx(math.degrees(math.atan(0.1)), abs=0.1)


def test_noise_is_as_large_as_asked_and_the_same_for_the_same_seed(make_world: Callable[..., World]) -> None:
    def measured(seed: str) -> np.ndarray:
        world = make_world()
        car = spawn(world, MKZ, Pose())
        noise = {"noise_accel_stddev_x": "0.2", "noise_gyro_bias_z": "0.1", "noise_seed": seed}
        imu = listen(world, "sensor.other.imu", car.id, **noise)
        gnss = listen(world, "sensor.other.gnss", car.id, noise_alt_stddev="0.5", noise_alt_bias="2.0", noise_seed=seed)
        run(world, 400)
        rows = []
        for force, fix in zip(world.hub.take(imu.stream_id), world.hub.take(gnss.stream_id), strict=True):
            acceleration, rates, _ = msgpack.unpackb(force[48:])
            rows.append((acceleration[0], rates[2], msgpack.unpackb(fix[48:])[2]))
        return np.array(rows)

    noisy = measured("7")
    assert noisy[:, 0].std() == pytest.approx(0.2, rel=0.15)
    assert noisy[:, 1] == pytest.approx(0.1)
    assert (noisy[:, 2].mean(), noisy[:, 2].std()) == pytest.approx((3.8, 0.5), rel=0.15)
    assert (noisy == measured("7")).all()
    assert (noisy != measured("8")).any()


def test_gnss_of_the_origin_is_the_geo_reference(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    gnss = spawn(world, "sensor.other.gnss", Pose(), car.id)
    world.hub.listened.add(gnss.stream_id)
    run(world, 1)
    assert msgpack.unpackb(world.hub.take(gnss.stream_id)[-1][48:]) == pytest.approx([10.0, 20.0, 0.0])


def test_vehicle_in_the_air_falls_to_the_ground_and_a_buried_walker_stays(make_world: Callable[..., World]) -> None:
    world = make_world()
    car, buried = spawn(world, MKZ, Pose(z=0.5)), spawn(world, "walker.pedestrian.0003", Pose(z=-80.0))
    run(world, 20)
    assert car.pose.z == 0.0
    assert buried.pose.z == -80.0


def test_walker_goes_where_it_is_told(make_world: Callable[..., World]) -> None:
    world = make_world()
    walker = spawn(world, "walker.pedestrian.0004", Pose(z=0.93))
    assert isinstance(walker, Walker)
    walker.direction, walker.speed_mps = (0.0, 1.0, 0.0), 1.5
    run(world, 20)
    assert (walker.pose.x, walker.pose.y, walker.pose.yaw) == pytest.approx((0.0, 1.5, 90.0))
    assert walker.pose.z == pytest.approx(0.93)


def test_new_episode_clears_actors_but_keeps_spectator_frames_and_settings(make_world: Callable[..., World]) -> None:
    world = make_world()
    spawn(world, MKZ, Pose())
    world.settings.synchronous, world.settings.fixed_delta_s = True, 0.1
    frame, episode = world.frame, world.episode_id
    world.start_episode(world.stage, reset_settings=False)
    assert list(world.actors.values()) == [world.spectator]
    assert (world.frame, world.episode_id) == (frame + 1, episode + 1)
    assert (world.settings.synchronous, world.time_s) == (True, pytest.approx(0.1))
    world.start_episode(world.stage_of("Elsewhere"), reset_settings=True)
    assert (world.town.name, world.settings.synchronous) == ("Elsewhere", False)


def test_new_episode_begins_in_the_weather_of_the_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    first = list(world.weather)
    world.weather = [90.0] * len(first)
    world.start_episode(world.stage, reset_settings=False)
    assert world.weather == first


def test_new_episode_has_a_state_stream_of_its_own_and_the_old_one_goes_on(make_world: Callable[..., World]) -> None:
    world = make_world()
    old = world.state_stream
    world.start_episode(world.stage, reset_settings=False)
    assert world.state_stream != old
    world.hub.sent.clear()
    run(world, 1)
    assert len(world.hub.take(old)) == len(world.hub.take(world.state_stream)) == 1


def test_attached_sensor_outlives_its_carrier_in_place(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose(5.0))
    imu = listen(world, "sensor.other.imu", car.id)
    run(world, 1)
    world.destroy(car.id)
    run(world, 2)
    assert imu.pose.x == pytest.approx(6.0)


def test_vehicle_without_physics_stands_where_it_is_put(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    assert isinstance(car, Vehicle)
    car.simulated, car.pedals = False, Pedals(throttle=1.0)
    car.place(Pose(3.0, 4.0, yaw=30.0))
    run(world, 10)
    assert (car.pose.x, car.pose.y, car.velocity) == (3.0, 4.0, (0.0, 0.0, 0.0))


def test_every_destroyed_id_is_known_for_ever_but_few_are_kept_whole(make_world: Callable[..., World]) -> None:
    world = make_world()
    ids = []
    for i in range(600):
        actor = spawn(world, MKZ if i % 2 else "vehicle.audi.tt", Pose())
        ids.append(actor.id)
        world.destroy(actor.id)
    assert [world.actor_or_tombstone(i).type_id for i in ids[:2]] == ["vehicle.audi.tt", MKZ]
    assert all(not world.destroy(i) for i in ids)
    assert len({id(world.actor_or_tombstone(i)) for i in ids}) < 300


def test_layout_that_failed_is_tried_again_and_the_least_used_is_dropped() -> None:
    made: list[str] = []

    def make(town: SimpleNamespace, go_on: object) -> object:
        made.append(town.name)
        if made.count(town.name) == 1 and town.name == "Bad":
            raise MemoryError
        return object()

    renderers = TownRenderers(make)  # type: ignore[arg-type]

    def enter(name: str) -> object:
        renderers.enter(SimpleNamespace(name=name, opendrive=""))  # type: ignore[arg-type]
        return renderers.current()

    with pytest.raises(MemoryError):
        enter("Bad")
    assert enter("Bad") is enter("Bad")
    for name in ("Home", "One", "Home", "Two", "Home", "Three", "Home"):
        enter(name)
    assert made == ["Bad", "Bad", "Home", "One", "Two", "Three"]


def test_a_road_is_as_slippery_as_it_looks_wet(make_world: Callable[..., World]) -> None:
    world = make_world()
    grips = []
    for weather in (Weather(), Weather(wetness=40.0), Weather(precipitation=40.0), Weather(precipitation=100.0)):
        world.weather = weather.as_protocol()
        world.step(0.05)
        grips.append(world.physics.terrain.weather_grip)
        assert grips[-1] == pytest.approx(1.0 - 0.3 * weather.wet)
    assert grips == sorted(grips, reverse=True)
    assert grips[0] == 1.0 > grips[1]


def test_layout_of_a_town_that_was_left_is_ended_and_not_kept() -> None:
    begun, released, made = threading.Event(), threading.Event(), []

    def make(town: SimpleNamespace, go_on: Callable[[], None]) -> object:
        begun.set()
        released.wait(20.0)
        go_on()
        made.append(town.name)
        return object()

    renderers = TownRenderers(make)  # type: ignore[arg-type,return-value]
    towns = [SimpleNamespace(name=name, opendrive="") for name in ("One", "Two", "Three")]
    renderers.enter(towns[0])  # type: ignore[arg-type]
    assert begun.wait(20.0)
    for town in (*towns[1:], towns[0]):
        renderers.enter(town)  # type: ignore[arg-type]
    released.set()
    assert renderers.current() is not None
    assert made == ["One"]


def test_town_that_cannot_be_entered_leaves_the_world_as_it_was(make_world: Callable[..., World]) -> None:
    world = make_world()
    town, car, episode = world.town, spawn(world, MKZ, Pose()), world.episode_id
    broken = SimpleNamespace(**vars(town) | {"name": "Broken", "spawn_points": [None]})
    with pytest.raises(AttributeError):
        world.start_episode(Stage.of(broken), reset_settings=False)
    assert (world.town, world.episode_id, world.actors[car.id]) == (town, episode, car)


def test_reloading_a_town_lays_it_out_again_where_that_failed(make_world: Callable[..., World]) -> None:
    made: list[str] = []

    def make(town: SimpleNamespace, go_on: object) -> object:
        made.append(town.name)
        if made == ["Flat", "Bad"]:
            raise MemoryError
        return object()

    flat = make_world()
    bad = SimpleNamespace(**vars(flat.town) | {"name": "Bad"})
    world = World(
        flat.town, flat.hub, load_town=flat.stage_of, parse_town=flat.stage_of_text, make_renderer=make  # type: ignore[arg-type]
    )
    for _ in range(2):
        world.start_episode(Stage.of(bad), reset_settings=False)
        while working():
            time.sleep(0.001)
    assert made == ["Flat", "Bad", "Bad"]


def test_same_roads_under_another_name_get_a_renderer_of_their_own() -> None:
    renderers = TownRenderers(lambda town, go_on: object())  # type: ignore[arg-type,return-value]
    seen = []
    for name in ("One", "Two", "One"):
        renderers.enter(SimpleNamespace(name=name, opendrive="<OpenDRIVE/>"))  # type: ignore[arg-type]
        seen.append(renderers.current())
    assert seen[0] is seen[2] is not seen[1]


def test_actor_whose_carrier_is_gone_stays_where_it_was_and_stands_still(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose(100.0, 50.0))
    imu, trailer = listen(world, "sensor.other.imu", car.id), spawn(world, MKZ, Pose(-8.0), car.id)
    car.set_velocity((10.0, 0.0, 0.0))
    car.pedals = Pedals(brake=1.0)
    run(world, 3)
    place = trailer.pose.location
    assert place == pytest.approx((car.pose.x - 8.0, 50.0, 0.0))
    world.destroy(car.id)
    run(world, 3)
    assert trailer.pose.location == pytest.approx(place)
    for actor in (imu, trailer):
        assert (actor.velocity, actor.acceleration) == ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def test_negative_noise_is_none_and_does_not_stop_the_world(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    imu = listen(world, "sensor.other.imu", car.id, noise_accel_stddev_x="-0.1", noise_gyro_stddev_z="-1")
    gnss = listen(world, "sensor.other.gnss", car.id, noise_lat_stddev="-0.1")
    run(world, 1)
    force, rates, _ = msgpack.unpackb(world.hub.take(imu.stream_id)[-1][48:])
    assert (force[0], rates[2]) == (0.0, 0.0)
    assert len(world.hub.take(gnss.stream_id)) == 1


def test_vehicle_whose_wheels_cannot_turn_still_drives_by_speed_and_angle(make_world: Callable[..., World]) -> None:
    world = make_world()
    car = spawn(world, MKZ, Pose())
    car.model = replace(car.model, max_steer_rad=0.0)
    car.ackermann = AckermannTarget(steer_rad=0.3, steer_speed_radps=1.0, speed_mps=5.0)
    run(world, 100)
    assert car.motion.speed_mps == pytest.approx(5.0, abs=0.1)
    assert car.pose.yaw == 0.0
