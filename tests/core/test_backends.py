"""Backends against `eager`, the reference, which other tests hold against the stock model and the authors' code."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from unittest.mock import ANY

import pytest
import torch

from tests.core.doubles import EOS, MASK, random_inputs, save_tiny, tiny_model
from tests.core.engines import ENGINES, STAND_INS, each_forward, engine_generator, idle_replays, make_engine
from wamdiff2_core.bench.machine import counted_blocks
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import BACKENDS, choose_backend, cpu, native, packed
from wamdiff2_core.model.backends.cpu import CpuBackend
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.model.vision import ImageMemory

NO_EOS = 100_000  # beyond the vocabulary: never emitted
GROUPS, CASES = 10, 68
SIZES = (1, 2, 4, 5, 8, 16, 32)
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
    size = rng.choice(SIZES)
    strategy = rng.choice(STRATEGIES)
    sampled = rng.random() < 0.1
    config = DecodeConfig(
        size, rng.randint(1, min(size, 8)), strategy, rng.choice((0.05, 0.1, 0.2, 0.4, 0.9)),
        temperature=0.7 if sampled else 0.0, top_k=rng.choice((0, 5)), seed=seed,
        max_new_tokens=rng.randint(1, 8 if strategy == "autoregressive" else 2 * size),
    )
    return Case(rng.randrange(len(SHAPES)), requests, config)


def test_random_cases_are_of_all_kinds():
    """Five hundred by block diffusion, and in them every block size with every strategy, often."""
    cases = [case for case in map(random_case, range(GROUPS * CASES)) if case.config.strategy != "autoregressive"]
    assert len(cases) >= 500
    kinds = Counter((case.config.block_size, case.config.strategy) for case in cases)
    assert min(kinds[kind] for kind in product(SIZES, STRATEGIES[:3])) >= 10
    requests = [request for case in cases for request in case.requests]
    images = Counter(0 if one.image_grid_thw is None else len(one.image_grid_thw) for one in requests)
    for counts, values in (
        (images, (0, 1, 2)), (Counter(len(case.requests) for case in cases), (1, 2, 3)),
        (Counter(case.shape for case in cases), range(len(SHAPES))),
        (Counter(case.config.max_new_tokens > case.config.block_size for case in cases), (False, True)),
        (Counter(len({len(one.input_ids) for one in case.requests}) > 1 for case in cases), (False, True)),
        (Counter(case.config.temperature > 0 for case in cases), (False, True)),
    ):
        assert min(counts[value] for value in values) >= 40
    assert len({len(one.input_ids) for one in requests}) >= 30


@pytest.fixture(scope="module")
def trios() -> list[tuple[Generator, ...]]:
    models = [tiny_model(20 + shape, gain=2.0, **kwargs) for shape, kwargs in enumerate(SHAPES)]
    return [
        tuple(engine_generator(engine, model, MASK, EOS) for engine in ("eager", "cpu", "cpu-operators"))
        for model in models
    ]


@pytest.mark.parametrize("group", range(GROUPS))
def test_cpu_gives_the_tokens_of_eager(trios, group):
    seen: set[int] = set()
    early = later = 0
    for seed in range(group * CASES, (group + 1) * CASES):
        case = random_case(seed)
        expected, *others = (one.generate(case.requests, case.config) for one in trios[case.shape])
        for got in others:
            assert [answer.raw_ids for answer in got] == [answer.raw_ids for answer in expected], seed
            assert [answer.stats.steps for answer in got] == [answer.stats.steps for answer in expected], seed
        seen.update(token for answer in expected for token in answer.raw_ids)
        if case.config.strategy == "low_confidence_dynamic":
            most = min(case.config.denoising_steps, case.config.block_size)
            early += sum(answer.stats.steps < most * answer.stats.blocks for answer in expected)
        later += sum(answer.stats.blocks > 1 for answer in expected if case.config.strategy != "autoregressive")
    assert len(seen) > 50
    assert early >= 2  # answers with a block done before its last step
    assert later >= 10  # of several blocks


@pytest.mark.parametrize("engine", STAND_INS)
def test_stand_ins_for_accelerators_give_the_tokens_of_eager(engine):
    models = [tiny_model(20 + shape, gain=2.0, **kwargs) for shape, kwargs in enumerate(SHAPES)]
    pairs = [tuple(engine_generator(name, model, MASK, EOS) for name in ("eager", engine)) for model in models]
    for seed in range(24):
        case = random_case(seed)
        expected, got = (one.generate(case.requests, case.config) for one in pairs[case.shape])
        assert [answer.raw_ids for answer in got] == [answer.raw_ids for answer in expected], seed
        assert [answer.stats.steps for answer in got] == [answer.stats.steps for answer in expected], seed


def agreement(engine: str, cases: int) -> tuple[int, int]:
    """Equal tokens, and all, of weights in bfloat16 and of their own values in float32, over random cases."""
    same = total = 0
    models = [tiny_model(20 + shape, gain=2.0, **kwargs).to(torch.bfloat16) for shape, kwargs in enumerate(SHAPES)]
    pairs = [
        (engine_generator("eager", deepcopy(model).float(), MASK, EOS), engine_generator(engine, model, MASK, EOS))
        for model in models
    ]
    for case in map(random_case, range(cases)):
        if case.config.temperature == 0:
            wide, narrow = (one.generate(case.requests, case.config) for one in pairs[case.shape])
            agreed = [a == b for two in zip(wide, narrow, strict=True)
                      for a, b in zip(*(answer.raw_ids for answer in two), strict=True)]
            same, total = same + sum(agreed), total + len(agreed)
    return same, total


@pytest.mark.parametrize(
    ("engine", "amx", "cases"), [("cpu", False, 100), ("cpu-operators", False, 100), ("cpu", True, 30)]
)
def test_bfloat16_weights_give_nearly_the_tokens_of_their_own_values_in_float32(engine, amx, cases, monkeypatch):
    """Stated agreement: all tokens where weights are widened, four in five elsewhere, where 150 cases gave 0.90."""
    monkeypatch.setattr(cpu, "has_amx", lambda: amx)
    backend, library = make_engine(engine, tiny_model(20).to(torch.bfloat16)), native.kernels()
    assert not amx or backend.dtype == torch.bfloat16
    assert backend.compiled == (engine == "cpu" and library is not None)
    pairs = backend.compiled and library is not None and library.pair > 1
    exact = backend.dtype == torch.float32 and not pairs
    same, total = agreement(engine, cases)
    assert total > 15 * cases
    assert same == total if exact else 0.8 * total <= same < total


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
@pytest.mark.parametrize("engine", ENGINES)
def test_forwards_are_one_for_the_prompt_and_one_a_step_none_to_commit_none_after_the_last_block(engine, strategy):
    """Step by step as the host counts them, and, where a device decodes by itself, as it was given them."""
    decoder, rows = engine_generator(engine, tiny_model(9), MASK, NO_EOS), []
    config = DecodeConfig(8, 5, strategy, 0.2, max_new_tokens=24)
    with each_forward(decoder.blocks.backend, rows.append):
        with counted_blocks(decoder.blocks) as seen:
            answer = decoder.generate([random_inputs(1, 12)], config)[0]
        steps = answer.stats.steps
        assert [forward.rows for forward in seen] == [12, *rows]
        assert answer.stats.forwards == 1 + steps == len(seen)
        assert sorted(rows) == [8] * (steps - 2) + [16] * 2  # two commits, with a first step each
        rows.clear()
        assert decoder.generate([random_inputs(1, 12)], config)[0].stats == replace(
            answer.stats, prefill_ms=ANY, decode_ms=ANY, prefill_reused_tokens=ANY
        )
    assert steps <= len(rows) <= steps + idle_replays(engine, config, 3)
    commits = len(rows) if engine == "cuda" else 2  # there each step runs the block before, too
    assert sorted(rows) == [8] * (len(rows) - commits) + [16] * commits


def test_generators_of_one_checkpoint_share_what_runs_it(tmp_path):
    checkpoint = load_checkpoint(save_tiny(tmp_path), mask_token_id=MASK, eos_token_id=EOS)
    first, second = Generator(checkpoint), Generator(checkpoint)
    assert checkpoint.backend == "cpu"
    assert first.blocks.backend is second.blocks.backend is checkpoint.runner
    config, requests = DecodeConfig(8, 8, max_new_tokens=24), [random_inputs(seed, 9 + seed) for seed in range(8)]
    expected = [first.generate([request], config)[0].raw_ids for request in requests]
    with ThreadPoolExecutor(2) as pool:
        got = [pool.submit((first, second)[index % 2].generate, [request], config)
               for index, request in enumerate(requests)]
    assert [future.result()[0].raw_ids for future in got] == expected


def test_stock_weights_keep_their_values_and_stay_the_models_own():
    model = tiny_model(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for engine in ("cpu", "cpu-operators", "cpu-operators"):
        make_engine(engine, model)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    layer = model.model.language_model.layers[0].self_attn
    assert layer.q_proj.weight.untyped_storage().data_ptr() == layer.k_proj.weight.untyped_storage().data_ptr()


def test_an_image_that_comes_again_is_not_encoded_again():
    model = tiny_model(2)
    blocks, calls = BlockModel(model, "cpu", reused_images=2), []
    encode = blocks.backend.encode_images
    memory = ImageMemory(lambda pixels, grids: calls.append(len(grids)) or encode(pixels, grids), 2)
    both = random_inputs(1, 12, ((2, 4), (4, 4)))
    first, other = both.pixel_values[:8], random_inputs(7, 12, ((2, 4),)).pixel_values
    with torch.inference_mode():
        expected = encode(both.pixel_values, both.image_grid_thw)
        for _ in range(2):
            tokens, deepstack = memory(both.pixel_values, both.image_grid_thw, torch.device("cpu"))
            assert torch.equal(tokens, expected[0])
            assert torch.equal(deepstack[0], expected[1][0])
        assert calls == [2]
        grid = both.image_grid_thw[:1]
        assert torch.equal(memory(first, grid, torch.device("cpu"))[0], tokens[:2])
        memory(other, grid, torch.device("cpu"))  # the one not used for longest is forgotten
        memory(first, grid, torch.device("cpu"))
        assert calls == [2, 1]
        memory(both.pixel_values[8:], both.image_grid_thw[1:], torch.device("cpu"))
        assert calls == [2, 1, 1]
        changed = first.clone()
        changed[3, 5] += 1e-6
        memory(changed, grid, torch.device("cpu"))
        assert calls == [2, 1, 1, 1]


def test_options_name_every_backend():
    from wamdiff2_core.cli.predict import BACKEND_HELP

    assert set(BACKENDS) <= set(re.findall(r"[a-z-]+", BACKEND_HELP))


def test_a_backend_that_is_not_there_is_refused_with_what_to_do():
    assert choose_backend("auto", "cpu") == "cpu"
    assert choose_backend("auto", "meta") == "eager"
    assert choose_backend("eager", "cuda:1") == "eager"
    for name, device, words in (
        ("cup", "cpu", "did you mean 'cpu'"), ("cpu", "cuda:0", "auto, eager, cuda, cuda-flashinfer, got cpu"),
    ):
        with pytest.raises(UserError, match=words):
            choose_backend(name, device)


def test_without_a_compiler_the_kernels_are_done_without_and_the_log_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    native.kernels.cache_clear()
    try:
        backend = CpuBackend(tiny_model(2))
        assert not backend.compiled
        assert "slower" in caplog.text
    finally:
        native.kernels.cache_clear()


def heads(model, monkeypatch) -> list:
    """Every head that there is here, in pieces much smaller than the vocabulary."""
    monkeypatch.setattr(packed, "HEAD_CHUNK", 100)
    found = [packed.PackedHead(model.lm_head, torch.float32)]
    library = native.kernels()
    return found if library is None else [*found, native.NativeHead(model.lm_head, library)]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_lowest_of_equally_probable_tokens_wins_wherever_the_vocabulary_is_cut(threads, monkeypatch):
    model = tiny_model(3, vocab_size=2200)
    rows = torch.randn(5, model.lm_head.weight.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        # token 1 would be the best of all, and is ruled out; 37, 1100 and 2190 are equal in every row
        model.lm_head.weight[1] = 9 * rows[0]
        model.lm_head.weight[[37, 1100, 2190]] = 5 * rows[0]
        logits = rows @ model.lm_head.weight.T
        logits[:, 1] = -torch.inf
        expected, likely = logits.argmax(-1), logits.softmax(-1).max(-1).values
        assert expected[0] == 37
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for head in heads(model, monkeypatch):
                tokens, probabilities = head.pick(rows, 1)
                assert tokens.tolist() == expected.tolist()
                torch.testing.assert_close(probabilities, likely)
        finally:
            torch.set_num_threads(before)


@pytest.mark.skipif(native.kernels() is None, reason="needs a C compiler")
@pytest.mark.parametrize(("hidden", "rows"), [(48, 1), (63, 7), (64, 12), (65, 30)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_head_rounds_what_meets_bfloat16_pairs_and_nothing_else(hidden, rows, dtype):
    library, generator = native.kernels(), torch.Generator().manual_seed(hidden + rows)
    head = torch.nn.Linear(hidden, 1030, bias=False)
    head.weight.data = torch.randn(1030, hidden, generator=generator).mul_(0.3).to(dtype)
    x = torch.randn(rows, hidden, generator=generator)
    tokens, probabilities = native.NativeHead(head, library).pick(x, 3)
    narrow = dtype == torch.bfloat16 and library.pair == 2
    logits = (x.bfloat16() if narrow else x).double() @ head.weight.double().T
    logits[:, 3] = -torch.inf
    expected, likely = logits.argmax(-1), logits.softmax(-1).max(-1).values
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(probabilities, likely.float(), rtol=2e-5, atol=0)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_kernels_are_compiled_once_and_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = native.compiled("cc")
    assert made.parent == tmp_path / "wamdiff2"
    stamp = made.stat().st_mtime_ns
    assert native.compiled("cc") == made
    assert made.stat().st_mtime_ns == stamp
    assert list(made.parent.iterdir()) == [made]


@pytest.mark.skipif(native.kernels() is None, reason="needs a C compiler")
@pytest.mark.parametrize(("hidden", "inner", "head_dim", "vocabulary"), [(40, 28, 16, 100), (72, 104, 24, 1030)])
def test_kernels_take_sizes_that_fill_no_whole_panel(hidden, inner, head_dim, vocabulary):
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [head_dim // 2 - 4, 2, 2],
            "mrope_interleaved": True}
    model = tiny_model(
        5, hidden_size=hidden, intermediate_size=inner, head_dim=head_dim, vocab_size=vocabulary + 200,
        rope_parameters=rope, attention_bias=True,
    )
    requests = [random_inputs(1, 33), random_inputs(2, 7)]
    config = DecodeConfig(8, 8, "low_confidence_static", max_new_tokens=16)
    expected, got = (
        [answer.raw_ids for answer in engine_generator(engine, model, 7, NO_EOS).generate(requests, config)]
        for engine in ("eager", "cpu")
    )
    assert got == expected
