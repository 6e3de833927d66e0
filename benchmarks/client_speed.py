"""Speed of the whole chain: an embedded server process, and a real `carla` client that ticks it and takes every image.

Vehicles and walkers are driven by the server. The client does nothing but tick, so the factor is the server's and the
wire's. `benchmarks.world_speed --client` runs this.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import time
from pathlib import Path

from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.processes import ManagedProcess

DT_S = 0.05
WARM_UP_TICKS = 20
WIDTH, HEIGHT = 512, 256


def measure_client(town: str, vehicles: int, walkers: int, seconds: float) -> list[float]:
    """Seconds that each tick took, from asking for it to having its image.

    Args:
        town: what the server loads.
        vehicles, walkers: how many; one vehicle carries the camera of 512x256.
        seconds: simulated time to measure.
    """
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--town", town]
    with (
        tempfile.TemporaryDirectory() as folder,
        ManagedProcess("embedded server", command, Path(folder) / "server.log") as server,
    ):
        wait_for_port(port, server.alive, 120.0)
        return _drive(port, vehicles, walkers, round(seconds / DT_S))


def _drive(port: int, vehicles: int, walkers: int, ticks: int) -> list[float]:
    import carla

    client = carla.Client("127.0.0.1", port)
    client.set_timeout(60.0)
    world = client.get_world()
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, DT_S
    world.apply_settings(settings)
    library, places = world.get_blueprint_library(), world.get_map().get_spawn_points()
    car, walker, camera = (
        library.find(name) for name in ("vehicle.tesla.model3", "walker.pedestrian.0001", "sensor.camera.rgb")
    )
    for kind in (car, walker):
        kind.set_attribute("driver", "server")
    cars = [made for place in places[: 3 * vehicles : 3] if (made := world.try_spawn_actor(car, _lifted(place, 0.0)))]
    for place in places[1 : 3 * walkers : 3]:
        world.try_spawn_actor(walker, _lifted(place, 4.5))
    camera.set_attribute("image_size_x", str(WIDTH))
    camera.set_attribute("image_size_y", str(HEIGHT))
    mount = carla.Transform(carla.Location(x=1.0, z=1.8))
    eye, images = world.spawn_actor(camera, mount, attach_to=cars[0]), queue.Queue()
    eye.listen(images.put)
    time.sleep(0.5)  # the subscription travels on a connection of its own
    times_s = []
    for _ in range(ticks + WARM_UP_TICKS):
        started = time.perf_counter()
        frame = world.tick(60.0)
        while images.get(timeout=60.0).frame < frame:
            pass
        times_s.append(time.perf_counter() - started)
    eye.stop()
    settings.synchronous_mode = False
    world.apply_settings(settings)
    return times_s[WARM_UP_TICKS:]


def _lifted(place: object, beside_m: float) -> object:
    """The place, a little above the ground and so far to the right."""
    import carla

    right = place.get_right_vector()  # type: ignore[attr-defined]
    at = place.location + carla.Location(beside_m * right.x, beside_m * right.y, 0.3 if beside_m == 0 else 1.0)  # type: ignore[attr-defined]
    return carla.Transform(at, place.rotation)  # type: ignore[attr-defined]
