from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.core.doubles import MASK, random_inputs, tiny_model
from wamdiff2_core.chat import ChatRequest, ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord

NO_EOS = 100_000  # beyond the vocabulary: never emitted
ROPE_12 = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 2, 2], "mrope_interleaved": True}
SHAPES = [
    {},
    {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 12, "hidden_size": 48, "rope_parameters": ROPE_12,
     "tie_word_embeddings": False},
    {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},
]
IMAGE_SETS = [(), ((4, 4),), ((2, 4), (6, 2), (2, 2))]
CONFIG = DecodeConfig(strategy="autoregressive", max_new_tokens=24)


def generator(model, eos: int = NO_EOS) -> Generator:
    ids = ServingRecord(mask_token_id=MASK, eos_token_id=eos)
    return Generator.of(model, None, ids, enforce_record=False)


def hugging_face(model, inputs: ModelInputs, eos: int, count: int) -> list[int]:
    """New ids of greedy `generate`, EOS included."""
    ids, image = inputs.input_ids[None], model.config.image_token_id
    images = {}
    if inputs.pixel_values is not None:
        images = {
            "pixel_values": inputs.pixel_values, "image_grid_thw": inputs.image_grid_thw,
            "mm_token_type_ids": (ids == image).int(),
        }
    model.model.rope_deltas = None
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=eos,
        pad_token_id=eos, **images,
    )
    return out[0, len(inputs.input_ids) :].tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("images", IMAGE_SETS)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_greedy_decoding_equals_hugging_face_generate(shape, images, attn):
    model = tiny_model(3, attn, gain=3, **shape)
    for seed in range(2):
        inputs = random_inputs(seed, 11 + seed, images)
        expected = hugging_face(model, inputs, NO_EOS, CONFIG.max_new_tokens)
        assert len(set(expected)) > 2
        answer = generator(model).generate([inputs], CONFIG)[0]
        assert list(answer.raw_ids) == expected
        assert answer.stats.forwards == answer.stats.steps == CONFIG.max_new_tokens


def test_eos_ends_an_answer_as_in_generate():
    model, inputs = tiny_model(3, gain=3), random_inputs(0, 11)
    free = hugging_face(model, inputs, NO_EOS, CONFIG.max_new_tokens)
    for index in (0, 5):
        eos = free[index]
        expected = hugging_face(model, inputs, eos, CONFIG.max_new_tokens)
        answer = generator(model, eos).generate([inputs], CONFIG)[0]
        assert [*answer.token_ids, eos] == expected
        assert answer.raw_ids == (*expected, *[eos] * (CONFIG.max_new_tokens - len(expected)))
        assert answer.ended
        assert answer.stats.tokens == answer.stats.forwards == len(expected)


def test_a_batch_of_unequal_prompts_equals_the_singles():
    model = tiny_model(4, gain=3)
    requests = [random_inputs(seed, 5 + 4 * seed, images) for seed, images in enumerate(IMAGE_SETS)]
    eos = generator(model).generate(requests[:1], CONFIG)[0].raw_ids[7]
    together = generator(model, eos).generate(requests, CONFIG)
    singles = [generator(model, eos).generate([request], CONFIG)[0] for request in requests]
    assert [answer.raw_ids for answer in together] == [answer.raw_ids for answer in singles]
    assert [answer.stats.steps for answer in together] == [answer.stats.steps for answer in singles]


def test_blocks_of_one_token_are_another_convention():
    model = tiny_model(5, gain=3)
    decoder = generator(model)
    inputs = random_inputs(1, 11)
    shifted = decoder.generate([inputs], CONFIG)[0].raw_ids
    aligned = decoder.generate([inputs], DecodeConfig(1, 1, max_new_tokens=24))[0].raw_ids
    assert shifted != aligned


@pytest.mark.parametrize("images", [0, 1, 3])
def test_the_shipped_checkpoint_decodes_as_generate_does(nano_folder, images):
    checkpoint = load_checkpoint(nano_folder)
    rng = np.random.default_rng(images)
    pictures = tuple(rng.integers(0, 255, (128, 256, 3), dtype=np.uint8) for _ in range(images))
    inputs = checkpoint.chat.encode(ChatRequest("What now? " + "<image>" * images, pictures))
    expected = hugging_face(checkpoint.model, inputs, checkpoint.eos_token_id, CONFIG.max_new_tokens)
    answer = Generator(checkpoint, enforce_record=False).generate([inputs], CONFIG)[0]
    assert list(answer.raw_ids[: len(expected)]) == expected
    assert answer.stats.tokens == len(expected)
