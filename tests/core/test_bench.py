"""`wamdiff2 bench`: rows that answer alike, counts that are counted, floors that are low, and what it writes."""

from __future__ import annotations

import itertools
import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from tests.core.doubles import EOS, MASK, random_inputs, save_tiny, tiny_config, tiny_model
from wamdiff2_core.bench import grammar, ladder, machine, naive, parts, report, subjects
from wamdiff2_core.bench.command import bench
from wamdiff2_core.bench.machine import Floor, Machine, Rates
from wamdiff2_core.cli.main import as_command, exit_code_of, main
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.decode.grammar import detection_language, waypoint_language
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import load_chat_codec, load_checkpoint, read_model_config
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints

RATES = Rates(bytes_per_s=1e10, flops_per_s=1e11)
ROW_KEYS = {
    "name", "block_size", "ms_per_answer_median", "ms_per_answer_p95", "ms_per_answer_iqr", "ms_per_token",
    "forwards_per_answer", "tokens_per_forward", "ms_per_forward", "fraction_of_floor", "first_ms", "answers",
    "denoising_steps",
}
MACHINE_KEYS = {
    "cpu", "vector_extensions", "cores", "threads", "torch_version", "device", "memory_gb_per_s", "matrix_gflop_per_s",
}
STATIC = DecodeConfig(8, 4, "low_confidence_static", max_new_tokens=14)
DYNAMIC = DecodeConfig(8, 8, "low_confidence_dynamic", 0.2, max_new_tokens=14)
CONFIGS = [STATIC, DYNAMIC, replace(DYNAMIC, block_size=4), replace(STATIC, strategy="sequential", denoising_steps=3)]
IMAGE_SETS = [(), ((4, 4),), ((2, 4), (6, 2))]


def subject_of(model, prompts, decode=STATIC, new_tokens=14) -> subjects.Subject:
    return subjects.Subject("tiny", model, prompts, MASK, EOS, decode, None, 1.0, new_tokens)


def ours(model, prompt, config, eos=naive.NO_EOS):
    record = ServingRecord(mask_token_id=MASK, eos_token_id=eos)
    return Generator.of(model, None, record, enforce_record=False).generate([prompt], config)[0]


@contextmanager
def calls_of_the_last_layer(model):
    """Widths of all forwards, taken by a wrapped method where the measurement itself uses hooks on the first layer."""
    layer = model.model.language_model.layers[-1]
    original, widths = layer.forward, []

    def forward(hidden_states, *arguments, **named):
        widths.append(hidden_states.shape[1])
        return original(hidden_states, *arguments, **named)

    layer.forward = forward
    try:
        yield widths
    finally:
        del layer.forward


