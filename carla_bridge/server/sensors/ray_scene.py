"""What rays can meet: upright boxes and the ground; many rays at once.

Boxes stand upright (yaw only). The ground is a grid of heights, sampled where rays need it; where a ray goes under it
is found by false position. A ray over a hollow may so find the far side of a bump, which roads do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.labels import label_of
from carla_bridge.server.geometry.labels import SCENERY, Label
from carla_bridge.server.geometry.scene import StaticBox

NODE_STEP_M = 2.0
TILE_NODES = 16
MAX_TILES = 4096  # 10 MB: rays may be asked for anywhere
SEARCH_STEPS = 12
GROUND_TOLERANCE_M = 1e-3
NOTHING, GROUND = -1, -2
LEVEL_STEP_M = 4.0

HeightM = Callable[[float, float, float], float]


@dataclass(frozen=True)
class Boxes:
    """N boxes.

    Attributes:
        center_m, extent_m: (N, 3). yaw_rad: (N,) clockwise from above.
        velocity_mps: (N, 3). actor_ids: (N,), 0 for scenery. labels: (N,).
    """

    center_m: np.ndarray
    extent_m: np.ndarray
    yaw_rad: np.ndarray
    velocity_mps: np.ndarray
    actor_ids: np.ndarray
    labels: np.ndarray

    @classmethod
    def of_scenery(cls, scenery: Sequence[StaticBox]) -> Boxes:
        """Boxes of a town."""
        rows = [(b.x, b.y, b.z, b.extent_x, b.extent_y, b.extent_z, b.yaw) for b in scenery]
        return cls._of(rows, [(0.0, 0.0, 0.0)] * len(rows), [0] * len(rows), [SCENERY[b.kind] for b in scenery])

    @classmethod
    def of_actors(cls, actors: Iterable[Actor]) -> Boxes:
        """Bodies of actors; those that nobody can bump into are left out."""
        solid = [actor for actor in actors if actor.collides]
        bodies = [actor.box() for actor in solid]
        rows = [(b.x, b.y, b.z, b.extent_x, b.extent_y, b.extent_z, b.yaw) for b in bodies]
        labels = [label_of(actor) for actor in solid]
        return cls._of(rows, [actor.velocity for actor in solid], [actor.id for actor in solid], labels)

    @classmethod
    def _of(cls, rows: list, velocities: list, ids: list, labels: list) -> Boxes:
        table = np.array(rows, float).reshape(-1, 7)
        velocity = np.array(velocities, float).reshape(-1, 3)
        return cls(
            table[:, :3], table[:, 3:6], np.deg2rad(table[:, 6]), velocity, np.array(ids, int), np.array(labels, int)
        )

    def __add__(self, other: Boxes) -> Boxes:
        return Boxes(*(np.concatenate(pair) for pair in zip(self._fields(), other._fields(), strict=True)))

    def _fields(self) -> tuple[np.ndarray, ...]:
        return self.center_m, self.extent_m, self.yaw_rad, self.velocity_mps, self.actor_ids, self.labels


class GroundGrid:
    """Heights of the ground at the nodes of a grid, asked for tile by tile.

    Args:
        height_m: (x, y, z) in metres -> height; of several levels the one nearest to z. None where all of it is at 0.
    """

    def __init__(self, height_m: HeightM | None) -> None:
        self._height_m = height_m
        self._tiles: dict[tuple[int, int, int], np.ndarray] = {}

    def heights(self, x_m: np.ndarray, y_m: np.ndarray, near_z_m: float) -> np.ndarray:
        """Height at each of N places, interpolated between nodes; where roads cross, of the level nearest to z."""
        if self._height_m is None:
            return np.zeros(len(x_m))
        level = round(near_z_m / LEVEL_STEP_M)
        u, v = x_m / NODE_STEP_M, y_m / NODE_STEP_M
        i, j = np.floor(u).astype(int), np.floor(v).astype(int)
        du, dv = u - i, v - j
        tile_i, tile_j = i // TILE_NODES, j // TILE_NODES
        result = np.empty(len(u))
        key = tile_i * (1 << 32) + tile_j
        for tile in np.unique(key):
            here = np.flatnonzero(key == tile)
            z = self._tile(self._height_m, int(tile_i[here[0]]), int(tile_j[here[0]]), level)
            a, b = i[here] % TILE_NODES, j[here] % TILE_NODES
            p, q = du[here], dv[here]
            near = z[a, b] * (1 - p) + z[a + 1, b] * p
            far = z[a, b + 1] * (1 - p) + z[a + 1, b + 1] * p
            result[here] = near * (1 - q) + far * q
        return result

    def _tile(self, height_m: HeightM, i: int, j: int, level: int) -> np.ndarray:
        if (i, j, level) not in self._tiles:
            if len(self._tiles) >= MAX_TILES:
                del self._tiles[next(iter(self._tiles))]
            xs = (i * TILE_NODES + np.arange(TILE_NODES + 1)) * NODE_STEP_M
            ys = (j * TILE_NODES + np.arange(TILE_NODES + 1)) * NODE_STEP_M
            z = level * LEVEL_STEP_M
            self._tiles[i, j, level] = np.array([[height_m(float(x), float(y), z) for y in ys] for x in xs])
        return self._tiles[i, j, level]


@dataclass(frozen=True)
class RayScene:
    """Boxes on the ground.

    Attributes:
        boxes: what stands there now.
        ground: heights.
    """

    boxes: Boxes
    ground: GroundGrid

    def cast(
        self, origin_m: np.ndarray, directions: np.ndarray, range_m: float, ignore: Collection[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """First thing that each ray meets.

        Args:
            origin_m: (3,) where all rays begin. A box around it is not met.
            directions: (M, 3) unit vectors.
            range_m: how far rays reach.
            ignore: actor ids.

        Returns:
            (M,) distances, infinite where nothing is met; (M,) index of the box, or NOTHING, or GROUND.
        """
        distance = self._ground_distance(origin_m, directions, range_m)
        target = np.where(np.isfinite(distance), GROUND, NOTHING)
        for index in self._near(origin_m, range_m, ignore):
            rays = self._towards(index, origin_m, directions)
            if not len(rays):
                continue
            met = self._box_distance(index, origin_m, directions[rays])
            closer = met < np.minimum(distance[rays], range_m)
            distance[rays[closer]] = met[closer]
            target[rays[closer]] = index
        return distance, target

    def incidence(
        self, origin_m: np.ndarray, directions: np.ndarray, distance_m: np.ndarray, target: np.ndarray
    ) -> np.ndarray:
        """(M,) cosines between rays that met something and the face they met; ground counts as level."""
        cosine = np.abs(directions[:, 2])
        solid = np.flatnonzero(target >= 0)
        box = target[solid]
        c, s = np.cos(self.boxes.yaw_rad[box]), np.sin(self.boxes.yaw_rad[box])

        def in_box(v: np.ndarray) -> np.ndarray:
            return np.stack([c * v[:, 0] + s * v[:, 1], c * v[:, 1] - s * v[:, 0], v[:, 2]], axis=1)

        place = origin_m + directions[solid] * distance_m[solid, None] - self.boxes.center_m[box]
        face = np.argmax(np.abs(in_box(place)) / np.maximum(self.boxes.extent_m[box], 1e-9), axis=1)
        cosine[solid] = np.abs(in_box(directions[solid])[np.arange(len(solid)), face])
        return cosine

    def label(self, target: int) -> Label:
        """Label of what was met."""
        return Label.ROADS if target == GROUND else Label(int(self.boxes.labels[target]))

    def along(self, origin_m: np.ndarray, direction: np.ndarray, range_m: float) -> list[tuple[float, int]]:
        """Everything that one ray meets, nearest first, as (distance, target)."""
        ray = direction[None]
        ground = float(self._ground_distance(origin_m, ray, range_m)[0])
        met = [(ground, GROUND)] if math.isfinite(ground) else []
        for index in self._near(origin_m, range_m, ()):
            distance = float(self._box_distance(index, origin_m, ray)[0])
            if distance <= range_m:
                met.append((distance, index))
        return sorted(met)

    def _near(self, origin_m: np.ndarray, range_m: float, ignore: Collection[int]) -> list[int]:
        gap = np.linalg.norm(self.boxes.center_m[:, :2] - origin_m[:2], axis=1)
        near = gap - np.hypot(self.boxes.extent_m[:, 0], self.boxes.extent_m[:, 1]) < range_m
        if ignore:
            near &= ~np.isin(self.boxes.actor_ids, list(ignore))
        return np.flatnonzero(near).tolist()

    def _towards(self, index: int, origin_m: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Rays that, seen from above, pass the circle around a box."""
        bx, by = self.boxes.center_m[index, :2] - origin_m[:2]
        radius = math.hypot(*self.boxes.extent_m[index, :2])
        if bx * bx + by * by <= radius * radius:
            return np.arange(len(directions))
        dx, dy = directions[:, 0], directions[:, 1]
        flat = np.hypot(dx, dy)
        return np.flatnonzero((np.abs(dx * by - dy * bx) <= radius * flat) & (dx * bx + dy * by > 0))

    def _box_distance(self, index: int, origin_m: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Distances at which rays enter a box (slab test in its axes); infinite where they miss."""
        c, s = math.cos(self.boxes.yaw_rad[index]), math.sin(self.boxes.yaw_rad[index])
        box_from_world = np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
        start = box_from_world @ (origin_m - self.boxes.center_m[index])
        d = directions @ box_from_world.T
        d = np.where(np.abs(d) < 1e-12, 1e-12, d)
        extent = self.boxes.extent_m[index]
        one, two = (-extent - start) / d, (extent - start) / d
        enter, leave = np.minimum(one, two).max(axis=1), np.maximum(one, two).min(axis=1)
        return np.where((enter > 0) & (enter <= leave), enter, np.inf)

    def _ground_distance(self, origin_m: np.ndarray, directions: np.ndarray, range_m: float) -> np.ndarray:
        distance = np.full(len(directions), np.inf)
        clearance = float(origin_m[2] - self.ground.heights(origin_m[:1], origin_m[1:2], origin_m[2])[0])
        if clearance <= 0:
            return distance

        def above(rays: np.ndarray, walked_m: np.ndarray) -> np.ndarray:
            places = origin_m + walked_m[:, None] * directions[rays]
            return places[:, 2] - self.ground.heights(places[:, 0], places[:, 1], origin_m[2])

        # What level ground would give is nearly right: begin with it, and go on to the end of the ray where it is not.
        sink = -directions[:, 2]
        rays = np.arange(len(directions))
        far = np.where(sink * range_m > clearance, clearance / np.maximum(sink, 1e-9) + GROUND_TOLERANCE_M, range_m)
        end = above(rays, far)
        short = np.flatnonzero((end > 0) & (far < range_m))
        far[short] = range_m
        end[short] = above(short, far[short])
        rays = np.flatnonzero(end <= 0)
        near, far, end = np.zeros(len(rays)), far[rays], end[rays]
        start, side = np.full(len(rays), clearance), np.zeros(len(rays), int)
        walked = far
        for _ in range(SEARCH_STEPS):
            walked = far - end * (far - near) / (end - start)
            height = above(rays, walked)
            if np.abs(height).max(initial=0.0) < GROUND_TOLERANCE_M:
                break
            under = height <= 0
            # Illinois: an end that stays twice counts half, or the other one would creep.
            start = np.where(under, np.where(side == 1, start / 2, start), height)
            end = np.where(under, height, np.where(side == -1, end / 2, end))
            near, far = np.where(under, near, walked), np.where(under, walked, far)
            side = np.where(under, 1, -1)
        distance[rays] = walked
        return distance


class RayScenery:
    """The part of a town that rays can meet and that never moves.

    Args:
        scenery: boxes of the town.
        height_m: height of the ground, as `GroundGrid` takes it.
    """

    def __init__(self, scenery: Sequence[StaticBox], height_m: HeightM | None) -> None:
        self._boxes = Boxes.of_scenery(scenery)
        self._ground = GroundGrid(height_m)

    def with_actors(self, actors: Iterable[Actor]) -> RayScene:
        """The scene with actors where they are now."""
        return RayScene(self._boxes + Boxes.of_actors(actors), self._ground)
