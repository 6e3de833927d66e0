"""Gaps between the ways of a junction, which are asphalt too.

OpenDRIVE describes a junction by its ways only; where they fan out, nothing lies between them. The lanes are drawn into
a raster, and small holes in it that touch a junction are given back row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from carla_bridge.server.geometry.scene import LaneStrip

CELL_M, MOST_CELLS = 0.25, 40_000_000
LARGEST_M2 = 150.0  # more is a green, not a gap
MARGIN_M = 5.0


def find_islands(lanes: Sequence[LaneStrip], height_m: Callable[[float, float], float]) -> tuple[np.ndarray, ...]:
    """Gaps as rectangles, each (4, 3) metres in CARLA's world; together they cover the gaps and a little more.

    Args:
        lanes: all surfaces of a town.
        height_m: (x, y) -> height of the ground.
    """
    edges = np.concatenate([np.concatenate([lane.left_m, lane.right_m]) for lane in lanes])[:, :2]
    origin, size = edges.min(axis=0) - MARGIN_M, np.ptp(edges, axis=0) + 2 * MARGIN_M
    cell = max(CELL_M, float(np.sqrt(size.prod() / MOST_CELLS)))
    width, height = np.ceil(size / cell).astype(int) + 1
    free = np.ones((height, width), np.uint8)
    inside = np.zeros((height, width), np.uint8)
    for lane in lanes:
        left, right = (np.round((edge[:, :2] - origin) / cell).astype(np.int32) for edge in (lane.left_m, lane.right_m))
        for quad in np.stack([left[:-1], left[1:], right[1:], right[:-1]], axis=1):
            cv2.fillConvexPoly(free, quad, 0)
            if lane.in_junction:
                cv2.fillConvexPoly(inside, quad, 1)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(free, connectivity=4)
    near = cv2.dilate(inside, np.ones((3, 3), np.uint8))
    touching = np.unique(labels[(near > 0) & (free > 0)])
    small = [i for i in touching if 0 < i < count and stats[i, cv2.CC_STAT_AREA] * cell**2 <= LARGEST_M2]
    strips = []
    for label in small:
        x, y, w, h, _ = (int(number) for number in stats[label])
        window = np.pad(labels[y : y + h, x : x + w] == label, ((0, 0), (1, 1)))
        for row in range(h):
            ends = np.flatnonzero(np.diff(window[row].astype(np.int8)))
            for begin, end in ends.reshape(-1, 2):
                # a cell more on every side, to reach below the lanes around
                low = origin + np.array([x + begin - 1, y + row - 1]) * cell
                high = origin + np.array([x + end, y + row + 1]) * cell
                z = height_m(*(low + high) / 2)
                corners = [(low[0], low[1], z), (high[0], low[1], z), (high[0], high[1], z), (low[0], high[1], z)]
                strips.append(np.array(corners))
    return tuple(strips)
