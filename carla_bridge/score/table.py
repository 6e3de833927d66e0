"""A score as a table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from carla_bridge.score.abilities import TRAFFIC_SIGNS
from carla_bridge.score.figures import UPSTREAM_ROUTES, Bench2DriveScore, Bounds
from carla_bridge.score.problems import Problem, ProblemKind

WITHHELD = "[red]withheld[/]"


def print_score(score: Bench2DriveScore, console: Console) -> None:
    """Print all figures, what they are over, and the problems; a wrong route set is told before the figures."""
    first = [problem for problem in score.problems if problem.kind == ProblemKind.UNKNOWN_ROUTE]
    _print_problems(first, console)
    console.print(score_table(score))
    _print_problems([problem for problem in score.problems if problem not in first], console)
    for note in footnotes(score):
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)


def _print_problems(problems: Sequence[Problem], console: Console) -> None:
    for problem in problems:
        style, word = ("bold red", "problem") if problem.forbids_headline else ("yellow", "note")
        console.print(f"[{style}]{word}:[/] {escape(problem.message)}", soft_wrap=True)


def score_table(score: Bench2DriveScore) -> Table:
    """The table: figure, value, what it is over, bounds, and what upstream's tools compute from the same records."""
    title = f"{score.label}: {score.routes_scored} of {score.routes_expected} routes"
    columns = (Column("figure", no_wrap=True), "value", "over", Column("bounds", no_wrap=True), "upstream")
    table = Table(*columns, title=escape(title), title_justify="left")
    coded = score.as_coded
    table.add_row(
        "driving score", _value(score.driving_score, 4), f"{score.routes_expected} routes",
        _bounds(score.driving_score_bounds, 4), _coded(coded.driving_score if coded else None, 4),
    )
    table.add_row(
        "success rate %", _value(score.success_rate, 2, 100), f"{score.successes}/{score.routes_expected}",
        _bounds(score.success_rate_bounds, 2, 100), _coded(coded.success_rate if coded else None, 2, 100),
    )
    table.add_section()
    for name, ability in score.abilities.items():
        label = name.replace("_", " ") + " %"
        over = f"{ability.successes}/{ability.routes}"
        if name == TRAFFIC_SIGNS and ability.routes:
            over += f" {ability.rule}"
        if not ability.routes:
            table.add_row(label, "-", ability.rule, "", "")
            continue
        table.add_row(
            label, _value(ability.value, 2, 100), over, _bounds(ability.bounds, 2, 100),
            _coded(coded.abilities[name] if coded else None, 2, 100),
        )
    present = sum(ability.routes > 0 for ability in score.abilities.values())
    table.add_row(
        "ability mean %", _value(score.ability_mean, 2, 100), "1 ability" if present == 1 else f"{present} abilities",
        _bounds(score.ability_mean_bounds, 2, 100), _coded(coded.ability_mean if coded else None, 2, 100),
    )
    table.add_section()
    table.add_row(
        "efficiency %", _value(score.efficiency, 4),
        f"{score.efficiency_routes} routes",
        _bounds(score.efficiency_bounds, 4), _coded(coded.efficiency if coded else None, 4),
    )
    comfort = score.comfort
    if comfort is None:
        table.add_row("comfort", "-", "needs --metrics", "", "")
    else:
        over = f"{comfort.routes} metric files"
        table.add_row("comfort, as coded", _value(comfort.as_coded, 4), over, _bounds(comfort.as_coded_bounds, 4),
                      _coded(comfort.as_coded, 4))
        table.add_row("comfort, corrected", _value(comfort.corrected, 4), over, _bounds(comfort.corrected_bounds, 4))
    return table


def footnotes(score: Bench2DriveScore) -> list[str]:
    """What the reader of the table must know of its figures."""
    notes = []
    signs = score.abilities[TRAFFIC_SIGNS]
    if signs.rule == "strict":
        notes.append("traffic signs, strict: successes only; --maps adds failed routes that got past their junction")
    if score.speed_entries_dropped:
        notes.append(f"efficiency: {score.speed_entries_dropped} of {score.speed_entries} entries above 1000 % dropped")
    if score.as_coded is not None and score.routes_scored != UPSTREAM_ROUTES:
        notes.append(f"upstream: sums of scores and successes over {UPSTREAM_ROUTES} routes, whatever there are; "
                     "abilities over the routes with a record")
    if score.comfort is not None:
        notes.append(f"comfort, corrected: {score.comfort.why}")
    checked = f"{score.records - score.mismatches} of {score.records} records agree with their own infractions"
    return [*notes, checked if score.headline else f"{checked}; no headline figure can be stated"]


def _value(value: float | None, digits: int, factor: float = 1.0) -> str:
    return WITHHELD if value is None else f"[bold]{factor * value:.{digits}f}[/]"


def _coded(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _bounds(bounds: Bounds, digits: int, factor: float = 1.0) -> str:
    low, high = (f"{factor * bound:.{digits}f}" for bound in bounds)
    return low if low == high else f"{low} .. {high}"
