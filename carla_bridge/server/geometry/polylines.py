"""Arc lengths along polylines and patches of lanes."""

from __future__ import annotations

import numpy as np

from carla_bridge.server.geometry.scene import LaneStrip


def length(line_m: np.ndarray) -> float:
    """Length of a (N, 2 or 3) polyline, metres."""
    return float(np.linalg.norm(np.diff(line_m, axis=0), axis=1).sum())


def arc_lengths(line_m: np.ndarray) -> np.ndarray:
    """(N,) arc length of each point of a (N, 2 or 3) polyline, metres."""
    return np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line_m, axis=0), axis=1))])


def resample(line_m: np.ndarray, at_m: np.ndarray) -> np.ndarray:
    """(K, 3) points of a (N, 3) polyline at arc lengths."""
    arc = arc_lengths(line_m)
    return np.stack([np.interp(at_m, arc, line_m[:, k]) for k in range(3)], axis=1)


def across(lane: LaneStrip, start_m: float, end_m: float, inner: float, outer: float) -> np.ndarray:
    """(4, 3) patch of a lane between two arc lengths and two fractions of its width (0 left, 1 right)."""
    total = max(length((lane.left_m + lane.right_m) / 2), 1e-6)
    ends = np.array([start_m, end_m]) / total
    left = resample(lane.left_m, ends * length(lane.left_m))
    right = resample(lane.right_m, ends * length(lane.right_m))
    a, b = left + inner * (right - left), left + outer * (right - left)
    return np.array([a[0], a[1], b[1], b[0]])
