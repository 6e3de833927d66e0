"""The record of one driven route in the leaderboard's result files.

The key `world` is an addition that other readers ignore: it says where a route was driven when that was not
Bench2Drive's own evaluator. It stands in every record because Bench2Drive's merge tool keeps nothing else.

Source: `statistics_manager.py` of Bench2Drive 0.0.4.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from carla_bridge.leaderboard.infractions import DIGITS, Infraction, InfractionKind, penalty

EMBEDDED_WORLD = "embedded"  # the world of our own server
ROUTES_ONLY_WORLD = "routes only"  # a CARLA server, but not Bench2Drive's evaluator
SCORE_DIGITS = 6
_ROUTE_ID = re.compile(r"(?:RouteScenario_)?(?P<id>.+?)(?:_rep(?P<rep>\d+))?", re.ASCII)


class RecordError(ValueError):
    """A record of a result file cannot be used; the message says why."""


class RouteStatus(StrEnum):
    """How a route ended. Evaluators may write others that begin with `Failed`; those stay plain text."""

    PERFECT = "Perfect"  # completed without any entry; rare, as minimum-speed entries are always there
    COMPLETED = "Completed"
    STARTED = "Started"
    FAILED = "Failed"
    TIMED_OUT = "Failed - Agent timed out"
    DEVIATED = "Failed - Agent deviated from the route"
    BLOCKED = "Failed - Agent got blocked"
    TICK_LIMIT = "Failed - TickRuntime"  # 4000 ticks, 200 simulated seconds
    AGENT_CRASHED = "Failed - Agent crashed"
    AGENT_NOT_SET_UP = "Failed - Agent couldn't be set up"
    SIMULATION_CRASHED = "Failed - Simulation crashed"
    SENSORS_INVALID = "Failed - Agent's sensors were invalid"


REACHED = frozenset({RouteStatus.PERFECT, RouteStatus.COMPLETED})
NOT_DRIVEN_OUT = frozenset(
    {RouteStatus.STARTED, RouteStatus.AGENT_CRASHED, RouteStatus.AGENT_NOT_SET_UP, RouteStatus.SIMULATION_CRASHED,
     RouteStatus.SENSORS_INVALID}
)  # ended by a program, not by how the vehicle drove


@dataclass(frozen=True)
class RouteRecord:
    """One driven route.

    Attributes:
        route_id: id in the routes file.
        repetition: 0 for the first drive of it.
        scenario_name: name of the route's first scenario, such as `ParkingCutIn_1`.
        town: map, such as `Town12`.
        status: a `RouteStatus`, or another evaluator's text.
        score_route: route completion, per cent.
        score_penalty: product of the infractions' factors.
        score_composed: driving score of the route, 0..100.
        infractions: all entries, in the order of the file.
        weather_id: row of Bench2Drive's weather table, as text; None when it matches none.
        save_name: folder of the agent's own files, `metric_info.json` among them.
        route_length_m: metres.
        duration_game_s, duration_system_s: simulated and wall-clock seconds.
        index: position in its shard; None in a merged file.
        world: empty for Bench2Drive's own evaluator, else `EMBEDDED_WORLD` or `ROUTES_ONLY_WORLD`.
    """

    route_id: str
    repetition: int
    scenario_name: str
    town: str
    status: str
    score_route: float
    score_penalty: float
    score_composed: float
    infractions: tuple[Infraction, ...]
    weather_id: str | None = None
    save_name: str = ""
    route_length_m: float = 0.0
    duration_game_s: float = 0.0
    duration_system_s: float = 0.0
    index: int | None = None
    world: str = ""

    @classmethod
    def of_drive(
        cls,
        route_id: str,
        completion_pct: float,
        infractions: Iterable[Infraction],
        failure: RouteStatus = RouteStatus.FAILED,
        *,
        repetition: int = 0,
        scenario_name: str = "",
        town: str = "",
        weather_id: str | None = None,
        save_name: str = "",
        route_length_m: float = 0.0,
        duration_game_s: float = 0.0,
        duration_system_s: float = 0.0,
        world: str = "",
    ) -> RouteRecord:
        """The record of a drive, with scores and status as Bench2Drive's evaluator would write them.

        Args:
            route_id: id in the routes file.
            completion_pct: completed share of the route; 100 and only 100 counts as reached.
            infractions: entries in any order; those of our own making always have a factor.
            failure: status if the goal was not reached.
            repetition, scenario_name, town, weather_id, save_name: as the attributes.
            route_length_m, duration_game_s, duration_system_s: as the attributes.
            world: as the attribute.

        Raises:
            ValueError: an infraction without a factor.
        """
        entries = tuple(sorted(infractions, key=lambda entry: list(InfractionKind).index(InfractionKind(entry.kind))))
        product = penalty(entries)
        if product is None:
            raise ValueError("infractions: expected entries with a factor, got a text in another form")
        reached = completion_pct >= 100
        status = (RouteStatus.COMPLETED if entries else RouteStatus.PERFECT) if reached else failure
        return cls(
            route_id, repetition, scenario_name, town, status,
            round(completion_pct, SCORE_DIGITS), round(product, SCORE_DIGITS),
            round(max(completion_pct * product, 0.0), SCORE_DIGITS), entries, weather_id, save_name,
            round(route_length_m, DIGITS), round(duration_game_s, DIGITS), round(duration_system_s, DIGITS),
            world=world,
        )

    @classmethod
    def from_json(cls, data: Any, world: str = "") -> RouteRecord:
        """A record from a file.

        Args:
            data: what JSON gave.
            world: of the file, for a record that names none.

        Raises:
            RecordError: no record, or one with a score that is not a number in its range.
        """
        if not isinstance(data, dict):
            raise RecordError(f"expected a record, got {_short(data)}")
        route_id, repetition = split_route_id(data.get("route_id"))
        scores = data.get("scores")
        if not isinstance(scores, dict):
            raise RecordError(f"scores: expected three figures, got {_short(scores)}")
        lists = data.get("infractions")
        if not isinstance(lists, dict):
            raise RecordError(f"infractions: expected lists of texts, got {_short(lists)}")
        meta, index = data.get("meta"), data.get("index")
        return cls(
            route_id,
            repetition,
            _text(data, "scenario_name"),
            _text(data, "town_name"),
            _text(data, "status", required=True),
            _figure(scores, "score_route", 0.0, 100.0),
            _figure(scores, "score_penalty", -1e9, 1.0),  # lanes left for more than the route go below 0
            _figure(scores, "score_composed", 0.0, 100.0),
            tuple(Infraction.read(kind, text) for kind, texts in lists.items() for text in _texts(kind, texts)),
            None if data.get("weather_id") is None else str(data["weather_id"]),
            _text(data, "save_name"),
            _measure(meta, "route_length"),
            _measure(meta, "duration_game"),
            _measure(meta, "duration_system"),
            index if isinstance(index, int) else None,
            _text(data, "world") or world,
        )

    def to_json(self, index: int) -> dict[str, Any]:
        """The record as the leaderboard's schema has it, at a position in its file."""
        infractions: dict[str, list[str]] = {kind.value: [] for kind in InfractionKind}
        for entry in self.infractions:
            infractions.setdefault(str(entry.kind), []).append(entry.text)
        record: dict[str, Any] = {
            "index": index,
            "route_id": f"RouteScenario_{self.route_id}_rep{self.repetition}",
            "scenario_name": self.scenario_name,
            "weather_id": self.weather_id,
            "save_name": self.save_name,
            "status": str(self.status),
            "num_infractions": len(self.infractions),
            "infractions": infractions,
            "scores": {
                "score_route": self.score_route,
                "score_penalty": self.score_penalty,
                "score_composed": self.score_composed,
            },
            "meta": {
                "route_length": self.route_length_m,
                "duration_game": self.duration_game_s,
                "duration_system": self.duration_system_s,
            },
            "town_name": self.town,
        }
        return record | ({"world": self.world} if self.world else {})

    @property
    def reached(self) -> bool:
        """Whether the status says that the goal was reached."""
        return self.status in REACHED

    @property
    def scenario_type(self) -> str:
        """Type of the route's first scenario, such as `ParkingCutIn`; empty without one."""
        return self.scenario_name.rpartition("_")[0] or self.scenario_name

    @property
    def success(self) -> bool:
        """Bench2Drive's success: goal reached, and no entry other than minimum speed."""
        return self.reached and all(entry.kind == InfractionKind.MIN_SPEED for entry in self.infractions)

    def entries(self, kind: InfractionKind) -> list[Infraction]:
        """All infractions of a kind."""
        return [entry for entry in self.infractions if entry.kind == kind]

    def recomputed(self) -> tuple[float, float] | None:
        """Composed score from completion and infractions, and how far rounded texts may put it off; None: unknown."""
        product = penalty(self.infractions)
        if product is None:
            return None
        rounded = [entry for entry in self.infractions if entry.kind == InfractionKind.OUTSIDE_LANES]
        tolerance = 1e-6 + 0.51e-4 * self.score_route * len(rounded)  # percentages have two decimals
        return max(self.score_route * product, 0.0), tolerance


def split_route_id(value: object) -> tuple[str, int]:
    """Id and repetition of `RouteScenario_1711_rep0`; a bare id is its first repetition.

    Raises:
        RecordError: not an id.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _ROUTE_ID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise RecordError(f"route_id: expected such as RouteScenario_1711_rep0, got {_short(value)}")
    return match["id"], int(match["rep"] or 0)


def _short(value: object) -> str:
    if value is None:
        return "none"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(data: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    value = data.get(key)
    if isinstance(value, str) or (value is None and not required):
        return value or ""
    raise RecordError(f"{key}: expected a text, got {_short(value)}")


def _texts(kind: str, value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    raise RecordError(f"infractions.{kind}: expected a list of texts, got {_short(value)}")


def _figure(data: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = data.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise RecordError(f"{key}: expected a number from {max(least, 0.0):g} to {most:g}, got {_short(value)}")


def _measure(meta: object, key: str) -> float:
    """A figure that no score depends on: 0 when it is not there."""
    value = meta.get(key) if isinstance(meta, dict) else None
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0
