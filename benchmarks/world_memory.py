"""Whether the embedded server keeps its size: hours of traffic, with a client that watches through a camera.

A server process drives its own vehicles and walkers. A real `carla` client ticks it, takes every image of a camera that
rides along, changes the weather every minute, and spawns and destroys a vehicle every second. What is measured is the
resident memory of the server process alone. `benchmarks.world_speed --hours` runs this.
"""

from __future__ import annotations

import queue
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.processes import ManagedProcess

DT_S = 0.05
SAMPLE_S, SHORTEST_RUN_SAMPLES = 30.0, 8
SETTLING_SHARE = 0.1  # of the run: caches fill in this part, memory is compared from its end on
VEHICLES, WALKERS, VISITORS = 15, 5, 5
WIDTH, HEIGHT = 128, 64
WEATHER_S, VISIT_S = 60.0, 1.0
WEATHERS = ("ClearNoon", "HardRainSunset", "CloudyNight", "WetCloudyNoon")


def long_run(town: str, hours: float, seed: int) -> Iterator[tuple[float, float]]:
    """Simulate; yields (simulated seconds, resident MiB of the server) every `SAMPLE_S` of simulated time."""
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--town", town, "--seed", str(seed),
               "--vehicles", str(VEHICLES), "--walkers", str(WALKERS)]  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        ManagedProcess("embedded server", command, Path(folder) / "server.log") as server,
    ):
        wait_for_port(port, server.alive, 120.0)
        client = Watcher(port)
        try:
            for tick in range(1, round(hours * 3600 / DT_S) + 1):
                client.tick(tick)
                if tick % round(SAMPLE_S / DT_S) == 0:
                    yield tick * DT_S, resident_mib(server.pid)
        finally:
            client.close()


class Watcher:
    """The client of a long run.

    Args:
        port: of the server, which it makes synchronous.
    """

    def __init__(self, port: int) -> None:
        import carla

        self._client = carla.Client("127.0.0.1", port)
        self._client.set_timeout(60.0)
        self._world = world = self._client.get_world()
        settings = world.get_settings()
        settings.synchronous_mode, settings.fixed_delta_seconds = True, DT_S
        world.apply_settings(settings)
        library, self._places = world.get_blueprint_library(), world.get_map().get_spawn_points()
        self._car, camera = library.find("vehicle.tesla.model3"), library.find("sensor.camera.rgb")
        self._car.set_attribute("driver", "server")
        carrier = self._spawn(0)
        camera.set_attribute("image_size_x", str(WIDTH))
        camera.set_attribute("image_size_y", str(HEIGHT))
        mount = carla.Transform(carla.Location(x=1.0, z=1.8))
        self._images: queue.Queue[Any] = queue.Queue()
        self._eye = world.spawn_actor(camera, mount, attach_to=carrier)  # the client drops a sensor that nobody keeps
        self._eye.listen(self._images.put)
        self._visitors: list[Any] = []
        time.sleep(0.5)  # the subscription travels on a connection of its own

    def tick(self, number: int) -> None:
        """Move on by one tick and take its image; every now and then, change what is in the world."""
        import carla

        if number % round(WEATHER_S / DT_S) == 0:
            name = WEATHERS[number // round(WEATHER_S / DT_S) % len(WEATHERS)]
            self._world.set_weather(getattr(carla.WeatherParameters, name))
        if number % round(VISIT_S / DT_S) == 0:
            if len(self._visitors) == VISITORS:
                self._visitors.pop(0).destroy()
            visitor = self._spawn(number)
            self._visitors += [visitor] if visitor is not None else []
        frame = self._world.tick(60.0)
        while self._images.get(timeout=60.0).frame < frame:
            pass

    def close(self) -> None:
        """Take no more images."""
        self._eye.stop()
        self._eye.destroy()

    def _spawn(self, number: int) -> Any:
        """A vehicle of the server's traffic at some place; None where there is no room."""
        import carla

        place = self._places[number * 7 % len(self._places)]
        return self._world.try_spawn_actor(
            self._car, carla.Transform(place.location + carla.Location(z=0.3), place.rotation)
        )


def growth(samples_mib: list[float]) -> tuple[float, float, float]:
    """Highest memory after settling and at the end, and by what share it grew.

    Caches fill and are emptied all the time, so two windows of a quarter of the run are compared, not two moments.
    """
    first, window = int(SETTLING_SHARE * len(samples_mib)), max(1, len(samples_mib) // 4)
    settled, end = max(samples_mib[first : first + window]), max(samples_mib[-window:])
    return settled, end, end / settled - 1


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
