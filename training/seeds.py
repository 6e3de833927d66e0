"""Random numbers as functions of what they are for: seed, step and sample, never of who computes them.

A run that is resumed, or split over another number of processes or micro-batches, draws the same numbers.
"""

from __future__ import annotations

import torch

NOISE, DECODE, VALIDATION = range(1, 4)  # what numbers are drawn for


def mix(*parts: int) -> int:
    """A 63-bit seed of integers."""
    mixed = 0x9E3779B9
    for part in parts:
        mixed = (mixed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return mixed


def generator(*parts: int) -> torch.Generator:
    """A CPU generator seeded by `mix`."""
    return torch.Generator().manual_seed(mix(*parts))
