"""Images to patches. Qwen's processor is slow; an image that needs no resizing takes a short way to the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.images import MAX_ASPECT_RATIO, preprocess_images


def image_patches(rgb: np.ndarray, patch_px: int, merge: int = 2) -> np.ndarray:
    """Patches as Qwen's image processor makes them, from an image whose size needs no change.

    Args:
        rgb: (H, W, 3) uint8.
        patch_px: patch side; H and W are multiples of `patch_px * merge`.
        merge: patches that merge along each axis; they follow each other in the output.

    Returns:
        (P, 3 * 2 * patch_px^2) float32 in [-1, 1]; the two time steps of a still image are equal.
    """
    height, width, channels = rgb.shape
    grid = rgb.reshape(
        height // (patch_px * merge), merge, patch_px, width // (patch_px * merge), merge, patch_px, channels
    ).transpose(0, 3, 1, 4, 6, 2, 5)  # block row, block column, row, column, channel, y, x
    pixels = grid.reshape(-1, channels, 1, patch_px, patch_px).astype(np.float32) / 127.5 - 1.0
    return np.repeat(pixels, 2, axis=2).reshape(len(pixels), -1)


def encode_images(images: Sequence[np.ndarray], policy: ImagePolicy, processor: Any) -> tuple[Tensor, Tensor]:
    """`preprocess_images`, faster where no image changes its size.

    Args:
        images: at least one, (H, W, 3) uint8 RGB each.
        policy: size and limits.
        processor: of `make_image_processor`, with the policy's limits.

    Returns:
        pixel values (patches, patch_dim) float32, and grids (images, 3) long.
    """
    if not all(_keeps_its_size(image, policy, processor) for image in images):
        return preprocess_images(images, policy, processor)
    patch = processor.patch_size
    pixels = np.concatenate([image_patches(image, patch, processor.merge_size) for image in images])
    grids = [[1, image.shape[0] // patch, image.shape[1] // patch] for image in images]
    return torch.from_numpy(pixels), torch.tensor(grids)


def _keeps_its_size(rgb: np.ndarray, policy: ImagePolicy, processor: Any) -> bool:
    height, width = rgb.shape[:2]
    side = processor.patch_size * processor.merge_size
    return (
        (policy.size_px is None or policy.size_px == (width, height))
        and height % side == 0
        and width % side == 0
        and policy.min_pixels <= height * width <= policy.max_pixels
        and max(height, width) < MAX_ASPECT_RATIO * min(height, width)
        and processor.temporal_patch_size == 2
        and list(processor.image_mean) == list(processor.image_std) == [0.5, 0.5, 0.5]
    )