@contextmanager
def calls_of_the_backend(backend):
    """Widths of all forwards that a backend is asked for."""
    prefill, step, widths = backend.prefill, backend.step, []

    def counted_prefill(batch):
        widths.append(batch.ids.shape[1])
        return prefill(batch)

    def counted_step(ids, *arguments, **named):
        widths.append(ids.shape[1])
        return step(ids, *arguments, **named)

    backend.prefill, backend.step = counted_prefill, counted_step
    try:
        yield widths
    finally:
        del backend.prefill, backend.step


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("images", IMAGE_SETS)
def test_the_naive_decoder_gives_our_tokens(config, images):
    model, steps = tiny_model(7, gain=3), []
    for seed in range(2):
        prompt = random_inputs(seed, 9 + seed, images)
        expected = ours(model, prompt, config)
        assert naive.decode_naively(model, prompt, config, MASK) == list(expected.raw_ids)
        assert len(set(expected.raw_ids)) > 2
        steps.append(expected.stats.steps)
    assert min(steps) > -(-14 // config.block_size)


def test_the_naive_decoder_ends_after_the_block_of_eos():
    model, prompt = tiny_model(7, gain=3), random_inputs(0, 9)
    config = replace(STATIC, max_new_tokens=22)
    free = ours(model, prompt, config).raw_ids
    eos = next(token for token in free[8:16] if token not in free[:8])
    expected = ours(model, prompt, config, eos).raw_ids
    answer = naive.decode_naively(model, prompt, config, MASK, eos)
    assert answer == list(expected[:16])
    assert set(expected[16:]) == {eos}


def test_the_naive_decoder_never_takes_the_mask():
    model, prompt = tiny_model(7, gain=3, tie_word_embeddings=False), random_inputs(0, 9)
    with torch.no_grad():
        most = model.lm_head.weight[ours(model, prompt, STATIC).raw_ids[0]]
        model.lm_head.weight[MASK] = 3 * most
    answer = naive.decode_naively(model, prompt, STATIC, MASK)
    assert MASK not in answer
    assert answer == list(ours(model, prompt, STATIC).raw_ids)


@pytest.mark.parametrize("images", IMAGE_SETS)
def test_both_autoregressive_rows_write_the_same_tokens(images):
    prompts = [random_inputs(seed, 9 + seed, images) for seed in range(2)]
    subject, lengths = subject_of(tiny_model(3, gain=3), prompts), [17, 5]
    hf_ar, own_ar = ladder.make_rungs(subject, lengths, [8], ladder.AUTOREGRESSIVE_ROWS)
    assert (hf_ar.name, own_ar.name) == ("hf_ar", "own_ar")
    for index, length in enumerate(lengths):
        answer = list(own_ar.answer(index))
        assert list(hf_ar.answer(index)) == answer
        assert len(answer) == length
        assert len(set(answer)) > 2


def test_an_answer_does_not_stop_at_eos():
    model, prompts = tiny_model(3, gain=3), [random_inputs(0, 9)]
    subject = subject_of(model, prompts)
    rungs = ladder.make_rungs(subject, [14], [8])
    before = [tuple(rung.answer(0)) for rung in rungs]
    for rung, answer in zip(rungs, before, strict=True):
        if answer:
            eos = answer[2]
            again = ladder.make_rungs(replace(subject, eos_token_id=eos), [14], [8], [rung.name])[0]
            assert tuple(again.answer(0)) == answer


@pytest.mark.parametrize("decode", [STATIC, DYNAMIC])
def test_forwards_and_tokens_are_those_of_an_independent_count(decode):
    model = tiny_model(7, gain=3)
    prompts, lengths, sizes = [random_inputs(seed, 9 + seed) for seed in range(2)], [9, 5], [4, 8]
    subject = subject_of(model, prompts, decode)
    rungs = ladder.make_rungs(subject, lengths, sizes)
    rows = ladder.climb(subject, rungs, lengths, 1, lambda model: Floor(model, RATES))
    assert [(row.name, row.block_size) for row in rows] == [
        ("hf_ar", None), ("own_ar", None), *itertools.product(ladder.BLOCK_ROWS, [4]),
        *itertools.product(ladder.BLOCK_ROWS, [8]),
    ]
    for rung, row in zip(rungs, rows, strict=True):
        counts = []
        for index in range(2):
            stock = rung.blocks is None or rung.blocks.backend.name == "eager"
            with calls_of_the_last_layer(model) if stock else calls_of_the_backend(rung.blocks.backend) as widths:
                rung.answer(index)
            assert widths[0] == len(prompts[index].input_ids)
            counts.append(len(widths))
        expected = []
        for prompt, length in zip(prompts, lengths, strict=True):
            if row.block_size is None:
                expected.append(length)
                continue
            stats = ours(model, prompt, replace(decode, block_size=row.block_size, max_new_tokens=length)).stats
            commits = 0 if row.name in ("block", "block_eager") else -(-length // row.block_size)
            expected.append(1 + stats.steps + commits)
        assert counts == expected, row.name
        assert row.forwards_per_answer == np.mean(counts)
        assert row.tokens_per_forward == pytest.approx(14 / sum(counts))
        assert row.answers == 2


@pytest.fixture(scope="module")
def tiny_qwen() -> subjects.Subject:
    return subjects.random_subject("tiny-qwen-vocab")


def test_a_shape_decodes_one_token_a_step(tiny_qwen):
    subject = replace(tiny_qwen, decode=replace(tiny_qwen.decode, block_size=4), new_tokens=6)
    assert ladder.answer_lengths(subject, subject.decode)[0] == [6]
    rungs = ladder.make_rungs(subject, [6], [4], ["block"])
    (row,) = ladder.climb(subject, rungs, [6], 1, lambda model: Floor(model, RATES))
    assert row.forwards_per_answer == 8 + 1  # two whole blocks
    assert row.tokens_per_forward == 6 / 9


def test_every_round_takes_every_row_once_and_begins_with_another():
    model, order = tiny_model(), []
    subject = subject_of(model, [random_inputs(0, 5), random_inputs(1, 6)])

    def rung(name):
        def answer(index):
            model.model.language_model.layers[0](
                torch.zeros(1, 1, 64), position_embeddings=(torch.ones(1, 1, 16), torch.zeros(1, 1, 16))
            )
            order.append((name, index))
            return ()

        return ladder.Rung(name, 4, model, answer)

    told = []
    rungs = [rung(name) for name in "abc"]
    rows = ladder.climb(subject, rungs, [4, 4], 3, lambda model: Floor(model, RATES), told.append)
    assert order[:12] == [(name, index) for name in "abc" for index in (0, 1, 0, 1)]
    rounds = ["".join(name for name, at in order[first : first + 6] if at == index)
              for first in (12, 18, 24) for index in (0, 1)]
    assert rounds == ["abc", "abc", "bca", "bca", "cab", "cab"]
    assert len(order) == 30
    assert told[-1] == ladder.answers_to_come(rungs, 2, 3) == 30
    assert [row.answers for row in rows] == [6, 6, 6]


def test_figures_of_a_row_from_times_known_beforehand():
    rung = ladder.Rung("block", 8, None, lambda index: ())
    row = ladder._row(rung, [10, 20], [5, 8], [1.0, 4.0], [[10, 10, 20], [40, 40, 80]], 99.0)
    assert row.ms_per_answer_median == 30
    assert row.ms_per_answer_p95 == 70
    assert row.ms_per_answer_iqr == 40 - 12.5
    assert row.ms_per_token == 2.0  # of 1, 1, 2, 2, 2, 4
    assert row.ms_per_forward == 4.5  # of 2, 2, 4, 5, 5, 10
    assert row.tokens_per_forward == pytest.approx(30 / 13)
    assert row.fraction_of_floor == 0.1  # of 0.1, 0.1, 0.05, 0.1, 0.1, 0.05
    slow = replace(row, name="hf_ar", block_size=None, ms_per_answer_median=90.0)
    assert ladder.ratios_of([slow, row]) == {
        "over_hf_ar": {"8": 3.0}, "over_naive_block": {}, "over_block_eager": {}, "naive_block_over_hf_forward": {},
    }


@pytest.mark.parametrize("images", [(), ((8, 16),)])
def test_the_floor_counts_what_a_prompt_multiplies_and_never_more(images):
    from torch.utils.flop_counter import FlopCounterMode

    model, prompt = tiny_model(attn_implementation="eager"), random_inputs(0, 40, images)
    with FlopCounterMode(display=False) as counter, machine.counted(model) as seen, torch.inference_mode():
        model(**naive.stock_inputs(model, prompt))
    assert [(forward.rows, forward.head_rows) for forward in seen] == [(len(prompt.input_ids),) * 2]
    floor = Floor(model, Rates(1e30, 1.0)).answer_s(prompt, seen)
    assert 0.85 < floor / counter.get_total_flops() <= 1


def test_the_floor_reads_every_weight_once_a_forward():
    model, prompt = tiny_model(), random_inputs(0, 40)
    text = sum(weight.numel() for weight in model.model.language_model.layers.parameters())
    head, columns = 272 * 64, 40 * 2 * 2 * 2 * 16  # rows, layers, keys and values, heads, their width
    floor = Floor(model, Rates(4.0, 1e30))
    first, step = machine.Forward(40), machine.Forward(8, 8)
    assert floor.answer_s(prompt, [first]) == floor.prefill_s(prompt) == text
    assert floor.answer_s(prompt, [first, step, step]) == text + 2 * (text + head + columns)
    pictured = random_inputs(0, 40, ((4, 4),))
    vision = sum(weight.numel() for name, weight in model.model.visual.named_parameters() if "pos_embed" not in name)
    assert floor.vision_s(pictured) == vision


def test_rates_and_machine_are_told():
    rates = Rates.measure(torch.device("cpu"), torch.bfloat16, array_mib=1, gemm_size=32)
    assert rates.bytes_per_s > 1e7
    assert rates.flops_per_s > 1e5
    here = Machine.of(torch.device("cpu"))
    assert here.cpu
    assert 1 <= here.threads == torch.get_num_threads()
    assert here.torch_version == torch.__version__
    text = Path("/proc/cpuinfo").read_text()
    assert [flag in here.vector_extensions for flag in ("avx2", "avx512f")] == [
        f" {flag} " in text for flag in ("avx2", "avx512f")
    ]


def test_the_small_shape_has_qwens_vocabulary_and_twenty_million_parameters(tiny_qwen):
    subject = tiny_qwen
    weights = list(subject.model.parameters())
    assert 19e6 < sum(weight.numel() for weight in weights) < 21e6
    assert subject.model.lm_head.weight is subject.model.model.language_model.embed_tokens.weight
    assert subject.model.lm_head.weight.shape == (151936, 128)
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all(bool(weight.isfinite().all()) for weight in weights)
    assert len(subject.prompts[0].input_ids) == 128
    assert subject.new_tokens == 64


def test_the_large_shape_is_qwen3_vl_2b():
    shape = subjects.SHAPES["2b"]
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration._from_config(shape.config(), dtype=shape.dtype)
    weights = list(model.parameters())
    assert len(model.model.language_model.layers) == 28
    assert len(model.model.visual.blocks) == 24
    assert sum(weight.numel() for weight in weights) == 2_127_532_032
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    prompt = subjects.random_prompt(model.config, shape.prompt_text, shape.image_px)
    assert prompt.image_grid_thw.tolist() == [[1, 34, 60]]
    assert int((prompt.input_ids == model.config.image_token_id).sum()) == 510
    assert prompt.pixel_values.shape == (34 * 60, 3 * 2 * 16 * 16)


def test_random_weights_keep_the_stock_tables_and_run():
    stock = tiny_model()
    model = subjects.random_model(tiny_config(), torch.bfloat16, "cpu")
    expected = dict(stock.named_buffers())
    for name, table in model.named_buffers():
        assert torch.equal(table, expected.pop(name)), name
    assert not expected
    assert not model.training
    prompt = subjects.random_prompt(model.config, 12, (64, 96))
    assert int((prompt.input_ids == model.config.image_token_id).sum()) == 2 * 3
    answer = ours(model, prompt, STATIC)
    assert answer.stats.steps == 8
    assert naive.decode_naively(model, prompt, STATIC, MASK)


def test_a_checkpoint_is_timed_without_the_deadline_of_its_record(nano_folder, tmp_path):
    record = ServingRecord.load(nano_folder)
    folder = tmp_path / "hurried"
    shutil.copytree(nano_folder, folder)
    replace(record, decode=replace(record.decode, deadline_ms=1.0, grammar="task")).save(folder)
    assert subjects.checkpoint_subject(folder).decode == record.decode


def test_the_length_of_an_answer_is_that_of_service(nano_folder):
    subject = subjects.checkpoint_subject(nano_folder)
    checkpoint = load_checkpoint(nano_folder)
    served = Generator(checkpoint).generate(subject.prompts, checkpoint.record.decode)[0]
    assert served.ended
    lengths, first_ms = ladder.answer_lengths(subject, subject.decode)
    assert lengths == [len(served.token_ids) + 1]
    assert first_ms > 0
    subject.new_tokens = 40
    assert ladder.answer_lengths(subject, subject.decode)[0] == [40]


# The command


@pytest.fixture
def quick(monkeypatch):
    """No measurement of the machine."""
    monkeypatch.setattr(Rates, "measure", classmethod(lambda cls, device, dtype: RATES))


def run(*arguments) -> int:
    command = as_command(bench, "bench")
    return exit_code_of(lambda: command([str(word) for word in arguments], standalone_mode=False))


def test_decode_writes_table_object_and_picture(quick, nano_folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out" / "bench.json", tmp_path / "bench.png"
    assert run("decode", nano_folder, "--rounds", 1, "--new-tokens", 6, "--any-block-size", "--block-sizes", "32,16",
               "--json", file, "--plot", picture) == 0
    result = json.loads(file.read_text())
    assert set(result["machine"]) == MACHINE_KEYS
    assert all(set(row) == ROW_KEYS for row in result["rows"])
    assert [(row["name"], row["block_size"]) for row in result["rows"]] == [
        ("load", None), ("first_answer", None), ("hf_ar", None), ("own_ar", None),
        *((name, size) for size in (16, 32) for name in ladder.BLOCK_ROWS),
    ]
    for row in result["rows"][2:]:
        assert all(row[key] > 0 for key in ROW_KEYS - {"name", "block_size", "denoising_steps", "ms_per_answer_iqr"})
        assert row["ms_per_token"] == pytest.approx(row["ms_per_answer_median"] / 6)
    assert {name: list(values) for name, values in result["ratios"].items()} == {
        "over_hf_ar": ["16", "32"], "over_naive_block": ["16", "32"], "over_block_eager": ["16", "32"],
        "naive_block_over_hf_forward": ["16", "32"],
    }
    times = {(row["name"], row["block_size"]): row["ms_per_answer_median"] for row in result["rows"]}
    assert result["ratios"]["over_hf_ar"]["32"] == pytest.approx(times["hf_ar", None] / times["block", 32])
    assert result["ratios"]["over_naive_block"]["16"] == pytest.approx(times["naive_block", 16] / times["block", 16])
    assert result["peak_memory_gib"] > 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("hf_ar", "naive_block", "over_hf_ar", "peak memory", "GB/s"))


@pytest.mark.parametrize("decode", [STATIC, DYNAMIC])
def test_every_step_budget_is_measured_with_every_size_once(decode):
    model, prompt = tiny_model(7, gain=3), random_inputs(0, 9)
    subject = subject_of(model, [prompt], decode)
    rungs = ladder.make_rungs(subject, [14], [4, 8], ["own_ar", "naive_block", "block"], steps=[8, 2, 16])
    shapes = [(rung.name, rung.block_size, rung.denoising_steps) for rung in rungs]
    assert shapes == [("own_ar", None, None), *((name, size, steps) for size, steps in ((4, 2), (4, 4), (8, 2), (8, 8))
                                                for name in ("naive_block", "block"))]
    for rung in rungs[1:]:
        config = replace(decode, block_size=rung.block_size, denoising_steps=rung.denoising_steps)
        assert list(rung.answer(0)) == list(ours(model, prompt, config).raw_ids)


def test_ratios_of_several_step_budgets_name_them():
    def row(name, size, steps, ms):
        return ladder.Row(name, size, ms, denoising_steps=steps)

    rows = [row("hf_ar", None, None, 60.0), row("naive_block", 8, 2, 20.0), row("block", 8, 2, 10.0),
            row("naive_block", 8, 8, 50.0), row("block", 8, 8, 30.0), row("block", 1, 1, 15.0)]
    assert ladder.ratios_of(rows) == {
        "over_hf_ar": {"1": 4.0, "8 in 2 steps": 6.0, "8 in 8 steps": 2.0},
        "over_naive_block": {"8 in 2 steps": 2.0, "8 in 8 steps": 50 / 30},
        "over_block_eager": {}, "naive_block_over_hf_forward": {},
    }


def drawn(figure) -> list[dict[str, list[tuple[float, float]]]]:
    """Points of every line by its label, by panel."""
    return [
        {line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.get_lines()}
        for axes in figure.axes
    ]


def drawable(name, size, steps, ms, tokens):
    return {"name": name, "block_size": size, "denoising_steps": steps, "ms_per_answer_median": ms,
            "tokens_per_forward": tokens}


def test_a_picture_has_the_rows_that_it_was_given(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [drawable("load", None, None, 900.0, None), drawable("own_ar", None, None, 80.0, 1.0),
            drawable("block", 32, 32, 20.0, 4.0), drawable("block", 4, 4, 50.0, 1.5),
            drawable("hf_forward", 4, 4, 60.0, 1.2)]
    result = {"subject": "tiny", "rows": rows, "denoising_steps": [32]}
    times, tokens = drawn(report.draw(result))
    assert times == {"block": [(4, 50.0), (32, 20.0)], "own_ar": [(0, 80.0), (1, 80.0)]}
    assert tokens == {"block": [(4, 1.5), (32, 4.0)], "own_ar": [(0, 1.0), (1, 1.0)]}
    report.plot(result, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_several_budgets_has_lines_over_size_and_over_steps():
    pytest.importorskip("matplotlib")
    rows = [drawable("block", 4, 4, 50.0, 1.5), drawable("block", 8, 4, 30.0, 3.0), drawable("block", 8, 8, 40.0, 2.0)]
    panels = drawn(report.draw({"subject": "tiny", "rows": rows, "denoising_steps": [4, 8]}))
    assert panels == [
        {"block, 4 steps": [(4, 50.0), (8, 30.0)], "block, 8 steps": [(4, 50.0), (8, 40.0)]},
        {"block, 4 steps": [(4, 1.5), (8, 3.0)], "block, 8 steps": [(4, 1.5), (8, 2.0)]},
        {"block, B 4": [(4, 50.0)], "block, B 8": [(4, 30.0), (8, 40.0)]},
        {"block, B 4": [(4, 1.5)], "block, B 8": [(4, 3.0), (8, 2.0)]},
    ]


def test_decode_takes_prompts_of_a_file_and_chosen_rows(quick, nano_folder, tmp_path):
    data = Path(__file__).resolve().parents[2] / "training" / "configs" / "debug" / "data" / "samples.jsonl"
    assert run("decode", nano_folder, "--rounds", 1, "--data", data, "--samples", 2, "--rows", "block",
               "--json", tmp_path / "bench.json") == 0
    result = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in result["rows"]] == ["load", "first_answer", "block"]
    assert len(result["answer_tokens"]) == 2
    assert result["rows"][2]["answers"] == 2
    assert not any(result["ratios"].values())


def test_prefill_and_plan_write_their_parts(quick, nano_folder, tmp_path):
    file = tmp_path / "bench.json"
    assert run("prefill", nano_folder, "--rounds", 1, "--lengths", "16,32", "--json", file) == 0
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert [row["name"] for row in rows] == ["vision", *["prefill", "hf_prefill", "second_question"] * 2]
    assert rows[4]["prompt_tokens"] - rows[1]["prompt_tokens"] == 16
    assert rows[1]["prompt_tokens"] > 16 + 32  # the picture has 32 tokens
    for ratio in ("over_hf_prefill", "second_over_prefill"):
        assert list(result["ratios"][ratio]) == [str(rows[1]["prompt_tokens"]), str(rows[4]["prompt_tokens"])]
    assert run("plan", nano_folder, "--rounds", 1, "--json", file) == 0
    every = json.loads(file.read_text())["rows"]
    rows = {row["name"]: row["ms_median"] for row in every}
    assert list(rows) == ["load", "warm_up", "first_plan", "plan", "prefill", "decode", "other", "grammar_task",
                          "temperature"]
    assert rows["plan"] == pytest.approx(rows["prefill"] + rows["decode"] + rows["other"])
    assert min(rows.values()) > 0
    assert [row["calls"] for row in every] == [1] * 9
    decoded = {row["name"]: row["forwards_per_answer"] for row in every if row["forwards_per_answer"] is not None}
    assert list(decoded) == ["plan", "grammar_task", "temperature"]
    assert min(decoded.values()) >= 2


@pytest.fixture
def own_threads():
    """Threads of torch are as before, whatever a command has set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("own_threads")
def test_grammar_writes_a_row_for_each_language_and_size(nano_folder, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert run("grammar", nano_folder, "--rounds", 1, "--block-sizes", "32,16", "--json", file) == 0
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert [(row["name"], row["block_size"]) for row in rows] == [
        ("waypoints", 16), ("detections", 16), ("waypoints", 32), ("detections", 32),
    ]
    assert result["machine"]["threads"] == 1
    codec, record = load_chat_codec(nano_folder)
    for name, language in (("waypoints", waypoint_language(codec, record.planning)),
                           ("detections", detection_language(codec))):
        for row in rows:
            if row["name"] == name:
                assert (row["states"], row["alphabet"]) == (len(language.shortest), len(language.alphabet))
                assert 0 < row["ms_median"] <= row["ms_p95"]
    assert waypoint_language(codec, record.planning).shortest[0] > 32
    assert rows[2]["calls"] == 2 * grammar.STEPS  # two blocks, as no plan is as short as one
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("waypoints", "detections", "p95"))


def test_steps_of_a_grammar_are_those_of_an_answer_that_its_task_reads(nano_folder):
    codec, record = load_chat_codec(nano_folder)
    task, vocabulary = record.planning, read_model_config(nano_folder).get_text_config().vocab_size
    texts = set()
    for seed in range(3):
        language, device = waypoint_language(codec, task), torch.device("cpu")
        times, ids = grammar.made_up_answer(language, vocabulary, 32, 64, seed, device)
        assert len(times) == grammar.STEPS * len(ids) / 32
        text = codec.decode(ids[: ids.index(codec.eos_token_id)])
        assert format_waypoints(parse_waypoints(text, task), task) == text
        texts.add(text)
    assert len(texts) == 3
    told = []
    languages = {"waypoints": language}
    grammar.measure_grammar(languages, vocabulary, [32], 64, 1, torch.device("cpu"), told.append)
    assert told[-1] == grammar.grammar_calls(languages, [32], 1) == 2


def test_plan_rows_take_turns_on_other_pictures_each_in_its_own_decoding(nano_folder, monkeypatch):
    from wamdiff2_core.planner import CheckpointPlanner

    seen, planned = [], CheckpointPlanner.plan

    def plan(self, observation):
        seen.append((self.decode.grammar, self.decode.temperature, observation.frames[0].rgb.tobytes()))
        return planned(self, observation)

    monkeypatch.setattr(CheckpointPlanner, "plan", plan)
    told = []
    _, dtype = parts.measure_plan(nano_folder, 2, show=told.append, temperature=0.5)
    assert dtype == torch.float32
    kinds = [("off", 0.0), ("task", 0.0), ("off", 0.5)]
    measured = seen[-6:]
    assert [kind[:2] for kind in measured] == [*kinds, *kinds[1:], kinds[0]]
    assert [kind[:2] for kind in seen[3:-6]] == [kinds[0]] * 2 + [kinds[1]] * 2 + [kinds[2]] * 2  # warm-up of each
    pictures = [kind[2] for kind in measured]
    assert len(set(pictures[:3])) == len(set(pictures[3:])) == 1
    assert len({pictures[0], pictures[3], seen[2][2]}) == 3
    assert told[-1] == parts.plan_calls(2) == 6


def test_a_table_is_not_cut_where_it_is_piped(capsys):
    columns = {name: 12345.678 for _, name, form in report._COLUMNS if form.endswith("f")}
    machine = {"cpu": "", "vector_extensions": [], "cores": 1, "threads": 1, "torch_version": "", "device": ""}
    rows = [{"name": "a row of a long name", **columns}]
    report.show("a title", {"rows": rows, "ratios": {}, "peak_memory_gib": 1.0, "machine": machine})
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "a title"
    assert "…" not in printed
    assert printed.count("12345.") + printed.count("12346.") == len(columns)


def test_our_prompt_forward_and_the_stock_one_fill_equal_caches():
    """Both rows of `prefill` do the same work: at width 1 the same keys."""
    from transformers import DynamicCache

    model, prompt = tiny_model(), random_inputs(0, 20, ((4, 4),))
    longer = parts._prompt(subject_of(model, [prompt]), 6)
    assert len(longer.input_ids) == 2 + 1 + 4 + 6
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(**naive.stock_inputs(model, longer), cache=cache, use_cache=True, logits_to_keep=1)
        blocks = BlockModel(model)
        blocks.prefill([longer], 1, 1)
    for layer, (keys, _) in enumerate(blocks.backend.columns(0, len(longer.input_ids))):
        torch.testing.assert_close(cache.layers[layer].keys, keys, rtol=1e-4, atol=1e-4)


def test_a_parent_answers_the_autoregressive_rows(tmp_path):
    own, prompt = tiny_model(3, gain=3), random_inputs(0, 9)
    folder = save_tiny(tmp_path / "parent", 4, gain=3)
    subject = subject_of(own, [prompt])
    autoregressive = DecodeConfig(strategy="autoregressive")
    ServingRecord("shifted", (1,), mask_token_id=MASK, eos_token_id=EOS, decode=autoregressive).save(folder)
    parent = ladder.load_parent(folder, subject)
    with_parent = [rung.answer(0) for rung in ladder.make_rungs(subject, [9], [8], ["own_ar", "block"], parent)]
    alone = [rung.answer(0) for rung in ladder.make_rungs(subject, [9], [8], ["own_ar", "block"])]
    assert with_parent[0] != alone[0]
    assert list(with_parent[0]) == naive.generate_stock(tiny_model(4, gain=3), prompt, 9)
    assert with_parent[1] == alone[1]
    (folder / "wamdiff2.json").unlink()
    assert ladder.load_parent(folder, subject).config.get_text_config().vocab_size == 272
    with pytest.raises(UserError, match=r"vocab_size.*expected the checkpoint's 300, got 272"):
        ladder.load_parent(folder, subject_of(tiny_model(vocab_size=300), [prompt]))


WRONG = {
    "unknown shape": (["decode", "--shape", "tiny"], "shape: expected one of tiny-qwen-vocab, 2b, got tiny"),
    "checkpoint and shape": (["decode", "DIR", "--shape", "2b"], "shape: expected a checkpoint or a shape"),
    "image of a shape": (["prefill", "--shape", "2b", "--image", "x.png"], "image: expected nothing beside --shape"),
    "untrained size": (["decode", "DIR", "--block-sizes", "8,32"], "block_sizes: expected among [32] (trained), got 8"),
    "size in words": (["decode", "DIR", "--block-sizes", "four"], "block_sizes: expected integers"),
    "no such folder": (["decode", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no such folder to plan": (["plan", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no such parent": (["decode", "DIR", "--parent", "none"], "parent: expected a checkpoint folder, got none"),
    "parent of blocks": (["decode", "DIR", "--parent", "DIR"], "parent: expected autoregressive weights"),
    "unknown row": (["decode", "DIR", "--rows", "hf_ra"], "rows: expected one of hf_ar, own_ar"),
    "steps in words": (["decode", "DIR", "--denoising-steps", "few"], "denoising_steps: expected integers"),
    "no rounds": (["decode", "DIR", "--rounds", "0"], "rounds: expected an integer >= 1, got 0"),
    "picture of another kind": (["decode", "DIR", "--plot", "x.jpg"], "plot: expected a file that ends in .png"),
    "folder for a file": (["plan", "DIR", "--json", "DIR"], "json: expected a file"),
    "unknown dtype": (["plan", "DIR", "--dtype", "int8"], "dtype: expected one of auto"),
    "no lengths": (["prefill", "DIR", "--lengths", ","], "lengths: expected integers"),
    "too long": (["prefill", "DIR", "--lengths", "5000"], "lengths: expected prompts of at most 4096 tokens"),
    "picture of another size": (["plan", "DIR", "--image", "PICTURE"], "image: expected 256 x 128 pixels"),
    "autoregressive blocks": (["decode", "DIR", "--strategy", "autoregressive"], "strategy: expected a strategy of"),
    "no answers": (["grammar", "DIR", "--rounds", "0"], "rounds: expected an integer >= 1, got 0"),
    "no such folder of a grammar": (["grammar", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no temperature": (["plan", "DIR", "--temperature", "0"], "temperature: expected above 0"),
    "no such data": (["decode", "DIR", "--data", "none.jsonl"], "none.jsonl"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_told_in_one_line(case, quick, nano_folder, tmp_path, capsys, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64)).save(tmp_path / "small.png")
    arguments, expected = WRONG[case]
    named = {"DIR": nano_folder, "PICTURE": tmp_path / "small.png"}
    assert run(*(named.get(word, word) for word in arguments)) == 2
    error = capsys.readouterr().err
    assert expected in " ".join(error.split())


def test_weights_with_shifted_labels_decode_no_blocks_unless_told():
    record = ServingRecord("shifted", (1,), decode=DecodeConfig(strategy="autoregressive"))
    with pytest.raises(UserError, match="any-block-size"):
        ladder.allowed_sizes(record, [], False)
    assert ladder.allowed_sizes(record, [], True) == [4, 8, 16, 32]
    assert ladder.allowed_sizes(None, [16, 4, 16], False) == [4, 16]
    assert ladder.allowed_sizes(ServingRecord(block_sizes=(32, 8)), [], False) == [8, 32]


def test_an_unknown_measurement_gets_a_suggestion(capsys):
    assert main(["bench", "decod"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error == "error: command: expected a wamdiff2 bench command, got decod; did you mean 'decode'?"


def test_the_command_is_registered():
    import tomllib

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["wamdiff2.commands"]["bench"] == "wamdiff2_core.bench.command:bench"
    assert project["project"]["entry-points"]["wamdiff2.bench"] == {"node": "wamdiff2_ros.command:bench_node"}
    assert set(as_command(bench, "bench").commands) == {"decode", "prefill", "plan", "deadline", "grammar"}


def test_samples_of_a_file_are_spread_over_all_of_it(tmp_path):
    from wamdiff2_core.dataset import DatasetWriter

    with DatasetWriter(tmp_path) as writer:
        for number in range(199):
            writer.add(str(number), f"question {number}", "answer")
    asked = [int(request.text.split()[1]) for request in subjects._requests_of(writer.file, 100)]
    assert asked == [number * 199 // 100 for number in range(100)]
    assert len(subjects._requests_of(writer.file, 500)) == 199
