"""A town from above: lanes, marks, crosswalks, and which lanes wait at which light or sign.

python -m benchmarks.town_view --town Wamtown02 --out docs/images/wamtown02.png
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer

from carla_bridge.server.geometry.scene import BoxKind, SignalKind
from carla_bridge.server.town.scenery import rectangle
from carla_bridge.server.town.town import Town
from wamdiff2_core.cli.main import run_alone

MARGIN_M = 15.0
SHIFT = 4  # OpenCV takes coordinates in sixteenths of a pixel
GRASS, JUNCTION = (226, 236, 228), (176, 172, 170)  # colours are BGR
LANES = {
    "driving": (196, 192, 190),
    "sidewalk": (176, 206, 222),
    "parking": (214, 196, 150),
    "shoulder": (160, 182, 182),
}
BUILDING, CROSSWALK = (206, 206, 226), (190, 120, 40)
PHASES = ((40, 40, 220), (210, 90, 20), (170, 30, 170), (30, 140, 30))
SIGNS = {SignalKind.STOP: (0, 0, 0), SignalKind.YIELD: (0, 140, 255)}


def town_view(town: Town, px_per_m: float = 2.0) -> np.ndarray:
    """(height, width, 3) BGR picture, north up. Lights that change together have one colour within a junction."""
    edges = np.concatenate([np.concatenate([lane.left_m, lane.right_m]) for lane in town.lanes])[:, :2]
    low, size = edges.min(axis=0) - MARGIN_M, np.ptp(edges, axis=0) + 2 * MARGIN_M
    picture = np.full((*np.ceil(size[::-1] * px_per_m).astype(int), 3), GRASS, np.uint8)

    def px(points_m: np.ndarray) -> np.ndarray:
        return np.round((np.asarray(points_m)[..., :2] - low) * px_per_m * (1 << SHIFT)).astype(np.int32)

    def line(points_m: np.ndarray, color: tuple[int, int, int], thickness: int = 1) -> None:
        cv2.polylines(picture, [px(points_m)], False, color, thickness, cv2.LINE_AA, SHIFT)

    for box in town.static_boxes:
        if box.kind is BoxKind.BUILDING:
            outline = rectangle(box.x, box.y, box.yaw, box.extent_x, box.extent_y)
            cv2.fillConvexPoly(picture, px(outline), BUILDING, cv2.LINE_AA, SHIFT)
    for island in town.islands:
        cv2.fillConvexPoly(picture, px(island), JUNCTION, cv2.LINE_8, SHIFT)
    for lane in sorted(town.lanes, key=lambda lane: lane.kind != "sidewalk"):
        color = JUNCTION if lane.in_junction and lane.kind == "driving" else LANES.get(lane.kind, LANES["shoulder"])
        for i in range(len(lane.left_m) - 1):
            quad = [lane.left_m[i], lane.left_m[i + 1], lane.right_m[i + 1], lane.right_m[i]]
            cv2.fillConvexPoly(picture, px(np.array(quad)), color, cv2.LINE_8, SHIFT)
    for mark in town.marks:
        if mark.kind in ("solid", "broken"):
            paint = (0, 170, 230) if mark.color == "yellow" else (255, 255, 255)
            line(mark.line_m, paint if mark.kind == "solid" else tuple(int(0.5 * c + 90) for c in paint))
    for crosswalk in town.crosswalks:
        line(np.concatenate([crosswalk, crosswalk[:1]]), CROSSWALK)
    for spec in town.signals:
        color = SIGNS.get(spec.kind, PHASES[spec.phase % len(PHASES)])
        for post in spec.posts:
            line(np.array([post.foot_m, post.head_m]), color)
            cv2.circle(picture, px(np.array(post.foot_m)), 24, color, -1, cv2.LINE_AA, SHIFT)
        for stop in spec.stops:
            place = town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m).transform
            middle, right = place.location, place.get_right_vector()
            ends = [(middle.x + k * right.x, middle.y + k * right.y) for k in (-1.4, 1.4)]
            line(np.array(ends), color, 3)
    return picture


def main(
    town: Annotated[str, typer.Option(help="Town by name, or an .xodr file.")] = "Wamtown02",
    out: Annotated[Path, typer.Option(help="Picture file to write.")] = Path("town.png"),
    px_per_m: Annotated[float, typer.Option(min=0.2, max=20.0, help="Scale.")] = 2.0,
) -> None:
    """Draw a town from above."""
    loaded = Town.load(town)
    picture = town_view(loaded, px_per_m)
    out.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(out), picture, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    kinds = Counter(spec.kind for spec in loaded.signals)
    typer.echo(
        f"{out}: {loaded.name}, {kinds[SignalKind.TRAFFIC_LIGHT]} lights, {kinds[SignalKind.STOP]} stop signs,"
        f" {kinds[SignalKind.YIELD]} yield signs, {len(loaded.crosswalks)} crosswalks"
    )


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.town_view"))
