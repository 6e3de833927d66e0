"""Bench2Drive's figures from result files: exact where the files allow it, bounds where they do not.

A headline (driving score, success rate, efficiency, comfort, abilities) is stated only when every expected route has
one record that can be trusted. Otherwise the figures are withheld, and the bounds say between what they must lie: a
missing route may have gone either way, a duplicate is any of its records. What upstream's tools would print for the
same records stands apart, named as such. Definitions and deviations: docs/scoring.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from carla_bridge.leaderboard.results import EMBEDDED_WORLD, ROUTES_ONLY_WORLD, InfractionKind, RouteRecord
from carla_bridge.score.abilities import ABILITIES, TRAFFIC_SIGNS
from carla_bridge.score.checks import RouteState, check_records, mismatch, route_states, success_bounds
from carla_bridge.score.efficiency import mean_bounds, route_efficiency
from carla_bridge.score.figures import (
    UPSTREAM_ROUTES,
    AbilityScore,
    Bench2DriveScore,
    Bounds,
    ComfortScore,
    UpstreamFigures,
    mean_if_all,
)
from carla_bridge.score.problems import Problem, ProblemKind, counted, listing, most_telling_first, printable
from carla_bridge.score.route_sets import DEFAULT_SET, RouteSet, load_route_set
from carla_bridge.score.sources import FoundRecord, read_sources
from wamdiff2_core.errors import UserError

if TYPE_CHECKING:
    from carla_bridge.score.junction_rule import JunctionRule

OWN_RUN_FIX = "a single drive of closed-loop has its scores in `wamdiff2 report RUN`"


def score_files(
    paths: Sequence[str | Path],
    routes: str = DEFAULT_SET,
    *,
    subset: str | None = None,
    maps: Path | None = None,
    metrics: Path | None = None,
    repetition: int | None = None,
) -> Bench2DriveScore:
    """Score result files.

    Args:
        paths: files, folders and patterns.
        routes: name of a shipped route set, or a route file.
        subset: ids of its routes, and ranges of them, when not all are expected.
        maps: folder with `TownXX.xodr`, for the junction rule of traffic signs; needs a route file.
        metrics: folder with the agents' `metric_info.json`, for comfort.
        repetition: score this repetition only.

    Raises:
        UserError: a path, route set or folder that is not there, or no file with a record.
    """
    route_set = load_route_set(routes).only(subset)
    for name, folder in (("--maps", maps), ("--metrics", metrics)):
        if folder is not None and not folder.is_dir():
            raise UserError(name, "a folder that exists", str(folder))
    rule = None if maps is None else _junction_rule(maps, route_set)
    sources = read_sources(paths)
    if not sources.records and not any(one.kind == ProblemKind.INVALID_RECORD for one in sources.problems):
        reasons = "; ".join(problem.message for problem in sources.problems)
        raise UserError("PATHS", "result files with records of routes", f"no record: {reasons}",
                        OWN_RUN_FIX if "results.json" in reasons else "")
    records = sources.records if repetition is None else _of_repetition(sources.records, repetition)
    return score_records(records, route_set, problems=sources.problems, rule=rule, metrics=metrics)


def score_records(
    found: Sequence[FoundRecord],
    routes: RouteSet,
    *,
    problems: Sequence[Problem] = (),
    rule: JunctionRule | None = None,
    metrics: Path | None = None,
) -> Bench2DriveScore:
    """Score records.

    Args:
        found: records with the names of their files.
        routes: the expected routes.
        problems: already known with the input.
        rule: junction rule of traffic signs; None: successes only.
        metrics: folder with the agents' `metric_info.json`.
    """
    considered = [one for one in found if one.record.route_id not in routes.left_out]
    states = route_states(considered, routes)
    records = [record for state in states for record in state.records]
    all_problems = [*problems, *check_records(considered, routes)]
    if len(found) > len(considered):
        text = f"{counted(len(found) - len(considered), 'record')} of routes that --routes-subset leaves out"
        all_problems.append(Problem(ProblemKind.LEFT_OUT, text, forbids_headline=False))

    efficiencies = [route_efficiency(record) for record in records]
    unreadable = [record.route_id for record, one in zip(records, efficiencies, strict=True) if one.unreadable]
    if unreadable:
        text = f"{counted(len(unreadable), 'route')} with speed entries in another form: {listing(unreadable)}"
        all_problems.append(Problem(ProblemKind.EFFICIENCY, text, forbids_headline=False))
    comfort, comfort_problems = _comfort(states, metrics)
    signs = {state.route_id: _sign_bounds(state, rule) for state in states}
    if rule is not None:
        all_problems += rule.problems()
    all_problems += comfort_problems

    headline = not any(problem.forbids_headline for problem in all_problems)
    blocking = {problem.kind for problem in all_problems if problem.forbids_headline}
    abilities = {name: _ability(name, states, signs, rule, headline) for name in ABILITIES}
    present = [ability for ability in abilities.values() if ability.routes]
    certain = [state for state in states if state.success_bounds[0]]
    possible = [state for state in states if state.success_bounds[1]]
    means = [one.mean_pct for one in efficiencies if one.mean_pct is not None]
    expected = len(states)
    efficient = headline and bool(means) and not unreadable
    return Bench2DriveScore(
        label=_label([one.record for one in considered], routes),
        route_set=routes.name,
        driving_score=sum(record.score_composed for record in records) / expected if headline else None,
        success_rate=sum(record.success for record in records) / expected if headline else None,
        efficiency=sum(means) / len(means) if efficient else None,
        successes=sum(record.success for record in records) if headline else len(certain),
        routes_scored=sum(bool(state.records) for state in states),
        routes_expected=expected,
        abilities=abilities,
        ability_mean=mean_if_all([ability.value for ability in present]),
        driving_score_bounds=(
            sum(state.score_bounds[0] for state in states) / expected,
            sum(state.score_bounds[1] for state in states) / expected,
        ),
        success_rate_bounds=(len(certain) / expected, len(possible) / expected),
        efficiency_bounds=_efficiency_bounds(states),
        ability_mean_bounds=(
            sum(ability.bounds[0] for ability in present) / max(len(present), 1),
            sum(ability.bounds[1] for ability in present) / max(len(present), 1),
        ),
        comfort=comfort if headline or comfort is None else replace(comfort, as_coded=None, corrected=None),
        as_coded=_upstream(states, means, signs) if blocking <= {ProblemKind.MISSING} else None,
        problems=tuple(most_telling_first(all_problems)),
        missing_routes=tuple(state.route_id for state in states if not state.records),
        records=len(records),
        mismatches=sum(bool(mismatch(record)) for record in records),
        speed_entries=sum(one.values for one in efficiencies),
        speed_entries_dropped=sum(one.dropped for one in efficiencies),
        efficiency_routes=len(means),
    )


def _junction_rule(maps: Path, routes: RouteSet) -> JunctionRule:
    from carla_bridge.score.junction_rule import JunctionRule  # brings numpy and carla

    if routes.file is None:
        raise UserError("--maps", "a route file with key points in --routes", f"the shipped set {routes.name}")
    return JunctionRule(maps, routes.file)


def _of_repetition(found: Sequence[FoundRecord], repetition: int) -> list[FoundRecord]:
    chosen = [one for one in found if one.record.repetition == repetition]
    if found and not chosen:
        there = sorted({one.record.repetition for one in found})
        raise UserError("--repetition", f"one of {', '.join(map(str, there))}", repetition)
    return chosen


def _label(records: Sequence[RouteRecord], routes: RouteSet) -> str:
    worlds = {record.world for record in records}
    if EMBEDDED_WORLD in worlds:
        return "embedded world"
    if worlds - {""}:
        named = printable(" and ".join(sorted(worlds - {""})))
        return f"CARLA, {named}" if worlds == {ROUTES_ONLY_WORLD} else f"world {named}"
    return routes.label or f"routes of {routes.name}"


def _sign_bounds(state: RouteState, rule: JunctionRule | None) -> tuple[bool, bool]:
    """Whether a route counts for traffic signs for certain, and whether it may.

    Bench2Drive also counts a failed route that got past its first junction without running a light or a stop sign.
    """
    certain, possible = state.success_bounds
    if certain or not state.records or state.facts.scenario_type not in ABILITIES[TRAFFIC_SIGNS]:
        return certain, possible
    verdicts: list[bool | None] = []
    for record in state.records:
        ran = record.entries(InfractionKind.RED_LIGHT) or record.entries(InfractionKind.STOP)
        if success_bounds(record)[0]:
            verdicts.append(True)
        elif ran or not record.score_route:  # no junction is past at the start
            verdicts.append(False)
        else:
            verdicts.append(rule.passed(record) if rule else None)
    return all(verdict is True for verdict in verdicts), possible or any(verdict is not False for verdict in verdicts)


def _ability(
    name: str,
    states: Sequence[RouteState],
    signs: Mapping[str, tuple[bool, bool]],
    rule: JunctionRule | None,
    headline: bool,
) -> AbilityScore:
    own = [state for state in states if state.facts.scenario_type in ABILITIES[name]]
    if not own:
        return AbilityScore(None, 0, 0, (0.0, 0.0), "no routes of its types")
    bounds = [signs[state.route_id] if name == TRAFFIC_SIGNS else state.success_bounds for state in own]
    certain, possible = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    count, wording = certain, "successes"
    if headline:
        count = sum(signs[state.route_id][0] if name == TRAFFIC_SIGNS else state.records[0].success for state in own)
    if name == TRAFFIC_SIGNS:
        open_routes = sum(bool(state.records) and low != high for state, (low, high) in zip(own, bounds, strict=True))
        wording = "strict" if rule is None else "junction rule"
        if rule is not None and open_routes:
            wording += f", {open_routes} open"
    value = count / len(own) if headline else None
    return AbilityScore(value, count, len(own), (certain / len(own), possible / len(own)), wording)


def _efficiency_bounds(states: Sequence[RouteState]) -> Bounds:
    certain: list[float] = []
    unsure: list[list[float | None]] = []
    for state in states:
        options: list[float | None] = []
        for record in state.records:
            one = route_efficiency(record)
            options += [0.0, 1000.0, None] if one.unreadable else [one.mean_pct]
        options = options or [0.0, 1000.0, None]
        if len(set(options)) > 1:
            unsure.append(options)
        elif options[0] is not None:
            certain.append(options[0])
    return mean_bounds(certain, unsure)


def _upstream(
    states: Sequence[RouteState],
    means: Sequence[float],
    signs: Mapping[str, tuple[bool, bool]],
) -> UpstreamFigures:
    records = [record for state in states for record in state.records]
    abilities: dict[str, float | None] = {}
    ability_routes: dict[str, int] = {}
    for name, types in ABILITIES.items():
        there = [state for state in states if state.records and state.facts.scenario_type in types]
        if name == TRAFFIC_SIGNS:
            decided = all(low == high for low, high in (signs[state.route_id] for state in there))
            count = sum(signs[state.route_id][0] for state in there) if decided else None
        else:
            count = sum(state.records[0].success for state in there)
        abilities[name] = count / len(there) if there and count is not None else None
        ability_routes[name] = len(there)
    return UpstreamFigures(
        sum(record.score_composed for record in records) / UPSTREAM_ROUTES,
        sum(record.success for record in records) / UPSTREAM_ROUTES,
        abilities,
        ability_routes,
        mean_if_all(list(abilities.values())),
        sum(means) / len(means) if means else None,
    )


def _comfort(states: Sequence[RouteState], metrics: Path | None) -> tuple[ComfortScore | None, list[Problem]]:
    if metrics is None:
        return None, []
    from carla_bridge.score.comfort import (  # numpy and scipy are loaded only for this
        CORRECTION,
        MetricFileError,
        find_metric_file,
        load_metric_info,
        route_comfort,
    )

    figures, missing, broken = [], [], []
    for state in states:
        if len(state.records) != 1:
            continue
        path = find_metric_file(metrics, state.records[0].save_name)
        if path is None:
            missing.append(state.route_id)
            continue
        try:
            figures.append(route_comfort(load_metric_info(path)))
        except MetricFileError as error:
            broken.append(str(error))
    problems = [Problem(ProblemKind.METRICS, text, forbids_headline=False) for text in broken]
    if missing:
        text = (f"{counted(len(missing), 'route')} without metric file in {metrics}, no figure for comfort: "
                f"{listing(missing)}")
        problems.insert(0, Problem(ProblemKind.METRICS, text, forbids_headline=False))
    expected, open_routes = len(states), len(states) - len(figures)
    coded, corrected = sum(one.as_coded for one in figures), sum(one.corrected for one in figures)
    return ComfortScore(
        coded / expected if not open_routes else None,
        corrected / expected if not open_routes else None,
        (coded / expected, (coded + open_routes) / expected),
        (corrected / expected, (corrected + open_routes) / expected),
        len(figures),
        CORRECTION,
    ), problems
