"""What a client sees of motion and sensors beyond a plain drive, as JSON. Runs alone: `python senses.py PORT`."""

from __future__ import annotations

import itertools
import json
import math
import queue
import sys
import time

import carla

DT_S = 0.05
client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.load_world("Wamtown01")
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, DT_S
world.apply_settings(settings)
library, world_map = world.get_blueprint_library(), world.get_map()
seen: dict = {}


def spawn_car(place: carla.Transform, kind: str = "vehicle.lincoln.mkz_2020") -> carla.Vehicle:
    """A car that has come to rest on the ground."""
    lifted = carla.Transform(place.location + carla.Location(z=0.3), place.rotation)
    car = world.spawn_actor(library.find(kind), lifted)
    for _ in range(20):
        world.tick()
    return car


def long_lane() -> carla.Transform:
    """A spawn point with a straight lane of 100 m ahead."""
    for point in world_map.get_spawn_points():
        ahead = world_map.get_waypoint(point.location).next(100.0)
        if ahead and abs((ahead[0].transform.rotation.yaw - point.rotation.yaw + 180) % 360 - 180) < 1:
            along = point.get_forward_vector()
            way = ahead[0].transform.location - point.location
            if abs(along.x * way.y - along.y * way.x) < 0.5:
                return point
    raise RuntimeError("the town has no straight lane of 100 m")


start = long_lane()
car = spawn_car(start)
seen["speed_limit_kmh"] = car.get_speed_limit()

# --- several cameras, and the client's own lane-invasion sensor
images: dict[float, queue.Queue] = {}
cameras = []
for yaw in (-60.0, 0.0, 60.0):
    kind = library.find("sensor.camera.rgb")
    kind.set_attribute("image_size_x", "64")
    kind.set_attribute("image_size_y", "32")
    place = carla.Transform(carla.Location(x=1.0, z=1.8), carla.Rotation(yaw=yaw))
    camera = world.spawn_actor(kind, place, attach_to=car)
    images[yaw] = queue.Queue()
    camera.listen(images[yaw].put)
    cameras.append(camera)
crossed: list = []
lanes = world.spawn_actor(library.find("sensor.other.lane_invasion"), carla.Transform(), attach_to=car)
lanes.listen(lambda event: crossed.append([str(mark.type) for mark in event.crossed_lane_markings]))
time.sleep(0.3)
frames: dict[float, list[int]] = {yaw: [] for yaw in images}
yaws: dict[float, list[float]] = {yaw: [] for yaw in images}
ticked: list[int] = []
for _ in range(40):
    car.apply_control(carla.VehicleControl(throttle=0.6))
    ticked.append(world.tick())
    for yaw, taken in images.items():
        image = taken.get(timeout=20)
        frames[yaw].append(image.frame)
        yaws[yaw].append((image.transform.rotation.yaw - car.get_transform().rotation.yaw + 180) % 360 - 180)
seen["camera_frames_agree"] = all(taken == ticked for taken in frames.values())
seen["camera_yaws"] = [sum(values) / len(values) for values in yaws.values()]
seen["crossed_while_keeping_the_lane"] = len(crossed)
for i in range(60):
    car.apply_control(carla.VehicleControl(throttle=0.3, steer=0.08 if i < 25 else 0.0))
    world.tick()
time.sleep(0.3)
seen["crossed_while_leaving_it"] = len(crossed)

# --- depth and labels of the pixel at the middle of the lower edge
measured = {}
for name in ("depth", "semantic_segmentation"):
    kind = library.find(f"sensor.camera.{name}")
    kind.set_attribute("image_size_x", "64")
    kind.set_attribute("image_size_y", "32")
    camera = world.spawn_actor(kind, carla.Transform(carla.Location(x=1.0, z=1.8)), attach_to=car)
    measured[name] = queue.Queue()
    camera.listen(measured[name].put)
    cameras.append(camera)
time.sleep(0.3)
car.set_transform(start)
car.set_target_velocity(carla.Vector3D())
car.apply_control(carla.VehicleControl(brake=1.0))
for _ in range(40):
    world.tick()
for name, taken in measured.items():
    image = [taken.get(timeout=20) for _ in range(40)][-1]
    seen[name] = list(bytes(image.raw_data)[(31 * 64 + 32) * 4 :][:4])
image.convert(carla.ColorConverter.CityScapesPalette)
seen["palette"] = list(bytes(image.raw_data)[(31 * 64 + 32) * 4 :][:3])
for sensor in (*cameras, lanes):
    sensor.stop()
    sensor.destroy()
car.destroy()
world.tick()

# --- Ackermann control
car = spawn_car(start)
car.apply_ackermann_control(carla.VehicleAckermannControl(steer=0.0, speed=6.0, acceleration=2.0))
speeds = []
for _ in range(120):
    world.tick()
    speeds.append(car.get_velocity().length())
seen["ackermann_speed"] = speeds[-1]
seen["ackermann_acceleration"] = max(b - a for a, b in itertools.pairwise(speeds)) / DT_S
car.apply_control(carla.VehicleControl(brake=1.0))
for _ in range(60):
    world.tick()
seen["pedals_take_over"] = car.get_velocity().length()
car.destroy()
world.tick()

# --- physics control: half the grip doubles the braking distance, little steering stays little
distances = []
for friction in (3.5, 0.7):
    car = spawn_car(start)
    control = car.get_physics_control()
    wheels = control.wheels
    for wheel in wheels:
        wheel.tire_friction = friction
    control.wheels, control.mass = wheels, 2500.0
    car.apply_physics_control(control)
    world.tick()
    seen["mass_kg"] = car.get_physics_control().mass
    forward = start.get_forward_vector()
    car.set_target_velocity(carla.Vector3D(12.0 * forward.x, 12.0 * forward.y, 0.0))
    car.apply_control(carla.VehicleControl(brake=1.0))
    world.tick()
    before = car.get_location()
    for _ in range(200):
        world.tick()
    distances.append(car.get_location().distance(before))
    car.destroy()
    world.tick()
seen["braking_distances"] = distances

# --- a target yaw rate turns a standing car a little, until its tyres have stopped it
car = spawn_car(start)
before = car.get_transform().rotation.yaw
car.set_target_angular_velocity(carla.Vector3D(0.0, 0.0, 60.0))
for _ in range(40):
    world.tick()
seen["turned_deg"] = (car.get_transform().rotation.yaw - before + 180) % 360 - 180
seen["still_turns_degps"] = math.fabs(car.get_angular_velocity().z)
car.destroy()
settings.synchronous_mode = False
world.apply_settings(settings)
print(json.dumps(seen))
