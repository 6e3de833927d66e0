"""The model's parts against the stock model, which is the oracle here."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from tests.core.doubles import IMAGE, random_inputs, tiny_model
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.positions import answer_positions, prompt_positions
from wamdiff2_core.model.vision import VisionEncoder

IMAGE_SETS = [(), ((2, 4),), ((4, 6),), ((2, 2), (6, 4), (2, 8))]


def stock_positions(model, inputs: ModelInputs) -> torch.Tensor:
    ids = inputs.input_ids[None]
    positions, _ = model.model.get_rope_index(
        ids, mm_token_type_ids=(ids == IMAGE).int(), image_grid_thw=inputs.image_grid_thw
    )
    return positions[:, 0]


def stock_prefill(model, inputs: ModelInputs, allowed: torch.Tensor, positions: torch.Tensor):
    """Hidden states and cache of the stock model over (L,) ids under a (L, L) boolean mask."""
    cache = DynamicCache(config=model.config.get_text_config())
    mask = allowed[None, None]
    if model.config.get_text_config()._attn_implementation == "eager":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        out = model.model(
            input_ids=inputs.input_ids[None], pixel_values=inputs.pixel_values, image_grid_thw=inputs.image_grid_thw,
            mm_token_type_ids=(inputs.input_ids[None] == IMAGE).int(), position_ids=positions[:, None],
            attention_mask=mask, cache=cache,
        )
    return out.last_hidden_state[0], [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def block_causal(prompt: int, answer: int, block_size: int) -> torch.Tensor:
    """[prompt | clean answer] by a plain loop."""
    blocks = [i // block_size for i in range(prompt)]
    blocks += [-(-prompt // block_size) + j // block_size for j in range(answer)]
    return torch.tensor([[key <= query for key in blocks] for query in blocks])


@pytest.mark.parametrize("images", IMAGE_SETS)
def test_positions_equal_the_stock_ones(images):
    model, inputs = tiny_model(), random_inputs(1, 12, images)
    positions = prompt_positions(inputs.input_ids, inputs.image_grid_thw, IMAGE, 2)
    assert torch.equal(positions, stock_positions(model, inputs))
    longer = ModelInputs(
        torch.cat([inputs.input_ids, torch.arange(5)]), inputs.pixel_values, inputs.image_grid_thw
    )
    assert torch.equal(answer_positions(positions, 5), stock_positions(model, longer)[:, -5:])


@pytest.mark.parametrize("images", [*IMAGE_SETS[1:], ((2, 4), (2, 4), (4, 2), (2, 4))])
def test_image_features_equal_the_stock_ones(images):
    model, inputs = tiny_model(), random_inputs(2, 12, images)
    with torch.no_grad():
        tokens, deepstack = VisionEncoder(model.model.visual)(inputs.pixel_values, inputs.image_grid_thw)
        stock = model.model.visual(inputs.pixel_values, grid_thw=inputs.image_grid_thw, return_dict=True)
    torch.testing.assert_close(tokens, stock.pooler_output, atol=1e-5, rtol=1e-5)
    assert len(deepstack) == len(stock.deepstack_features) == 1
    torch.testing.assert_close(deepstack[0], stock.deepstack_features[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("images", IMAGE_SETS)
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_prefill_equals_the_stock_model_under_the_block_causal_mask(attn, images, block_size):
    model, inputs = tiny_model(3, attn), random_inputs(3, 13, images)
    length = len(inputs.input_ids)
    blocks = BlockModel(model)
    with torch.inference_mode():
        last = blocks.prefill([inputs], block_size, 8)
    hidden, cache = stock_prefill(
        model, inputs, block_causal(length, 0, block_size), stock_positions(model, inputs)
    )
    torch.testing.assert_close(last[0], hidden[-1], atol=1e-5, rtol=1e-5)
    for (keys, values), (stock_keys, stock_values) in zip(blocks.backend.columns(0, length), cache, strict=True):
        torch.testing.assert_close(keys[0], stock_keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(values[0], stock_values, atol=1e-5, rtol=1e-5)


def test_the_vocabulary_is_not_projected_for_the_prompt():
    model = tiny_model()
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda module, args, out: rows.append(args[0].shape[:-1].numel()))
    blocks = BlockModel(model)
    with torch.inference_mode():
        blocks.prefill([random_inputs(0, 40)], 8, 8)
        assert rows == []
        blocks.logits(blocks.forward(torch.zeros(1, 8, dtype=torch.long), 0))
    assert rows == [8]


def test_stock_model_keeps_its_state_and_remembers_no_rope_deltas():
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        BlockModel(model).prefill([random_inputs(0, 10, ((2, 4),))], 4, 4)
    assert model.model.rope_deltas is None
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
