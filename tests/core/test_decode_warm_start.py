"""Warm start: plans moved on along known paths, agreement by hand, and decoding with guesses that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.core.doubles import EOS, MASK, random_inputs, tiny_model
from wamdiff2_core.bench.subjects import observation
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator, warm_start
from wamdiff2_core.errors import UserError
from wamdiff2_core.planner import CheckpointPlanner
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import format_waypoints
from wamdiff2_core.types import Check, Plan, Waypoints

COLD = DecodeConfig(8, 8, "low_confidence_dynamic", 0.999, max_new_tokens=16)
WARM = replace(COLD, warm_start="previous")


def arc(radius_m: float, speed_mps: float, count: int = 6, dt_s: float = 0.5) -> Waypoints:
    """A circle to the left, at constant speed."""
    angle = speed_mps * dt_s * np.arange(1, count + 1) / radius_m
    return Waypoints(radius_m * np.stack([np.sin(angle), 1 - np.cos(angle)], -1), dt_s)


@pytest.mark.parametrize("elapsed_s", [0.0, 0.1, 0.25, 0.5, 0.7, 1.0])
@pytest.mark.parametrize(("radius_m", "speed_mps"), [(1e6, 9.0), (60.0, 8.0), (-25.0, 5.0), (40.0, 0.0)])
def test_a_car_on_a_circle_goes_on_as_before(radius_m, speed_mps, elapsed_s):
    before = arc(radius_m, speed_mps)
    after = warm_start.moved_on(before, elapsed_s)
    assert after.dt_s == 0.5
    # between waypoints the path is taken to be straight, and behind them too
    np.testing.assert_allclose(after.xy_m[:4], before.xy_m[:4], atol=0.16 if speed_mps else 1e-9)
    if elapsed_s in (0.0, 0.5, 1.0):
        known = 6 - round(elapsed_s / 0.5)
        np.testing.assert_allclose(after.xy_m[:known], before.xy_m[:known], atol=1e-6)


def test_a_braking_car_is_nearer_to_its_stop_after_a_while():
    before = Waypoints(np.array([[4.0, 0.0], [7.0, 0.0], [9.0, 0.0], [10.0, 0.0], [10.0, 0.0], [10.0, 0.0]]), 0.5)
    after = warm_start.moved_on(before, 0.5)
    assert after.xy_m[:, 0].tolist() == [3.0, 5.0, 6.0, 6.0, 6.0, 6.0]
    assert not after.xy_m[:, 1].any()


def test_only_a_fresh_and_valid_plan_is_a_guess():
    plan = Plan(10**9, arc(50.0, 8.0))
    assert warm_start.guess_from(plan, 10**9 + 500_000_000) is not None
    assert warm_start.guess_from(None, 10**9) is None
    for stamp_ns in (10**9, 0, 2 * 10**9 + 1):
        assert warm_start.guess_from(plan, stamp_ns) is None
    assert warm_start.guess_from(replace(plan, check=Check(False, "no")), 10**9 + 1) is None
    assert warm_start.guess_from(replace(plan, waypoints=None), 10**9 + 1) is None


def test_agreement_is_the_same_token_and_enough_confidence():
    guesses = warm_start.Guesses.of([[5, 6, 7], None], 8, EOS, torch.device("cpu"))
    assert guesses.ids.tolist() == [[5, 6, 7, EOS, EOS, EOS, EOS, EOS], [-1] * 8]
    candidates = torch.tensor([[7, EOS, 9, EOS], [7, EOS, 9, EOS]])
    confidence = torch.tensor([[0.5, 0.49, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9]])
    assert guesses.agreed(candidates, confidence, 2).tolist() == [[True, False, False, True], [False] * 4]


def decoder() -> Generator:
    record = ServingRecord(mask_token_id=MASK, eos_token_id=EOS)
    return Generator.of(tiny_model(2, gain=3), None, record, enforce_record=False)


PROMPTS = [random_inputs(seed, 9 + seed) for seed in range(3)]


def test_a_guess_that_agrees_everywhere_is_the_answer_of_one_step_a_block(monkeypatch):
    monkeypatch.setattr(warm_start, "AGREED_CONFIDENCE", 0.0)
    once = decoder().generate(PROMPTS, replace(COLD, confidence_threshold=0.0))  # every position in the first step
    cold = decoder().generate(PROMPTS, COLD)
    warm = decoder().generate(PROMPTS, WARM, guesses=[answer.raw_ids for answer in once])
    assert [answer.raw_ids for answer in warm] == [answer.raw_ids for answer in once]
    assert [answer.stats.steps for answer in warm] == [answer.stats.blocks for answer in once]
    assert [answer.raw_ids for answer in cold] != [answer.raw_ids for answer in once]
    some = decoder().generate(PROMPTS, WARM, guesses=[once[0].raw_ids, None, None])
    assert [answer.raw_ids for answer in some] == [answer.raw_ids for answer in (once[0], *cold[1:])]


def test_guesses_that_never_agree_or_are_not_asked_for_change_nothing(monkeypatch):
    monkeypatch.setattr(warm_start, "AGREED_CONFIDENCE", 0.0)
    cold = decoder().generate(PROMPTS, COLD)
    own = [answer.raw_ids for answer in decoder().generate(PROMPTS, replace(COLD, confidence_threshold=0.0))]
    for config, guesses in ((WARM, None), (WARM, [None] * 3), (WARM, [[MASK] * 16] * 3), (COLD, own)):
        other = decoder().generate(PROMPTS, config, guesses=guesses)
        assert [(a.raw_ids, a.stats.steps) for a in other] == [(a.raw_ids, a.stats.steps) for a in cold]


def test_an_agreement_needs_its_confidence(monkeypatch):
    own = [answer.raw_ids for answer in decoder().generate(PROMPTS, replace(COLD, confidence_threshold=0.0))]
    monkeypatch.setattr(warm_start, "AGREED_CONFIDENCE", 1.1)
    assert [a.stats.steps for a in decoder().generate(PROMPTS, WARM, guesses=own)] == [
        a.stats.steps for a in decoder().generate(PROMPTS, COLD)
    ]


def test_the_planner_guesses_from_its_plan_before(nano_folder, monkeypatch):
    planner = CheckpointPlanner.load(nano_folder, warm_start="previous")
    asked, generate = [], planner._generator.generate

    def listen(requests, config, **named):
        asked.append(named["guesses"])
        return generate(requests, config, **named)

    monkeypatch.setattr(planner._generator, "generate", listen)
    seen = observation(planner.rig)

    def plan_at(stamp_s: float) -> Plan:
        frames = tuple(replace(frame, stamp_ns=round(stamp_s * 1e9)) for frame in seen.frames)
        return planner.plan(replace(seen, frames=frames))

    planner.warm_up()
    asked.clear()
    first = plan_at(0.5)
    assert asked == [[None]]  # warming up is no drive
    assert first.check.ok
    plan_at(1.0)
    moved = format_waypoints(warm_start.moved_on(first.waypoints, 0.5), planner.record.planning)
    assert planner._checkpoint.chat.decode(asked[1][0]) == moved
    plan_at(3.0)
    assert asked[2] == [None]
    cold = CheckpointPlanner.load(nano_folder)
    assert cold.decode.warm_start == "off"
    assert cold._guesses(10**9) is None


def test_warm_start_is_for_the_dynamic_strategy():
    with pytest.raises(UserError, match="warm_start: expected one of off, previous, got before"):
        DecodeConfig(warm_start="before")
    with pytest.raises(UserError, match="warm_start: expected off with sequential, got previous"):
        DecodeConfig(strategy="sequential", warm_start="previous")
