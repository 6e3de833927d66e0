"""How much of a tick the server's own traffic takes.

    python -m benchmarks.traffic_speed              60 vehicles and 40 walkers in Wamtown02
    python -m benchmarks.traffic_speed --json       the same, for programs

Processor time of one core, without sockets and pictures: of the decisions of all drivers and walkers, and of the whole
tick, motion and collisions included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from benchmarks.traffic_watch import DT_S, build_world
from benchmarks.world_speed import machine
from carla_bridge.server.town.town import Town

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


def main() -> int:
    """Entry of `python -m benchmarks.traffic_speed`."""
    parser = argparse.ArgumentParser(prog="benchmarks.traffic_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--town", default="Wamtown02", help="shipped town, or an .xodr file")
    parser.add_argument("--vehicles", type=int, default=60)
    parser.add_argument("--walkers", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated time to measure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure(Town.load(options.town), options.vehicles, options.walkers, options.seconds, options.seed)
    load = {"town": options.town, "vehicles": options.vehicles, "walkers": options.walkers}
    if options.json:
        print(json.dumps({**machine(), **load, **figures}, indent=1))
    else:
        for name, value in {**load, **figures}.items():
            print(f"{name:16} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
