"""Backends against `eager`, the reference, which other tests hold against the stock model and the authors' code."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from tests.core.doubles import EOS, MASK, random_inputs, tiny_model
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.serving_record import ServingRecord

GROUPS, CASES = 10, 50
SHAPES = (
    {}, {"num_attention_heads": 2}, {"tie_word_embeddings": False, "num_hidden_layers": 3},
    {"num_attention_heads": 6, "hidden_size": 48, "intermediate_size": 40},
)
STRATEGIES = ("sequential", "low_confidence_static", "low_confidence_dynamic", "autoregressive")


@dataclass(frozen=True)
class Case:
    shape: int
    requests: list[ModelInputs]
    config: DecodeConfig


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    sides = [(2, 2), (2, 4), (4, 4), (4, 6)]
    requests = []
    for row in range(rng.choice((1, 1, 2, 3))):
        images = tuple(rng.choices(sides, k=rng.choice((0, 0, 1, 2))))
        requests.append(random_inputs(1000 * seed + row, rng.randint(4, 30), images))
    size = rng.choice((1, 2, 4, 5, 8, 16, 32))
    strategy = rng.choice(STRATEGIES)
    sampled = rng.random() < 0.1
    config = DecodeConfig(
        size, rng.randint(1, min(size, 8)), strategy, rng.choice((0.05, 0.1, 0.2, 0.4, 0.9)),
        temperature=0.7 if sampled else 0.0, top_k=rng.choice((0, 5)), seed=seed,
        max_new_tokens=rng.randint(1, 8 if strategy == "autoregressive" else 2 * size),
    )
    return Case(rng.randrange(len(SHAPES)), requests, config)


def generator(shape: int, backend: str, eos: int = EOS, dtype: torch.dtype = torch.float32) -> Generator:
    model = tiny_model(20 + shape, gain=2.0, **SHAPES[shape]).to(dtype)
    record = ServingRecord(mask_token_id=MASK, eos_token_id=eos)
    return Generator.of(model, None, record, enforce_record=False, backend=backend)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Generator, Generator]]:
    return [(generator(shape, "eager"), generator(shape, "cpu")) for shape in range(len(SHAPES))]


@pytest.mark.parametrize("group", range(GROUPS))
def test_cpu_gives_the_tokens_of_eager(pairs, group):
    seen: set[int] = set()
    for seed in range(group * CASES, (group + 1) * CASES):
        case = random_case(seed)
        expected, got = (one.generate(case.requests, case.config) for one in pairs[case.shape])
        assert [answer.raw_ids for answer in got] == [answer.raw_ids for answer in expected], seed
        assert [answer.stats.steps for answer in got] == [answer.stats.steps for answer in expected], seed
        seen.update(token for answer in expected for token in answer.raw_ids)
    assert len(seen) > 50
