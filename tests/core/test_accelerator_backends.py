"""`cuda`, `cuda-flashinfer` and `npu` on stand-ins for their devices: same answers as `eager`, within the rules."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from tests.core.doubles import MASK, random_inputs, tiny_model
from tests.core.engines import STAND_INS, stand_in
from tests.core.grammar.walker import codec_of
from tests.core.standins.accelerator import FakeDevice
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.decode import Generator
from wamdiff2_core.decode.block_diffusion import decode_blocks
from wamdiff2_core.decode.grammar import detection_language, waypoint_language
from wamdiff2_core.decode.on_device import decode_on_device
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import choose_backend, cuda, npu
from wamdiff2_core.model.backends.graphed import Step, StepShape
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import format_grounding, parse_grounding
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints

STRATEGIES = ["sequential", "low_confidence_static", "low_confidence_dynamic"]
NO_EOS = 100_000
NANO_MASK, NANO_EOS = 7, 2  # of the shipped checkpoint's vocabulary
ROOT = Path(__file__).resolve().parents[2]


def generator(model, mask: int = MASK, eos: int = NO_EOS) -> Generator:
    ids = ServingRecord(mask_token_id=mask, eos_token_id=eos)
    return Generator.of(model, None, ids, enforce_record=False)


def pair(
    kind: str, seed: int = 5, eos: int = NO_EOS, latency: int = 1, mask: int = MASK, **changes
) -> SimpleNamespace:
    """A generator on a stand-in, one with `eager`, and the stand-in."""
    model = tiny_model(seed, **changes)
    own, eager = generator(model, mask, eos), generator(model, mask, eos)
    backend, device = stand_in(kind, model, latency)
    own.blocks = BlockModel(model, backend)
    return SimpleNamespace(own=own, eager=eager, device=device, backend=backend)


def same(two: SimpleNamespace, requests, config: DecodeConfig, **more) -> list:
    with two.device.watching():
        answers = two.own.generate(requests, config, trace=True, **more)
    for answer, expected in zip(answers, two.eager.generate(requests, config, trace=True, **more), strict=True):
        assert answer.raw_ids == expected.raw_ids
        assert answer.trace.fixed_at == expected.trace.fixed_at
        np.testing.assert_allclose(answer.trace.confidence, expected.trace.confidence, rtol=1e-3)
        for count in ("steps", "blocks", "tokens", "forwards", "interventions"):
            assert getattr(answer.stats, count) == getattr(expected.stats, count)
    return answers


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_answers_equal_eager(kind, strategy):
    two = pair(kind, latency=2)
    alone = [random_inputs(20, 13, ((2, 4),))]
    batch = [random_inputs(1, 9), random_inputs(2, 21, ((2, 4), (4, 4))), random_inputs(3, 4)]
    for size, steps, requests in ((4, 3, batch), (7, 7, alone), (4, 4, alone)):
        answers = same(two, requests, DecodeConfig(size, steps, strategy, 0.2, max_new_tokens=2 * size + 3))
        assert len({answer.raw_ids for answer in answers}) == len(requests)


@pytest.mark.parametrize("kind", STAND_INS)
def test_rows_that_end_at_different_blocks_equal_eager(kind):
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.3, max_new_tokens=20)
    requests = [random_inputs(seed, 7 + seed) for seed in range(3)]
    eos = pair(kind, 7).eager.generate(requests, config)[0].raw_ids[5]
    answers = same(pair(kind, 7, eos=eos), requests, config)
    assert answers[0].ended
    assert answers[0].stats.blocks < max(answer.stats.blocks for answer in answers)


@pytest.mark.parametrize("kind", STAND_INS)
def test_a_replay_after_a_longer_request_equals_eager(kind):
    two = pair(kind)
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.2, max_new_tokens=9)
    for length in (40, 9, 300, 11):  # within a bucket, in the next one, back again
        same(two, [random_inputs(length, length)], config)
        with torch.inference_mode():
            for room in two.backend._rooms.values():
                room.cache.fill_(torch.nan)  # a request that overflowed
    captured = two.device.captures
    same(two, [random_inputs(7, 20)], config)
    assert two.device.captures == captured


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(4, 3, "low_confidence_dynamic", 0.2, temperature=0.8, top_k=20, seed=3, max_new_tokens=10),
        DecodeConfig(1, strategy="autoregressive", max_new_tokens=6),
        DecodeConfig(4, 4, "low_confidence_static", max_new_tokens=9, deadline_ms=1e6),
    ],
    ids=["sampled", "autoregressive", "deadline"],
)
def test_steps_that_need_the_host_equal_eager(kind, config):
    same(pair(kind), [random_inputs(1, 9), random_inputs(2, 14, ((2, 4),))], config)


@pytest.fixture(scope="module")
def languages() -> SimpleNamespace:
    codec = codec_of(AutoTokenizer.from_pretrained(ROOT / "checkpoints" / "wamdiff2-nano"), NANO_EOS)
    task = PlanningTask(decimals=1)
    return SimpleNamespace(
        codec=codec, waypoints=waypoint_language(codec, task), detections=detection_language(codec),
        reads={
            "waypoints": lambda text: format_waypoints(parse_waypoints(text, task), task),
            "detections": lambda text: format_grounding(parse_grounding(text)),
        },
    )


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize(
    ("language", "config"),
    [
        ("waypoints", DecodeConfig(32, 3, "low_confidence_dynamic", 0.3, max_new_tokens=64, grammar="task")),
        ("waypoints", DecodeConfig(16, 2, "sequential", max_new_tokens=64, grammar="task", deadline_ms=1e6)),
        ("detections", DecodeConfig(8, 2, "low_confidence_static", max_new_tokens=24, grammar="task")),
        ("detections", DecodeConfig(1, strategy="autoregressive", max_new_tokens=6, grammar="task")),
    ],
    ids=["waypoints", "deadline", "detections", "autoregressive"],
)
def test_answers_within_a_grammar_equal_eager(kind, language, config, languages):
    """In a batch with a free answer; the language's answer is one that its task reads, whatever the model wants."""
    two = pair(kind, 4, NANO_EOS, 2, NANO_MASK, gain=3.0, vocab_size=899)
    requests = [random_inputs(1, 9), random_inputs(2, 14, ((2, 4),))]
    for full_head in (False, True):
        bound, free = same(
            two, requests, config, grammars=[getattr(languages, language), None], full_head=full_head
        )
        text = languages.codec.decode(bound.token_ids)
        assert languages.reads[language](text) == text
        assert bound.ended
        assert bound.stats.interventions > 0 == free.stats.interventions


