"""The lanes of a drive's towns, kept in the run folder so that a report needs no server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.frames import flip_y
from wamdiff2_core.journal import replace_file

MAP_NAME = "map.json"


def save_lanes(folder: Path, maps: Mapping[str, Any]) -> None:
    """Write the edges of all driving lanes.

    Args:
        folder: run folder.
        maps: town name -> `carla.Map`.
    """
    from carla_bridge.server.town.town import Town

    edges = {}
    for name, carla_map in maps.items():
        town = Town.from_opendrive(name, carla_map.to_opendrive())
        edges[name] = [flip_y(line).round(2).tolist() for line in town.lane_polylines()]
    replace_file(folder / MAP_NAME, json.dumps(edges))


def merge_lanes(part: Path, folder: Path) -> None:
    """Move the lanes of a part of a run, if it has any, to those of the whole run."""
    source, target = part / MAP_NAME, folder / MAP_NAME
    if not source.is_file():
        return
    known = json.loads(target.read_text()) if target.is_file() else {}
    found = json.loads(source.read_text())
    if found.keys() - known.keys():
        replace_file(target, json.dumps(known | found))
    source.unlink()


def load_lanes(folder: Path, town: str) -> list[np.ndarray]:
    """Lane edges of a town, each (N, 2) metres in the map frame; empty when the run has none."""
    return load_all_lanes(folder).get(town, [])


def load_all_lanes(folder: Path) -> dict[str, list[np.ndarray]]:
    """Lane edges of every town of a run, by its name."""
    path = folder / MAP_NAME
    towns = json.loads(path.read_text()) if path.is_file() else {}
    return {town: [np.array(line) for line in lines if len(line) > 1] for town, lines in towns.items()}
