from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.doubles import EOS, MASK, MS, byte_tokenizer, timed, tiny_model
from wamdiff2_core.checks import check_waypoints
from wamdiff2_core.config import CameraSpec, DecodeConfig, ImagePolicy, PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint, save_checkpoint
from wamdiff2_core.planner import CheckpointPlanner, RandomPlanner, make_planner
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation

TASK = PlanningTask(decimals=1, input_decimals=1)
RECORD = ServingRecord(
    block_sizes=(16, 64), mask_token_id=MASK, eos_token_id=EOS, planning=TASK,
    decode=DecodeConfig(64, 64, max_new_tokens=64), images=ImagePolicy((64, 32), 2048, 2048),
    rig=(CameraSpec(width_px=64, height_px=32),),
)
ANSWER = "2.0,-0.1,4.0,-0.2,6.0,-0.4,8.0,-0.7,10.0,-1.1,12.0,-1.6"


def frame(width: int = 64, height: int = 32, camera: str = "front", stamp_ns: int = 77) -> CameraFrame:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return CameraFrame(pixels, stamp_ns, camera)


def observation(*frames: CameraFrame, speed_mps: float = 4.0) -> Observation:
    ego = EgoState(velocity_mps=[speed_mps, 0.0])
    return Observation(frames or (frame(),), ego, Navigation([[10.0, 1.5], [20.0, 3.0]], NavCommand.LEFT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("planner")
    save_checkpoint(tiny_model(1), byte_tokenizer(), RECORD, path)
    return path


def says(planner: CheckpointPlanner, answer: str) -> CheckpointPlanner:
    """Make the model certain of `answer`, whatever it sees."""
    checkpoint = planner._checkpoint
    ids = checkpoint.chat.encode_answer(answer)
    ids += [EOS] * (64 - len(ids))

    def certain(module, args, out):
        return torch.full_like(out, -50.0).scatter_(-1, torch.tensor(ids)[: len(out), None], 50.0)

    checkpoint.model.lm_head.register_forward_hook(certain)
    return planner


def test_a_readable_answer_becomes_waypoints_with_stamp_hash_and_statistics(folder):
    planner = says(CheckpointPlanner.load(folder, backend="eager"), ANSWER)
    plan = planner.plan(observation())
    assert plan.stamp_ns == 77
    assert plan.text == ANSWER
    assert plan.check.ok, plan.check.message
    assert plan.waypoints.xy_m[-1].tolist() == [12.0, 1.6]  # y right in the text, left in the plan
    assert plan.waypoints.dt_s == 0.5
    assert plan.source == load_checkpoint(folder).hash
    assert (plan.stats.forwards, plan.stats.steps, plan.stats.blocks) == (2, 1, 1)
    assert plan.stats.tokens == len(ANSWER) + 1
    assert plan.stats.prefill_ms > 0
    assert plan.stats.decode_ms > 0


def test_an_unreadable_answer_is_a_plan_that_may_not_be_driven(folder):
    plan = says(CheckpointPlanner.load(folder, backend="eager"), "1.0,2.0,oops").plan(observation())
    assert plan.waypoints is None
    assert not plan.check.ok
    assert "character 8" in plan.check.message
    assert plan.text == "1.0,2.0,oops"


def test_an_impossible_answer_keeps_its_waypoints_but_may_not_be_driven(folder):
    planner = says(CheckpointPlanner.load(folder, backend="eager"), "9.0,0.0,8.0,0.0,9.0,0.0,8.0,0.0,9.0,0.0,8.0,0.0")
    plan = planner.plan(observation())
    assert plan.waypoints is not None
    assert not plan.check.ok


def test_the_model_is_asked_with_prompt_and_image(folder, monkeypatch):
    planner = CheckpointPlanner.load(folder)
    chat = planner._checkpoint.chat
    asked = []
    encode = chat.encode
    monkeypatch.setattr(chat, "encode", lambda request: asked.append(encode(request)) or asked[-1])
    planner.plan(observation())
    text = chat.tokenizer.decode(asked[0].input_ids)
    assert text.startswith("<|im_start|>user\nHere is a front-view image from a driving vehicle:<|vision_start|>")
    assert "Target: [10.0, -1.5] [20.0, -3.0]. Command: go left at the next intersection\n" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    planner.plan(observation(CameraFrame(np.zeros((32, 64, 3), np.uint8), 77)))
    assert torch.equal(asked[0].input_ids, asked[1].input_ids)
    assert not torch.equal(asked[0].pixel_values, asked[1].pixel_values)


def test_the_same_observation_gives_the_same_plan_after_others(folder):
    planner = CheckpointPlanner.load(folder, denoising_steps=6)
    planner.warm_up()
    first = planner.plan(observation())
    planner.plan(observation(speed_mps=1.0))
    fresh = CheckpointPlanner.load(folder, denoising_steps=6)
    assert planner.plan(observation()).text == first.text == fresh.plan(observation()).text


@pytest.mark.parametrize(
    ("frames", "field"),
    [
        ((frame(camera="left"),), "observation.frames"),
        ((frame(), frame()), "observation.frames"),
        ((frame(width=32, height=64),), r"observation.frames\[front\]"),
    ],
)
def test_other_cameras_than_the_rig_are_refused(folder, frames, field):
    with pytest.raises(UserError, match=field):
        CheckpointPlanner.load(folder).plan(observation(*frames))


def test_the_time_of_a_deadline_begins_with_the_plan_and_its_prompt(folder, monkeypatch):
    planner = CheckpointPlanner.load(folder, block_size=16, strategy="low_confidence_static", deadline_ms=100 + 64 * 10)
    generator, chat = planner._generator, planner._checkpoint.chat
    clock = timed(generator, 100, 10)
    planner.warm_up()
    calm = planner.plan(observation())
    encode = chat.encode

    def slow(request):
        clock.now_ns += 320 * MS
        return encode(request)

    monkeypatch.setattr(chat, "encode", slow)
    hurried = planner.plan(observation())
    assert calm.stats.hurried_steps == 0
    assert hurried.stats.steps == 32 < calm.stats.steps
    assert hurried.stats.hurried_steps > 0
    assert hurried.stats.overshoot_ms == 0
    assert hurried.waypoints is not None


def test_a_plan_with_a_deadline_is_bounded_by_the_grammar_unless_the_grammar_cannot_be(folder, monkeypatch):
    plan = CheckpointPlanner.load(folder, deadline_ms=0.001).plan(observation())
    assert plan.waypoints is not None
    assert (plan.stats.steps, plan.stats.blocks) == (1, 1)
    assert plan.stats.overshoot_ms > 0
    assert CheckpointPlanner.load(folder).decode.grammar == "off"
    assert CheckpointPlanner.load(folder, deadline_ms=5).decode.grammar == "task"
    for option in ({"temperature": 0.5}, {"max_new_tokens": 32, "block_size": 16}):
        assert CheckpointPlanner.load(folder, deadline_ms=5, **option).decode.grammar == "off"

    def joins(*_):
        raise UserError("tokenizer", "one token for each digit", "joined ones")

    monkeypatch.setattr("wamdiff2_core.decode.grammar.languages.waypoint_language", joins)
    joined = CheckpointPlanner.load(folder, deadline_ms=0.001)
    assert joined.decode.grammar == "off"
    assert joined.plan(observation()).stats.steps == 1
    with pytest.raises(UserError, match="one token for each digit"):
        CheckpointPlanner.load(folder, deadline_ms=5, grammar="task")


def test_decoding_outside_the_record_is_refused_when_the_planner_is_made(folder):
    assert CheckpointPlanner.load(folder, block_size=16, confidence_threshold=0.5).decode.block_size == 16
    with pytest.raises(UserError, match="block_size"):
        CheckpointPlanner.load(folder, block_size=8)
    with pytest.raises(UserError, match="strategy: expected a strategy for"):
        CheckpointPlanner.load(folder, strategy="autoregressive")
    with pytest.raises(UserError, match="did you mean 'block_size'"):
        CheckpointPlanner.load(folder, blocksize=16)


def test_a_checkpoint_that_does_not_plan_is_refused(folder, tmp_path):
    model, tokenizer = tiny_model(1), byte_tokenizer()
    save_checkpoint(model, tokenizer, ServingRecord(mask_token_id=MASK, eos_token_id=EOS), tmp_path)
    with pytest.raises(UserError, match="planning task"):
        make_planner(tmp_path)
    with pytest.raises(UserError, match="checkpoint: expected a checkpoint folder"):
        make_planner(tmp_path / "nowhere")


def test_make_planner_keeps_the_records_seed_unless_one_is_given(tmp_path):
    record = replace(RECORD, decode=replace(RECORD.decode, seed=5))
    save_checkpoint(tiny_model(1), byte_tokenizer(), record, tmp_path)
    assert make_planner(tmp_path).decode.seed == 5
    assert make_planner(tmp_path, seed=0).decode.seed == 0


def test_make_planner_knows_folders_and_random(folder):
    assert isinstance(make_planner(str(folder), seed=3), CheckpointPlanner)
    assert make_planner(folder).rig == RECORD.rig
    assert isinstance(make_planner("random"), RandomPlanner)


@settings(max_examples=100, deadline=None)
@given(speed=st.floats(0, 30), seed=st.integers(0, 1000), stamp=st.integers(0, 2**62))
def test_random_plans_are_possible_but_not_looked_at(speed, seed, stamp):
    planner = RandomPlanner(seed)
    plan = planner.plan(observation(frame(stamp_ns=stamp), speed_mps=speed))
    assert plan.check.ok, plan.check.message
    assert check_waypoints(plan.waypoints, speed, 6).ok
    assert plan.stamp_ns == stamp
    assert np.array_equal(planner.plan(observation(frame(stamp_ns=stamp), speed_mps=speed)).waypoints.xy_m,
                          plan.waypoints.xy_m)


def ends_of(planner: RandomPlanner, stamps_ns: list[int]) -> list[list[float]]:
    return [planner.plan(observation(frame(stamp_ns=stamp_ns))).waypoints.xy_m[-1].tolist() for stamp_ns in stamps_ns]


def test_random_plans_do_not_depend_on_when_a_simulation_starts():
    early = list(range(0, 10 * 250_000_000, 250_000_000))
    late = [stamp_ns + 1_234_567_891 for stamp_ns in early]  # another start, and with it other rounding
    assert ends_of(RandomPlanner(3), early) == ends_of(RandomPlanner(3), late) != ends_of(RandomPlanner(4), early)
    planner = RandomPlanner(3)
    first = ends_of(planner, late)
    assert ends_of(planner, early) == first  # the clock went back: another run
    assert len({tuple(end) for end in first}) == len(first)


def test_random_plans_differ_from_frame_to_frame_and_go_both_ways():
    planner = RandomPlanner(0)
    ends = np.array([
        planner.plan(observation(frame(stamp_ns=stamp))).waypoints.xy_m[-1] for stamp in range(200)
    ])
    assert len(np.unique(ends, axis=0)) == 200
    assert (ends[:, 1] > 0.5).sum() > 40
    assert (ends[:, 1] < -0.5).sum() > 40
