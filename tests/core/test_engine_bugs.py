"""The fifteen kinds of bugs that engines for block diffusion have had in public, each as a property of ours.

They are reported against paged and shared caches, CUDA graphs and batching; here is what each means for a backend with
keys and values of its own in place. Every property holds for every engine of `tests/core/engines.py`: the backends that
run on this machine, those for accelerators on stand-ins, and prompts that are reused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.core.brute_force import brute_force, logits_of_block
from tests.core.doubles import EOS, MASK, random_inputs, tiny_model
from tests.core.engines import (
    ENGINES,
    each_forward,
    engine_blocks,
    engine_generator,
    held_memory,
    idle_replays,
    make_engine,
)
from tests.core.test_block_model import block_causal, stock_positions, stock_prefill
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import packed, step_mask
from wamdiff2_core.model.masks import as_attention_mask
from wamdiff2_core.serving_record import ServingRecord

NO_EOS = 100_000  # beyond the vocabulary: never emitted
DYNAMIC = DecodeConfig(8, 8, "low_confidence_dynamic", 0.2, max_new_tokens=24)
STRATEGIES = ("sequential", "low_confidence_static", "low_confidence_dynamic")
REQUESTS = (
    random_inputs(1, 30, ((4, 6), (2, 4))), random_inputs(2, 9), random_inputs(3, 20, ((2, 8),)), random_inputs(4, 4),
)


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return str(request.param)


def generator(engine: str, seed: int = 12, eos: int = NO_EOS, record: ServingRecord | None = None) -> Generator:
    return engine_generator(engine, tiny_model(seed), MASK, eos, record)


def one(decoder: Generator, inputs: ModelInputs, config: DecodeConfig = DYNAMIC) -> Generation:
    return decoder.generate([inputs], config, trace=True)[0]


def same_as_eager(answer: Generation, expected: Generation) -> None:
    assert answer.raw_ids == expected.raw_ids
    assert answer.trace.fixed_at == expected.trace.fixed_at
    np.testing.assert_allclose(answer.trace.confidence, expected.trace.confidence, rtol=1e-3)


class AbortedError(Exception):
    pass


def abort_at(decoder: Generator, forward: int, inputs: ModelInputs, config: DecodeConfig) -> None:
    """Begin a request and drop it behind its n-th forward after the prompt."""
    calls = []

    def failing(tokens: int) -> None:
        calls.append(tokens)
        if len(calls) > forward:
            raise AbortedError

    with each_forward(decoder.blocks.backend, failing), pytest.raises(AbortedError):
        decoder.generate([inputs], config)


def test_bug_01_a_block_that_was_never_committed_is_never_seen_by_another_request(engine):
    used, config = generator(engine), replace(DYNAMIC, strategy="sequential")
    expected = one(generator(engine), REQUESTS[1], config)
    abort_at(used, 11, REQUESTS[1], config)  # the second block has its masks' keys and values in the cache
    again = one(used, REQUESTS[1], config)
    assert again.raw_ids == expected.raw_ids
    assert again.trace == expected.trace
    # a conversation goes on: prompts begin with whole blocks of the last prompt and answer, and with half of a block
    opening = random_inputs(5, 16)
    said = one(used, opening, config).raw_ids
    for more in ([1, 2, 3], [1, 2, 30, 31, 32]):
        longer = ModelInputs(torch.cat([opening.input_ids, torch.tensor([*said, *more])]))
        same_as_eager(one(used, longer, config), one(generator("eager"), longer, config))


def test_bug_02_a_request_dropped_at_any_step_costs_no_memory_and_changes_nothing(engine):
    used, config = generator(engine), replace(DYNAMIC, denoising_steps=2, strategy="low_confidence_static")
    for inputs, changes in ((REQUESTS[1], {"strategy": "low_confidence_dynamic"}), (REQUESTS[2], {})):
        asked, forwards = replace(config, **changes), []
        expected = one(used, inputs, asked)
        with each_forward(used.blocks.backend, forwards.append):
            one(used, inputs, asked)
        held = held_memory(used.blocks)
        for forward in range(len(forwards)):
            abort_at(used, forward, inputs, asked)
            again = one(used, inputs, asked)
            assert again.raw_ids == expected.raw_ids
            assert again.trace == expected.trace
            assert held_memory(used.blocks) == held


def test_bug_03_a_mask_token_in_the_prompt_stays_put(engine):
    decoder = generator(engine, 9)
    inputs = random_inputs(3, 12)
    inputs.input_ids[[5, 6, 11]] = MASK
    before = inputs.input_ids.clone()
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.3, max_new_tokens=12)
    answer = one(decoder, inputs, config)
    assert torch.equal(inputs.input_ids, before)
    assert list(answer.raw_ids) == brute_force(decoder.model, inputs, config, MASK, NO_EOS)
    for ids in (torch.where(before == MASK, 7, before), before[before != MASK]):
        other = ModelInputs(ids)
        expected = brute_force(decoder.model, other, config, MASK, NO_EOS)
        assert list(one(decoder, other, config).raw_ids) == expected != list(answer.raw_ids)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("images", [(), ((2, 4), (4, 4))])
def test_bug_04_keys_and_values_of_a_committed_block_are_those_of_its_final_tokens(engine, attn, images):
    model, inputs, size = tiny_model(4, attn), random_inputs(4, 11, images), 4
    prompt, committed = len(inputs.input_ids), len(inputs.input_ids) + 2 * size
    decoder = engine_generator(engine, model, MASK, NO_EOS)
    answer = one(decoder, inputs, DecodeConfig(size, size, "low_confidence_static", max_new_tokens=3 * size))

    def fresh(tokens: list[int]) -> list[torch.Tensor]:
        whole = ModelInputs(
            torch.cat([inputs.input_ids, torch.tensor(tokens)]), inputs.pixel_values, inputs.image_grid_thw
        )
        allowed = block_causal(prompt, len(tokens), size)
        _, cache = stock_prefill(model, whole, allowed, stock_positions(model, whole))
        return [part[:, :committed] for layer in cache for part in layer]

    final = fresh(list(answer.raw_ids))
    drafts = fresh([  # what the last step of each block saw
        MASK if step == size - 1 else token
        for token, step in zip(answer.raw_ids, answer.trace.fixed_at, strict=True)
    ])
    with torch.inference_mode():
        found = [part[0].clone() for layer in decoder.blocks.backend.columns(0, committed) for part in layer]
    for part, expected, draft in zip(found, final, drafts, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=0)
        assert (draft - expected)[:, prompt:].abs().max() > 1e-3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bug_05_the_cache_is_exact_answers_are_those_without_one(engine, strategy):
    decoder, config = generator(engine, 5), replace(DYNAMIC, strategy=strategy, denoising_steps=5)
    expected = brute_force(decoder.model, REQUESTS[2], config, MASK, NO_EOS)
    assert len(set(expected)) > 1
    assert list(one(decoder, REQUESTS[2], config).raw_ids) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_bug_06_a_batch_equals_the_singles_whether_prompts_are_of_one_length_or_not(engine, strategy, temperature):
    config = DecodeConfig(
        8, 8, strategy, 0.2, temperature=temperature, top_k=20, top_p=0.9, seed=3, max_new_tokens=24
    )
    batched, alone = generator(engine, 6), generator(engine, 6)
    for requests in (REQUESTS, [REQUESTS[1], random_inputs(5, 9)]):
        for request, answer in zip(requests, batched.generate(requests, config), strict=True):
            single = alone.generate([request], config)[0]
            assert answer.raw_ids == single.raw_ids
            assert answer.stats.steps == single.stats.steps


def test_bug_07_buffers_of_longer_and_wider_requests_leave_no_trace(engine):
    eos = 204  # ends one of these answers, in its second block
    used, eager, ended = generator(engine, eos=eos), generator("eager", eos=eos), []
    for rows, length in ((1, 40), (2, 40), (4, 40), (2, 40), (3, 300)):  # 300: accelerators' next bucket of columns
        requests = REQUESTS[-rows:]
        used.generate([random_inputs(length, length)] * rows, DYNAMIC)
        expected = eager.generate(requests, DYNAMIC, trace=True)
        for answer, other in zip(used.generate(requests, DYNAMIC, trace=True), expected, strict=True):
            same_as_eager(answer, other)
            ended.append(answer.ended)
    assert ended.count(True) == 4


def test_bug_08_leftovers_in_a_reused_buffer_change_no_bit(engine):
    """Not even those of a request whose numbers overflowed: its keys and values are NaN in every column."""
    used = generator(engine)
    overflowed = random_inputs(9, 60, ((4, 6),))
    overflowed.pixel_values[:] = torch.nan
    for rows in (1, 2):
        clean = used.generate(REQUESTS[1:2] * rows, DYNAMIC, trace=True)
        used.generate([overflowed] * rows, replace(DYNAMIC, max_new_tokens=48))
        again = used.generate(REQUESTS[1:2] * rows, DYNAMIC, trace=True)
        assert [(answer.raw_ids, answer.trace) for answer in again] == [(a.raw_ids, a.trace) for a in clean]


def test_bug_09_positions_are_those_of_the_request_whatever_came_before(engine):
    used, images, text = generator(engine), REQUESTS[0], REQUESTS[1]
    config = replace(DYNAMIC, max_new_tokens=16)
    for inputs in (images, text, images):
        expected = brute_force(used.model, inputs, config, MASK, NO_EOS)
        assert list(one(used, inputs, config).raw_ids) == expected


@pytest.mark.parametrize("place", [0, 3, None])
def test_bug_10_an_answer_ends_at_its_first_eos_and_whole_blocks_fit_beside_the_prompt(engine, place):
    """Nothing is run behind the block of that EOS, and one in the prompt ends nothing."""
    size, config = 4, DecodeConfig(4, 4, "low_confidence_static", max_new_tokens=13)
    free, index = one(generator(engine, 8), REQUESTS[1], config).raw_ids, None
    assert len(free) == 16
    if place is not None:
        index = next(i for i in range(place, 12, size) if free[i] not in free[:i])
    asked = int(REQUESTS[1].input_ids[-1])
    assert asked not in free
    eos = asked if index is None else free[index]
    ending, forwards = generator(engine, 8, eos), []
    with each_forward(ending.blocks.backend, forwards.append):
        answer = one(ending, REQUESTS[1], config)
    blocks = 4 if index is None else index // size + 1
    assert answer.token_ids == free[:index]
    assert answer.ended == (index is not None)
    assert answer.raw_ids == free[: blocks * size] + (eos,) * (16 - blocks * size)
    assert answer.stats.forwards == 1 + blocks * size
    assert blocks * size <= len(forwards) <= blocks * size + idle_replays(engine, config, blocks)
    # prompt and 13 tokens fit, their last block does not
    with pytest.raises(UserError, match=r"max_new_tokens: .* within 4096 tokens, got 4083 \+ 16"):
        one(generator(engine, 8), random_inputs(1, 4096 - 13), config)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bug_11_ties_go_to_the_lowest_token_and_place_and_neighbours_do_not_matter(engine, strategy, monkeypatch):
    monkeypatch.setattr(packed, "HEAD_CHUNK", 100)  # twins are in two of them
    model = tiny_model(3, tie_word_embeddings=False, vocab_size=1100)
    with torch.no_grad():
        model.lm_head.weight[550:] = model.lm_head.weight[:550]  # every token has a twin with a higher id
    config = replace(DYNAMIC, strategy=strategy, denoising_steps=5)
    decoder = engine_generator(engine, model, MASK, NO_EOS)
    together = decoder.generate(REQUESTS, config, trace=True)
    assert len({token for answer in together for token in answer.raw_ids}) > 8
    for request, answer in zip(REQUESTS, together, strict=True):
        assert max(answer.raw_ids) < 550
        assert list(answer.raw_ids) == brute_force(model, request, config, MASK, NO_EOS)
        same_as_eager(one(decoder, request, config), answer)
        first = logits_of_block(model, request, [MASK] * 8, 8)
        first[:, MASK] = -torch.inf
        likely = first.double().softmax(-1).amax(-1)
        sure = {place for place, step in enumerate(answer.trace.fixed_at[:8]) if step == 0}
        np.testing.assert_allclose(
            [answer.trace.confidence[place] for place in sure], likely[list(sure)], rtol=1e-4
        )
    with torch.no_grad():
        model.lm_head.weight.zero_()  # all tokens of all places are as good as each other
    even = one(engine_generator(engine, model, 0, NO_EOS), REQUESTS[1], config)
    assert set(even.raw_ids) == {1}
    one_each = [0, 1, 2, 3, 4, 4, 4, 4]  # and in the last step what is left
    assert even.trace.fixed_at == tuple(
        one_each if strategy == "low_confidence_dynamic" else [0, 0, 1, 1, 2, 2, 3, 4]
    ) * 3


@pytest.mark.parametrize("engine", ["eager", "cpu", "cpu-operators", "cuda"])  # the others have one of their heads
def test_bug_11_probabilities_are_summed_in_float32_whatever_the_weights_are_in(engine):
    model = tiny_model(3, vocab_size=1100).to(torch.bfloat16)
    backend = make_engine(engine, model)
    hidden = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(backend.dtype)
    open_ = torch.ones(2, 8, dtype=torch.bool)
    with torch.inference_mode():
        logits = backend.logits(hidden)
        _, probabilities = backend.pick(hidden, open_, MASK)
        assert logits.dtype == probabilities.dtype == torch.float32
        logits[..., MASK] = -torch.inf
    torch.testing.assert_close(probabilities.double(), logits.double().softmax(-1).amax(-1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("left", [1, 7, 40])
def test_bug_12_padding_on_the_left_changes_nothing(engine, left):
    decoder, config = generator(engine, 13), replace(DYNAMIC, block_size=4, denoising_steps=4)
    longer = random_inputs(5, 9 + left)
    padded, _ = decoder.generate([REQUESTS[1], longer], config)
    alone = decoder.generate([REQUESTS[1]], config)[0]
    assert padded.raw_ids == alone.raw_ids
    both, single = (engine_blocks(engine, decoder.model) for _ in range(2))
    with torch.inference_mode():
        both.prefill([REQUESTS[1], longer], 4, 8)
        single.prefill([REQUESTS[1]], 4, 8)
        ids = torch.arange(8)[None]
        hidden = both.forward(ids.repeat(2, 1), 0, commit=4)[:1]
        torch.testing.assert_close(hidden, single.forward(ids, 0, commit=4), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bug_13_every_step_fixes_a_token_and_no_block_takes_more_than_its_steps(engine, strategy):
    decoder = generator(engine)
    for size, steps in product((1, 3, 8, 32), (1, 2, 5, 12, 40)):
        counts = schedule(size, steps)
        assert sum(counts) == size
        assert len(counts) == min(size, steps)
        answer = one(decoder, REQUESTS[1], DecodeConfig(size, steps, strategy, 1.0, max_new_tokens=size))
        fixed = Counter(answer.trace.fixed_at)
        assert set(fixed) == set(range(answer.stats.steps))
        assert answer.stats.steps <= len(counts)
        assert MASK not in answer.raw_ids
        if strategy != "low_confidence_dynamic":
            assert [fixed[step] for step in range(len(counts))] == counts
            assert max(counts) <= min(counts) + 1


def test_bug_14_a_mask_hides_what_it_says_and_nothing_else(engine):
    padding = torch.tensor([[False, True], [True, True]])
    allowed = step_mask(8, 2, 4, 2, padding, torch.device("cpu"))
    commits, others = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]
    expected = torch.tensor([[commits] * 2 + [others] * 2] * 2, dtype=torch.bool)
    expected[0, :, 0] = False
    assert torch.equal(allowed, expected)
    assert torch.equal(step_mask(8, torch.tensor(2), 4, 2, padding, torch.device("cpu")), expected)
    added = as_attention_mask(allowed, torch.float32, "eager")
    assert torch.equal(added[:, 0] == 0, expected)
    blocks, states = engine_blocks(engine, tiny_model(4)), []
    with torch.inference_mode():
        for draft in (5, 6):
            blocks.prefill([REQUESTS[1]], 4, 8)
            hidden = blocks.forward(torch.tensor([[1, 2, 3, 4, *[draft] * 4]]), 0, commit=4)
            kept = [torch.cat([keys, values]) for keys, values in blocks.backend.columns(9, 13)]
            states.append((hidden.clone(), torch.stack(kept)))
    assert torch.equal(states[0][1], states[1][1])  # a committed block does not see what comes after it
    assert not torch.allclose(states[0][0], states[1][0])


def test_bug_14_an_image_does_not_see_the_others(engine):
    backend = make_engine(engine, tiny_model(4))
    images = [random_inputs(seed, 4, ((4, 6),)) for seed in (1, 2)]
    grids = torch.cat([image.image_grid_thw for image in images])
    with torch.inference_mode():
        tokens, deepstack = backend.encode_images(torch.cat([image.pixel_values for image in images]), grids)
        for image, *together in zip(images, tokens.chunk(2), deepstack[0].chunk(2), strict=True):
            alone, level = backend.encode_images(image.pixel_values, image.image_grid_thw)
            torch.testing.assert_close(together, [alone, level[0]], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(*tokens.chunk(2))


def test_bug_15_what_the_record_holds_is_decoded_with_and_what_it_forbids_is_refused(engine):
    record = ServingRecord(block_sizes=(4, 8), mask_token_id=MASK, eos_token_id=EOS)
    decoder = generator(engine, 0, EOS, record)
    with pytest.raises(UserError, match="block_size"):
        one(decoder, REQUESTS[1], DecodeConfig(16))
    with pytest.raises(UserError, match="strategy: expected a strategy for"):
        one(decoder, REQUESTS[1], DecodeConfig(8, strategy="autoregressive"))
    assert one(decoder, REQUESTS[1], DecodeConfig(8, max_new_tokens=8)).raw_ids


@pytest.mark.parametrize("field", ["confidence_threshold", "denoising_steps", "strategy", "block_size"])
def test_bug_15_an_answer_is_decoded_as_its_request_says_not_as_the_one_before(engine, field):
    values = {
        "confidence_threshold": (0.1, 0.12, 0.15, 0.2, 0.25), "denoising_steps": (8, 3, 5), "strategy": STRATEGIES,
        "block_size": (8, 4),
    }[field]
    decoder, eager, seen = generator(engine), generator("eager"), set()
    base = replace(DYNAMIC, confidence_threshold=0.1)
    if field == "denoising_steps":
        base = replace(base, strategy="low_confidence_static")
    for value in (*values, values[0]):
        config = replace(base, **{field: value})
        answer = one(decoder, REQUESTS[0], config)
        same_as_eager(answer, one(eager, REQUESTS[0], config))
        seen.add((answer.raw_ids, answer.trace.fixed_at))
    assert len(seen) == len(values)
