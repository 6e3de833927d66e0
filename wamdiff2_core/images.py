"""Images to model input: one preprocessing for training and serving.

An image is resized to the policy's `size_px` when it has one, then snapped to whole patches within the policy's pixel
limits and normalised by Qwen's own image processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.errors import UserError
from wamdiff2_core.json_file import read_json_object

if TYPE_CHECKING:
    import torch

QWEN3_VL_MEAN = QWEN3_VL_STD = (0.5, 0.5, 0.5)
MAX_ASPECT_RATIO = 200


def make_image_processor(policy: ImagePolicy, vision_config: Any, folder: Path | None = None) -> Any:
    """Qwen's image processor with this policy's pixel limits.

    The class is named outright: the automatic choice needs torchvision for video, which is not installed.

    Args:
        policy: pixel limits.
        vision_config: the model's own; its patch and merge sizes decide, whatever the folder's processor file says.
        folder: checkpoint folder whose `preprocessor_config.json` or `processor_config.json` may give mean and
            standard deviation; Qwen3-VL's (0.5) otherwise.

    Raises:
        UserError: that file is broken.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    stored: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if folder is not None and not stored and (folder / name).exists():
            data = read_json_object(folder / name)
            stored = data.get("image_processor", data)
            if not isinstance(stored, dict):
                raise UserError(f"{folder / name}: image_processor", "a JSON object", type(stored).__name__)
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": policy.min_pixels, "longest_edge": policy.max_pixels},
        patch_size=vision_config.patch_size,
        temporal_patch_size=vision_config.temporal_patch_size,
        merge_size=vision_config.spatial_merge_size,
        image_mean=list(stored.get("image_mean", QWEN3_VL_MEAN)),
        image_std=list(stored.get("image_std", QWEN3_VL_STD)),
    )


def preprocess_images(
    images: Sequence[np.ndarray], policy: ImagePolicy, image_processor: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Resize, normalise and cut images into patches.

    Args:
        images: each (H, W, 3) uint8, RGB.
        policy: size and limits.
        image_processor: of `make_image_processor`.

    Returns:
        pixel values (sum of patches, patch_dim) float32, and grids (len(images), 3) long: patches in time, height and
        width of each image.

    Raises:
        UserError: an image is more than 200 times longer than wide.
    """
    from PIL import Image

    prepared = []
    for image in images:
        height, width = image.shape[:2]
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            raise UserError("image", f"an aspect ratio of at most {MAX_ASPECT_RATIO}", f"{width} x {height} pixels")
        picture = Image.fromarray(image)
        if policy.size_px is not None and policy.size_px != picture.size:
            picture = picture.resize(policy.size_px, Image.Resampling.BICUBIC)
        prepared.append(picture)
    batch = image_processor(images=prepared, return_tensors="pt")
    return batch["pixel_values"], batch["image_grid_thw"]
