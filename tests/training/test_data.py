"""Encoded sets hold what serving would see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training.data import TrainingSet, image_patches
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import DatasetWriter, read_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.positions import answer_positions, prompt_positions


def test_ids_positions_and_pixels_equal_those_of_serving(codec, small_model, picture_set: Path) -> None:
    encoded = TrainingSet.read(picture_set, codec, small_model, answer_tokens=32)
    batch = encoded.batch([0, 1, 2])
    for row, sample in enumerate(read_dataset(picture_set)):
        served = codec.encode(ChatRequest(sample.prompt, (read_rgb(sample.images[0]),)))
        length = len(served.input_ids)
        own = prompt_positions(
            served.input_ids, served.image_grid_thw, small_model.config.image_token_id,
            small_model.config.vision_config.spatial_merge_size,
        )
        assert torch.equal(batch.prompt_ids[row, -length:], served.input_ids)
        assert batch.prompt_valid[row].sum() == length
        assert torch.equal(batch.prompt_positions[:, row, -length:], own)
        assert torch.equal(batch.answer_positions[row].expand(3, -1), answer_positions(own, 32).view(3, 32))
        torch.testing.assert_close(batch.patches[row], served.pixel_values, rtol=0, atol=1e-6)
        slots = batch.image_slots[row]
        assert (batch.prompt_ids[row, slots] == small_model.config.image_token_id).all()


def test_answers_end_with_eos_and_are_padded_with_it(codec, small_model, text_set: Path) -> None:
    encoded = TrainingSet.read(text_set, codec, small_model, answer_tokens=32)
    for row, sample in enumerate(encoded.samples):
        length = int(encoded.answer_lengths[row])
        assert codec.decode(encoded.answer_ids[row, : length - 1].tolist()) == sample.answer
        assert (encoded.answer_ids[row, length - 1 :] == codec.eos_token_id).all()


def test_answers_too_long_are_dropped_and_counted(codec, small_model, text_set: Path) -> None:
    encoded = TrainingSet.read(text_set, codec, small_model, answer_tokens=12)
    assert encoded.dropped == 1
    assert [sample.answer for sample in encoded.samples] == ["1.0,2.0", "3.3"]


def test_wrong_image_rows_change_the_pixels_only(codec, small_model, picture_set: Path) -> None:
    encoded = TrainingSet.read(picture_set, codec, small_model, answer_tokens=32)
    right, wrong = encoded.batch([0, 1]), encoded.batch([0, 1], image_rows=[1, 2])
    assert torch.equal(right.prompt_ids, wrong.prompt_ids)
    assert torch.equal(right.patches[1], wrong.patches[0])
    assert not torch.equal(right.patches, wrong.patches)


def test_a_file_that_mixes_samples_with_and_without_images_is_refused(codec, small_model, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "Go.", "1.0")
        writer.add("b", "<image> Go.", "1.0", [np.zeros((32, 64, 3), np.uint8)])
    with pytest.raises(UserError, match="split the file"):
        TrainingSet.read(tmp_path / "samples.jsonl", codec, small_model, answer_tokens=32)


def test_patches_equal_those_of_qwens_image_processor(codec) -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (64, 128, 3), dtype=np.uint8)
    processor = codec.image_processor
    expected = processor(images=[rgb], return_tensors="pt", do_resize=False)["pixel_values"]
    np.testing.assert_allclose(image_patches(rgb, 16), expected.numpy(), atol=1e-6)
