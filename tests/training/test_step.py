"""The training forward against the stock model, and against what decoding computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.data import TrainingSet
from training.step import (
    ObjectiveConfig,
    answer_logits,
    make_confidence,
    make_loss,
    mask_in_own_order,
    prepare,
    start_of_decoding,
)
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.masks import training_mask
from wamdiff2_core.model.vision import GridTables

MASK, ANSWER = 7, 32


@pytest.fixture
def encoded(codec, small_model, picture_set: Path) -> TrainingSet:
    return TrainingSet.read(picture_set, codec, small_model, answer_tokens=ANSWER)


@pytest.fixture
def geometry(small_model, encoded: TrainingSet) -> GridTables:
    return GridTables.of(small_model.model.visual, encoded.grid_thw)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_logits_equal_the_stock_model_under_the_full_training_mask(small_model, encoded, geometry, size: int) -> None:
    objective = ObjectiveConfig(block_size=size, copies=2)
    batch = encoded.batch([0, 1, 2])
    inputs = prepare(batch, objective, MASK, generator())
    with torch.no_grad():
        ours = answer_logits(small_model, objective, geometry, inputs)
        noisy = inputs.ids[:, -2 * ANSWER :]
        ids = torch.cat([batch.prompt_ids, batch.answer_ids, noisy], 1)
        answers = batch.answer_positions.repeat(1, 3).expand(3, -1, -1)
        valid = torch.cat([batch.prompt_valid, torch.ones_like(batch.answer_ids, dtype=torch.bool)], 1)
        mask = training_mask(batch.prompt_ids.shape[1], ANSWER, size, num_noisy=2, valid=valid)
        stock = small_model(
            input_ids=ids, pixel_values=batch.patches.flatten(0, 1),
            image_grid_thw=torch.tensor([encoded.grid_thw] * 3),
            position_ids=torch.cat([batch.prompt_positions, answers], 2), attention_mask=mask[:, None], use_cache=False,
        ).logits[:, -2 * ANSWER :]
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


def test_upstream_mask_logits_equal_the_stock_model(small_model, encoded, geometry) -> None:
    objective = ObjectiveConfig(block_size=8, copies=1, complementary=False, mask="upstream")
    batch = encoded.batch([0, 1, 2])
    inputs = prepare(batch, objective, MASK, generator())
    valid = torch.cat([batch.prompt_valid, torch.ones_like(batch.answer_ids, dtype=torch.bool)], 1)
    mask = training_mask(batch.prompt_ids.shape[1], ANSWER, 8, "upstream", valid=valid)
    with torch.no_grad():
        ours = answer_logits(small_model, objective, geometry, inputs)
        stock = small_model(
            input_ids=inputs.ids, pixel_values=batch.patches.flatten(0, 1),
            image_grid_thw=torch.tensor([encoded.grid_thw] * 3), position_ids=inputs.positions,
            attention_mask=mask[:, None], use_cache=False,
        ).logits[:, -ANSWER:]
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


def test_autoregressive_logits_equal_the_stock_causal_model(small_model, encoded, geometry) -> None:
    objective = ObjectiveConfig(kind="autoregressive")
    batch = encoded.batch([1])  # the longest prompt: no padding, so that the stock causal mask applies
    inputs = prepare(batch, objective, MASK)
    with torch.no_grad():
        ours = answer_logits(small_model, objective, geometry, inputs)
        stock = small_model(
            input_ids=inputs.ids, pixel_values=batch.patches[0], image_grid_thw=torch.tensor([encoded.grid_thw]),
            mm_token_type_ids=(inputs.ids == small_model.config.image_token_id).int(), use_cache=False,
        ).logits[:, batch.prompt_ids.shape[1] - 1 : -1]
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [4, 16, 32])
def test_training_sees_what_decoding_sees_in_every_block(codec, small_model, encoded, geometry, size: int) -> None:
    """Each block, all masked, after clean earlier blocks: the decoder's first-step logits of that block."""
    objective = ObjectiveConfig(block_size=size, copies=1, full_share=1.0)
    batch = encoded.batch([0, 1, 2])
    inputs = prepare(batch, objective, MASK, generator())
    samples = encoded.samples
    requests = [codec.encode(ChatRequest(sample.prompt, (read_rgb(sample.images[0]),))) for sample in samples]
    masks = torch.full((3, size), MASK)
    with torch.inference_mode():
        training = answer_logits(small_model, objective, geometry, inputs)
        model = BlockModel(small_model)
        model.prefill(requests, size, ANSWER)
        served = [model.forward(masks, 0)]
        for start in range(size, ANSWER, size):
            done = batch.answer_ids[:, start - size : start]
            served.append(model.forward(torch.cat([done, masks], 1), start - size, commit=size))
        decoding = model.logits(torch.cat(served, 1))
    torch.testing.assert_close(training, decoding, rtol=1e-4, atol=1e-4)


