"""Light that lamps throw on what is round them, at night.

Worked out from above, on a square of ground that lies mostly ahead of the camera: every street lamp adds its pool,
every vehicle its beams. A picture then looks up each of its pixels' places. Lamps shine through walls and vehicles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np

from carla_bridge.server.geometry.scene import BoxKind, Lamp, RenderActor, StaticBox

CELL_M = 0.5
CELLS = 400
AHEAD_M = 78.0  # middle of the square ahead of the camera
POOL_RADIUS_M = 17.0
ARM_M = 1.95  # from a lamp's post to its head, to the left of its yaw
MOST_BEAMS = 10
BEAMS = Lamp.LOW_BEAM | Lamp.HIGH_BEAM
_BEAM_LENGTH_M, _BEAM_HALF_WIDTH_M = 64.0, 20.0


class StreetLamps:
    """Lamp heads of a town."""

    def __init__(self, boxes: Sequence[StaticBox]) -> None:
        lamps = [box for box in boxes if box.kind is BoxKind.LAMP]
        yaw = np.deg2rad([box.yaw for box in lamps])
        foot = np.array([(box.x, box.y) for box in lamps], dtype=float).reshape(-1, 2)
        self._heads_m = foot + ARM_M * np.stack([np.sin(yaw), -np.cos(yaw)], axis=-1).reshape(-1, 2)

    def light(self, origin_m: np.ndarray) -> np.ndarray:
        """(CELLS, CELLS) float32 light on the square whose corner of least x and y is `origin_m`."""
        square = np.zeros((CELLS, CELLS), np.float32)
        pool = _pool()
        half = len(pool) // 2
        centres = np.round((self._heads_m - origin_m) / CELL_M).astype(int)
        near = ((centres > -half) & (centres < CELLS + half)).all(axis=1)
        for column, row in centres[near]:
            top, left = max(row - half, 0), max(column - half, 0)
            bottom, right = min(row + half + 1, CELLS), min(column + half + 1, CELLS)
            square[top:bottom, left:right] += pool[
                top - row + half : bottom - row + half, left - column + half : right - column + half
            ]
        return square


def beam_light(actors: Sequence[RenderActor], origin_m: np.ndarray) -> np.ndarray:
    """(CELLS, CELLS) float32 light of head-lamps on the square at `origin_m`; the nearest vehicles count."""
    square = np.zeros((CELLS, CELLS), np.float32)
    middle = origin_m + CELL_M * CELLS / 2
    shining = [actor for actor in actors if actor.lamps & BEAMS]
    shining.sort(key=lambda actor: (actor.visible, (actor.x - middle[0]) ** 2 + (actor.y - middle[1]) ** 2))
    for actor in shining[:MOST_BEAMS]:
        beam = _beam(bool(actor.lamps & Lamp.HIGH_BEAM))
        c, s = np.cos(np.deg2rad(actor.yaw)), np.sin(np.deg2rad(actor.yaw))
        nose = (np.array([actor.x + actor.extent_x * c, actor.y + actor.extent_x * s]) - origin_m) / CELL_M
        start = nose - _BEAM_HALF_WIDTH_M / CELL_M * np.array([-s, c])
        square_from_beam = np.array([[c, -s, start[0]], [s, c, start[1]]])
        corners = np.array([[0, 0, 1], [beam.shape[1], 0, 1], [0, beam.shape[0], 1], [*beam.shape[::-1], 1]])
        reached = corners @ square_from_beam.T
        low = np.maximum(np.floor(reached.min(axis=0)).astype(int), 0)
        high = np.minimum(np.ceil(reached.max(axis=0)).astype(int), CELLS)
        if (high <= low).any():
            continue
        square_from_beam[:, 2] -= low
        size = (int(high[0] - low[0]), int(high[1] - low[1]))
        square[low[1] : high[1], low[0] : high[0]] += cv2.warpAffine(beam, square_from_beam, size)
    return square


@lru_cache(maxsize=1)
def _pool() -> np.ndarray:
    """Light of one street lamp on the ground, 1 below it."""
    half = int(POOL_RADIUS_M / CELL_M)
    y, x = np.mgrid[-half : half + 1, -half : half + 1] * CELL_M
    distance = np.hypot(x, y)
    light = (1.0 + (distance / 6.0) ** 2) ** -1.5
    edge = np.clip((POOL_RADIUS_M - distance) / 6.0, 0.0, 1.0)
    return (light * edge).astype(np.float32)


@lru_cache(maxsize=2)
def _beam(high: bool) -> np.ndarray:
    """Light of a vehicle's head-lamps: columns ahead from the bumper, rows across; cut off sharply to the left."""
    ahead = (np.arange(int(_BEAM_LENGTH_M / CELL_M)) + 0.5) * CELL_M
    across = (np.arange(int(2 * _BEAM_HALF_WIDTH_M / CELL_M)) + 0.5) * CELL_M - _BEAM_HALF_WIDTH_M
    x, y = ahead[None], across[:, None]
    reach = 34.0 if high else 19.0
    width = 1.0 + 0.24 * x
    light = np.exp(-((y / width) ** 2)) / (1.0 + (x / reach) ** 2) * np.clip(x / 3.0, 0.15, 1.0)
    return (light * np.clip((_BEAM_LENGTH_M - x) / 12.0, 0.0, 1.0)).astype(np.float32)
