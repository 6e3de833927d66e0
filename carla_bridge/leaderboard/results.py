"""The result file of CARLA's leaderboard as Bench2Drive writes it: typed, read with tolerance, written whole or not.

A file is either what an evaluator writes for the routes it drove (a *shard*: every record has its index, and there is a
global record), or what Bench2Drive's merge tool makes of several (*merged*: no indexes, records sorted by id text).
Both are read. Sources: `statistics_manager.py` and `merge_route_json.py` of Bench2Drive 0.0.4.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from carla_bridge.leaderboard.infractions import DIGITS, Infraction, InfractionKind
from carla_bridge.leaderboard.record import (
    EMBEDDED_WORLD,
    ROUTES_ONLY_WORLD,
    SCORE_DIGITS,
    RecordError,
    RouteRecord,
    RouteStatus,
    split_route_id,
)
from wamdiff2_core.journal import replace_file

__all__ = [
    "EMBEDDED_WORLD",
    "ROUTES_ONLY_WORLD",
    "EntryStatus",
    "Infraction",
    "InfractionKind",
    "LeaderboardResults",
    "RecordError",
    "RecordFault",
    "ResultsFileError",
    "RouteRecord",
    "RouteStatus",
    "global_record",
]


class ResultsFileError(ValueError):
    """A file is not a result file; the message says why, as a clause about the file.

    Attributes:
        records_lost: whether records may have been in it: true for one that is damaged, false for one that is empty
            or holds something else.
    """

    def __init__(self, message: str, *, records_lost: bool = False) -> None:
        super().__init__(message)
        self.records_lost = records_lost


class EntryStatus(StrEnum):
    """State of a whole file."""

    STARTED = "Started"
    FINISHED = "Finished"
    REJECTED = "Rejected"
    CRASHED = "Crashed"
    INVALID = "Invalid"


@dataclass(frozen=True)
class RecordFault:
    """A record that could not be read.

    Attributes:
        position: place in the file's list, from 0.
        route_id: if that much could be read, else empty.
        reason: what is wrong with it.
    """

    position: int
    route_id: str
    reason: str


@dataclass(frozen=True)
class LeaderboardResults:
    """A whole result file.

    Attributes:
        records: in the order of the file.
        progress: routes done and routes asked for; None in a merged file.
        entry_status: an `EntryStatus`, empty in a merged file.
        sensors: the agent's sensors, as the leaderboard's icons.
        world: as in the records.
        merged: made by the merge tool.
        faults: records that could not be read.
    """

    records: tuple[RouteRecord, ...]
    progress: tuple[int, int] | None = None
    entry_status: str = ""
    sensors: tuple[str, ...] = ()
    world: str = ""
    merged: bool = False
    faults: tuple[RecordFault, ...] = ()

    @classmethod
    def of_run(
        cls, records: Iterable[RouteRecord], routes: int, sensors: Iterable[str] = (), world: str = ""
    ) -> LeaderboardResults:
        """Results of a run that was asked for a number of routes; `world` is written into the records too."""
        kept = tuple(replace(record, world=record.world or world) for record in records)
        statuses = {record.status for record in kept}
        if RouteStatus.SIMULATION_CRASHED in statuses:
            entry = EntryStatus.CRASHED
        elif RouteStatus.SENSORS_INVALID in statuses:
            entry = EntryStatus.REJECTED
        else:
            entry = EntryStatus.FINISHED if len(kept) == routes else EntryStatus.STARTED
        return cls(kept, (len(kept), routes), entry, tuple(sensors), world)

    @classmethod
    def load(cls, path: Path) -> LeaderboardResults:
        """Read a result file of either form.

        Raises:
            ResultsFileError: not a result file, or not all of one.
            OSError: it cannot be read.
        """
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            raise ResultsFileError("is not text", records_lost=True) from None
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> LeaderboardResults:
        """Read the text of a result file of either form.

        Raises:
            ResultsFileError: not a result file, or not all of one.
        """
        if not text.strip():
            raise ResultsFileError("is empty: its evaluation was started and wrote nothing yet")
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            if _cut_off(text.strip(), error):
                lines = text.rstrip().count("\n") + 1
                raise ResultsFileError(
                    f"is cut off in line {lines}: not all of it was written", records_lost=True
                ) from None
            raise ResultsFileError(f"is not JSON: {error.msg} in line {error.lineno}", records_lost=True) from None
        except RecursionError:
            raise ResultsFileError("is not a result file: nested too deep") from None
        checkpoint = data.get("_checkpoint") if isinstance(data, dict) else None
        listed = checkpoint.get("records") if isinstance(checkpoint, dict) else None
        if not isinstance(checkpoint, dict) or not isinstance(listed, list):
            raise ResultsFileError("holds JSON, but no leaderboard results (no _checkpoint.records)")
        world = data.get("world") if isinstance(data.get("world"), str) else ""
        records, faults = [], []
        for position, item in enumerate(listed):
            try:
                records.append(RouteRecord.from_json(item, world))
            except RecordError as error:
                faults.append(RecordFault(position, _id_of(item), str(error)))
        progress, sensors = checkpoint.get("progress"), data.get("sensors")
        return cls(
            tuple(records),
            _progress(progress),
            data["entry_status"] if isinstance(data.get("entry_status"), str) else "",
            tuple(str(sensor) for sensor in sensors) if isinstance(sensors, list) else (),
            world,
            merged="driving score" in data or "eval num" in data,
            faults=tuple(faults),
        )

    def to_json(self) -> dict[str, Any]:
        """The file in the form of a shard, global record included."""
        total = self.progress[1] if self.progress else len(self.records)
        summary = global_record(self.records, total)
        means, rates = summary["scores_mean"], summary["infractions"]
        values = [means["score_composed"], means["score_route"], means["score_penalty"]]
        data: dict[str, Any] = {
            "_checkpoint": {
                "global_record": summary,
                "progress": list(self.progress or (len(self.records), len(self.records))),
                "records": [record.to_json(index) for index, record in enumerate(self.records)],
            },
            "entry_status": str(self.entry_status),
            "eligible": self.entry_status == EntryStatus.FINISHED,
            "sensors": list(self.sensors),
            "values": [str(value) for value in [*values, *(rates[kind] for kind in LABELS)]],
            "labels": ["Avg. driving score", "Avg. route completion", "Avg. infraction penalty", *LABELS.values()],
        }
        return data | ({"world": self.world} if self.world else {})

    def save(self, path: Path) -> None:
        """Write the file whole: a reader sees the old content or the new one."""
        replace_file(path, json.dumps(self.to_json(), indent=4) + "\n")


# Words and parts of numbers within which a text that is cut off may stop.
STOPPED_WITHIN = ("true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e+", "e-", "E+", "E-")

LABELS: Mapping[str, str] = {
    InfractionKind.COLLISION_PEDESTRIAN: "Collisions with pedestrians",
    InfractionKind.COLLISION_VEHICLE: "Collisions with vehicles",
    InfractionKind.COLLISION_LAYOUT: "Collisions with layout",
    InfractionKind.RED_LIGHT: "Red lights infractions",
    InfractionKind.STOP: "Stop sign infractions",
    InfractionKind.OUTSIDE_LANES: "Off-road infractions",
    InfractionKind.DEVIATION: "Route deviations",
    InfractionKind.ROUTE_TIMEOUT: "Route timeouts",
    InfractionKind.BLOCKED: "Agent blocked",
    InfractionKind.YIELD: "Yield emergency vehicles infractions",
    InfractionKind.SCENARIO_TIMEOUT: "Scenario timeouts",
    InfractionKind.MIN_SPEED: "Min speed infractions",
}  # order and words of the file's `values` and `labels`


def global_record(records: Sequence[RouteRecord], routes: int) -> dict[str, Any]:
    """The summary over all records: means and deviations over the routes asked for, infractions per kilometre.

    Lanes left are the exception: kilometres driven outside, not per kilometre, and of each record's first entry only.
    """
    names = ("score_composed", "score_route", "score_penalty")
    means = {name: round(sum(getattr(record, name) / routes for record in records), SCORE_DIGITS) for name in names}
    spread = {name: sum((getattr(record, name) - means[name]) ** 2 for record in records) for name in names}
    deviations: dict[str, float] = {
        name: 0 if routes == 1 else round(math.sqrt(spread[name] / (routes - 1)), DIGITS) for name in names
    }
    driven_km = max(sum(record.route_length_m / 1000 * record.score_route / 100 for record in records), 0.001)
    counts = Counter(str(entry.kind) for record in records for entry in record.infractions)
    rates = {kind.value: round(counts[kind] / driven_km, DIGITS) for kind in InfractionKind}
    outside_km = 0.0
    for record in records:
        lanes_left = record.entries(InfractionKind.OUTSIDE_LANES)
        outside_km += (lanes_left[0].distance_m or 0.0) / 1000 if lanes_left else 0.0
    rates[InfractionKind.OUTSIDE_LANES.value] = round(outside_km, DIGITS)
    if any(not record.reached for record in records):
        status = RouteStatus.FAILED
    else:
        perfect = all(record.status == RouteStatus.PERFECT for record in records)
        status = RouteStatus.PERFECT if perfect else RouteStatus.COMPLETED
    return {
        "index": -1,
        "route_id": -1,
        "status": status.value,
        "infractions": rates,
        "scores_mean": means,
        "scores_std_dev": deviations,
        "meta": {
            "total_length": sum(record.route_length_m for record in records),
            "duration_game": sum(record.duration_game_s for record in records),
            "duration_system": sum(record.duration_system_s for record in records),
            "exceptions": [
                [f"RouteScenario_{record.route_id}_rep{record.repetition}", index, str(record.status)]
                for index, record in enumerate(records) if not record.reached
            ],
        },
    }


def _cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Whether a text that does not parse began as a JSON object and only wants its end."""
    rest = error.doc.rstrip()[error.pos :]
    escape = error.msg.startswith("Invalid \\uXXXX") and len(rest) < len("\\uXXXX")
    within = escape or any(word.startswith(rest) for word in STOPPED_WITHIN)
    return text.startswith("{") and (within or error.msg.startswith("Unterminated string"))


def _id_of(item: object) -> str:
    try:
        return split_route_id(item.get("route_id") if isinstance(item, dict) else None)[0]
    except RecordError:
        return ""


def _progress(value: object) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(number, int) for number in value):
        return value[0], value[1]
    return None
