"""A run as its report sees it: every drive with its record, and the scores over them.

A run folder holds `results.json` of our own drives and evaluations, or result files of the leaderboard's schema, as
Bench2Drive's evaluator leaves them. Scores come from `carla_bridge.score`, so that a page never says anything else than
`wamdiff2 score`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from carla_bridge.leaderboard.record import EMBEDDED_WORLD, ROUTES_ONLY_WORLD, RecordError, RouteRecord
from carla_bridge.recording.results import (
    EVALUATION_KIND,
    RESULTS_NAME,
    TRAJECTORY_NAME,
    DriveResults,
    NotDriven,
    RouteResult,
)
from carla_bridge.score.abilities import ABILITIES
from carla_bridge.score.bench2drive import score_records
from carla_bridge.score.figures import Bench2DriveScore, Bounds, mean_if_all
from carla_bridge.score.route_sets import RouteFacts, RouteSet, shipped_sets
from carla_bridge.score.sources import FoundRecord, read_sources, result_files
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import JOURNAL_NAME, read_journal

WORLDS = {EMBEDDED_WORLD: "embedded world", ROUTES_ONLY_WORLD: "routes only", "": "Bench2Drive's evaluator"}


@dataclass(frozen=True)
class Entry:
    """One drive of a route that a run was asked for.

    Attributes:
        route_id, repeat: which one; repeats count from 0.
        town: map the route lies in.
        scenario: type of the route's first scenario; empty without one.
        record: the leaderboard's record; None for a drive without verdict, and in runs before there were records.
        result: what our own drive left; None for others and for a drive without verdict.
        missing: why there is no verdict, else None.
    """

    route_id: str
    repeat: int
    town: str
    scenario: str
    record: RouteRecord | None = None
    result: RouteResult | None = None
    missing: NotDriven | None = None

    @property
    def abilities(self) -> list[str]:
        """Abilities that the route counts for."""
        return [name for name, types in ABILITIES.items() if self.scenario in types]

    @property
    def status(self) -> str:
        """How it ended, in a word or two."""
        if self.missing is not None:
            return self.missing.kind
        return self.result.outcome.value if self.result is not None else str(self.record.status) if self.record else ""

    @property
    def success(self) -> bool | None:
        """Whether it is a success; None when that is not known."""
        return None if self.record is None else self.record.success

    @property
    def score(self) -> float | None:
        """Driving score, 0..100; None when it is not known."""
        return None if self.record is None else self.record.score_composed

    @property
    def completion_pct(self) -> float | None:
        """Driven share of the route; None when it is not known."""
        if self.result is not None:
            return self.result.completion_pct
        return None if self.record is None else self.record.score_route

    @property
    def duration_s(self) -> float | None:
        """Simulated seconds; None when it is not known."""
        if self.result is not None:
            return self.result.duration_s
        return None if self.record is None else self.record.duration_game_s


@dataclass(frozen=True)
class Ability:
    """One ability of a run: share of its routes that are successes (None: withheld), its bounds, and the counts."""

    value: float | None
    bounds: Bounds
    successes: float
    routes: int


@dataclass(frozen=True)
class Figures:
    """The scores of a run, means over its repeats.

    Attributes:
        driving_score: 0..100; None while something forbids the headline.
        success_rate: 0..1, likewise.
        driving_score_bounds, success_rate_bounds: least and greatest value.
        abilities: by name, those that have routes.
        routes: routes of a repeat.
        problems: what forbids headlines, and other remarks.
    """

    driving_score: float | None
    success_rate: float | None
    driving_score_bounds: Bounds
    success_rate_bounds: Bounds
    abilities: Mapping[str, Ability]
    routes: int
    problems: tuple[str, ...]

    @classmethod
    def of(cls, scores: Sequence[Bench2DriveScore]) -> Figures:
        """The means of at least one score."""
        first = scores[0]
        abilities = {}
        for name, ability in first.abilities.items():
            if ability.routes:
                same = [score.abilities[name] for score in scores]
                abilities[name] = Ability(
                    mean_if_all([one.value for one in same]), _mean_bounds([one.bounds for one in same]),
                    sum(one.successes for one in same) / len(same), ability.routes,
                )
        return cls(
            mean_if_all([score.driving_score for score in scores]),
            mean_if_all([score.success_rate for score in scores]),
            _mean_bounds([score.driving_score_bounds for score in scores]),
            _mean_bounds([score.success_rate_bounds for score in scores]),
            abilities, first.routes_expected,
            tuple(dict.fromkeys(problem.message for score in scores for problem in score.problems)),
        )


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        folder: where it is.
        label: what its figures may be called: `embedded world`, `routes only`, the label of one of Bench2Drive's route
            sets, or `Bench2Drive's evaluator, N routes` for others.
        entries: every drive it was asked for and that is known by name, in the order of the run.
        wanted: how many drives it was asked for; more than `entries` when it ended early.
        repeats: how often each route was to be driven.
        results: of our own drives; None for result files of another evaluator.
        problems: with the files.
    """

    folder: Path
    label: str
    entries: tuple[Entry, ...]
    wanted: int
    repeats: int = 1
    results: DriveResults | None = None
    problems: tuple[str, ...] = field(default=())

    @property
    def world(self) -> str:
        """Where it was driven; unlike `label`, the same whatever its routes are."""
        if self.results is not None:
            return self.results.label
        found = {entry.record.world for entry in self.entries if entry.record}
        return " and ".join(sorted(WORLDS.get(world, world) for world in found))

    def recorded(self) -> list[Entry]:
        """The drives whose files lie in the folder; one that was moved without them still has its figures."""
        return [
            entry for entry in self.entries
            if entry.result is not None and (self.folder / entry.result.folder / TRAJECTORY_NAME).is_file()
        ]

    def only(self, route_ids: Set[str]) -> Run:
        """The same run over some of its routes."""
        entries = tuple(entry for entry in self.entries if entry.route_id in route_ids)
        return replace(self, entries=entries, wanted=len({entry.route_id for entry in entries}) * self.repeats)

    @property
    def name(self) -> str:
        """Planner and its source in a few words, or the folder's name."""
        if self.results is None:
            return self.folder.resolve().name
        return " ".join(filter(None, (self.results.planner, self.results.source if self.results.source !=
                                      self.results.planner else "")))

    @cached_property
    def figures(self) -> Figures | None:
        """The scores; None when no drive has a record."""
        if not any(entry.record for entry in self.entries):
            return None
        return Figures.of([self._score(repeat) for repeat in range(self.repeats)])

    def _score(self, repeat: int) -> Bench2DriveScore:
        facts: dict[str, RouteFacts] = {}
        for entry in self.entries:  # a route belongs to every repeat, wherever it has a record
            facts.setdefault(entry.route_id, RouteFacts(entry.town, entry.scenario))
        unnamed = self.wanted // self.repeats - len(facts)
        facts |= {f"not reached, {index + 1}": RouteFacts("", "") for index in range(unnamed)}
        found = [
            FoundRecord(entry.record, RESULTS_NAME) for entry in self.entries
            if entry.repeat == repeat and entry.record is not None
        ]
        return score_records(found, RouteSet("the run's routes", facts))


