"""Images of a frozen vision tower: encoded without gradients, and kept, so that a second pass encodes none again.

Each image is encoded by itself, so its tokens do not depend on the batch that it first came in, and a resumed run has
those of an undisturbed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

Encode = Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]


class FrozenVision:
    """Stands in for an encoder whose weights no longer change."""

    def __init__(self, encode: Encode, kept_images: int = 0) -> None:
        """Take an encoder.

        Args:
            encode: pixel values and grids of images to tokens and deepstack levels, as `VisionEncoder` does.
            kept_images: images whose tokens are kept: the first that come; 0 keeps none.
        """
        self._encode, self._limit = encode, kept_images
        self._kept: dict[bytes, tuple[Tensor, ...]] = {}

    @torch.no_grad()
    def __call__(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The encoder's values, without gradients."""
        if not self._limit:
            return self._encode(pixel_values, image_grid_thw)
        found = [
            self._image(pixels, grid[None])
            for pixels, grid in zip(pixel_values.split(image_grid_thw.prod(-1).tolist()), image_grid_thw, strict=True)
        ]
        tokens, *levels = [torch.cat(parts) for parts in zip(*found, strict=True)]
        return tokens, levels

    def _image(self, pixels: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        digest = hashlib.blake2b(repr(grid.tolist()).encode(), digest_size=16)
        digest.update(pixels.cpu().contiguous().view(torch.uint8).numpy().data)
        key = digest.digest()
        if key in self._kept:
            return self._kept[key]
        tokens, levels = self._encode(pixels, grid)
        values = tokens, *levels
        if len(self._kept) < self._limit:
            self._kept[key] = values
        return values
