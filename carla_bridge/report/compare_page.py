"""`compare.html`: a run against another, in the folder of the first."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from carla_bridge.report.charts import diverging_bars
from carla_bridge.report.compare import Comparison, compare
from carla_bridge.report.page import PAGE_NAME, REPORT_NAME, ROUTES_ON_FIRST_PAGE, infraction_chips, templates
from carla_bridge.report.radar import ability_text, radar
from carla_bridge.report.run import Run, load_run
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file

COMPARE_NAME = "compare.html"


def write_comparison(folder: Path, other_folder: Path) -> Path:
    """Write the comparison of a run with another, and return its path.

    Raises:
        UserError: a folder holds no run, or none with scores, or the runs have no route in common.
    """
    run, other = load_run(folder), load_run(other_folder)
    for one, field in ((run, "run folder"), (other, "compare")):
        if one.figures is None:
            raise UserError(field, "a run with scores", str(one.folder))
    comparison = compare(run, other)
    if not comparison.pairs:
        raise UserError("compare", "a run with routes of the first one", str(other_folder),
                        "the runs have no driven route in common")
    path = folder / COMPARE_NAME
    replace_file(path, _html(run, other, comparison))
    return path


def _html(run: Run, other: Run, comparison: Comparison) -> str:
    if run.figures is None or other.figures is None:
        raise ValueError("expected runs with scores")
    links = {"after": _links(run, ""), "before": _links(other, _relative(other.folder, run.folder))}
    pairs = sorted(comparison.pairs, key=lambda pair: -abs(pair.difference))
    rows = [
        {"pair": pair, "after": pair.after, "before": pair.before,
         "after_link": links["after"].get(pair.route_id, ""), "before_link": links["before"].get(pair.route_id, ""),
         "after_chips": infraction_chips(pair.after.entry), "before_chips": infraction_chips(pair.before.entry)}
        for pair in pairs
    ]
    names = [one.name if run.name != other.name else f"{one.name} in {one.folder.name}" for one in (run, other)]
    abilities = [
        (name.replace("_", " "), ability_text(run.figures.abilities.get(name)),
         ability_text(other.figures.abilities.get(name)))
        for name in dict.fromkeys((*run.figures.abilities, *other.figures.abilities))
    ]
    return templates().get_template("compare.html").render(
        title=f"{names[0]} against {names[1]}", names=names, runs=(run, other), c=comparison, rows=rows,
        home=(PAGE_NAME, _relative(other.folder, run.folder) + PAGE_NAME),
        abilities=abilities,
        radar=radar([(names[0], run.figures.abilities), (names[1], other.figures.abilities)]),
        bars=diverging_bars("Driving score, difference of each route", [
            (pair.route_id, pair.difference) for pair in sorted(comparison.pairs, key=lambda pair: -pair.difference)
        ]),
    )


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
