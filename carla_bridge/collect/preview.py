"""A contact sheet of a set: pictures with the boxes of what they show, the path of the answer, and a question."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from carla_bridge.collect.records import PLANNING, QA
from carla_bridge.nano import NANO_CAMERA
from carla_bridge.report.overlay import project
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import Sample, iter_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import pixels_from_box

PREVIEW_FILE = "preview.jpg"
SCALE, COLUMNS, TEXT_PX = 2, 3, 46
NEAREST_M = 1.0  # before the camera; a waypoint nearer than this is not drawn
COLORS = {
    "red traffic light": "#ff4040", "yellow traffic light": "#ffd040", "green traffic light": "#40ff70",
    "pedestrian": "#ff60ff", "stop sign": "#ff9040",
}  # fmt: skip
OTHER_COLOR, PATH_COLOR = "#40c8ff", "#ffff60"


def write_preview(folder: Path, count: int, file: Path | None = None) -> Path:
    """Write a sheet of evenly chosen samples of a set, rare situations first.

    Args:
        folder: of the set.
        count: pictures on the sheet.
        file: where to; `preview.jpg` in the set by default.

    Raises:
        UserError: the set has no pictures.
    """
    samples = [sample for sample in iter_dataset(folder / PLANNING) if sample.images]
    if not samples:
        raise UserError("preview", "a set with pictures", str(folder))
    asked: dict[Path, list[str]] = {}
    for sample in iter_dataset(folder / QA):
        asked.setdefault(sample.images[0], []).append(f"{sample.prompt.partition(chr(10))[2]} {sample.answer}")
    tiles = [_tile(sample, asked.get(sample.images[0], [])) for sample in choose(samples, count)]
    width, height = tiles[0].size
    rows = -(-len(tiles) // COLUMNS)
    sheet = Image.new("RGB", (min(COLUMNS, len(tiles)) * width, rows * height), "#101010")
    for k, tile in enumerate(tiles):
        sheet.paste(tile, (k % COLUMNS * width, k // COLUMNS * height))
    target = file or folder / PREVIEW_FILE
    sheet.save(target, quality=85)
    return target


def choose(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Samples of all situations in turn, each spread over the set, those with many objects first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(str(sample.extra["situation"]), []).append(sample)
    turns = []
    for _, group in sorted(groups.items(), key=lambda item: len(item[1])):
        wanted = -(-count // len(groups)) + 1
        parts = [part for part in np.array_split(np.arange(len(group)), wanted) if len(part)]
        turns.append([max((group[int(i)] for i in part), key=_objects) for part in parts])
    found = [turn[k] for k in range(count) for turn in turns if k < len(turn)]
    return found[:count]


def _objects(sample: Sample) -> int:
    return len(sample.extra.get("objects", ()))


def _tile(sample: Sample, asked: Sequence[str]) -> Image.Image:
    rgb = read_rgb(sample.images[0])
    height, width = rgb.shape[:2]
    tile = Image.new("RGB", (width * SCALE, height * SCALE + TEXT_PX), "#101010")
    tile.paste(Image.fromarray(rgb).resize((width * SCALE, height * SCALE), Image.Resampling.NEAREST))
    draw = ImageDraw.Draw(tile)
    for item in sample.extra.get("objects", ()):
        edges = [SCALE * value for value in pixels_from_box(tuple(item["bbox_2d"]), width, height)]
        draw.rectangle(edges, outline=COLORS.get(item["label"], OTHER_COLOR))
    for x, y in _path_px(sample.extra):
        draw.ellipse((SCALE * x - 3, SCALE * y - 3, SCALE * x + 3, SCALE * y + 3), outline=PATH_COLOR, width=2)
    extra = sample.extra
    words = f"{extra['situation']} {extra['weather']} {extra['speed_mps']:.1f} m/s"
    lines = [words, *textwrap.wrap(asked[0] if asked else "", 80)[:2]]
    for k, line in enumerate(lines):
        draw.text((3, height * SCALE + 1 + 14 * k), line, fill="#e0e0e0")
    return tile


def _path_px(extra: Any) -> list[tuple[float, float]]:
    """Pixels of the waypoints on level ground."""
    waypoints_m = np.array(extra["waypoints_m"])
    pixels, depth_m = project(np.column_stack([waypoints_m, np.zeros(len(waypoints_m))]), NANO_CAMERA)
    return [(float(u), float(v)) for u, v in pixels[depth_m > NEAREST_M]]
