"""Keys and values of one batch, in buffers written in place.

Prompt columns come first, right-aligned so that every row's prompt ends at the same column; answer blocks follow. A
block's columns are written again at each of its forwards: first for its masks, at last for its final tokens, and then
they stay. Buffers outlive a request; only columns written in this request, or kept for it, are ever read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class BlockCache:
    """A static cache that stock attention layers write through `update`."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._start = 0
        self._columns = 0

    def begin(
        self, layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, kept: int = 0
    ) -> None:
        """Make room for a request.

        Args:
            layers: text layers.
            shape: (rows, key-value heads, columns, head_dim).
            dtype, device: of the model.
            kept: leading columns that stay as the request before left them; it must have had the same rows.
        """
        rows, heads, columns, head_dim = shape
        self._columns = columns
        have = self._keys[0].shape if self._keys else (0, 0, 0, 0)
        fits = len(self._keys) == layers and have[0] == rows and have[1] == heads and have[3] == head_dim
        if fits and have[2] >= columns and self._keys[0].dtype == dtype and self._keys[0].device == device:
            return
        old = self.columns(0, kept)
        self._keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self._values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        if kept:
            for (keys, values), (old_keys, old_values) in zip(self.columns(0, kept), old, strict=True):
                keys.copy_(old_keys)
                values.copy_(old_values)

    def spread(self, copies: int) -> None:
        """Make each row `copies` rows, one behind the other."""
        for kept in (self._keys, self._values):
            kept[:] = [one.repeat_interleave(copies, 0) for one in kept]

    def write_at(self, column: int) -> None:
        """Let the next forward write its columns from `column` on."""
        self._start = column

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write (rows, heads, n, head_dim) keys and values of a layer; return all columns up to their end."""
        end = self._start + keys.shape[2]
        if end > self._columns:
            raise IndexError(f"cache of {self._columns} columns written up to {end}")
        self._keys[layer][:, :, self._start : end] = keys
        self._values[layer][:, :, self._start : end] = values
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """Views of keys and values at columns [first, last), one pair a layer."""
        return [(k[:, :, first:last], v[:, :, first:last]) for k, v in zip(self._keys, self._values, strict=True)]
