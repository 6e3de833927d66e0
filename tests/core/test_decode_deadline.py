"""Deadlines, on a clock that only the model's forwards move."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.core.brute_force import logits_of_block
from tests.core.doubles import MASK, FakeClock, random_inputs, timed, tiny_model
from tests.core.test_decode_trace import STRATEGIES, CountReads, generator
from wamdiff2_core.config import DecodeConfig, parse
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.decode.deadline import DYNAMIC_STEPS
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord

STATIC = DecodeConfig(8, 8, "low_confidence_static", max_new_tokens=24)
PREFILL_MS, STEP_MS = 30, 10


def steps_of(answer: Generation, size: int) -> list[list[int]]:
    """How many tokens each step of each block fixed."""
    assert answer.trace is not None
    blocks = [answer.trace.fixed_at[first : first + size] for first in range(0, len(answer.trace.fixed_at), size)]
    return [[block.count(step) for step in range(max(block) + 1)] for block in blocks]


def used(decoder: Generator, config: DecodeConfig, clock: FakeClock) -> tuple[Generation, float]:
    """An answer whose steps were foreseen from another request's, and the milliseconds that it took."""
    decoder.generate([random_inputs(8, 9)], replace(config, deadline_ms=1e6))
    began_ns = clock.now_ns
    answer = decoder.generate([random_inputs(1, 12)], config, trace=True)[0]
    return answer, (clock.now_ns - began_ns) / 1e6


