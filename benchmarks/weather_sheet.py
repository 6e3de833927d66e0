"""Contact sheet of weathers: the same street in every weather of a Bench2Drive table.

python -m benchmarks.weather_sheet --weathers weather.xml --out docs/images/weathers.jpg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import cv2
import numpy as np
import typer

from benchmarks.street_scenes import street_scene
from carla_bridge.leaderboard.route_weather import BASE_WEATHER
from carla_bridge.server.rendering.renderer import Renderer
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import Weather
from carla_bridge.weather_fields import WEATHER_FIELDS
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import UserError

COLUMNS = 4
JPEG_QUALITY = 82


def read_weathers(path: Path) -> dict[str, Weather]:
    """Weathers of a table in Bench2Drive's form, by id; the first of each case.

    Raises:
        UserError: no such file, or it holds no weathers.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise UserError("weathers", "an XML file of weather cases", f"{path}: {error}") from error
    weathers = {}
    for case in root.iter("case"):
        given = case.find("weather")
        if given is not None:
            values = {**BASE_WEATHER, **{k: float(v) for k, v in given.attrib.items() if k in WEATHER_FIELDS}}
            weathers[case.get("weather_id", "")] = Weather.from_protocol([values[name] for name in WEATHER_FIELDS])
    if not weathers:
        raise UserError("weathers", "case elements with a weather each", f"{path}: none")
    return weathers


def contact_sheet(pictures: dict[str, np.ndarray], columns: int = COLUMNS) -> np.ndarray:
    """BGR pictures of one size in rows, each with its name in a corner."""
    tiles = []
    for name, picture in pictures.items():
        tile = np.ascontiguousarray(picture[..., :3])
        for color, thickness in (((0, 0, 0), 3), ((255, 255, 255), 1)):
            cv2.putText(tile, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, color, thickness, cv2.LINE_AA)
        tiles.append(tile)
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    return np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)])


def main(
    weathers: Annotated[Path, typer.Option(help="Table of weathers, as Bench2Drive's weather.xml.")],
    out: Annotated[Path, typer.Option(help="JPEG file to write.")] = Path("weathers.jpg"),
    town: Annotated[str, typer.Option(help="Town by name, or an .xodr file.")] = "Wamtown01",
    spawn: Annotated[int, typer.Option(help="Spawn point of the camera.")] = 117,
) -> None:
    """Write the contact sheet."""
    loaded = Town.load(town)
    renderer, scene = Renderer(loaded), street_scene(loaded, spawn, actors=6, width=400, height=200)
    pictures = {
        weather_id: renderer.render(scene.camera, scene.actors, scene.signals, weather, time_s=1.0)
        for weather_id, weather in read_weathers(weathers).items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(out), contact_sheet(pictures), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    typer.echo(f"{out}: {len(pictures)} weathers, {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.weather_sheet"))