def load_run(folder: Path, field: str = "run folder") -> Run:
    """Read a run folder of either kind; `field` is what errors call it.

    Raises:
        UserError: it holds neither.
    """
    path = folder / RESULTS_NAME
    if not folder.is_dir():
        raise UserError(field, "a run folder", str(folder), "name the --out folder of a drive or an evaluation")
    if path.is_file() and not _is_leaderboard(path):
        return _own_run(folder, DriveResults.load(folder))
    request, attempts = read_journal(folder / JOURNAL_NAME)
    if request is not None and not path.is_file() and request.get("kind") == EVALUATION_KIND:
        finished = sum(attempt.get("result") is not None for attempt in attempts)
        raise UserError(field, f"{RESULTS_NAME} of a finished or stopped evaluation",
                        f"the journal of one that was killed, with {finished} finished drives",
                        "the closed-loop command that began it goes on with it, and writes results and report")
    sources = read_sources([folder]) if result_files(folder) else None
    if sources is None or not sources.records:
        raise UserError(field, f"{RESULTS_NAME} of a drive, or result files of an evaluator", str(folder))
    entries = tuple(
        Entry(record.route_id, record.repetition, record.town, record.scenario_type, record)
        for record in (found.record for found in sources.records)
    )
    ids = {entry.route_id for entry in entries}
    whole = next((one.label for one in shipped_sets().values() if one.routes.keys() == ids), "")
    names = WORLDS | {"": whole or f"{WORLDS['']}, {len(ids)} routes"}
    worlds = sorted({names.get(entry.record.world, entry.record.world) for entry in entries if entry.record})
    repeats = 1 + max(entry.repeat for entry in entries)
    problems = tuple(problem.message for problem in sources.problems)
    return Run(folder, " and ".join(worlds), entries, len(ids) * repeats, repeats, None, problems)


def _own_run(folder: Path, results: DriveResults) -> Run:
    driven = [
        Entry(result.route_id, result.repeat, result.town, result.scenario, _record(result), result)
        for result in results.routes
    ]
    missing = [
        Entry(item.route_id, item.repeat, item.town, item.scenario, missing=item) for item in results.not_driven
    ]
    return Run(folder, results.label, (*driven, *missing), results.routes_wanted, results.repeats, results)


def _record(result: RouteResult) -> RouteRecord | None:
    if result.record is None:
        return None
    try:
        return RouteRecord.from_json(result.record)
    except RecordError as error:
        raise UserError(f"{RESULTS_NAME}: route {result.route_id}", "a record", str(error)) from None


def _is_leaderboard(path: Path) -> bool:
    try:
        data = json.loads(path.read_text())
    except ValueError:
        return False
    return isinstance(data, dict) and "_checkpoint" in data


def _mean_bounds(bounds: Sequence[Bounds]) -> Bounds:
    return sum(low for low, _ in bounds) / len(bounds), sum(high for _, high in bounds) / len(bounds)
