"""Whether records make up a route set: each route once, under its name, with scores that follow from its entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carla_bridge.leaderboard.record import NOT_DRIVEN_OUT
from carla_bridge.leaderboard.results import RouteRecord
from carla_bridge.score.problems import Problem, ProblemKind, counted, listing
from carla_bridge.score.route_sets import RouteFacts, RouteSet, set_of
from carla_bridge.score.sources import FoundRecord, same_record


@dataclass(frozen=True)
class RouteState:
    """One expected route and what the files say about it.

    Attributes:
        route_id: id in the route set.
        facts: town and scenario type.
        records: none when it is missing; more than one when files contradict or repeat each other.
    """

    route_id: str
    facts: RouteFacts
    records: tuple[RouteRecord, ...]

    @property
    def score_bounds(self) -> tuple[float, float]:
        """Least and greatest driving score of the route."""
        bounds = [score_bounds(record) for record in self.records] or [(0.0, 100.0)]
        return min(low for low, _ in bounds), max(high for _, high in bounds)

    @property
    def success_bounds(self) -> tuple[bool, bool]:
        """Whether the route is a success for certain, and whether it may be one."""
        bounds = [success_bounds(record) for record in self.records] or [(False, True)]
        return all(low for low, _ in bounds), any(high for _, high in bounds)


def score_bounds(record: RouteRecord) -> tuple[float, float]:
    """The driving score as it is written; wider for a record that contradicts itself or was not driven to an end."""
    if record.status in NOT_DRIVEN_OUT:
        return 0.0, 100.0
    value = record.recomputed()
    if value is None or not mismatch(record):
        return record.score_composed, record.score_composed
    return min(record.score_composed, value[0]), max(record.score_composed, value[0])


def success_bounds(record: RouteRecord) -> tuple[bool, bool]:
    """Success as it is written; open for a record that contradicts itself or was not driven to an end."""
    if record.status in NOT_DRIVEN_OUT or record.reached != (record.score_route >= 100):
        return False, True
    return record.success, record.success


def mismatch(record: RouteRecord) -> str:
    """How a record contradicts itself, or an empty text; one whose entries say nothing is not at odds with them."""
    if record.reached != (record.score_route >= 100):
        return f"status {record.status} at {record.score_route:g} % of the route"
    again = record.recomputed()
    if again is None:
        return ""
    value, tolerance = again
    if not abs(value - record.score_composed) <= tolerance:
        return f"{record.score_composed:g} written, {value:g} from its infractions"
    product = max(record.score_route * record.score_penalty, 0.0)
    if not abs(product - record.score_composed) <= tolerance + 1e-4:
        return f"{record.score_composed:g} written, {product:g} from its penalty"
    return ""


def route_states(records: Iterable[FoundRecord], routes: RouteSet) -> list[RouteState]:
    """Every expected route with its records, in the order of the set; records of other routes belong to none."""
    by_route: dict[str, list[RouteRecord]] = defaultdict(list)
    for found in records:
        facts = routes.routes.get(found.record.route_id)
        if facts is not None and not other_route(found.record, facts):
            by_route[found.record.route_id].append(found.record)
    return [RouteState(route_id, facts, tuple(by_route[route_id])) for route_id, facts in routes.routes.items()]


def other_route(record: RouteRecord, facts: RouteFacts) -> str:
    """What in a record belongs to another route than the one with its id, or an empty text."""
    if record.scenario_type and facts.scenario_type and record.scenario_type != facts.scenario_type:
        return f"scenario {record.scenario_type}, expected {facts.scenario_type}"
    if record.town and record.town != facts.town:
        return f"town {record.town}, expected {facts.town}"
    return ""


def check_records(records: Sequence[FoundRecord], routes: RouteSet) -> list[Problem]:
    """Everything that is wrong with the records of one repetition, taken together."""
    known = [
        found for found in records
        if (facts := routes.routes.get(found.record.route_id)) and not other_route(found.record, facts)
    ]
    return [
        *_unknown(records, routes),
        *_missing(known, routes),
        *_other_routes(records, routes.routes),
        *_repetitions(records),
        *_duplicates(records),
        *_mismatches(records),
        *_worlds(records),
        *_not_driven_out(known),
    ]


def _missing(known: Sequence[FoundRecord], routes: RouteSet) -> list[Problem]:
    there = {found.record.route_id for found in known}
    missing = [f"{route_id} ({facts.scenario_type or 'no scenario'}, {facts.town})"
               for route_id, facts in routes.routes.items() if route_id not in there]
    if not missing:
        return []
    text = f"{len(missing)} of {counted(len(routes.routes), 'route')} have no record: {listing(missing)}"
    return [Problem(ProblemKind.MISSING, text, forbids_headline=True)]


def _unknown(records: Sequence[FoundRecord], routes: RouteSet) -> list[Problem]:
    strange: dict[str, list[str]] = defaultdict(list)
    for found in records:
        if found.record.route_id not in routes.routes:
            strange[found.file].append(found.record.route_id)
    problems = []
    for file, ids in strange.items():
        known = set_of(set(ids))
        fix = f"they are of {known}: add --routes {known}" if known else "name their route file with --routes"
        text = f"{file} has {counted(len(ids), 'record')} of routes outside of {routes.name}: {listing(ids)}; {fix}"
        problems.append(Problem(ProblemKind.UNKNOWN_ROUTE, text, forbids_headline=True))
    return problems


def _other_routes(records: Sequence[FoundRecord], facts: Mapping[str, RouteFacts]) -> list[Problem]:
    other = [
        f"{found.record.route_id} ({what})" for found in records
        if found.record.route_id in facts and (what := other_route(found.record, facts[found.record.route_id]))
    ]
    if not other:
        return []
    text = f"{counted(len(other), 'record')} with the id of one route and the facts of another: {listing(other)}"
    return [Problem(ProblemKind.OTHER_ROUTE, text, forbids_headline=True)]


def _repetitions(records: Sequence[FoundRecord]) -> list[Problem]:
    numbers = sorted({found.record.repetition for found in records})
    if len(numbers) < 2:
        return []
    text = f"the files hold repetitions {', '.join(map(str, numbers))}: choose one with --repetition"
    return [Problem(ProblemKind.REPETITIONS, text, forbids_headline=True)]


def _duplicates(records: Sequence[FoundRecord]) -> list[Problem]:
    drives: dict[tuple[str, int], list[FoundRecord]] = defaultdict(list)
    for found in records:
        drives[found.record.route_id, found.record.repetition].append(found)
    same: dict[tuple[str, ...], list[str]] = defaultdict(list)
    different: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (route_id, _), several in drives.items():
        if len(several) > 1:
            files = tuple(dict.fromkeys(found.file for found in several))
            if all(same_record(several[0].record, other.record) for other in several[1:]):
                same[files].append(route_id)
            else:
                scores = " and ".join(f"{found.record.score_composed:g}" for found in several)
                different[files].append(f"{route_id} ({scores})")
    problems = []
    for files, ids in same.items():
        what = "record for record the same: leave all files but one out" if len(files) > 1 else "the same record twice"
        text = f"{_named(files)} {counted(len(ids), 'route')}, {what}: {listing(ids)}"
        problems.append(Problem(ProblemKind.DUPLICATE, text, forbids_headline=True))
    for files, ids in different.items():
        text = f"{_named(files)} {counted(len(ids), 'route')} with different figures: {listing(ids)}"
        problems.append(Problem(ProblemKind.DUPLICATE, text, forbids_headline=True))
    return problems


def _named(files: Sequence[str]) -> str:
    return f"{' and '.join(files)} {'all have' if len(files) > 2 else 'both have' if len(files) == 2 else 'repeats'}"


def _mismatches(records: Sequence[FoundRecord]) -> list[Problem]:
    wrong = [f"{found.record.route_id} ({text})" for found in records if (text := mismatch(found.record))]
    unsure = [found.record.route_id for found in records if found.record.recomputed() is None]
    problems = []
    if wrong:
        text = f"{counted(len(wrong), 'record')} at odds with their own infractions: {listing(wrong)}"
        problems.append(Problem(ProblemKind.MISMATCH, text, forbids_headline=True))
    if unsure:
        text = f"{counted(len(unsure), 'record')} with infractions of unknown weight, scores taken as written: "
        problems.append(Problem(ProblemKind.UNVERIFIED, text + listing(unsure), forbids_headline=False))
    return problems


def _worlds(records: Sequence[FoundRecord]) -> list[Problem]:
    worlds = sorted({found.record.world or "Bench2Drive's evaluator" for found in records})
    if len(worlds) < 2:
        return []
    text = f"records from different worlds: {', '.join(worlds)}"
    return [Problem(ProblemKind.WORLDS, text, forbids_headline=True)]


def _not_driven_out(known: Sequence[FoundRecord]) -> list[Problem]:
    ended = [f"{found.record.route_id} ({found.record.status})" for found in known
             if found.record.status in NOT_DRIVEN_OUT]
    if not ended:
        return []
    text = (f"{counted(len(ended), 'route')} ended by a program, not by the driving; they count as written, the bounds "
            f"leave them open: {listing(ended)}")
    return [Problem(ProblemKind.NOT_DRIVEN_OUT, text, forbids_headline=False)]