@pytest.mark.parametrize(("deadline_ms", "expected"), [
    (270, [[1] * 8] * 3),
    (269, [[2, 1, 1, 1, 1, 1, 1], [1] * 8, [1] * 8]),
    (150, [[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]),
    (130, [[3, 3, 2], [3, 3, 2], [2, 2, 2, 2]]),
    (60, [[8], [8], [8]]),
    (75, [[8], [8], [4, 4]]),
    (29, [[8], [8], [8]]),
    (1, [[8], [8], [8]]),
])
@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_the_steps_that_fit_are_shared_out_over_blocks_and_tokens(strategy, deadline_ms, expected):
    decoder = generator(5)
    clock = timed(decoder, PREFILL_MS, STEP_MS)
    answer, took_ms = used(decoder, replace(STATIC, strategy=strategy, deadline_ms=deadline_ms), clock)
    assert steps_of(answer, 8) == expected
    fits = max(3, min(24, (deadline_ms - PREFILL_MS) // STEP_MS))
    assert answer.stats.steps == fits
    assert took_ms == PREFILL_MS + fits * STEP_MS == answer.stats.prefill_ms + answer.stats.decode_ms
    assert answer.stats.overshoot_ms == max(0, took_ms - deadline_ms)
    assert answer.stats.hurried_steps == sum(n > 1 for block in expected for n in block)


@pytest.mark.parametrize("deadline_ms", range(30, 400, 23))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_that_commits_the_block_before_it_is_foreseen_at_its_own_length(strategy, deadline_ms):
    decoder = generator(5)
    clock = timed(decoder, PREFILL_MS, STEP_MS, 25)
    config = replace(STATIC, strategy=strategy, confidence_threshold=0.3, deadline_ms=deadline_ms)
    answer, took_ms = used(decoder, config, clock)
    least_ms = PREFILL_MS + STEP_MS + 2 * 25
    assert answer.stats.overshoot_ms == max(0, least_ms - deadline_ms)
    if deadline_ms >= least_ms and strategy != "low_confidence_dynamic":
        full_ms = least_ms + 21 * STEP_MS
        assert min(deadline_ms, full_ms) - STEP_MS < took_ms <= deadline_ms


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_deadline_longer_than_needed_changes_nothing(strategy, temperature):
    decoder = generator(5)
    clock = timed(decoder, PREFILL_MS, STEP_MS)
    config = replace(STATIC, strategy=strategy, confidence_threshold=0.4, temperature=temperature)
    free, took_ms = used(decoder, config, clock)
    assert free.stats.overshoot_ms == free.stats.hurried_steps == 0
    assert free.stats.steps > 4
    spare = 3 * DYNAMIC_STEPS if strategy == "low_confidence_dynamic" else 0
    answer, _ = used(decoder, replace(config, deadline_ms=took_ms + spare * STEP_MS), clock)
    assert (answer.raw_ids, answer.trace, answer.stats) == (free.raw_ids, free.trace, free.stats)
    shorter, _ = used(decoder, replace(config, deadline_ms=took_ms - STEP_MS), clock)
    assert shorter.stats.hurried_steps > 0
    assert shorter.stats.overshoot_ms == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("deadline_ms", [40, 75, 110, 160])
def test_what_a_hurried_step_fixes_is_what_the_model_is_surest_of(strategy, deadline_ms):
    decoder, inputs = generator(5), random_inputs(1, 12)
    clock = timed(decoder, PREFILL_MS, STEP_MS)
    config = replace(STATIC, strategy=strategy, confidence_threshold=0.4, deadline_ms=deadline_ms)
    answer, _ = used(decoder, config, clock)
    raw, fixed_at = list(answer.raw_ids), answer.trace.fixed_at
    for first in range(0, 24, 8):
        at = fixed_at[first : first + 8]
        for step in range(max(at) + 1):
            state = [raw[first + i] if at[i] < step else MASK for i in range(8)]
            logits = logits_of_block(decoder.model, inputs, [*raw[:first], *state], 8)
            logits[:, MASK] = -torch.inf
            sure, best = logits.softmax(-1).max(-1)
            open_ = [i for i in range(8) if at[i] >= step]
            chosen = [i for i in open_ if at[i] == step]
            order = open_ if strategy == "sequential" else sorted(open_, key=lambda i: -float(sure[i]))
            assert set(order[: len(chosen)]) == set(chosen)
            assert [raw[first + i] for i in chosen] == best[chosen].tolist()
            if strategy == "low_confidence_dynamic":
                assert set(chosen) >= {i for i in open_ if sure[i] >= 0.4}


def test_300_random_deadlines_are_met_but_for_one_step_at_most():
    """Steps vary by a fifth to either side; every fourth request is the first of all, whose steps are not foreseen."""
    rng, hurried, met, model = random.Random(0), 0, 0, tiny_model(7, gain=3.0)
    eos = generator(7, gain=3.0).generate([random_inputs(1, 12)], STATIC)[0].raw_ids[5]
    for case in range(300):
        strategy, size, blocks = rng.choice(STRATEGIES), rng.choice([2, 4, 7]), rng.randint(1, 3)
        decoder = Generator.of(model, None, ServingRecord(mask_token_id=MASK, eos_token_id=eos), enforce_record=False)
        joint_ms = STEP_MS * rng.uniform(1, 2)
        clock = timed(decoder, PREFILL_MS, STEP_MS, joint_ms, lambda: rng.uniform(0.8, 1.2))
        config = DecodeConfig(size, rng.randint(1, size), strategy, 0.3, max_new_tokens=size * blocks)
        requests = [random_inputs(case + row, 5 + row) for row in range(rng.randint(1, 2))]
        if case % 4:
            decoder.generate(requests, replace(config, deadline_ms=1))
        slowest_ms = 1.2 * joint_ms
        deadline_ms = rng.uniform(0, PREFILL_MS + STEP_MS * blocks * (1 + size))
        began_ns = clock.now_ns
        answers = decoder.generate(requests, replace(config, deadline_ms=deadline_ms), trace=True)
        late_ms = max(0.0, (clock.now_ns - began_ns) / 1e6 - deadline_ms)
        for answer in answers:
            assert answer.stats.overshoot_ms == pytest.approx(late_ms, abs=1e-5)
            assert len(answer.raw_ids) == size * blocks
            assert MASK not in answer.raw_ids
            hurried += answer.stats.hurried_steps > 0
        assert answers[0].stats.overshoot_ms == answers[-1].stats.overshoot_ms
        if deadline_ms >= PREFILL_MS + slowest_ms * blocks and case % 4:
            assert late_ms <= slowest_ms
            met += late_ms == 0
        elif deadline_ms <= PREFILL_MS:
            assert all(answer.stats.steps == answer.stats.blocks for answer in answers)
    assert 100 < hurried < 300
    assert met > 100


def test_the_first_request_of_all_takes_its_first_step_unhurried_and_then_knows():
    decoder = generator(5)
    timed(decoder, PREFILL_MS, STEP_MS)
    answer = decoder.generate([random_inputs(1, 12)], replace(STATIC, deadline_ms=80), trace=True)[0]
    assert steps_of(answer, 8) == [[1, 7], [8], [4, 4]]
    assert answer.stats.overshoot_ms == 0


def test_a_slow_step_hurries_its_own_request_and_not_the_next():
    decoder = generator(5)
    slow = iter([*[1.0] * 24, 9.0])
    timed(decoder, PREFILL_MS, STEP_MS, length=lambda: next(slow, 1.0))
    config = replace(STATIC, deadline_ms=PREFILL_MS + 30 * STEP_MS)
    stats = [decoder.generate([random_inputs(1, 12)], config)[0].stats for _ in range(3)]
    assert [one.hurried_steps > 0 for one in stats] == [False, True, False]
    assert all(one.overshoot_ms == 0 for one in stats)


def test_blocks_that_may_come_beyond_those_of_the_last_answer_keep_one_step_each():
    decoder, inputs = generator(7, gain=3.0), random_inputs(1, 12)
    config = replace(STATIC, max_new_tokens=40)
    eos = decoder.generate([inputs], config)[0].raw_ids[14]  # the first of its kind
    decoder = generator(7, eos, gain=3.0)
    timed(decoder, PREFILL_MS, STEP_MS)
    free = decoder.generate([inputs], replace(config, deadline_ms=1e6))[0]
    assert free.stats.blocks == 2
    enough = replace(config, deadline_ms=PREFILL_MS + (8 + 8 + 3) * STEP_MS)
    assert decoder.generate([inputs], enough)[0] == replace(free, stats=replace(free.stats))
    short = replace(enough, deadline_ms=enough.deadline_ms - STEP_MS)
    assert decoder.generate([inputs], short)[0].stats.hurried_steps > 0


def test_the_deadline_of_a_batch_counts_from_when_the_caller_says():
    decoder = generator(5)
    clock = timed(decoder, PREFILL_MS, STEP_MS)
    requests = [random_inputs(1, 12), random_inputs(2, 7)]
    config = replace(STATIC, deadline_ms=PREFILL_MS + 24 * STEP_MS)
    decoder.generate(requests, config)
    began_ns = clock.now_ns
    clock.now_ns += 120_000_000
    answers = decoder.generate(requests, config, began_ns=began_ns)
    assert [answer.stats.steps for answer in answers] == [12, 12]
    assert [answer.stats.overshoot_ms for answer in answers] == [0, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_deadline_no_clock_is_asked_and_the_host_waits_for_nothing_more(strategy):
    config, requests = replace(STATIC, strategy=strategy), [random_inputs(1, 12), random_inputs(2, 9)]
    reads, answers = [], []
    for deadline_ms in (0, 1e6):
        decoder = generator(9)
        clock = timed(decoder, PREFILL_MS, STEP_MS)
        with CountReads() as counted:
            answers.append(decoder.generate(requests, replace(config, deadline_ms=deadline_ms)))
        reads.append((clock.reads, counted.counts))
    steps = answers[0][0].stats.steps
    assert [answer.raw_ids for answer in answers[0]] == [answer.raw_ids for answer in answers[1]]
    assert reads[0][0] == 3  # begin, prefill and end, for the statistics
    expected = {"item": steps}
    if strategy != "low_confidence_dynamic":  # only a deadline makes a block of these end before its last step
        expected["is_nonzero"] = steps - answers[0][0].stats.blocks
    assert reads[1][1] - reads[0][1] == expected
    assert not reads[0][1] - reads[1][1]


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_deadline_that_is_no_time_is_refused_by_name(value):
    with pytest.raises(UserError) as caught:
        DecodeConfig(deadline_ms=value)
    assert caught.value.field == "deadline_ms"
    with pytest.raises(UserError, match=r"x: decode\.deadline_ms: expected milliseconds >= 0"):
        parse(ServingRecord, {"decode": {"deadline_ms": value}}, "x")


def test_a_serving_record_may_have_a_deadline_and_autoregressive_decoding_none():
    assert parse(ServingRecord, {"decode": {"deadline_ms": 80}}, "x").decode.deadline_ms == 80
    with pytest.raises(UserError, match="deadline_ms: expected 0 with autoregressive, got 80"):
        DecodeConfig(strategy="autoregressive", deadline_ms=80)
