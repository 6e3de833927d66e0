"""Rectangles in the plane, such as the outlines of vehicles: whether they overlap, and how far they are apart."""

from __future__ import annotations

import numpy as np


def boxes_touch(one: np.ndarray, other: np.ndarray, by_m: float = 0.0) -> np.ndarray:
    """Whether boxes overlap, by their separating axes.

    Args:
        one, other: (..., 4, 2) corners in order, metres.
        by_m: how deep, at least.

    Returns:
        (...) bool.
    """
    touching = np.ones(one.shape[:-2], dtype=bool)
    for box in (one, other):
        for edge in (0, 1):
            axis = box[..., edge + 1, :] - box[..., edge, :]
            a = (one * axis[..., None, :]).sum(-1)
            b = (other * axis[..., None, :]).sum(-1)
            least = by_m * np.linalg.norm(axis, axis=-1)
            touching &= (a.max(-1) >= b.min(-1) + least) & (b.max(-1) >= a.min(-1) + least)
    return touching


def box_gap_m(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(N,) distance between boxes of (N, 4, 2) corners; 0 where they overlap."""
    gap = np.minimum(_corner_edge_m(one, other), _corner_edge_m(other, one))
    return np.where(boxes_touch(one, other), 0.0, gap)


def _corner_edge_m(corners: np.ndarray, box: np.ndarray) -> np.ndarray:
    start = box[:, None, :, :]  # (N, 1, 4, 2) against corners (N, 4, 1, 2)
    along = np.roll(box, -1, axis=1)[:, None] - start
    offset = corners[:, :, None, :] - start
    share = np.clip((offset * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12), 0.0, 1.0)
    distance = np.linalg.norm(offset - share[..., None] * along, axis=-1)
    return np.asarray(distance.min(axis=(1, 2)))
