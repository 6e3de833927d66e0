"""Watches server-driven traffic for a long time, and counts what it does wrong.

    python -m benchmarks.traffic_watch                                 10 minutes of Wamtown02, 40 vehicles, 20 walkers
    python -m benchmarks.traffic_watch --town Wamtown03 --json         the same elsewhere, for programs

The judge knows nothing of the traffic code: it sees poses, lights, and the stop lines of the OpenDRIVE file. Exit 1
when somebody collided, ran a red light or a stop sign.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer

from benchmarks.world_speed import AsJson, Listeners, TownName
from carla_bridge.server.actors.signals import TrafficLight
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.dynamics.collisions import overlap
from carla_bridge.server.geometry.scene import SignalKind
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.town.town import Town
from carla_bridge.server.traffic.traffic import Background
from carla_bridge.server.world import World, place_signals
from wamdiff2_core.cli.main import run_alone

DT_S = 0.05
STOPPED_MPS = 0.2
BEFORE_LINE_M = 4.0


@dataclass
class _Line:
    """A stop line: middle, direction of traffic, half width, and what it belongs to."""

    x: float
    y: float
    cos: float
    sin: float
    half_m: float
    light: TrafficLight | None


@dataclass
class Judge:
    """Counts collisions, red lights and stop signs that were run, and how much traffic moves.

    Args:
        world: what to watch; call `watch` after every step.
    """

    world: World
    collisions: list[tuple[float, str, str]] = field(default_factory=list)
    red_lights: list[tuple[float, int]] = field(default_factory=list)
    stop_signs: list[tuple[float, int]] = field(default_factory=list)
    lines_passed: int = 0
    stops_obeyed: int = 0
    driven_m: float = 0.0
    walked_m: float = 0.0
    longest_wait_s: float = 0.0
    most_over_limit_mps: float = 0.0

    def __post_init__(self) -> None:
        self._lines: list[_Line] = []
        lights = {light.sign_id: light for light in self.world.signals.lights} if self.world.signals else {}
        for spec in self.world.town.signals:
            if spec.kind is SignalKind.YIELD:
                continue
            for stop in spec.stops:
                place = self.world.town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
                yaw = math.radians(place.transform.rotation.yaw)
                at = place.transform.location
                light = lights[spec.sign_id] if spec.kind is SignalKind.TRAFFIC_LIGHT else None
                self._lines.append(_Line(at.x, at.y, math.cos(yaw), math.sin(yaw), place.lane_width / 2, light))
        table = np.array([(a.x, a.y, a.cos, a.sin, a.half_m) for a in self._lines]).reshape(-1, 5)
        self._table = table
        self._front: dict[int, tuple[float, float]] = {}
        self._slowest: dict[tuple[int, int], float] = {}
        self._waits: dict[int, float] = defaultdict(float)
        self._touching: set[tuple[int, int]] = set()

    def watch(self) -> None:
        """Look at the world after a tick."""
        now = self.world.time_s
        movers = [a for a in self.world.actors.values() if isinstance(a, (Vehicle, Walker))]
        for actor in movers:
            speed = math.hypot(actor.velocity[0], actor.velocity[1])
            if isinstance(actor, Walker):
                self.walked_m += speed * DT_S
                continue
            self.driven_m += speed * DT_S
            self.most_over_limit_mps = max(self.most_over_limit_mps, speed - actor.speed_limit_kmh / 3.6)
            self._waits[actor.id] = self._waits[actor.id] + DT_S if speed < 0.3 else 0.0
            self.longest_wait_s = max(self.longest_wait_s, self._waits[actor.id])
            self._lines_of(actor, speed, now)
        self._contacts(movers, now)

    def _lines_of(self, vehicle: Vehicle, speed: float, now: float) -> None:
        yaw, half = math.radians(vehicle.pose.yaw), vehicle.blueprint.extent_m[0]
        front = vehicle.pose.x + half * math.cos(yaw), vehicle.pose.y + half * math.sin(yaw)
        before = self._front.get(vehicle.id)
        self._front[vehicle.id] = front
        if before is None or math.hypot(front[0] - before[0], front[1] - before[1]) > 5.0:
            return
        t = self._table
        was = (before[0] - t[:, 0]) * t[:, 2] + (before[1] - t[:, 1]) * t[:, 3]
        is_ = (front[0] - t[:, 0]) * t[:, 2] + (front[1] - t[:, 1]) * t[:, 3]
        side = np.abs((front[1] - t[:, 1]) * t[:, 2] - (front[0] - t[:, 0]) * t[:, 3]) < t[:, 4]
        along = math.cos(yaw) * t[:, 2] + math.sin(yaw) * t[:, 3] > 0.7
        for k in np.flatnonzero(side & along & (is_ > -BEFORE_LINE_M) & (is_ <= 0)).tolist():
            self._slowest[vehicle.id, k] = min(self._slowest.get((vehicle.id, k), math.inf), speed)
        for k in np.flatnonzero((was <= 0) & (is_ > 0) & side & along).tolist():
            self.lines_passed += 1
            slowest = self._slowest.pop((vehicle.id, k), math.inf)
            light = self._lines[k].light
            if light is not None:
                if light.state is TrafficLightState.RED:
                    self.red_lights.append((now, vehicle.id))
            elif slowest > STOPPED_MPS:
                self.stop_signs.append((now, vehicle.id))
            else:
                self.stops_obeyed += 1

    def _contacts(self, movers: list, now: float) -> None:
        """Overlapping bodies; every pair counts once until it has parted."""
        xy = np.array([(a.pose.x, a.pose.y) for a in movers]).reshape(-1, 2)
        gaps = np.hypot(xy[:, None, 0] - xy[None, :, 0], xy[:, None, 1] - xy[None, :, 1])
        touching = set()
        for i, j in zip(*np.nonzero(np.triu(gaps < 9.0, 1)), strict=True):
            a, b = movers[i], movers[j]
            if isinstance(a, Walker) and isinstance(b, Walker):
                continue
            if overlap(a.box(), b.box()) is not None:
                touching.add((a.id, b.id))
                if (a.id, b.id) not in self._touching:
                    self.collisions.append((now, f"{a.type_id}/{a.id}", f"{b.type_id}/{b.id}"))
        self._touching = touching

    def events(self) -> list[str]:
        """What went wrong, in words."""
        collisions = [f"{s:.2f} s: {one} and {other} touch" for s, one, other in self.collisions]
        reds = [f"{s:.2f} s: vehicle {actor_id} runs a red light" for s, actor_id in self.red_lights]
        signs = [f"{s:.2f} s: vehicle {actor_id} does not stop at a stop sign" for s, actor_id in self.stop_signs]
        return collisions + reds + signs

    def figures(self) -> dict:
        """All counts."""
        return {
            "simulated_s": round(self.world.time_s, 1), "collisions": len(self.collisions),
            "red_lights_run": len(self.red_lights), "stop_signs_run": len(self.stop_signs),
            "stop_signs_obeyed": self.stops_obeyed, "lines_passed": self.lines_passed,
            "vehicle_km": round(self.driven_m / 1000, 2), "walker_km": round(self.walked_m / 1000, 2),
            "longest_wait_s": round(self.longest_wait_s, 1),
            "most_over_limit_mps": round(self.most_over_limit_mps, 1),
        }  # fmt: skip


def build_world(town: Town, vehicles: int, walkers: int, seed: int) -> World:
    """A world of the town without sockets and pictures, with traffic in it."""
    return World(
        town,
        Listeners("127.0.0.1", 2001),
        load_town=lambda name: town,
        parse_town=lambda name, text: town,
        make_renderer=lambda town, go_on: None,  # type: ignore[arg-type,return-value]
        make_signals=place_signals,
        make_traffic=Background(vehicles, walkers).make,
        seed=seed,
    )


def main(
    town: TownName = "Wamtown02",
    minutes: Annotated[float, typer.Option(min=0.01, help="Simulated time.")] = 10.0,
    vehicles: Annotated[int, typer.Option(min=0, help="Vehicles of the server's own traffic.")] = 40,
    walkers: Annotated[int, typer.Option(min=0, help="Walkers of the server's own.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the traffic.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Watch the traffic; 1 when anybody collides or runs a red light or stop sign."""
    world = build_world(Town.load(town), vehicles, walkers, seed)
    judge = Judge(world)
    for _ in range(round(minutes * 60 / DT_S)):
        world.step(DT_S)
        judge.watch()
    figures = {"town": world.town.name, "seed": seed, **judge.figures()}
    if as_json:
        print(json.dumps({**figures, "events": judge.events()}, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value}")
        for event in judge.events():
            print(event)
    return int(bool(judge.collisions or judge.red_lights or judge.stop_signs))


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.traffic_watch"))
