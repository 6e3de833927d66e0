"""Several answers to one request: one prompt for all, and each the answer that its own seed gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.doubles import EOS, MASK, random_inputs, tiny_model
from tests.core.engines import ENGINES, engine_generator
from wamdiff2_core.bench.machine import counted_blocks
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel

REQUESTS = [random_inputs(1, 30, ((4, 6),)), random_inputs(2, 9)]
DRAWN = DecodeConfig(8, 5, "low_confidence_dynamic", 0.2, max_new_tokens=24, temperature=0.9, seed=40)


def generator(engine: str) -> Generator:
    return engine_generator(engine, tiny_model(9), MASK, EOS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("requests", [REQUESTS[:1], REQUESTS, [REQUESTS[1]] * 3])
def test_each_candidate_is_the_answer_of_its_own_seed(engine, requests):
    decoder = generator(engine)
    got = decoder.generate(requests, DRAWN, candidates=3)
    alone = [
        decoder.generate([request], replace(DRAWN, seed=40 + index))[0] for request in requests for index in range(3)
    ]
    assert [answer.raw_ids for answer in got] == [answer.raw_ids for answer in alone]
    assert [answer.stats.steps for answer in got] == [answer.stats.steps for answer in alone]
    assert len({answer.raw_ids for answer in got[:3]}) == 3


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_a_prompt_runs_once_whatever_the_number_of_candidates(engine):
    decoder = generator(engine)
    batches, prefill = [], decoder.blocks.backend.prefill

    def noted(batch):
        batches.append(batch.ids.shape)
        return prefill(batch)

    decoder.blocks.backend.prefill = noted
    with counted_blocks(decoder.blocks) as seen:
        answers = decoder.generate(REQUESTS[1:], DRAWN, candidates=4)
    assert batches == [(1, len(REQUESTS[1].input_ids))]
    assert len(seen) == 1 + max(answer.stats.steps for answer in answers)


def test_autoregressive_candidates_share_a_prompt_too():
    decoder = generator("cpu")
    config = replace(DRAWN, strategy="autoregressive", max_new_tokens=12)
    got = decoder.generate(REQUESTS, config, candidates=2)
    alone = [decoder.generate([request], replace(config, seed=seed))[0] for request in REQUESTS for seed in (40, 41)]
    assert [answer.raw_ids for answer in got] == [answer.raw_ids for answer in alone]


def test_the_next_batch_does_not_take_the_prompts_of_candidates_for_its_own():
    checkpoint, plain = generator("cpu"), replace(DRAWN, temperature=0.0)
    checkpoint.blocks = BlockModel(checkpoint.model, "cpu", reuse_prompts=True)
    expected = checkpoint.generate(REQUESTS[:1], plain)[0].raw_ids
    checkpoint.generate(REQUESTS[:1], DRAWN, candidates=2)
    assert checkpoint.blocks.backend.prompt is None
    again = checkpoint.generate(REQUESTS[:1], plain)[0]
    assert again.raw_ids == expected
    assert again.stats.prefill_reused_tokens == 0


@pytest.mark.parametrize(("candidates", "temperature"), [(0, 0.9), (-1, 0.9), (2, 0.0)])
def test_numbers_that_make_no_sense_are_refused(candidates, temperature):
    with pytest.raises(UserError, match=rf"candidates: expected 1 at temperature 0.*got {candidates}"):
        generator("eager").generate(REQUESTS, replace(DRAWN, temperature=temperature), candidates=candidates)
