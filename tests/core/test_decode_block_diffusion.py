from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.core.brute_force import brute_force
from tests.core.doubles import MASK, random_inputs, tiny_model
from tests.core.engines import ENGINES, engine_generator
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord

CASES = range(10)
STRATEGIES = ["sequential", "low_confidence_static", "low_confidence_dynamic"]
NO_EOS = 100_000  # beyond the vocabulary: never emitted


def generator(seed: int = 0, attn: str = "sdpa", mask: int = MASK, eos: int = NO_EOS, record=None) -> Generator:
    ids = ServingRecord(mask_token_id=mask, eos_token_id=eos)
    return Generator.of(tiny_model(seed, attn), None, record or ids, enforce_record=record is not None)


def one(decoder: Generator, inputs: ModelInputs, config: DecodeConfig) -> Generation:
    return decoder.generate([inputs], config)[0]


@pytest.fixture(scope="module", params=ENGINES)
def authors(request, shared_data: Path) -> SimpleNamespace:
    folder = shared_data / "upstream"
    data = json.loads((folder / "decode_cases.json").read_text())
    assert len(data["cases"]) == len(CASES)
    ids = {"mask_token_id": data["mask_token_id"], "eos_token_id": data["eos_token_id"]}
    checkpoint = load_checkpoint(folder / "tiny_wam_diff2", require_tokenizer=False, **ids)
    decoder = engine_generator(request.param, checkpoint.model, data["mask_token_id"], data["eos_token_id"])
    return SimpleNamespace(cases=data["cases"], pixels=np.load(folder / "decode_pixels.npz"), generator=decoder)


@pytest.mark.parametrize("case", CASES)
def test_raw_ids_equal_the_authors(authors, case):
    data = authors.cases[case]
    images = {}
    if data["images"]:
        images = {
            "pixel_values": torch.from_numpy(authors.pixels[f"pixels_{case}"]),
            "image_grid_thw": torch.from_numpy(authors.pixels[f"grid_{case}"]),
        }
    config = DecodeConfig(
        block_size=data["block_size"], denoising_steps=data["denoising_steps"], strategy=data["remasking_strategy"],
        confidence_threshold=data["confidence_threshold"], max_new_tokens=data["max_new_tokens"],
    )
    answer = one(authors.generator, ModelInputs(torch.tensor(data["prompt_ids"]), **images), config)
    assert list(answer.raw_ids) == data["output_ids"]


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("size", "steps", "threshold", "images"),
    [
        (4, 4, 0.3, ()), (8, 3, 0.2, ((2, 4),)), (7, 7, 0.15, ((4, 4), (2, 6))), (1, 5, 0.9, ()),
        (16, 16, 0.1, ((2, 2),)),
    ],
)
def test_cached_decoding_equals_brute_force(attn, strategy, size, steps, threshold, images):
    decoder, inputs = generator(5, attn), random_inputs(size + 20, 13, images)
    config = DecodeConfig(size, steps, strategy, threshold, max_new_tokens=max(12, 2 * size + 1))
    expected = brute_force(decoder.model, inputs, config, MASK, NO_EOS)
    assert len(set(expected)) > 1
    assert list(one(decoder, inputs, config).raw_ids) == expected


def test_a_row_that_ends_early_leaves_its_neighbours_alone():
    requests = [random_inputs(seed, 7 + seed) for seed in range(4)]
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.3, max_new_tokens=20)
    free = generator(7).generate(requests, config)
    eos = free[0].raw_ids[5]
    together = generator(7, eos=eos).generate(requests, config)
    singles = [one(generator(7, eos=eos), request, config) for request in requests]
    assert [answer.raw_ids for answer in together] == [answer.raw_ids for answer in singles]
    assert together[0].ended
    assert together[0].stats.blocks < max(answer.stats.blocks for answer in together)


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_answer_is_cut_at_the_first_eos_and_stops_after_its_block(place):
    size, found = 4, 0
    config = DecodeConfig(size, size, "low_confidence_static", max_new_tokens=5 * size)
    for seed in range(40):
        inputs = random_inputs(seed, 9)
        free = one(generator(8), inputs, config).raw_ids
        for block in range(1, 4):
            index = block * size + (0 if place == "first" else size - 1)
            eos = free[index]
            if eos in free[:index]:
                continue
            found += 1
            answer = one(generator(8, eos=eos), inputs, config)
            assert answer.token_ids == free[:index]
            assert answer.raw_ids == free[: (block + 1) * size] + (eos,) * (4 - block) * size
            assert answer.ended
            assert answer.stats.blocks == block + 1
            assert answer.stats.tokens == index + 1
            assert answer.stats.forwards == 1 + (block + 1) * size
        if found >= 3:
            return
    pytest.fail("no random answer had a new token there")


