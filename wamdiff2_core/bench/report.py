"""A run's figures as a table, as one JSON object, and as a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from wamdiff2_core.bench.deadline import DeadlineRow
from wamdiff2_core.bench.grammar import GrammarRow
from wamdiff2_core.bench.ladder import Row
from wamdiff2_core.bench.machine import Machine, Rates
from wamdiff2_core.bench.parts import PartRow
from wamdiff2_core.outputs import disk_errors_named

# Title, field, form. A column without any value is left out.
_COLUMNS = (
    ("row", "name", ""),
    ("B", "block_size", "d"),
    ("steps", "denoising_steps", "d"),
    ("prompt", "prompt_tokens", "d"),
    ("ms/answer", "ms_per_answer_median", ".1f"),
    ("ms", "ms_median", ".2f"),
    ("p95", "ms_per_answer_p95", ".1f"),
    ("p95", "ms_p95", ".2f"),
    ("p99", "ms_p99", ".2f"),
    ("IQR", "ms_per_answer_iqr", ".1f"),
    ("IQR", "ms_iqr", ".2f"),
    ("ms/token", "ms_per_token", ".2f"),
    ("fwd", "forwards_per_answer", ".1f"),
    ("tok/fwd", "tokens_per_forward", ".2f"),
    ("ms/fwd", "ms_per_forward", ".2f"),
    ("floor", "fraction_of_floor", ".0%"),
    ("step", "step_ms", ".2f"),
    ("late p99", "overshoot_ms_p99", ".2f"),
    ("in steps", "overshoot_steps_p99", ".2f"),
    ("hurried", "hurried_steps", ".1f"),
    ("readable", "readable", ".1%"), ("valid", "valid", ".1%"),
    ("L2 m", "l2_m", ".3f"),
    ("near", "near", ".1%"),
    ("kept", "kept", ".1%"),
    ("from", "kept_low", ".1%"),
    ("to", "kept_high", ".1%"),
    ("states", "states", "d"),
    ("alphabet", "alphabet", "d"),
)

# of a picture: block rows and autoregressive ones with their lines, and what is drawn of them
_DRAWN = {"block": "-", "block_eager": "-.", "naive_block": "--"}
_LEVELS = {"hf_ar": "--", "own_ar": ":"}
_FIGURES = (("ms_per_answer_median", "ms an answer"), ("tokens_per_forward", "tokens a forward"))

_WIDEST = 400  # columns of a terminal


def report(
    subject: str, rows: Sequence[Row] | Sequence[PartRow] | Sequence[DeadlineRow] | Sequence[GrammarRow],
    machine: Machine, ratios: Mapping[str, Mapping[str, float]], rates: Rates | None = None, **facts: Any,
) -> dict[str, Any]:
    """All of a run as plain JSON values.

    Args:
        subject: what was measured.
        rows: figures.
        machine: where.
        ratios: by name, then by block size or prompt length.
        rates: of the floor.
        **facts: further plain values, such as `rounds`.
    """
    described = dataclasses.asdict(machine) | {"vector_extensions": list(machine.vector_extensions)}
    if rates is not None:
        described |= {"memory_gb_per_s": rates.bytes_per_s / 1e9, "matrix_gflop_per_s": rates.flops_per_s / 1e9}
    return {
        "subject": subject, "date": datetime.now(UTC).isoformat(timespec="seconds"), **facts, "machine": described,
        "rows": [dataclasses.asdict(row) for row in rows],
        "ratios": {name: dict(values) for name, values in ratios.items()},
    }


def show(title: str, result: Mapping[str, Any]) -> None:
    """Print the table, the ratios and the machine."""
    rows = result["rows"]
    columns = [column for column in _COLUMNS if any(row.get(column[1]) is not None for row in rows)]
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name, _, form in columns:
        table.add_column(name, justify="right" if form else "left", no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(key) is None else format(row[key], form) for _, key, form in columns))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(title)
    whole = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    Console(width=max(console.width, whole), highlight=False, markup=False).print(table)  # not cut where it is piped
    for name, values in result["ratios"].items():
        if values:
            console.print(f"{name}: " + ", ".join(f"{key}: {value:.2f} x" for key, value in values.items()))
    machine = result["machine"]
    console.print(
        f"{machine['cpu']}, {' '.join(machine['vector_extensions']) or 'no known vector extensions'}, "
        f"{machine['cores']} cores, {machine['threads']} threads, torch {machine['torch_version']}, {machine['device']}"
    )
    if "memory_gb_per_s" in machine:
        console.print(f"floor: memory {machine['memory_gb_per_s']:.1f} GB/s, "
                      f"matrix product {machine['matrix_gflop_per_s']:.0f} GFLOP/s; model in {result['dtype']}")
    console.print(f"peak memory {result['peak_memory_gib']:.2f} GiB")


def deliver(title: str, result: Mapping[str, Any], json_file: Path | None) -> None:
    """`show`, and write the object to `json_file` if there is one; a full disk is an `OSError` that names the file."""
    show(title, result)
    if json_file is not None:
        with disk_errors_named(json_file):
            json_file.write_text(json.dumps(result, indent=1) + "\n")


def plot(result: Mapping[str, Any], file: Path) -> None:
    """`draw` the report of `bench decode`, as a PNG; a full disk is an `OSError` that names the file."""
    figure = draw(result)
    with disk_errors_named(file):
        figure.savefig(file, dpi=120)


def draw(result: Mapping[str, Any]) -> Any:
    """A matplotlib figure: milliseconds of an answer, and tokens a forward, over block size.

    With several step budgets, also over these, and a line for each of the others. Autoregressive rows are levels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["name"] in _DRAWN]
    levels = [row for row in result["rows"] if row["name"] in _LEVELS]
    budgets, sizes = result["denoising_steps"], sorted({row["block_size"] for row in rows})
    # a block has no more steps than tokens, so lines of budgets above the size meet
    of_budgets = {f"{budget} steps": [row for row in rows if row["denoising_steps"] == min(row["block_size"], budget)]
                  for budget in budgets}
    of_sizes = {f"B {size}": [row for row in rows if row["block_size"] == size] for size in sizes}
    panels = [("block_size", "block size", of_budgets), ("denoising_steps", "steps a block, at most", of_sizes)]
    panels = panels[: 1 if len(budgets) == 1 else 2]
    figure = Figure(figsize=(10, 4 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for line, (along, title, lines) in zip(figure.subplots(len(panels), 2, squeeze=False), panels, strict=True):
        for axes, (field, name) in zip(line, _FIGURES, strict=True):
            for which, style in _DRAWN.items():
                for label, members in lines.items():
                    points = sorted((row[along], row[field]) for row in members if row["name"] == which)
                    if points:
                        axes.plot(*zip(*points, strict=True), style, marker="o",
                                  label=which if len(panels) == 1 else f"{which}, {label}")
            for row in levels:
                axes.axhline(row[field], linestyle=_LEVELS[row["name"]], color="gray", label=row["name"])
            ticks = sorted({row[along] for row in rows})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set_ylim(bottom=0)
            axes.set_xlabel(title)
            axes.set_ylabel(name)
        axes.legend(fontsize="small")
    figure.suptitle(result["subject"])
    return figure
