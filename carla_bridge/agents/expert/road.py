"""The route as a strip of road: arc length along it (s) and distance to its left (d)."""

from __future__ import annotations

import numpy as np

from carla_bridge.agents.route_follower import GRID_M, uniform

BACK_M, AHEAD_M = 60.0, 110.0


class Road:
    """A route, resampled to `GRID_M`.

    Attributes:
        xy_m: (N, 2) points, map frame.
        yaw_rad: (N,) direction of travel.
    """

    def __init__(self, xy_m: np.ndarray) -> None:
        self.xy_m = uniform(np.asarray(xy_m, dtype=np.float64), GRID_M)
        tangent = np.gradient(self.xy_m, axis=0)
        # Over 2 m: finer, the joints of a polyline would throw points sideways.
        kernel = np.ones(5) / 5
        padded = np.pad(tangent, ((2, 2), (0, 0)), mode="edge")
        smooth = np.stack([np.convolve(padded[:, k], kernel, mode="valid") for k in (0, 1)], axis=1)
        self.along = smooth / np.maximum(np.linalg.norm(smooth, axis=1, keepdims=True), 1e-9)
        self.left = np.stack([-self.along[:, 1], self.along[:, 0]], axis=1)
        self.yaw_rad = np.arctan2(self.along[:, 1], self.along[:, 0])

    @property
    def length_m(self) -> float:
        """Arc length of the last point."""
        return (len(self.xy_m) - 1) * GRID_M

    def index(self, s_m: float) -> int:
        """The grid point nearest to an arc length."""
        return min(len(self.xy_m) - 1, max(0, round(s_m / GRID_M)))

    def project(self, points_m: np.ndarray, near_m: float) -> np.ndarray:
        """Arc length and sideways distance of points, looked for from 60 m behind to 110 m ahead of a place.

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
        return self.yaw_rad[np.clip(np.round(np.asarray(s_m) / GRID_M).astype(int), 0, len(self.yaw_rad) - 1)]