def test_eos_as_the_very_first_token_is_an_empty_answer():
    config = DecodeConfig(4, 4, "sequential", max_new_tokens=16)
    inputs = random_inputs(1, 9)
    eos = one(generator(8), inputs, config).raw_ids[0]
    answer = one(generator(8, eos=eos), inputs, config)
    assert answer.token_ids == ()
    assert answer.raw_ids[4:] == (eos,) * 12
    assert answer.stats.forwards == 5


def test_without_eos_an_answer_fills_whole_blocks():
    config = DecodeConfig(8, 8, "low_confidence_static", max_new_tokens=17)
    answer = one(generator(8), random_inputs(1, 9), config)
    assert not answer.ended
    assert answer.token_ids == answer.raw_ids
    assert len(answer.raw_ids) == 24
    assert answer.stats.steps == 24
    assert answer.stats.forwards == 25


def test_forwards_are_one_prefill_and_one_for_each_step():
    decoder = generator(9)
    calls: list[int] = []
    layer = decoder.model.model.language_model.layers[0]
    layer.register_forward_hook(lambda module, args, out: calls.append(1))
    for strategy in STRATEGIES:
        calls.clear()
        answer = one(decoder, random_inputs(1, 12), DecodeConfig(8, 5, strategy, 0.2, max_new_tokens=24))
        assert len(calls) == answer.stats.forwards == 1 + answer.stats.steps
        assert answer.stats.steps <= 3 * 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_mask_id_is_never_emitted_even_when_the_model_prefers_it(strategy, temperature):
    config = DecodeConfig(8, 8, strategy, 0.2, temperature=temperature, max_new_tokens=24)
    inputs = random_inputs(2, 10)
    decoder = generator(10)
    favourite = max(one(decoder, inputs, config).raw_ids, key=one(decoder, inputs, config).raw_ids.count)
    decoder = generator(10, mask=favourite)
    with torch.no_grad():  # a head that always prefers the mask token
        decoder.model.lm_head.register_forward_hook(
            lambda module, args, out: out.index_fill(-1, torch.tensor([favourite]), 1e4)
        )
    answer = one(decoder, inputs, config)
    assert favourite not in answer.raw_ids
    assert answer.stats.steps <= 24


def test_the_seed_decides_sampled_answers():
    config = DecodeConfig(8, 8, "sequential", temperature=1.0, max_new_tokens=24)
    inputs = random_inputs(1, 9)
    answers = [one(generator(13), inputs, replace(config, seed=seed)).raw_ids for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_sampling_among_one_candidate_is_greedy():
    config = DecodeConfig(8, 8, "sequential", max_new_tokens=24)
    inputs = random_inputs(1, 9)
    greedy = one(generator(13), inputs, config).raw_ids
    assert one(generator(13), inputs, replace(config, temperature=1.0, top_k=1)).raw_ids == greedy


def test_prompts_that_do_not_fit_are_refused():
    decoder = generator()
    with pytest.raises(UserError, match="max_new_tokens"):
        one(decoder, random_inputs(1, 4090), DecodeConfig(8, max_new_tokens=1))
    with pytest.raises(UserError, match="input_ids"):
        one(decoder, ModelInputs(torch.tensor([], dtype=torch.long)), DecodeConfig(8))
    assert decoder.generate([], DecodeConfig(8)) == []