def test_padding_of_a_prompt_does_not_change_its_loss(codec, small_model, geometry, picture_set: Path) -> None:
    narrow = TrainingSet.read(picture_set, codec, small_model, answer_tokens=ANSWER)
    wide = TrainingSet.read(picture_set, codec, small_model, answer_tokens=ANSWER,
                            prompt_tokens=narrow.prompt_ids.shape[1] + 13)
    objective = ObjectiveConfig(block_size=8)
    loss = make_loss(small_model, objective, geometry, compiled=False)
    with torch.no_grad():
        values = [loss(prepare(data.batch([0, 1, 2]), objective, MASK, generator())) for data in (narrow, wide)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)


def test_a_noisy_copy_does_not_see_the_other_copy(small_model, encoded, geometry) -> None:
    objective = ObjectiveConfig(block_size=8, copies=2)
    inputs = prepare(encoded.batch([0]), objective, MASK, generator())
    changed = inputs.ids.clone()
    changed[:, -ANSWER:] = 100
    with torch.no_grad():
        before = answer_logits(small_model, objective, geometry, inputs)[:, :ANSWER]
        after = answer_logits(small_model, objective, geometry, replace(inputs, ids=changed))[:, :ANSWER]
    assert torch.equal(before, after)


def test_wrong_objectives_are_refused() -> None:
    with pytest.raises(UserError, match="copies"):
        ObjectiveConfig(mask="upstream", copies=2)
    with pytest.raises(UserError, match="block_size"):
        ObjectiveConfig(block_size=0)
    with pytest.raises(UserError, match="full_share"):
        ObjectiveConfig(full_share=1.5)


def test_own_order_masks_every_second_copy_where_the_model_is_least_sure(small_model, encoded, geometry) -> None:
    objective = ObjectiveConfig(block_size=16, copies=2, own_order=True)
    inputs = prepare(encoded.batch([0, 1, 2]), objective, MASK, generator())
    confidence = make_confidence(small_model, objective, geometry, compiled=False)
    sure = confidence(start_of_decoding(inputs, ANSWER, MASK))
    full = prepare(encoded.batch([0, 1, 2]), ObjectiveConfig(block_size=16, copies=1, full_share=1.0), MASK)
    torch.testing.assert_close(sure, confidence(full))

    ordered = mask_in_own_order(inputs, sure, 16, MASK, generator(1))
    first, second = ordered.ids[:, -2 * ANSWER :].view(3, 2, ANSWER).unbind(1)
    assert torch.equal(first, inputs.ids[:, -2 * ANSWER : -ANSWER])
    masked = second == MASK
    assert torch.equal(second[~masked], inputs.labels[:, :ANSWER][~masked])
    trained = torch.arange(ANSWER) < inputs.padded_lengths[:, None]
    assert torch.equal(ordered.counted[:, ANSWER:], masked & trained)
    assert sure[masked].mean() < sure[~masked].mean()
