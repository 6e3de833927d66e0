"""Depth and labels as CARLA's cameras send them: BGRA pictures that a client decodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FARTHEST_M = 1000.0  # what is farther, and the sky, is sent as this
_STEPS = (1 << 24) - 1


@dataclass(frozen=True)
class Buffers:
    """What a camera sees, pixel by pixel.

    Attributes:
        depth_m: (height, width) float32 along the optical axis; of the sky `FARTHEST_M` or more.
        labels: (height, width) uint8, `Label`.
    """

    depth_m: np.ndarray
    labels: np.ndarray

    def depth_picture(self) -> np.ndarray:
        """(height, width, 4) uint8 BGRA: 24 bits of depth over 1000 m, the lowest in red, the highest in blue."""
        share = np.clip(self.depth_m.astype(np.float64) / FARTHEST_M, 0.0, 1.0)
        return _packed(np.round(share * _STEPS).astype(np.uint32))

    def label_picture(self) -> np.ndarray:
        """(height, width, 4) uint8 BGRA: the label in red."""
        return _packed(self.labels.astype(np.uint32))


def _packed(numbers: np.ndarray) -> np.ndarray:
    red, green, blue = numbers & 255, numbers >> 8 & 255, numbers >> 16
    return np.stack([blue, green, red, np.full_like(red, 255)], axis=-1).astype(np.uint8)
