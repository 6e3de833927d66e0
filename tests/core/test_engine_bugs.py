"""The fifteen kinds of bugs that engines for block diffusion have had in public, each as a property of ours.

They are reported against paged and shared caches, CUDA graphs and batching; here is what each means for a backend with
keys and values of its own in place. Every property holds for every backend that runs on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.core.brute_force import brute_force
from tests.core.doubles import EOS, MASK, random_inputs, tiny_model
from tests.core.engines import ENGINES, engine_generator, make_engine
from tests.core.test_block_model import block_causal, stock_positions, stock_prefill
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import step_mask
from wamdiff2_core.model.block_model import BlockModel
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


class AbortedError(Exception):
    pass


def abort_at(decoder: Generator, forward: int, inputs: ModelInputs, config: DecodeConfig) -> None:
    """Begin a request and drop it in the middle of its n-th forward after the prompt."""
    step, calls = decoder.blocks.backend.step, []

    def failing(*arguments, **named):
        hidden = step(*arguments, **named)
        calls.append(hidden)
        if len(calls) > forward:
            raise AbortedError
        return hidden

    decoder.blocks.backend.step = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(AbortedError):
            decoder.generate([inputs], config)
    finally:
        decoder.blocks.backend.step = step  # type: ignore[method-assign]


def test_bug_01_a_block_that_was_never_committed_is_never_seen_by_another_request(engine):
    used, config = generator(engine), replace(DYNAMIC, strategy="sequential")
    expected = one(generator(engine), REQUESTS[1], config)
    abort_at(used, 11, REQUESTS[1], config)  # the second block has its masks' keys and values in the cache
    again = one(used, REQUESTS[1], config)
    assert again.raw_ids == expected.raw_ids
    assert again.trace == expected.trace


def test_bug_02_a_request_dropped_at_any_step_costs_no_memory_and_changes_nothing(engine):
    used, config = generator(engine), replace(DYNAMIC, denoising_steps=2, strategy="low_confidence_static")
    expected = one(used, REQUESTS[2], config)
    columns = sum(keys.numel() for keys, _ in used.blocks.backend.columns(0, 10_000))
    for forward in range(expected.stats.steps):
        abort_at(used, forward, REQUESTS[2], config)
        assert one(used, REQUESTS[2], config).raw_ids == expected.raw_ids
        assert sum(keys.numel() for keys, _ in used.blocks.backend.columns(0, 10_000)) == columns


def test_bug_03_a_mask_token_in_the_prompt_stays_put(engine):
    decoder = generator(engine, 11)
    inputs = random_inputs(3, 12)
    inputs.input_ids[[0, 5, 6, 11]] = MASK
    before = inputs.input_ids.clone()
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.3, max_new_tokens=12)
    answer = one(decoder, inputs, config)
    assert torch.equal(inputs.input_ids, before)
    assert list(answer.raw_ids) == brute_force(decoder.model, inputs, config, MASK, NO_EOS)
    other = ModelInputs(torch.where(before == MASK, 7, before))
    assert one(decoder, other, config).raw_ids != answer.raw_ids


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("images", [(), ((2, 4), (4, 4))])
def test_bug_04_keys_and_values_of_a_committed_block_are_those_of_its_final_tokens(engine, attn, images):
    model, inputs, size = tiny_model(4, attn), random_inputs(4, 11, images), 4
    prompt = len(inputs.input_ids)
    blocks = BlockModel(model, make_engine(engine, model))
    final = torch.randint(0, 256, (1, 3 * size), generator=torch.Generator().manual_seed(0))
    draft = torch.full((1, size), MASK)
    with torch.inference_mode():
        blocks.prefill([inputs], size, 3 * size)
        for block in range(3):
            if block == 0:
                blocks.forward(draft, 0)
            else:
                previous = final[:, (block - 1) * size : block * size]
                blocks.forward(torch.cat([previous, draft], 1), (block - 1) * size, commit=size)
            blocks.forward(torch.randint(0, 256, (1, size)), block * size)  # another denoising step
    whole = ModelInputs(torch.cat([inputs.input_ids, final[0]]), inputs.pixel_values, inputs.image_grid_thw)
    _, fresh = stock_prefill(model, whole, block_causal(prompt, 3 * size, size), stock_positions(model, whole))
    committed, last = prompt + 2 * size, prompt + 3 * size
    for (keys, values), (fresh_keys, fresh_values) in zip(blocks.backend.columns(0, last), fresh, strict=True):
        torch.testing.assert_close(keys[0, :, :committed], fresh_keys[:, :committed], atol=1e-5, rtol=0)
        torch.testing.assert_close(values[0, :, :committed], fresh_values[:, :committed], atol=1e-5, rtol=0)
        assert (keys[0, :, committed:] - fresh_keys[:, committed:]).abs().max() > 1e-3  # never committed


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bug_05_the_cache_is_exact_answers_are_those_without_one(engine, strategy):
    decoder, config = generator(engine, 5), replace(DYNAMIC, strategy=strategy, denoising_steps=5)
    expected = brute_force(decoder.model, REQUESTS[2], config, MASK, NO_EOS)
    assert len(set(expected)) > 1
    assert list(one(decoder, REQUESTS[2], config).raw_ids) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_bug_06_a_batch_of_unequal_prompts_equals_the_singles(engine, strategy, temperature):
    config = DecodeConfig(
        8, 8, strategy, 0.2, temperature=temperature, top_k=20, top_p=0.9, seed=3, max_new_tokens=24
    )
    together = generator(engine, 6).generate(REQUESTS, config)
    alone = generator(engine, 6)
    for request, answer in zip(REQUESTS, together, strict=True):
        single = alone.generate([request], config)[0]
        assert answer.raw_ids == single.raw_ids
        assert answer.stats.steps == single.stats.steps


def test_bug_07_buffers_of_longer_and_wider_requests_leave_no_trace(engine):
    used = generator(engine)
    for request in REQUESTS:
        fresh, again = one(generator(engine), request), one(used, request)
        assert again.raw_ids == fresh.raw_ids
        assert again.trace == fresh.trace
        used.generate([request, *REQUESTS[:2]], DYNAMIC)  # another batch size in between


def test_bug_08_leftovers_in_a_reused_buffer_change_no_bit(engine):
    used = generator(engine)
    longer = random_inputs(9, 60)
    confidences = []
    for _ in range(3):
        confidences.append(one(used, REQUESTS[1]).trace)
        one(used, longer, replace(DYNAMIC, max_new_tokens=48))
    assert confidences[0] == confidences[1] == confidences[2]


def test_bug_09_positions_are_those_of_the_request_whatever_came_before(engine):
    used, images, text = generator(engine), REQUESTS[0], REQUESTS[1]
    config = replace(DYNAMIC, max_new_tokens=16)
    for inputs in (images, text, images):
        expected = brute_force(used.model, inputs, config, MASK, NO_EOS)
        assert list(one(used, inputs, config).raw_ids) == expected


@pytest.mark.parametrize("place", [0, 3, None])
def test_bug_10_an_answer_ends_at_its_first_eos_and_whole_blocks_fit_beside_the_prompt(engine, place):
    size, config = 4, DecodeConfig(4, 4, "low_confidence_static", max_new_tokens=13)
    free, index = one(generator(engine, 8), REQUESTS[1], config).raw_ids, None
    assert len(free) == 16
    if place is not None:
        index = next(i for i in range(place, 12, size) if free[i] not in free[:i])
    eos = NO_EOS if index is None else free[index]
    answer = one(generator(engine, 8, eos), REQUESTS[1], config)
    blocks = 4 if index is None else index // size + 1
    assert answer.token_ids == free[:index]
    assert answer.ended == (index is not None)
    assert answer.raw_ids == free[: blocks * size] + (eos,) * (16 - blocks * size)
    assert answer.stats.forwards == 1 + blocks * size
    limit = 4096 - 12  # prompt and answer would fit, its last block would not
    with pytest.raises(UserError, match="max_new_tokens"):
        one(generator(engine, 8), random_inputs(1, limit), config)


def test_bug_11_ties_go_to_the_lowest_token_and_place_and_neighbours_do_not_matter(engine):
    model = tiny_model(3, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight[200:230] = model.lm_head.weight[20:50]  # every one of these has a twin with a higher id
    backend = make_engine(engine, model)
    hidden = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(1)) * 2
    hidden[:, :2] = model.lm_head.weight.detach()[[21, 40]] * 4  # these prefer a token that has a twin
    masked = torch.ones(2, 16, dtype=torch.bool)
    with torch.inference_mode():
        tokens, confidence = backend.pick(hidden, masked, MASK)
        logits = torch.nn.functional.linear(hidden, model.lm_head.weight)
        logits[..., MASK] = -torch.inf
        assert tokens[:, :2].tolist() == [[21, 40]] * 2
        twin = logits.argmax(-1)
        assert torch.equal(tokens, torch.where((twin >= 200) & (twin < 230), twin - 180, twin))
        torch.testing.assert_close(confidence, logits.softmax(-1).amax(-1), rtol=1e-5, atol=1e-7)
        few = torch.zeros_like(masked)
        few[1, 3::5] = True
        some, probabilities = backend.pick(hidden, few, MASK)
        assert torch.equal(some[few], tokens[few])
        torch.testing.assert_close(probabilities[few], confidence[few], rtol=1e-5, atol=0)


@pytest.mark.parametrize("left", [1, 7, 40])
def test_bug_12_padding_on_the_left_changes_nothing(engine, left):
    decoder, config = generator(engine, 13), replace(DYNAMIC, block_size=4, denoising_steps=4)
    longer = random_inputs(5, 9 + left)
    padded, _ = decoder.generate([REQUESTS[1], longer], config)
    alone = decoder.generate([REQUESTS[1]], config)[0]
    assert padded.raw_ids == alone.raw_ids
    model = decoder.model
    both, single = (BlockModel(model, make_engine(engine, model)) for _ in range(2))
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
        assert answer.trace is not None
        assert set(answer.trace.fixed_at) == set(range(answer.stats.steps))
        assert answer.stats.steps <= len(counts)
        assert MASK not in answer.raw_ids


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
    model = tiny_model(4)
    blocks, states = BlockModel(model, make_engine(engine, model)), []
    with torch.inference_mode():
        for draft in (5, 6):
            blocks.prefill([REQUESTS[1]], 4, 8)
            hidden = blocks.forward(torch.tensor([[1, 2, 3, 4, *[draft] * 4]]), 0, commit=4)
            kept = [torch.cat([keys, values]) for keys, values in blocks.backend.columns(9, 13)]
            states.append((hidden.clone(), torch.stack(kept)))
    assert torch.equal(states[0][1], states[1][1])  # a committed block does not see what comes after it
    assert not torch.allclose(states[0][0], states[1][0])


def test_bug_15_decoding_that_the_record_does_not_allow_is_refused(engine):
    record = ServingRecord(block_sizes=(4, 8), mask_token_id=MASK, eos_token_id=EOS)
    decoder = generator(engine, 0, EOS, record)
    with pytest.raises(UserError, match="block_size"):
        one(decoder, REQUESTS[1], DecodeConfig(16))
    with pytest.raises(UserError, match="strategy: expected a strategy for"):
        one(decoder, REQUESTS[1], DecodeConfig(8, strategy="autoregressive"))
    assert one(decoder, REQUESTS[1], DecodeConfig(8, max_new_tokens=8)).raw_ids