def test_a_warm_start_equals_eager(monkeypatch):
    monkeypatch.setattr("wamdiff2_core.decode.warm_start.AGREED_CONFIDENCE", 0.0)
    two, requests = pair("cuda"), [random_inputs(1, 9)]
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 1.0, max_new_tokens=8)
    cold = same(two, requests, config)
    warm = replace(config, warm_start="previous")
    guesses = [cold[0].raw_ids]
    own, eager = (which.generate(requests, warm, guesses=guesses)[0] for which in (two.own, two.eager))
    assert own.raw_ids == eager.raw_ids
    assert own.stats.steps == eager.stats.steps < cold[0].stats.steps


@pytest.mark.parametrize("kind", STAND_INS)
def test_candidates_equal_eager_also_between_batches_of_other_sizes(kind):
    two, config = pair(kind), DecodeConfig(8, 5, "sequential", max_new_tokens=24, temperature=0.9)
    requests = [random_inputs(1, 30, ((4, 6),)), random_inputs(2, 9)]
    for more in ({}, {"candidates": 3}, {"candidates": 2}, {}, {"candidates": 3}):
        same(two, requests, config, **more)
    same(two, [random_inputs(3, 150), requests[1]], config, candidates=3)


@pytest.mark.parametrize("kind", STAND_INS)
def test_forwards_that_somebody_counts_run_one_by_one(kind):
    two, seen = pair(kind), []
    forward = two.own.blocks.forward

    def counted(ids, offset, commit=0, wanted=None):
        seen.append((ids.shape[1], offset, commit))
        return forward(ids, offset, commit, wanted)

    two.own.blocks.forward, two.own.blocks.stepwise = counted, True
    same(two, [random_inputs(1, 9)], DecodeConfig(4, 2, "low_confidence_static", max_new_tokens=8))
    assert seen == [(4, 0, 0), (4, 0, 0), (8, 0, 4), (4, 4, 0)]


@pytest.mark.parametrize("kind", STAND_INS)
def test_committed_keys_and_values_equal_eager(kind):
    two = pair(kind)
    config, requests = DecodeConfig(4, 4, max_new_tokens=12), [random_inputs(1, 9), random_inputs(2, 14)]
    with torch.inference_mode():
        decode_on_device(two.own.blocks, requests, config, MASK, NO_EOS)
        decode_blocks(two.eager.blocks, requests, config, MASK, NO_EOS)
    for first, last in ((9, 14), (14, 22)):  # what both rows have of the prompt; two committed blocks
        pairs = zip(two.backend.columns(first, last), two.eager.blocks.backend.columns(first, last), strict=True)
        for own, expected in pairs:
            torch.testing.assert_close(own, expected)


def test_the_host_waits_once_a_step_at_most_and_one_replay_is_idle_in_all():
    two = pair("cuda")
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.15, max_new_tokens=24)
    steps, requests = [], [random_inputs(seed, 9) for seed in range(3)]
    for request in requests:
        with torch.inference_mode():
            batch = decode_on_device(two.own.blocks, [request], config, MASK, NO_EOS)
        assert batch.idle_replays <= 1
        steps.append(int(batch.steps.sum()))
    assert two.device.replays <= sum(steps) + len(requests)
    assert two.device.captures == 1
    before, waits = two.device.replays, two.device.waits
    with two.device.watching(), torch.inference_mode():
        decode_on_device(two.own.blocks, requests[:1], config, MASK, NO_EOS)
    prompt_and_results = 6
    assert two.device.waits - waits <= two.device.replays - before + prompt_and_results


