"""The route as a strip of road: arc length along it (s) and distance to its left (d)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.route_follower import GRID_M, uniform
from wamdiff2_core.frames import xy_to_carla

if TYPE_CHECKING:
    import carla

JUNCTION_STEP = 4  # points, 2 m
BACK_M, AHEAD_M = 60.0, 170.0


class Road:
    """A route, resampled to `GRID_M`.

    Attributes:
        xy_m: (N, 2) points, map frame.
        yaw_rad: (N,) direction of travel.
        bend_radpm: (N,) its change along the way, left positive.
        in_junction: (N,) whether a junction is there; False everywhere without a map.
    """

    def __init__(self, xy_m: np.ndarray, carla_map: carla.Map | None = None) -> None:
        self.xy_m = uniform(np.asarray(xy_m, dtype=np.float64), GRID_M)
        tangent = np.gradient(self.xy_m, axis=0)
        # Over 2 m: finer, the joints of a polyline would throw points sideways.
        kernel = np.ones(5) / 5
        padded = np.pad(tangent, ((2, 2), (0, 0)), mode="edge")
        smooth = np.stack([np.convolve(padded[:, k], kernel, mode="valid") for k in (0, 1)], axis=1)
        self.along = smooth / np.maximum(np.linalg.norm(smooth, axis=1, keepdims=True), 1e-9)
        self.left = np.stack([-self.along[:, 1], self.along[:, 0]], axis=1)
        self.yaw_rad = np.arctan2(self.along[:, 1], self.along[:, 0])
        self.bend_radpm = np.gradient(np.unwrap(self.yaw_rad), GRID_M)
        self.in_junction = np.zeros(len(self.xy_m), bool)
        if carla_map is not None:
            self._find_junctions(carla_map)

    def _find_junctions(self, carla_map: carla.Map) -> None:
        import carla

        for first in range(0, len(self.xy_m), JUNCTION_STEP):
            here = carla_map.get_waypoint(carla.Location(*xy_to_carla(*self.xy_m[first]), 0.0))
            self.in_junction[first : first + JUNCTION_STEP] = here is not None and here.is_junction

    @property
    def length_m(self) -> float:
        """Arc length of the last point."""
        return (len(self.xy_m) - 1) * GRID_M

    def index(self, s_m: float) -> int:
        """The grid point nearest to an arc length."""
        return min(len(self.xy_m) - 1, max(0, round(s_m / GRID_M)))

    def project(self, points_m: np.ndarray, near_m: float) -> np.ndarray:
        """Arc length and sideways distance of points, looked for from 60 m behind to 170 m ahead of a place.

        Args:
            points_m: (K, 2), map frame.
            near_m: arc length of that place.

        Returns:
            (K, 2): s and d, metres.
        """
        first, last = self.index(near_m - BACK_M), self.index(near_m + AHEAD_M) + 1
        window = self.xy_m[first:last]
        gaps = ((points_m[:, None] - window[None]) ** 2).sum(axis=2)
        best = first + np.argmin(gaps, axis=1)
        offset = points_m - self.xy_m[best]
        s = best * GRID_M + (offset * self.along[best]).sum(axis=1)
        return np.stack([s, (offset * self.left[best]).sum(axis=1)], axis=1)

    def places(self, s_m: np.ndarray, d_m: np.ndarray) -> np.ndarray:
        """(K, 2) points of the map frame at arc lengths and distances to the left."""
        position = np.clip(np.asarray(s_m) / GRID_M, 0, len(self.xy_m) - 1 - 1e-9)
        low = position.astype(int)
        share = (position - low)[:, None]
        middle = self.xy_m[low] * (1 - share) + self.xy_m[low + 1] * share
        return middle + self.left[low] * np.asarray(d_m)[:, None]

    def headings(self, s_m: np.ndarray) -> np.ndarray:
        """(K,) direction of travel at arc lengths."""
        return self.yaw_rad[self._nearest(s_m)]

    def bends(self, s_m: np.ndarray) -> np.ndarray:
        """(K,) curvature at arc lengths."""
        return self.bend_radpm[self._nearest(s_m)]

    def meets_junction(self, from_m: float, to_m: float) -> bool:
        """Whether a junction lies between two arc lengths, in either order."""
        first, last = sorted((self.index(from_m), self.index(to_m)))
        return bool(self.in_junction[first : last + 1].any())

    def _nearest(self, s_m: np.ndarray) -> np.ndarray:
        return np.clip(np.round(np.asarray(s_m) / GRID_M).astype(int), 0, len(self.yaw_rad) - 1)
