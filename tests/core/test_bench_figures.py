"""Figures of `wamdiff2 bench`: rows that take turns, floors that are low, pictures of what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.core.bench_doubles import DYNAMIC, RATES, STATIC, ours, subject_of
from tests.core.doubles import random_inputs, tiny_model
from wamdiff2_core.bench import ladder, machine, naive, report
from wamdiff2_core.bench.machine import Floor, Machine, Rates


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


def test_a_table_is_not_cut_where_it_is_piped(capsys):
    columns = {name: 12345.678 for _, name, form in report._COLUMNS if form.endswith("f")}
    machine = {"cpu": "", "vector_extensions": [], "cores": 1, "threads": 1, "torch_version": "", "device": ""}
    rows = [{"name": "a row of a long name", **columns}]
    report.show("a title", {"rows": rows, "ratios": {}, "peak_memory_gib": 1.0, "machine": machine})
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "a title"
    assert "…" not in printed
    assert printed.count("12345.") + printed.count("12346.") == len(columns)