@pytest.mark.parametrize("kind", ["cuda", "cuda-flashinfer"])
def test_without_early_exit_blocks_are_waited_for_alone(kind, monkeypatch):
    monkeypatch.setattr("wamdiff2_core.decode.on_device.FREE_TOKENS", 0)
    two = pair(kind)
    config = DecodeConfig(4, 4, "low_confidence_static", max_new_tokens=12)
    with torch.inference_mode():
        decode_on_device(two.own.blocks, [random_inputs(1, 9)], config, MASK, NO_EOS)
        waits = two.device.waits
        batch = decode_on_device(two.own.blocks, [random_inputs(2, 9)], config, MASK, NO_EOS)
    assert batch.idle_replays == 0
    assert two.device.waits - waits == 1 + 3  # for what was given before the prompt, and for each block
    same(two, [random_inputs(3, 9)], config)
    same(two, [random_inputs(3, 9)], replace(config, strategy="low_confidence_dynamic", confidence_threshold=0.15))


def test_flashinfer_is_planned_once_a_block_and_graph():
    two = pair("cuda-flashinfer")
    config = DecodeConfig(4, 4, "low_confidence_static", max_new_tokens=12)
    same(two, [random_inputs(1, 9)], config)
    wrapper = two.backend.attention._library.BatchPrefillWithPagedKVCacheWrapper
    before = wrapper.plans
    same(two, [random_inputs(2, 10)], config)
    assert wrapper.plans - before == 3 + 2  # three blocks, the later two with a graph more


def test_sdpa_sees_what_the_lengths_say():
    shape = StepShape(rows=2, count=3, commit=1, columns=8, capacity=16)
    ends = torch.tensor([[2, 5, 5], [1, 4, 4]])
    generator_ = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(2, size, heads, 4, generator=generator_) for size, heads in ((3, 4), (16, 2), (16, 2))
    )
    attention = cuda.SdpaAttention(4, 2)
    step = Step(shape, ends)
    out = attention.attend(query, keys, values, Step(shape, ends, attention.begin(step))).view(2, 3, 4, 4)
    for row in range(2):
        for token in range(3):
            for head in range(4):
                seen = slice(0, int(ends[row, token]))
                scores = (keys[row, seen, head // 2] @ query[row, token, head]) / 2
                torch.testing.assert_close(out[row, token, head], scores.softmax(0) @ values[row, seen, head // 2])


def test_backends_are_chosen_by_device():
    assert [choose_backend("auto", device) for device in ("cuda:1", "npu", "npu:0")] == ["cuda", "npu", "npu"]
    assert choose_backend("cuda-flashinfer", "cuda") == "cuda-flashinfer"
    with pytest.raises(UserError, match="one that runs on cpu"):
        choose_backend("cuda", "cpu")


def test_what_flashinfer_lacks_is_told(monkeypatch):
    model, device = tiny_model(1), FakeDevice()
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setattr(cuda, "FLASHINFER_DTYPES", (torch.float32,))
    monkeypatch.setattr(cuda, "FLASHINFER_HEAD_DIMS", (16,))
    with pytest.raises(UserError, match="it is not installed"):
        cuda.FlashInferBackend(model, device.ops())
    monkeypatch.setattr(cuda, "FLASHINFER_HEAD_DIMS", (64,))
    with pytest.raises(UserError, match="head_dim"):
        cuda.FlashInferBackend(model, device.ops())
    monkeypatch.setattr(cuda, "FLASHINFER_DTYPES", (torch.bfloat16,))
    with pytest.raises(UserError, match="bfloat16"):
        cuda.FlashInferBackend(model, device.ops())


def test_an_npu_model_in_float32_gets_torch_attention():
    model, device = tiny_model(5), FakeDevice("npu")
    own = generator(model)
    own.blocks = BlockModel(model, npu.NpuBackend(model, device.ops()))
    config = DecodeConfig(4, 4, "low_confidence_dynamic", 0.2, max_new_tokens=9)
    same(SimpleNamespace(own=own, eager=generator(model), device=device), [random_inputs(1, 9)], config)
    with pytest.raises(UserError, match="page"):
        npu.NpuBackend(model, device.ops(), page=48)


def test_accelerator_libraries_are_asked_for_late_and_in_one_file():
    files = [*(ROOT / "wamdiff2_core/model").rglob("*.py"), *(ROOT / "wamdiff2_core/decode").rglob("*.py")]
    assert ROOT / "wamdiff2_core/model/backends/npu.py" in files
    for file in files:
        tree = ast.parse(file.read_text())
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & {"flashinfer", "torch_npu"}  # asked for by name where they are needed
        devices = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not devices & {"torch.cuda", "torch.npu"}  # `DeviceOps` finds them by the device's name
