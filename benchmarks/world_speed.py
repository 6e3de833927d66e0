"""How fast the embedded world runs, and whether it keeps its size.

    python -m benchmarks.world_speed                      real-time factors
    python -m benchmarks.world_speed --client             also through a server process and a real client
    python -m benchmarks.world_speed --json               the same, for programs
    python -m benchmarks.world_speed --hours 2            simulates 2 hours in a server process, for a client with a
                                                          camera; exit 1 when its memory grows by more than 2 %

Without `--client` and `--hours`, the world runs in this process, without sockets; a picture is taken and thrown away.
Vehicles follow lanes by a pilot of this file, whose time does not count. A real-time factor of 3 means: 3 simulated
seconds in one second.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from benchmarks.client_speed import measure_client
from benchmarks.world_memory import SAMPLE_S, SHORTEST_RUN_SAMPLES, growth, long_run
from carla_bridge.drive.run_setup import describe_commit, describe_machine
from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.dynamics.motion import Pedals
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.streams import StreamHub
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import CLEAR_NOON, Weather
from carla_bridge.server.world import World
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import UserError

TownName = Annotated[str, typer.Option(help="Town by name, or an .xodr file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DT_S = 0.05
RAINY_NIGHT = Weather(
    cloudiness=100.0, precipitation=100.0, precipitation_deposits=90.0, sun_altitude_deg=-90.0, fog_density=10.0,
    wetness=100.0,
)  # fmt: skip
GROWTH_LIMIT = 0.02
CARS = ("vehicle.audi.tt", "vehicle.tesla.model3", "vehicle.mercedes.sprinter", "vehicle.kawasaki.ninja")


@dataclass(frozen=True)
class Load:
    """What is in the world."""

    name: str
    vehicles: int
    walkers: int
    cameras: int = 0
    width: int = 512
    height: int = 256
    weather: Weather = CLEAR_NOON


LOADS = (
    Load("motion only, 60 actors", 45, 15),
    Load("motion only, 200 actors", 150, 50),
    Load("20 actors, no camera", 15, 5),
    Load("20 actors, 1 camera 512x256", 15, 5, 1),
    Load("the same in a rainy night, the dearest", 15, 5, 1, weather=RAINY_NIGHT),
    Load("20 actors, 3 cameras 256x128", 15, 5, 3, 256, 128),
)


@dataclass(frozen=True)
class Speed:
    """A measured load.

    Attributes:
        load: its name.
        tick_ms, tick_ms_p99: of one tick of 50 ms, median and 99 % quantile, by the clock on the wall.
        real_time_factor: by the same clock.
        cpu_factor: the same by processor time: what an idle machine would give; None where it was not measured.
    """

    load: str
    tick_ms: float
    tick_ms_p99: float
    real_time_factor: float
    cpu_factor: float | None = None


class Listeners(StreamHub):
    """A hub whose every stream has a listener that throws everything away."""

    def listening(self, stream_id: int) -> bool:
        return True

    def send(self, stream_id: int, payload: Any) -> None:
        pass


class Pilot:
    """Keeps vehicles on their lanes at a moderate speed, and lets walkers stroll."""

    def __init__(self, town: Town, seed: int) -> None:
        self._map, self._random = town.map, random.Random(seed)

    def steer(self, actors: list[Actor]) -> None:
        """Set pedals and directions for the next ticks."""
        import carla

        for actor in actors:
            if isinstance(actor, Walker):
                angle = self._random.uniform(-math.pi, math.pi)
                actor.direction, actor.speed_mps = (math.cos(angle), math.sin(angle), 0.0), 1.2
            elif isinstance(actor, Vehicle):
                here = self._map.get_waypoint(carla.Location(actor.pose.x, actor.pose.y, actor.pose.z))
                ahead = here.next(6.0)
                if not ahead:
                    actor.pedals = Pedals(brake=1.0)
                    continue
                goal = ahead[actor.id % len(ahead)].transform.location
                bearing = math.atan2(goal.y - actor.pose.y, goal.x - actor.pose.x) - math.radians(actor.pose.yaw)
                bearing = (bearing + math.pi) % (2 * math.pi) - math.pi
                slow = actor.motion.speed_mps < 8.0
                actor.pedals = Pedals(0.4 if slow else 0.0, max(-1.0, min(1.0, 1.2 * bearing)), 0.0 if slow else 0.1)


def build_world(town: Town, seed: int, rendering: bool) -> World:
    """A world of the town without sockets."""
    from carla_bridge.server.rendering.renderer import Renderer
    from carla_bridge.server.world import place_signals

    return World(
        town,
        Listeners("127.0.0.1", 2001),
        load_town=lambda name: town,
        parse_town=lambda name, text: town,
        make_renderer=Renderer if rendering else lambda town, go_on: None,  # type: ignore[arg-type,return-value]
        make_signals=place_signals,
        seed=seed,
    )


def populate(world: World, load: Load, seed: int) -> list[Actor]:
    """Spawn what the load asks for; the cameras ride on the first vehicle."""
    chooser = random.Random(seed)
    actors: list[Actor] = []
    while len(actors) < load.vehicles + load.walkers:
        actor = spawn_one(world, chooser, walker=len(actors) >= load.vehicles)
        if actor is not None:
            actors.append(actor)
    size = [["image_size_x", 2, str(load.width)], ["image_size_y", 2, str(load.height)]]
    for i in range(load.cameras):
        place = Pose(x=1.0, z=1.8, yaw=60.0 * (i - (load.cameras - 1) / 2))
        world.spawn([0, "sensor.camera.rgb", size], place, actors[0].id)
    for kind in ("imu", "gnss", "collision"):
        world.spawn([0, f"sensor.other.{kind}", []], Pose(), actors[0].id)
    return actors


def spawn_one(world: World, chooser: random.Random, walker: bool) -> Actor | None:
    """Try to put an actor at a random place; None where there is no room."""
    (x, y, z), (_, yaw, _) = chooser.choice(world.stage.spawn_transforms)
    heading, beside = math.radians(yaw), 4.5 if walker else 0.0
    along = chooser.uniform(-8.0, 8.0)
    x += along * math.cos(heading) - beside * math.sin(heading)
    y += along * math.sin(heading) + beside * math.cos(heading)
    kind = "walker.pedestrian.0001" if walker else chooser.choice(CARS)
    try:
        return world.spawn([0, kind, []], Pose(x, y, z + (1.0 if walker else 0.3), yaw=yaw))
    except RpcError:
        return None


def measure(town: Town, load: Load, seconds: float, seed: int) -> Speed:
    """Time ticks of one load."""
    world = build_world(town, seed, rendering=load.cameras > 0)
    world.weather = load.weather.as_protocol()
    actors, pilot = populate(world, load, seed), Pilot(town, seed)
    times_s, cpu_s = [], []
    for tick in range(round(seconds / DT_S) + 20):
        if tick % 4 == 0:
            pilot.steer(actors)
        started, cpu_started = time.perf_counter(), time.process_time()
        world.step(DT_S)
        times_s.append(time.perf_counter() - started)
        cpu_s.append(time.process_time() - cpu_started)
    speed = summary(load.name, times_s[20:])  # the first ticks fill caches
    return replace(speed, cpu_factor=round(DT_S * len(cpu_s[20:]) / sum(cpu_s[20:]), 2))


def summary(load: str, times_s: list[float]) -> Speed:
    """Figures of a series of ticks by the clock on the wall."""
    times_s = sorted(times_s)
    mean_s = sum(times_s) / len(times_s)
    p99_s = times_s[min(len(times_s) - 1, int(0.99 * len(times_s)))]
    median_ms = 1e3 * times_s[len(times_s) // 2]
    return Speed(load, round(median_ms, 3), round(1e3 * p99_s, 3), round(DT_S / mean_s, 2))


def machine() -> dict[str, str]:
    """Where and at which commit this was measured."""
    return {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d"), "commit": describe_commit() or "unknown"}


def main(
    town: TownName = "Wamtown01",
    seconds: Annotated[float, typer.Option(min=0.5, help="Simulated seconds for each load.")] = 20.0,
    hours: Annotated[
        float | None, typer.Option(help="Simulate so many hours instead, and watch the memory.", show_default=False)
    ] = None,
    client: Annotated[bool, typer.Option("--client", help="Measure through a server process as well.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of places and kinds.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Measure how fast the embedded world runs, or whether it keeps its size."""
    if hours is not None:
        shortest = SHORTEST_RUN_SAMPLES * SAMPLE_S / 3600
        if hours < shortest:
            raise UserError("--hours", f"at least {shortest:.2f}", hours)
        return watch_memory(town, hours, seed, as_json)
    loaded = Town.load(town)
    speeds = [measure(loaded, load, seconds, seed) for load in LOADS]
    if client:
        times_s = measure_client(town, 15, 5, seconds)
        speeds.append(summary("20 actors, 1 camera, through a client", times_s))
    if as_json:
        print(json.dumps({**machine(), "town": loaded.name, "loads": [asdict(speed) for speed in speeds]}, indent=1))
        return 0
    print(", ".join(machine().values()), "town", loaded.name)
    print(f"{'load':38} {'tick ms':>8} {'p99 ms':>8} {'x real time':>12} {'by cpu time':>12}")
    for speed in speeds:
        cpu = "" if speed.cpu_factor is None else f"{speed.cpu_factor:.1f}"
        figures = f"{speed.tick_ms:8.2f} {speed.tick_ms_p99:8.2f} {speed.real_time_factor:12.1f} {cpu:>12}"
        print(f"{speed.load:38} {figures}")
    return 0


def watch_memory(town: str, hours: float, seed: int, as_json: bool) -> int:
    """Simulate and compare the server's memory; 1 when it grew too much."""
    samples_mib, simulated_s, started = [], 0.0, time.perf_counter()
    for simulated_s, now_mib in long_run(town, hours, seed):
        samples_mib.append(now_mib)
        if not as_json and round(simulated_s) % 300 == 0:
            print(f"{simulated_s / 60:6.0f} min simulated, {now_mib:8.1f} MiB", flush=True)
    settled_mib, end_mib, grown = growth(samples_mib)
    figures = {
        "simulated_s": simulated_s, "wall_s": round(time.perf_counter() - started, 1),
        "settled_mib": round(settled_mib, 1), "end_mib": round(end_mib, 1), "growth": round(grown, 4),
    }  # fmt: skip
    if as_json:
        print(json.dumps({**machine(), "town": town, **figures}, indent=1))
    else:
        print(", ".join([*machine().values(), *(f"{name} {value}" for name, value in figures.items())]))
    return 0 if grown <= GROWTH_LIMIT else 1


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.world_speed"))
