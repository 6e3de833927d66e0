"""Who is near whom: quick tests that leave few pairs for the exact one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.dynamics.collisions import Box, gaps, overlap

REACH_M = 0.1  # pairs this close, beyond what their speeds carry them, are near
CELL_M = 8.0
WIDEST_MOVER_M = 8.0  # half the length of the longest vehicle, and what it travels in a tick at 40 m/s


def travel_m(box: Box, velocity: tuple[float, float, float], dt_s: float) -> float:
    """How far any point of a box gets in `dt_s`; the velocity is (x, y) in m/s and the yaw rate in rad/s."""
    return (math.hypot(velocity[0], velocity[1]) + abs(velocity[2]) * box.radius) * dt_s


def near_pairs(bodies: Sequence[Actor], boxes: Sequence[Box], dt_s: float) -> list[tuple[int, int, float]]:
    """Pairs of bodies that may touch within `dt_s`.

    Two walkers are no pair, nor is one who lies on the ground, nor two bodies that both cannot move.

    Args:
        bodies, boxes: N bodies, and the box of each.
        dt_s: seconds.

    Returns:
        (index, index, relative speed in m/s) in a fixed order; the first one of a pair can move.
    """
    movers = np.flatnonzero([body.moves for body in bodies])
    if not len(movers):
        return []
    x, y, z, yaw_deg, extent_x, extent_y, extent_z = np.array(boxes).T
    velocity = np.array([body.planar_velocity() for body in bodies])
    walks = np.array([isinstance(body, Walker) for body in bodies])
    lies = np.array([isinstance(body, Walker) and body.down for body in bodies])
    radius = np.hypot(extent_x, extent_y)
    turning = np.abs(velocity[:, 2]) * radius * dt_s
    reach = radius + np.hypot(velocity[:, 0], velocity[:, 1]) * dt_s + turning + REACH_M

    row, column = movers[:, None], np.arange(len(bodies))[None, :]
    close = (x[row] - x[column]) ** 2 + (y[row] - y[column]) ** 2 < (reach[row] + reach[column]) ** 2
    close &= np.abs(z[row] - z[column]) < extent_z[row] + extent_z[column] + REACH_M
    close &= ~(walks[row] & walks[column]) & ~lies[row] & ~lies[column]
    moves = np.zeros(len(bodies), bool)
    moves[movers] = True
    close &= ~moves[column] | (column > row)  # two movers meet once
    first, second = np.nonzero(close)
    first = movers[first]

    yaw = np.radians(yaw_deg)
    footprint = np.column_stack([x, y, np.cos(yaw), np.sin(yaw), extent_x, extent_y])
    speed = np.hypot(*(velocity[first, :2] - velocity[second, :2]).T)
    near = gaps(footprint[first], footprint[second]) < speed * dt_s + turning[first] + turning[second] + REACH_M
    return list(zip(first[near].tolist(), second[near].tolist(), speed[near].tolist(), strict=True))


class SceneryGrid:
    """Immovable boxes of a town, by squares of the ground."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        cells: dict[tuple[int, int], list[tuple[int, float, float, float]]] = defaultdict(list)
        for index, box in enumerate(boxes):
            reach = box.radius + WIDEST_MOVER_M
            for i in range(math.floor((box.x - reach) / CELL_M), math.floor((box.x + reach) / CELL_M) + 1):
                for j in range(math.floor((box.y - reach) / CELL_M), math.floor((box.y + reach) / CELL_M) + 1):
                    square = Box((i + 0.5) * CELL_M, (j + 0.5) * CELL_M, box.z, 0.0, CELL_M / 2, CELL_M / 2, 1.0)
                    if overlap(square.grown(WIDEST_MOVER_M), box):
                        cells[i, j].append((index, box.x, box.y, box.radius))
        self._cells = dict(cells)

    def _listed(self, x_m: float, y_m: float, around_m: float) -> Iterable[tuple[int, float, float, float]]:
        """What may be near a place: of its own square, and of those around it where that is too small."""
        i, j = math.floor(x_m / CELL_M), math.floor(y_m / CELL_M)
        if around_m <= WIDEST_MOVER_M:
            return self._cells.get((i, j), ())
        far = math.ceil((around_m - WIDEST_MOVER_M) / CELL_M)
        steps = range(-far, far + 1)
        return sorted({row for di in steps for dj in steps for row in self._cells.get((i + di, j + dj), ())})

    def near(self, box: Box, reach_m: float) -> Iterator[int]:
        """Indices of things that overlap a box when it is grown by `reach_m` on all sides."""
        around = box.radius + reach_m
        grown = None
        for index, x, y, radius in self._listed(box.x, box.y, around):
            if (box.x - x) ** 2 + (box.y - y) ** 2 < (around + radius) ** 2:
                grown = grown or box.grown(reach_m)
                if overlap(grown, self.boxes[index]):
                    yield index
