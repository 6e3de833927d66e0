from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from tests.conftest import ROOT
from tests.core.doubles import EOS, MASK, byte_tokenizer, random_inputs, timed, tiny_model
from tests.core.grammar.walker import codec_of
from tests.core.qwen_vocabulary import write_random_qwen
from wamdiff2_core.chat import ChatCodec, ModelInputs
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.decode.grammar import Automaton, detection_language, waypoint_language
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import format_grounding, parse_grounding
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints
from wamdiff2_core.tasks.text import AnswerError

TASK = PlanningTask(decimals=1)
STRATEGIES = ["sequential", "low_confidence_static", "low_confidence_dynamic", "autoregressive"]
CONFIG = DecodeConfig(32, 32, "low_confidence_dynamic", 0.3, max_new_tokens=96, grammar="task")


@cache
def rig(name: str) -> tuple[Generator, ChatCodec]:
    """A random model that has never seen an answer."""
    if name == "bytes":
        codec, mask, gain = codec_of(byte_tokenizer(), EOS), MASK, 3.0
        model = tiny_model(3, gain=gain)
    else:
        codec, mask = codec_of(AutoTokenizer.from_pretrained(ROOT / "checkpoints" / "wamdiff2-nano"), 2), 7
        model = tiny_model(4, gain=3.0, vocab_size=899)
    record = ServingRecord(mask_token_id=mask, eos_token_id=codec.eos_token_id)
    return Generator.of(model, codec, record, enforce_record=False), codec


def readable(language: str, answer: Generation) -> bool:
    if not answer.ended:
        return False
    try:
        if language == "waypoints":
            return format_waypoints(parse_waypoints(answer.text, TASK), TASK) == answer.text
        return format_grounding(parse_grounding(answer.text)) == answer.text
    except AnswerError:
        return False


def language_of(name: str, codec: ChatCodec) -> Automaton:
    if name == "waypoints":
        return waypoint_language(codec, TASK)
    return detection_language(codec, None if name == "free detections" else ["car", "traffic light"])


def requests(count: int = 4) -> list[ModelInputs]:
    return [random_inputs(seed, 6 + 3 * seed) for seed in range(count)]


@pytest.mark.parametrize(("strategy", "size"), [*((strategy, 32) for strategy in STRATEGIES), (STRATEGIES[2], 5)])
@pytest.mark.parametrize(
    ("name", "language"), [("bytes", "waypoints"), ("nano", "waypoints"), ("nano", "detections"),
                           ("nano", "free detections")],
)
def test_a_model_that_knows_nothing_answers_validly(name, language, strategy, size):
    decoder, codec = rig(name)
    config = replace(CONFIG, strategy=strategy, block_size=size, denoising_steps=3)
    grammars = [language_of(language, codec)] * 4
    answers = decoder.generate(requests(), config, grammars=grammars)
    assert [readable(language, answer) for answer in answers] == [True] * 4
    assert all(0 < answer.stats.interventions <= answer.stats.tokens for answer in answers)
    free = decoder.generate(requests(), replace(config, grammar="off"), grammars=grammars)
    assert not any(readable(language, answer) for answer in free)
    assert all(answer.stats.interventions == 0 for answer in free)


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
@pytest.mark.parametrize("language", ["waypoints", "detections", "free detections"])
def test_answers_under_a_deadline_are_whole_and_valid(language, strategy):
    shared, codec = rig("nano")
    decoder = Generator.of(
        shared.model, None, ServingRecord(mask_token_id=7, eos_token_id=codec.eos_token_id), enforce_record=False
    )
    timed(decoder, 50, 10, 15)
    grammars = [language_of(language, codec)] * 3
    hurried = 0
    for deadline_ms in (1, 49, 75, 95, 120, 180):
        answers = decoder.generate(requests(3), replace(CONFIG, strategy=strategy, deadline_ms=deadline_ms),
                                   grammars=grammars)
        texts = [replace(answer, text=codec.decode(answer.token_ids)) for answer in answers]
        assert [readable(language, answer) for answer in texts] == [True] * 3
        if deadline_ms < 50:
            assert all(answer.stats.steps == answer.stats.blocks for answer in answers)
        hurried += sum(answer.stats.hurried_steps for answer in answers)
    assert hurried >= 12


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("language", ["waypoints", "detections"])
def test_restricted_rows_of_the_head_give_the_same(language, strategy):
    decoder, codec = rig("nano")
    config = replace(CONFIG, strategy=strategy, block_size=16)
    grammars = [language_of(language, codec)] * 4
    few, whole = (
        decoder.generate(requests(), config, grammars=grammars, trace=True, full_head=full) for full in (False, True)
    )
    for one, other in zip(few, whole, strict=True):
        assert one.raw_ids == other.raw_ids
        assert one.trace is not None
        assert other.trace is not None
        assert one.trace.fixed_at == other.trace.fixed_at
        assert one.trace.confidence == pytest.approx(other.trace.confidence, abs=1e-5)
        assert one.stats.interventions <= other.stats.interventions


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_of_several_grammars_and_none_equals_the_singles(strategy):
    decoder, codec = rig("bytes")
    config = replace(CONFIG, strategy=strategy, block_size=8)
    shared = language_of("detections", codec)
    grammars = [shared, None, language_of("waypoints", codec), shared]
    together = decoder.generate(requests(), config, grammars=grammars)
    for request, grammar, answer in zip(requests(), grammars, together, strict=True):
        alone = decoder.generate([request], config, grammars=[grammar])[0]
        assert answer.raw_ids == alone.raw_ids
        assert answer.stats.interventions == alone.stats.interventions
    free = decoder.generate(requests()[1:2], replace(config, grammar="off"))[0]
    assert together[1].raw_ids == free.raw_ids
    assert together[1].stats.interventions == 0


