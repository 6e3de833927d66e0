from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.core.doubles import tiny_config
from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.errors import UserError
from wamdiff2_core.images import make_image_processor, preprocess_images

VISION = tiny_config().vision_config


def image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)


def patches(picture: np.ndarray) -> np.ndarray:
    """Qwen's patch order by plain loops: 2 x 2 patches that merge stand together; a still frame counts twice."""
    height, width, _ = picture.shape
    rows = []
    for top in range(0, height, 32):
        for left in range(0, width, 32):
            for y in (top, top + 16):
                for x in (left, left + 16):
                    patch = picture[y : y + 16, x : x + 16].transpose(2, 0, 1) / 127.5 - 1
                    rows.append(np.stack([patch, patch], 1).ravel())
    return np.array(rows)


def test_an_image_of_whole_patches_is_only_normalised_and_cut():
    policy = ImagePolicy((96, 64), 6144, 6144)
    picture = image(64, 96)
    pixels, grids = preprocess_images([picture], policy, make_image_processor(policy, VISION))
    assert grids.tolist() == [[1, 4, 6]]
    np.testing.assert_allclose(pixels.numpy(), patches(picture), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "policy", "grid"),
    [
        ((900, 1600), ImagePolicy(), [1, 56, 100]),
        ((2160, 3840), ImagePolicy(), [1, 66, 120]),
        ((128, 256), ImagePolicy((256, 128), 32768, 32768), [1, 8, 16]),
        ((20, 20), ImagePolicy(), [1, 8, 8]),
        ((375, 1242), ImagePolicy(max_pixels=100_000), [1, 10, 34]),
    ],
)
def test_sizes_snap_to_whole_patches_within_the_limits(size, policy, grid):
    _, grids = preprocess_images([image(*size)], policy, make_image_processor(policy, VISION))
    assert grids.tolist() == [grid]


def test_the_policy_size_comes_first():
    policy = ImagePolicy((64, 32), 2048, 2048)
    processor = make_image_processor(policy, VISION)
    large, _ = preprocess_images([np.full((320, 640, 3), 200, np.uint8)], policy, processor)
    small, _ = preprocess_images([np.full((32, 64, 3), 200, np.uint8)], policy, processor)
    assert torch.equal(large, small)


@pytest.mark.parametrize(("text", "said"), [
    (b"{", "preprocessor_config.json: expected valid JSON"), (b"[]", "expected a JSON object, got list"),
    (b"\xff", "expected UTF-8 text, got byte 0xff at offset 0"),
    (b'{"image_processor": 1}', "preprocessor_config.json: image_processor: expected a JSON object, got int"),
])
def test_a_broken_processor_file_is_refused_with_its_path(tmp_path, text, said):
    (tmp_path / "preprocessor_config.json").write_bytes(text)
    with pytest.raises(UserError, match=said):
        make_image_processor(ImagePolicy(), VISION, tmp_path)


def test_mean_and_deviation_come_from_the_folder(tmp_path):
    policy = ImagePolicy((32, 32), 1024, 1024)
    white = [np.full((32, 32, 3), 255, np.uint8)]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0, 0, 0], "image_std": [2, 2, 2]}))
    pixels, _ = preprocess_images(white, policy, make_image_processor(policy, VISION, tmp_path))
    assert pixels.unique().tolist() == [0.5]
    pixels, _ = preprocess_images(white, policy, make_image_processor(policy, VISION))
    assert pixels.unique().tolist() == [1.0]


def test_a_strip_is_refused():
    policy = ImagePolicy()
    with pytest.raises(UserError, match="aspect ratio"):
        preprocess_images([image(2, 500)], policy, make_image_processor(policy, VISION))
