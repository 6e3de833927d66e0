"""Drive 100 synchronous ticks with camera, IMU, GNSS and collision sensor; print what was seen as JSON.

Runs alone: `python drive.py PORT`. The test reads the last line.
"""

from __future__ import annotations

import json
import queue
import sys
import time

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.load_world("Wamtown01")
world_map = world.get_map()
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
world.apply_settings(settings)
library = world.get_blueprint_library()
seen: dict = {
    "versions": [client.get_client_version(), client.get_server_version()],
    "map": world_map.name,
    "bicycles": len([b for b in library.filter("vehicle.*") if b.get_attribute("base_type") == "bicycle"]),
}

blueprint = library.find("vehicle.lincoln.mkz_2020")
blueprint.set_attribute("role_name", "hero")
start = world_map.get_spawn_points()[0]
car = world.spawn_actor(blueprint, start)
seen["role_name"] = car.attributes["role_name"]
seen["double_spawn_refused"] = world.try_spawn_actor(blueprint, start) is None


def mount(type_id: str, place: carla.Transform, **attributes: str) -> tuple[carla.Actor, queue.Queue]:
    """Attach a sensor to the car and collect what it measures."""
    kind = library.find(type_id)
    for name, value in attributes.items():
        kind.set_attribute(name, value)
    sensor, measured = world.spawn_actor(kind, place, attach_to=car), queue.Queue()
    sensor.listen(measured.put)
    return sensor, measured


def of_frame(measured: queue.Queue, frame: int) -> object:
    """The measurement of a frame; older ones are dropped."""
    while True:
        item = measured.get(timeout=20)
        if item.frame >= frame:
            return item


origin, front = carla.Transform(), carla.Transform(carla.Location(x=1.0, z=1.8))
camera, images = mount("sensor.camera.rgb", front, image_size_x="256", image_size_y="128")
slow, slow_images = mount("sensor.camera.rgb", front, image_size_x="64", image_size_y="32", sensor_tick="0.25")
imu, imu_measured = mount("sensor.other.imu", origin)
gnss, gnss_measured = mount("sensor.other.gnss", origin)
collision, collisions = mount("sensor.other.collision", origin)
lanes, _ = mount("sensor.other.lane_invasion", origin)
time.sleep(0.3)

misses, first_frame = 0, 0
started = time.monotonic()
for i in range(100):
    car.apply_control(carla.VehicleControl(throttle=0.5, steer=0.02 if 60 < i < 80 else 0.0))
    frame = world.tick()
    first_frame = first_frame or frame
    image, force = of_frame(images, frame), of_frame(imu_measured, frame)
    misses += (image.frame, force.frame, world.get_snapshot().frame) != (frame, frame, frame)
seen["seconds_for_100_ticks"] = time.monotonic() - started
fix = of_frame(gnss_measured, frame)
seen["misses"] = misses
seen["image"] = [image.width, image.height, image.fov, len(image.raw_data), len(set(bytes(image.raw_data)))]
seen["slow_image_frames"] = [slow_images.get().frame - first_frame for _ in range(slow_images.qsize())]
snapshot = world.get_snapshot().find(car.id)
seen["same_pose"] = snapshot.get_transform() == car.get_transform()
travelled = car.get_location() - start.location
seen["travelled_m"] = travelled.length()
seen["yaw_gain_deg"] = (car.get_transform().rotation.yaw - start.rotation.yaw + 180.0) % 360.0 - 180.0
seen["imu"] = [force.accelerometer.z, force.gyroscope.z, force.compass]
seen["gnss"] = [fix.latitude, fix.longitude, fix.altitude]
seen["location"] = [car.get_location().x, car.get_location().y]
seen["control"] = [car.get_control().throttle, car.get_control().gear]
wheels = car.get_physics_control().wheels
seen["wheelbase_m"] = wheels[0].position.distance(wheels[2].position) / 100
seen["max_steer_deg"] = wheels[0].max_steer_angle
seen["extent"] = [car.bounding_box.extent.x, car.bounding_box.location.z]

ahead = car.get_transform().transform(carla.Location(x=12.0))
blocker = world.spawn_actor(library.find("vehicle.audi.tt"), carla.Transform(ahead, car.get_transform().rotation))
for _ in range(60):
    car.apply_control(carla.VehicleControl(throttle=1.0))
    world.tick()
event = collisions.get(timeout=20)
seen["collision"] = [event.actor.id == car.id, event.other_actor.type_id, event.normal_impulse.length()]

weather = world.get_weather()
weather.sun_altitude_angle = 12.5
world.set_weather(weather)
seen["sun"] = world.get_weather().sun_altitude_angle
car.set_light_state(carla.VehicleLightState.Brake)
seen["light"] = int(car.get_light_state())
world.get_spectator().set_transform(carla.Transform(carla.Location(1, 2, 3)))
car.set_transform(start)
car.set_target_velocity(carla.Vector3D(0, 0, 0))
world.tick()
seen["teleported_m"] = car.get_location().distance(start.location)

batch = client.apply_batch_sync([carla.command.DestroyActor(blocker), carla.command.DestroyActor(blocker)], False)
seen["batch_errors"] = [result.error for result in batch]
for sensor in (camera, slow, imu, gnss, collision, lanes):
    sensor.stop()
    sensor.destroy()
seen["destroyed"] = car.destroy()
world.tick()
seen["left"] = sorted(actor.type_id for actor in world.get_actors())

world = client.reload_world(False)
seen["reloaded"] = [world.get_map().name, world.get_settings().synchronous_mode]
world = client.generate_opendrive_world(world_map.to_opendrive())
seen["generated"] = world.get_map().name
try:
    client.load_world("Nowhere")
    seen["unknown_map"] = ""
except RuntimeError as error:
    seen["unknown_map"] = str(error)
settings.synchronous_mode = False
world.apply_settings(settings)
seen["asynchronous_tick"] = world.wait_for_tick(20.0).frame > frame
print(json.dumps(seen), flush=True)
