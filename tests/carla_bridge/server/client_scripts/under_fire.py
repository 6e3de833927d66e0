"""Tick for a while as one client, with a second client reading beside it; print a JSON summary.

The test sends garbage to both ports meanwhile.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.load_world("Wamtown01")
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
world.apply_settings(settings)
library = world.get_blueprint_library()
car = world.spawn_actor(library.find("vehicle.lincoln.mkz_2020"), world.get_map().get_spawn_points()[0])
imu, measured = world.spawn_actor(library.find("sensor.other.imu"), carla.Transform(), attach_to=car), queue.Queue()
imu.listen(measured.put)
print("ticking", flush=True)

other = carla.Client("127.0.0.1", int(sys.argv[1]))
other.set_timeout(30.0)
other_world = other.get_world()
behind = 0
frames = []
for _ in range(600):
    car.apply_control(carla.VehicleControl(throttle=0.2))
    frames.append(world.tick())
    if len(frames) % 50 == 0:
        assert other_world.get_actor(car.id) is not None
        assert other.get_world().get_map().name.endswith("Wamtown01")
        behind = max(behind, frames[-1] - other_world.get_snapshot().frame)
last = measured.get(timeout=20)
while last.frame < frames[-1]:
    last = measured.get(timeout=20)
steady = all(b == a + 1 for a, b in itertools.pairwise(frames))
imu.stop()
imu.destroy()
car.destroy()
settings.synchronous_mode = False
world.apply_settings(settings)
print(json.dumps({"ticks": len(frames), "steady": steady, "second_client_behind": behind}))
