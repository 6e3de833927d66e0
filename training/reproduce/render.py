"""Writes a table as `table.json`, `table.md` and `plot.png`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.reproduce.tables import Metric, Table
from training.reproduce.verdicts import Values, orderings, statements
from wamdiff2_core.journal import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def result_of(
    table: Table, metrics: Sequence[Metric], values: Values, about: dict[str, Any]
) -> dict[str, Any]:
    """A table as JSON: mean and sample standard deviation over seeds, the paper's figures, verdicts.

    Args:
        table: what was measured.
        metrics: its columns; some tables have more than they are declared with.
        values: figures.
        about: how it was measured, for the reader.
    """
    rows = [
        {
            "label": row.label, "stage": row.stage, "decode": dict(row.decode), "paper": dict(row.paper),
            "figures": {metric.key: _spread(values[row.label][metric.key]) for metric in metrics},
        }
        for row in table.rows
    ]
    return {
        "table": table.name, "source": table.source, "title": table.title, "note": table.note, **about,
        "columns": [{"key": m.key, "title": m.title, "lower_is_better": m.lower, "paper": m.paper} for m in metrics],
        "rows": rows, "orderings": orderings(table, values), "statements": statements(table, values),
    }


def markdown(result: dict[str, Any]) -> str:
    """The table for reading."""
    seeds = len(result["seeds"])
    columns = result["columns"]
    compared = [c for c in columns if c["paper"]]
    header = ["", *(c["title"] for c in columns), *(f"paper: {c['paper']}" for c in compared)]
    lines = [f"# {result['table']}: {result['title']}", "",
             f"{result['source']} of the paper, at scale {result['scale']}: mean and standard deviation of {seeds} "
             f"{'seed' if seeds == 1 else 'seeds'}, {result['samples']} validation samples."
             + "".join(f" `{name}` is {folder}." for name, folder in result["given"].items()), "",
             _line(header), _line(["---"] * len(header))]
    for row in result["rows"]:
        ours = [_shown(row["figures"][c["key"]]) for c in columns]
        lines.append(_line([row["label"], *ours, *(f"{row['paper'].get(c['key'], '-')}" for c in compared)]))
    if result["note"]:
        lines += ["", f"The paper: {result['note']}."]
    lines += ["", "| the paper's ordering | by | seeds that agree | verdict |", "|---|---|---|---|"]
    for item in result["orderings"]:
        by = f"{item['figure']}; {item['paper']}"
        lines.append(_line([f"{item['better']} better than {item['worse']}", by,
                            f"{item['agreeing']} of {item['seeds']}", item["verdict"]]))
    for item in result["statements"]:
        lines.append(_line([item["statement"], "", f"{item['agreeing']} of {item['seeds']}", item["verdict"]]))
    return "\n".join(lines) + "\n"


def write(result: dict[str, Any], folder: Path) -> None:
    """Write all three files."""
    replace_file(folder / "table.json", json.dumps(result, indent=1) + "\n")
    replace_file(folder / "table.md", markdown(result))
    plot(result, folder / "plot.png")


def plot(result: dict[str, Any], file: Path) -> None:
    """Means with standard deviations: a line a row where columns are a scale of their own, else a point a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scale = [c for c in result["columns"] if c["key"].rpartition("_")[2].isdigit()]
    first = result["columns"][0]
    panels = [first] + [c for c in result["columns"][1:] if c["paper"]]
    count = 1 if scale else len(panels)
    figure = Figure(figsize=(5.5 * count, 4), layout="constrained")
    FigureCanvasAgg(figure)
    if scale:
        axes = figure.subplots()
        for row in result["rows"]:
            _points(axes, [c["key"].rpartition("_")[2] for c in scale], [row["figures"][c["key"]] for c in scale],
                    row["label"], "-o")
        axes.set_xlabel(scale[0]["key"].rpartition("_")[0].replace("overlap", "K"))
        axes.set_ylabel(first["title"] if first not in scale else "top-K overlap, %")
        axes.legend()
    else:
        for axes, column in zip(figure.subplots(1, count, squeeze=False)[0], panels, strict=True):
            labels = [row["label"].replace(", ", ",\n") for row in result["rows"]]
            _points(axes, labels, [row["figures"][column["key"]] for row in result["rows"]], None, "o")
            axes.set_ylabel(column["title"])
            if result["table"] in ("steps", "speed"):
                axes.set_xlabel("denoising steps a block" if result["table"] == "steps" else "block size")
    figure.suptitle(result["title"])
    figure.savefig(file, dpi=120)


def _points(axes: Axes, labels: Sequence[str], spreads: Sequence[dict[str, Any]], name: str | None, form: str) -> None:
    known = [(label, s["mean"], s["std"] or 0.0) for label, s in zip(labels, spreads, strict=True)
             if s["mean"] is not None]
    if known:
        xs, means, stds = zip(*known, strict=True)
        axes.errorbar(xs, means, yerr=stds, fmt=form, capsize=3, label=name)


def _spread(figures: Sequence[float | None]) -> dict[str, Any]:
    known = [figure for figure in figures if figure is not None]
    return {
        "mean": round(statistics.mean(known), 4) if known else None,
        "std": round(statistics.stdev(known), 4) if len(known) > 1 else None,
        "seeds": list(figures),
    }


def _shown(spread: dict[str, Any]) -> str:
    if spread["mean"] is None:
        return "-"
    return f"{spread['mean']:g}" + ("" if spread["std"] is None else f" ± {spread['std']:g}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
