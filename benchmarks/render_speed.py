"""How long a picture takes: one camera, 20 actors ahead of it, all over a town; one thread.

python -m benchmarks.render_speed --json
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import cv2
import numpy as np
import typer

from benchmarks.street_scenes import street_scene
from benchmarks.world_speed import machine
from carla_bridge.server.rendering.renderer import Renderer
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import CLEAR_NOON, Weather
from wamdiff2_core.cli.main import run_alone

TAKES = 4
WEATHERS = {
    "clear noon": CLEAR_NOON,
    "low sun": Weather(sun_altitude_deg=15.0),
    "fog": Weather(fog_density=50.0),
    "rain": Weather(
        cloudiness=100.0, precipitation=60.0, precipitation_deposits=60.0, wind_intensity=60.0, fog_density=3.0
    ),
    "clear night": Weather(sun_altitude_deg=-90.0),
    "rainy night": Weather(
        cloudiness=100.0,
        precipitation=100.0,
        precipitation_deposits=90.0,
        wetness=100.0,
        sun_altitude_deg=-90.0,
        fog_density=3.0,
    ),
}


def measure(
    renderer: Renderer, town: Town, weather: Weather, *, actors: int, width: int, height: int, places: int
) -> dict[str, float]:
    """Milliseconds per picture over places of a town: of each the best of a few takes, after one that sets up.

    Process time is what it costs a core; wall time has other programs in it.
    """
    wall, cpu = [], []
    for spawn in np.linspace(0, len(town.spawn_points) - 1, places).astype(int):
        scene = street_scene(town, int(spawn), actors=actors, width=width, height=height)
        takes = []
        for _ in range(1 + TAKES):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            renderer.render(scene.camera, scene.actors, scene.signals, weather, time_s=1.0)
            takes.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
        best = np.min(takes[1:], axis=0)
        wall.append(best[0])
        cpu.append(best[1])
    return {
        "mean_ms": round(1e3 * float(np.mean(wall)), 2),
        "p95_ms": round(1e3 * float(np.percentile(wall, 95)), 2),
        "mean_cpu_ms": round(1e3 * float(np.mean(cpu)), 2),
    }


def main(
    town: Annotated[str, typer.Option(help="Town by name, or an .xodr file.")] = "Wamtown01",
    actors: Annotated[int, typer.Option(help="Actors ahead of the camera.")] = 20,
    width: Annotated[int, typer.Option(help="Pixels.")] = 512,
    height: Annotated[int, typer.Option(help="Pixels.")] = 256,
    places: Annotated[int, typer.Option(help="Places of the town to take pictures at.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure."""
    cv2.setNumThreads(1)
    loaded = Town.load(town)
    start_s = time.perf_counter()
    renderer = Renderer(loaded)
    layout_s = round(time.perf_counter() - start_s, 2)
    result = {
        name: measure(renderer, loaded, weather, actors=actors, width=width, height=height, places=places)
        for name, weather in WEATHERS.items()
    }
    if as_json:
        about = {"town": town, "actors": actors, "width": width, "height": height, "layout_s": layout_s}
        typer.echo(json.dumps({**about, **machine(), "weathers": result}))
        return
    typer.echo(", ".join(machine().values()))
    typer.echo(f"{town}, laid out in {layout_s} s; {actors} actors, {width}x{height}, one thread; ms per picture")
    for name, figures in result.items():
        typer.echo(f"  {name:12} " + "  ".join(f"{key} {value:6.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.render_speed"))
