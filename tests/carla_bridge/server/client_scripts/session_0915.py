"""A short session of a CARLA 0.9.15 client under Python 3.8; prints what it saw as JSON.

Runs alone: `python3.8 session_0915.py PORT`. The test reads the last line.
"""

import json
import queue
import sys
import time

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.get_world()
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.1
world.apply_settings(settings)
seen = {"versions": [client.get_client_version(), client.get_server_version()]}
seen["maps"] = sorted(name.rsplit("/", 1)[-1] for name in client.get_available_maps())
world = client.load_world("Yard", False)
kept = world.get_settings()
seen["kept"] = [world.get_map().name, kept.synchronous_mode, kept.fixed_delta_seconds]
library = world.get_blueprint_library()
seen["colors"] = len(library.find("vehicle.tesla.model3").get_attribute("color").recommended_values)
seen["emergency"] = sorted(
    b.id for b in library.filter("vehicle.*") if b.get_attribute("special_type").as_str() == "emergency"
)
start = world.get_map().get_spawn_points()[0]
spawn = carla.command.SpawnActor(library.find("vehicle.lincoln.mkz_2020"), start)
lights = carla.VehicleLightState(carla.VehicleLightState.Brake)
(result,) = client.apply_batch_sync([spawn.then(carla.command.SetVehicleLightState(carla.command.FutureActor, lights))])
world.tick()
car = world.get_actor(result.actor_id)
seen["light"] = int(car.get_light_state())

measured = {}
sensors = []
for type_id in ("sensor.camera.rgb", "sensor.other.imu", "sensor.other.gnss", "sensor.other.collision"):
    measured[type_id] = queue.Queue()
    sensor = world.spawn_actor(library.find(type_id), carla.Transform(), attach_to=car)
    sensor.listen(measured[type_id].put)
    sensors.append(sensor)
time.sleep(0.3)  # a subscription is made in the background


def of_frame(type_id, frame):
    """The measurement of a frame; older ones are dropped."""
    while True:
        item = measured[type_id].get(timeout=20)
        if item.frame >= frame:
            return item


seen["misses"] = 0
for _ in range(10):
    car.apply_control(carla.VehicleControl(throttle=1.0))
    frame = world.tick()
    for type_id in ("sensor.camera.rgb", "sensor.other.imu", "sensor.other.gnss"):
        seen["misses"] += of_frame(type_id, frame).frame != frame
seen["travelled"] = car.get_location().distance(start.location) > 0.5
wall = world.spawn_actor(
    library.find("vehicle.audi.tt"),
    carla.Transform(car.get_transform().transform(carla.Location(x=8.0)), car.get_transform().rotation),
)
for _ in range(40):
    world.tick()
event = measured["sensor.other.collision"].get(timeout=20)
seen["collision"] = [event.actor.id == car.id, event.other_actor.id == wall.id]
for sensor in sensors:
    sensor.stop()
    sensor.destroy()
car.destroy()
world.tick()
settings.synchronous_mode = False
world.apply_settings(settings)
print(json.dumps(seen))
