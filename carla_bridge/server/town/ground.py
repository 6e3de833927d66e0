"""Height of the ground anywhere in a town, quickly: it is asked for every actor in every tick."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree

from carla_bridge.server.geometry.scene import LaneStrip

CELL_M = 4.0
LEVEL_M = 0.001  # a town with less between its highest and lowest point is flat
EDGE_M = 1e-3  # a point this far beside a surface still lies on it: neighbours must not leave gaps

Triangle = tuple[float, ...]


class GroundHeight:
    """The surfaces of all lanes as triangles, in a grid; off the lanes, the height of the nearest lane's edge.

    Args:
        lanes: surfaces, CARLA's world.
    """

    def __init__(self, lanes: Sequence[LaneStrip]) -> None:
        edges = np.concatenate([np.concatenate([lane.left_m, lane.right_m]) for lane in lanes])
        self._flat_z_m = float(edges[0, 2]) if np.ptp(edges[:, 2]) < LEVEL_M else None
        self._cells: dict[tuple[int, int], list[Triangle]] = {}
        if self._flat_z_m is not None:
            return
        self._edges = edges
        self._tree = cKDTree(edges)
        self._tree_from_above = cKDTree(edges[:, :2])
        quads = np.concatenate(
            [np.stack([e.left_m[:-1], e.left_m[1:], e.right_m[1:], e.right_m[:-1]], axis=1) for e in lanes]
        )
        self._enter(np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]))

    def _enter(self, corners: np.ndarray) -> None:
        """Enter triangles (N, 3, 3), each as its plane and its three edge functions, which are at least 0 inside."""
        a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
        normal = np.cross(b - a, c - a)
        upright = np.abs(normal[:, 2]) > 1e-6
        corners, normal = corners[upright], normal[upright]
        slope = -normal[:, :2] / normal[:, 2:]
        numbers = [slope, corners[:, 0, 2:] - (slope * corners[:, 0, :2]).sum(axis=1, keepdims=True)]
        for k in range(3):
            p, q = corners[:, k, :2], corners[:, (k + 1) % 3, :2]
            # signed distance to the edge: positive on the side of the third corner
            along = (q - p) * np.sign(normal[:, 2:])
            along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
            inward = np.stack([-along[:, 1], along[:, 0]], axis=1)
            numbers += [inward, -(inward * p).sum(axis=1, keepdims=True)]
        triangles: list[Triangle] = [tuple(row) for row in np.concatenate(numbers, axis=1).tolist()]
        lower = np.floor(corners.min(axis=1) / CELL_M).astype(int).tolist()
        upper = np.floor(corners.max(axis=1) / CELL_M).astype(int).tolist()
        for triangle, (i0, j0, _), (i1, j1, _) in zip(triangles, lower, upper, strict=True):
            for i in range(i0, i1 + 1):
                for j in range(j0, j1 + 1):
                    self._cells.setdefault((i, j), []).append(triangle)

    def __call__(self, x_m: float, y_m: float, near_z_m: float | None = None) -> float:
        """Height at a place, metres.

        Args:
            x_m, y_m: the place, CARLA's world.
            near_z_m: where roads cross on several levels, the one nearest to this is meant; without it, the lowest.
        """
        if self._flat_z_m is not None:
            return self._flat_z_m
        wanted = -1e9 if near_z_m is None else near_z_m
        best = None
        for t in self._cells.get((math.floor(x_m / CELL_M), math.floor(y_m / CELL_M)), ()):
            if (
                t[3] * x_m + t[4] * y_m + t[5] >= -EDGE_M
                and t[6] * x_m + t[7] * y_m + t[8] >= -EDGE_M
                and t[9] * x_m + t[10] * y_m + t[11] >= -EDGE_M
            ):
                z = t[0] * x_m + t[1] * y_m + t[2]
                if best is None or abs(z - wanted) < abs(best - wanted):
                    best = z
        if best is not None:
            return best
        if near_z_m is None:
            _, index = self._tree_from_above.query((x_m, y_m))
        else:
            _, index = self._tree.query((x_m, y_m, near_z_m))
        return float(self._edges[index, 2])
