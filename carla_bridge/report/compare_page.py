"""`compare.html`: a run against another, in the folder of the first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from carla_bridge.report.charts import diverging_bars
from carla_bridge.report.compare import Comparison, Side, compare
from carla_bridge.report.page import PAGE_NAME, REPORT_NAME, ROUTES_ON_FIRST_PAGE, infraction_chips, templates
from carla_bridge.report.radar import ability_text, radar
from carla_bridge.report.run import Figures, Run, load_run
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file

COMPARE_NAME = "compare.html"
BOTH, FIRST_ONLY, SECOND_ONLY = "both", "first only", "second only"
NO_VERDICT = "both, one verdict"


def load_comparison(folder: Path, second_folder: Path) -> Comparison:
    """Read two runs and pair their routes; nothing is written.

    Raises:
        UserError: a folder holds no run, or none with scores, or the runs have no route in common.
    """
    first, second = load_run(folder), load_run(second_folder, "--compare")
    for one, field in ((first, "run folder"), (second, "--compare")):
        if one.figures is None:
            raise UserError(field, "a run with scores", str(one.folder))
    comparison = compare(first, second)
    if not comparison.pairs:
        raise UserError("--compare", "a run with routes of the first one", str(second_folder),
                        "the runs have no driven route in common")
    return comparison


def write_comparison(comparison: Comparison) -> Path:
    """Write the page into the folder of the first run, and return its path."""
    path = comparison.first.folder / COMPARE_NAME
    replace_file(path, _html(comparison))
    return path


def _html(comparison: Comparison) -> str:
    runs = (comparison.first, comparison.second)
    if runs[0].name != runs[1].name:
        names = [run.name for run in runs]
    else:
        names = [f"{run.name} in {run.folder.resolve().name}" for run in runs]
    bases = ("", _relative(runs[1].folder, runs[0].folder))
    paired = comparison.paired
    groups = [(f"the {len(comparison.pairs)} routes in both", paired)]
    if comparison.routes > len(comparison.pairs):
        groups.append(("all routes of each run", runs))
    differences = [(pair.route_id, pair.difference) for pair in comparison.pairs]
    return templates().get_template("compare.html").render(
        title=f"{names[0]} against {names[1]}", names=names, runs=runs, c=comparison,
        rows=_rows(comparison, [_links(run, base) for run, base in zip(runs, bases, strict=True)]),
        home=[base + PAGE_NAME for base in bases], groups=[words for words, _ in groups],
        figures=_figure_rows([run for _, both in groups for run in both]),
        radar=radar([(name, _figures(run).abilities) for name, run in zip(names, paired, strict=True)]),
        bars=diverging_bars("Driving score, difference of each route in both",
                            sorted(differences, key=lambda named: -named[1])),
        places=(BOTH, FIRST_ONLY, SECOND_ONLY, NO_VERDICT),
    )


def _figures(run: Run) -> Figures:
    if run.figures is None:
        raise ValueError("expected a run with scores")
    return run.figures


def _figure_rows(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """(name, text for each run) of every figure."""
    figures = [_figures(run) for run in runs]
    names = dict.fromkeys(name for one in figures for name in one.abilities)
    return [
        ("driving score", [_text(one.driving_score, 1, "") for one in figures]),
        ("success rate", [_text(one.success_rate, 100, " %") for one in figures]),
        ("routes", [str(one.routes) for one in figures]),
        *((name.replace("_", " "), [ability_text(one.abilities.get(name)) for one in figures]) for name in names),
    ]


def _text(value: float | None, factor: float, unit: str) -> str:
    return "withheld" if value is None else f"{factor * value:.2f}{unit}"


def _rows(comparison: Comparison, links: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows of the table: pairs, the largest difference first, then the routes without a partner."""
    rows = []
    for pair in sorted(comparison.pairs, key=lambda pair: -abs(pair.difference)):
        rows.append({"pair": pair, "place": BOTH, "sides": (pair.first, pair.second)})
    strangers = {*comparison.only_first, *comparison.only_second}
    for place, alone in ((FIRST_ONLY, comparison.first_alone), (SECOND_ONLY, comparison.second_alone)):
        for side in alone:
            sides = (side, None) if place == FIRST_ONLY else (None, side)
            where = place if side.entry.route_id in strangers else NO_VERDICT
            rows.append({"pair": None, "place": where, "sides": sides})
    for row in rows:
        shown = [_side(side, own) for side, own in zip(row["sides"], links, strict=True)]
        known = next(side for side in row["sides"] if side is not None)
        row |= {"sides": shown, "route_id": known.entry.route_id, "scenario": known.entry.scenario}
    return rows


def _side(side: Side | None, links: dict[str, str]) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"score": side.score, "status": side.entry.status, "drives": side.drives,
            "link": links.get(side.entry.route_id, ""), "chips": infraction_chips(side.entry)}


def _links(run: Run, base: str) -> dict[str, str]:
    """Address of each route's section, of its first drive."""
    recorded = run.recorded()
    links: dict[str, str] = {}
    for number, entry in enumerate(run.entries):
        if entry in recorded:
            together = len(recorded) <= ROUTES_ON_FIRST_PAGE
            place = f"{PAGE_NAME}#route-{number}" if together else f"{REPORT_NAME}/{number:03d}.html"
            links.setdefault(entry.route_id, base + place)
    return links


def _relative(folder: Path, start: Path) -> str:
    """Address of a folder as seen from a page in another, with a slash at its end."""
    return quote(os.path.relpath(folder.resolve(), start.resolve())) + "/"
