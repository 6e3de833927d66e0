"""The figures of a score, as library calls return them and as `--json` prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carla_bridge.score.problems import Problem

Bounds = tuple[float, float]
UPSTREAM_ROUTES = 220  # what upstream divides by, whatever it is given


def mean_if_all(values: Sequence[float | None]) -> float | None:
    """The mean; None when one of the values is, or there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class AbilityScore:
    """One ability.

    Attributes:
        value: share of its routes that count, 0..1; None while headlines are forbidden, or without routes.
        successes: routes that count for certain.
        routes: routes of its scenario types in the set.
        bounds: least and greatest value.
        rule: `successes`; for traffic signs `strict` (successes only) or `junction rule`, with the number of routes
            whose map did not tell.
    """

    value: float | None
    successes: int
    routes: int
    bounds: Bounds
    rule: str = "successes"

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"value": self.value, "successes": self.successes, "routes": self.routes, "rule": self.rule}


@dataclass(frozen=True)
class ComfortScore:
    """Comfort by both rules, 0..1, over all expected routes.

    Attributes:
        as_coded, corrected: None while headlines are forbidden or metric files are missing.
        as_coded_bounds, corrected_bounds: a route without a metric file may lie anywhere.
        routes: routes with a usable metric file.
        why: why the two differ.
    """

    as_coded: float | None
    corrected: float | None
    as_coded_bounds: Bounds
    corrected_bounds: Bounds
    routes: int
    why: str

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"as_coded": self.as_coded, "corrected": self.corrected, "routes": self.routes, "why": self.why}


@dataclass(frozen=True)
class UpstreamFigures:
    """What Bench2Drive's own tools compute from the same records.

    Attributes:
        driving_score, success_rate: sums over all records, divided by 220.
        abilities: None where no route has a record, and for traffic signs when the junction rule, which upstream
            always applies, leaves routes open.
        ability_routes: their denominators: routes without a record are left out.
        ability_mean: None when one of the five is None.
        efficiency: mean over the routes that have entries.
    """

    driving_score: float
    success_rate: float
    abilities: Mapping[str, float | None]
    ability_routes: Mapping[str, int]
    ability_mean: float | None
    efficiency: float | None

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "driving_score": self.driving_score,
            "success_rate": self.success_rate,
            "abilities": {**self.abilities, "mean": self.ability_mean},
            "efficiency": self.efficiency,
            "denominators": {
                "driving_score": UPSTREAM_ROUTES,
                "success_rate": UPSTREAM_ROUTES,
                "abilities": dict(self.ability_routes),
            },
        }


@dataclass(frozen=True)
class Bench2DriveScore:
    """All figures of a set of result files.

    Attributes:
        label: what the figures may be called: `Bench2Drive`, `embedded world`, `routes of FILE`, ...
        route_set: name of the expected routes.
        driving_score: 0..100; None while headlines are forbidden, as all headline figures.
        success_rate: 0..1.
        efficiency: per cent of the traffic's speed.
        successes: routes that are a success for certain.
        routes_scored, routes_expected: routes with a record, and all.
        abilities: by name.
        ability_mean: mean over the abilities that have routes.
        driving_score_bounds, success_rate_bounds, efficiency_bounds, ability_mean_bounds: least and greatest value.
        comfort: None without metric files.
        as_coded: None when problems other than missing routes forbid the headline.
        problems: with the input.
        missing_routes: ids without a record.
        records: records of the expected routes.
        mismatches: those of them that are at odds with their own infractions.
        speed_entries, speed_entries_dropped: minimum-speed entries, and those above 1000 %.
        efficiency_routes: routes whose entries count.
    """

    label: str
    route_set: str
    driving_score: float | None
    success_rate: float | None
    efficiency: float | None
    successes: int
    routes_scored: int
    routes_expected: int
    abilities: Mapping[str, AbilityScore]
    ability_mean: float | None
    driving_score_bounds: Bounds
    success_rate_bounds: Bounds
    efficiency_bounds: Bounds
    ability_mean_bounds: Bounds
    comfort: ComfortScore | None
    as_coded: UpstreamFigures | None
    problems: tuple[Problem, ...]
    missing_routes: tuple[str, ...] = field(repr=False)
    records: int
    mismatches: int
    speed_entries: int
    speed_entries_dropped: int
    efficiency_routes: int

    @property
    def headline(self) -> bool:
        """Whether the figures may be stated."""
        return not any(problem.forbids_headline for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """The one object of `--json`."""
        comfort, coded = self.comfort, self.as_coded
        return {
            "label": self.label,
            "route_set": self.route_set,
            "driving_score": self.driving_score,
            "success_rate": self.success_rate,
            "successes": self.successes,
            "routes_scored": self.routes_scored,
            "routes_expected": self.routes_expected,
            "efficiency": self.efficiency,
            "comfort": comfort.to_json() if comfort else None,
            "abilities": {name: ability.to_json() for name, ability in self.abilities.items()}
            | {"mean": {"value": self.ability_mean}},
            "denominators": {
                "driving_score": self.routes_expected,
                "success_rate": self.routes_expected,
                "abilities": {name: ability.routes for name, ability in self.abilities.items()}
                | {"mean": sum(ability.routes > 0 for ability in self.abilities.values())},
                "efficiency": self.efficiency_routes,
                "comfort": self.routes_expected,
            },
            "bounds": {
                "driving_score": self.driving_score_bounds,
                "success_rate": self.success_rate_bounds,
                "efficiency": self.efficiency_bounds,
                "comfort": {"as_coded": comfort.as_coded_bounds, "corrected": comfort.corrected_bounds}
                if comfort else None,
                "abilities": {name: ability.bounds for name, ability in self.abilities.items()}
                | {"mean": self.ability_mean_bounds},
            },
            "problems": [
                {"kind": problem.kind, "message": problem.message, "forbids_headline": problem.forbids_headline}
                for problem in self.problems
            ],
            "missing_routes": self.missing_routes,
            "recomputed": {"records": self.records, "mismatches": self.mismatches},
            "speed_entries": {
                "routes": self.efficiency_routes, "entries": self.speed_entries, "dropped": self.speed_entries_dropped
            },
            "as_coded_upstream": coded.to_json() if coded else None,
        }
