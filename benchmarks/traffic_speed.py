"""How much of a tick the server's own traffic takes.

    python -m benchmarks.traffic_speed              60 vehicles and 40 walkers in Wamtown02
    python -m benchmarks.traffic_speed --json       the same, for programs

Processor time of one core, without sockets and pictures: of the decisions of all drivers and walkers, and of the whole
tick, motion and collisions included.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import numpy as np
import typer

from benchmarks.traffic_watch import DT_S, build_world
from benchmarks.world_speed import AsJson, TownName, machine
from carla_bridge.server.town.town import Town
from wamdiff2_core.cli.main import run_alone

WARM_UP_TICKS = 200  # queues form, caches fill


def measure(town: Town, vehicles: int, walkers: int, seconds: float, seed: int) -> dict[str, float]:
    """Milliseconds per tick of 50 ms: mean and 99 % quantile."""
    world = build_world(town, vehicles, walkers, seed)
    traffic = world.traffic
    assert traffic is not None
    deciding_s: list[float] = []
    decide = traffic.step

    def timed(dt_s: float) -> None:
        started = time.process_time()
        decide(dt_s)
        deciding_s.append(time.process_time() - started)

    traffic.step = timed  # type: ignore[method-assign]
    whole_s = []
    for _ in range(WARM_UP_TICKS + round(seconds / DT_S)):
        started = time.process_time()
        world.step(DT_S)
        whole_s.append(time.process_time() - started)
    figures = {}
    for name, series in (("traffic", deciding_s), ("tick", whole_s)):
        milliseconds = 1e3 * np.array(series[WARM_UP_TICKS:])
        figures[f"{name}_ms"] = round(float(milliseconds.mean()), 3)
        figures[f"{name}_ms_p99"] = round(float(np.quantile(milliseconds, 0.99)), 3)
    return figures


def main(
    town: TownName = "Wamtown02",
    vehicles: Annotated[int, typer.Option(min=1, help="Vehicles of the server's own traffic.")] = 60,
    walkers: Annotated[int, typer.Option(min=0, help="Walkers of the server's own.")] = 40,
    seconds: Annotated[float, typer.Option(min=0.5, help="Simulated time to measure.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the traffic.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure the traffic's share of a tick."""
    figures = measure(Town.load(town), vehicles, walkers, seconds, seed)
    load = {"town": town, "vehicles": vehicles, "walkers": walkers}
    if as_json:
        print(json.dumps({**machine(), **load, **figures}, indent=1))
        return
    for name, value in {**load, **figures}.items():
        print(f"{name:16} {value}")


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.traffic_speed"))
