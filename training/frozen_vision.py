"""Images of a frozen vision tower: encoded without gradients, and kept, so that a second pass encodes none again.

Kept images are encoded one by one, so the tokens of an image do not depend on the batch that it first came in, and a
resumed run has those of an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wamdiff2_core.model.vision import ImageMemory

Encode = Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]


class FrozenVision:
    """Stands in for an encoder whose weights no longer change."""

    def __init__(self, encode: Encode, kept_images: int = 0) -> None:
        """Take an encoder.

        Args:
            encode: pixel values and grids of images to tokens and deepstack levels, as `VisionEncoder` does.
            kept_images: images whose tokens are kept, the last that came; 0 keeps none.
        """
        self._memory = ImageMemory(_one_by_one(encode) if kept_images else encode, kept_images)

    @torch.compiler.disable  # it would compile anew for every image that the table gains
    @torch.no_grad()
    def __call__(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The encoder's values, without gradients."""
        return self._memory(pixel_values, image_grid_thw, pixel_values.device)


def _one_by_one(encode: Encode) -> Encode:
    def encoded(pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        images = pixel_values.split(image_grid_thw.prod(-1).tolist())
        found = [encode(pixels, grid[None]) for pixels, grid in zip(images, image_grid_thw, strict=True)]
        tokens, *levels = [torch.cat(parts) for parts in zip(*((own, *deep) for own, deep in found), strict=True)]
        return tokens, levels

    return encoded
