"""What is painted across roads: stripes of crosswalks, parking bays, and junction paint where a file says nothing.

Stop lines of signals are among a town's marks. A file with neither signals nor crosswalks gets stop lines and
crosswalks where lanes meet a junction, as scenery: OpenDRIVE road marks cannot say them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from carla_bridge.server.geometry.polylines import across, length
from carla_bridge.server.geometry.scene import LaneStrip, MarkLine

STOP_LINE_M = 0.4
STRIPE_M = 0.5  # of a crosswalk, and between two
BAY_M, BAY_LINE_M = 6.0, 0.12
SCENERY_ZEBRA_M, SCENERY_LANE_M = 3.0, 15.0  # depth of a crosswalk; lanes shorter than this get no paint


def road_paint(
    lanes: Sequence[LaneStrip], marks: Sequence[MarkLine], crosswalks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """White quads, (4, 3) metres each.

    Args:
        lanes, marks: of the town.
        crosswalks: (4, 3) corners each, the first side along the road.
    """
    quads = _bays(lanes)
    for crosswalk in crosswalks:
        quads += _stripes(crosswalk)
    if not crosswalks and not any(mark.kind in ("stop_line", "yield_line") for mark in marks):
        quads += _junction_scenery(lanes)
    return quads


def _stripes(crosswalk_m: np.ndarray) -> list[np.ndarray]:
    """Stripes along the road, side by side over its width."""
    a, b, c, d = crosswalk_m
    width = float(np.linalg.norm(d - a))
    quads = []
    for start in np.arange(STRIPE_M / 2, width - STRIPE_M, 2 * STRIPE_M):
        low, high = start / width, (start + STRIPE_M) / width
        quads.append(np.array([a + low * (d - a), b + low * (c - b), b + high * (c - b), a + high * (d - a)]))
    return quads


def _bays(lanes: Sequence[LaneStrip]) -> list[np.ndarray]:
    """Lines between parking bays."""
    quads = []
    for lane in lanes:
        if lane.kind != "parking":
            continue
        total = length((lane.left_m + lane.right_m) / 2)
        for s in np.arange(BAY_M / 2, total - BAY_LINE_M, BAY_M):
            quads.append(across(lane, s, s + BAY_LINE_M, 0.05, 0.98))
    return quads


def _junction_scenery(lanes: Sequence[LaneStrip]) -> list[np.ndarray]:
    """Stop lines of lanes that enter a junction, and crosswalks on about half of the arms."""
    inner = [lane for lane in lanes if lane.in_junction and lane.kind == "driving"]
    quads: list[np.ndarray] = []
    if not inner:
        return quads
    heads = np.array([(lane.left_m[0] + lane.right_m[0]) / 2 for lane in inner])
    tails = np.array([(lane.left_m[-1] + lane.right_m[-1]) / 2 for lane in inner])
    for lane in lanes:
        if lane.in_junction or lane.kind != "driving":
            continue
        total = length((lane.left_m + lane.right_m) / 2)
        if total < SCENERY_LANE_M:
            continue
        entry = (lane.left_m[-1] + lane.right_m[-1]) / 2
        exit_ = (lane.left_m[0] + lane.right_m[0]) / 2
        enters = (np.linalg.norm(heads - entry, axis=1) < 0.5).sum() > 1
        leaves = (np.linalg.norm(tails - exit_, axis=1) < 0.5).sum() > 1
        forward = lane.lane_id < 0
        for touches, at_entry in ((enters, True), (leaves, False)):
            if not touches:
                continue
            zebra = _has_zebra(lane.road_id, at_road_end=forward == at_entry)
            if zebra:
                start = total - 3.8 if at_entry else 0.8
                for inner_edge in np.arange(0.04, 0.92, 0.25):
                    quads.append(across(lane, start, start + SCENERY_ZEBRA_M, inner_edge, inner_edge + 0.13))
            if at_entry:
                stop = total - (4.9 if zebra else 1.0)
                quads.append(across(lane, stop, stop + STOP_LINE_M, 0.03, 0.97))
    return quads


def _has_zebra(road_id: int, *, at_road_end: bool) -> bool:
    return zlib.crc32(f"{road_id}/{at_road_end}".encode()) % 2 == 0