@pytest.mark.parametrize("columns", [48, 64])
def test_the_tightest_limit_still_closes(columns):
    decoder, codec = rig("bytes")
    grammar = waypoint_language(codec, TASK)
    assert grammar.shortest[0] == 48
    config = replace(CONFIG, block_size=16, max_new_tokens=columns)
    answer = decoder.generate(requests(1), config, grammars=[grammar])[0]
    assert readable("waypoints", answer)
    with pytest.raises(UserError, match="max_new_tokens: expected at least 48"):
        decoder.generate(requests(1), replace(config, max_new_tokens=32), grammars=[grammar])


def test_grammars_are_asked_for():
    decoder, _ = rig("bytes")
    with pytest.raises(UserError, match="grammars: expected one for each of 4 requests"):
        decoder.generate(requests(), CONFIG)


@pytest.mark.parametrize(("field", "value"), [("grammar", "json"), ("temperature", 0.5)])
def test_what_a_grammar_cannot_do_is_refused(field, value):
    with pytest.raises(UserError, match=field):
        replace(CONFIG, **{field: value})


@pytest.mark.parametrize("language", ["waypoints", "detections"])
def test_qwen_s_vocabulary(tmp_path: Path, language):
    checkpoint = load_checkpoint(write_random_qwen(tmp_path, 5))
    prompts = [ModelInputs(torch.arange(1000, 1010 + seed)) for seed in range(3)]
    grammars = [language_of(language, checkpoint.chat)] * 3
    answers = Generator(checkpoint).generate(prompts, CONFIG, grammars=grammars)
    assert [readable(language, answer) for answer in answers] == [True] * 3


def test_the_shipped_checkpoint_is_not_worse(nano_folder: Path):
    """Wrong pictures and a hurried decode: without the grammar some answers cannot be read, with it all can."""
    from wamdiff2_core.chat import ChatRequest

    torch.set_num_threads(1)
    checkpoint = load_checkpoint(nano_folder)
    record = checkpoint.record
    assert record is not None
    assert record.planning is not None
    rng = np.random.default_rng(0)
    prompts = []
    for _ in range(8):
        x1, y1, x2, y2, speed = rng.uniform((5, -9, 10, -19, 0), (10, 9, 20, 19, 12)).round(1)
        text = (
            "Here is a front-view image from a driving vehicle:\n<image>\n"
            f"The navigation information is: Target: [{x1}, {y1}] [{x2}, {y2}]. Command: follow the road\n"
            f"Current velocity is: {speed}\n"
            "Predict the optimal driving action for the next 3 seconds with 6 new waypoints."
        )
        picture = rng.integers(0, 255, (128, 256, 3), np.uint8)
        prompts.append(checkpoint.chat.encode(ChatRequest(text, (picture,))))
    decoder = Generator(checkpoint)
    served = replace(record.decode, grammar="off")
    hurried = replace(served, denoising_steps=2, strategy="low_confidence_static")
    grammars = [waypoint_language(checkpoint.chat, record.planning)] * len(prompts)
    free = decoder.generate(prompts, hurried)
    bound = decoder.generate(prompts, replace(hurried, grammar="task"), grammars=grammars)
    assert all(readable("waypoints", answer) for answer in bound)
    assert not all(readable("waypoints", answer) for answer in free)
    patient = decoder.generate(prompts[:3], served)
    again = decoder.generate(prompts[:3], replace(served, grammar="task"), grammars=grammars[:3])
    for one, other in zip(patient, again, strict=True):
        if other.stats.interventions == 0:
            assert one.text == other.text


def test_a_deadline_keeps_no_time_for_blocks_that_the_grammar_rules_out():
    decoder, codec = rig("bytes")
    grammar = waypoint_language(codec, replace(TASK, waypoints=2))
    assert grammar.longest is not None
    blocks = -(-grammar.longest // 8)
    config = DecodeConfig(8, 8, "low_confidence_static", grammar="task", max_new_tokens=16 * 8, deadline_ms=1e6)
    clock, known = decoder.clock, {"grammars": [grammar]}
    try:
        timed(decoder, 10, 10)
        free = decoder.generate(requests(1), config, **known)[0]
        steps = free.stats.steps + blocks - free.stats.blocks  # one for each block that the language still allows
        enough = replace(config, deadline_ms=10.0 + 10 * steps)
        assert decoder.generate(requests(1), enough, **known)[0].stats.hurried_steps == 0
        short = replace(config, deadline_ms=10.0 + 10 * steps - 10)
        assert decoder.generate(requests(1), short, **known)[0].stats.hurried_steps > 0
    finally:
        decoder.clock = clock
