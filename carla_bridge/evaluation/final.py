"""The final files of an evaluation: functions of its journal, so that the same journal gives the same figures.

    results.json        `drive.results.DriveResults`: every drive, what could not be driven and why, the repeats' spread
    leaderboard.json    one file a repeat (`leaderboard-r1.json` ...) in the CARLA leaderboard's schema, for
                        Bench2Drive's merge and ability tools; a drive that could not be done is not in it, and is
                        never counted as a bad one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from carla_bridge.drive.drive import new_results
from carla_bridge.evaluation.attempts import Attempt, Job, Kind
from carla_bridge.evaluation.request import Evaluation
from carla_bridge.leaderboard.results import (
    EMBEDDED_WORLD,
    ROUTES_ONLY_WORLD,
    LeaderboardResults,
    RouteRecord,
)
from carla_bridge.recording.results import DriveResults, NotDriven
from carla_bridge.recording.spread import Spread

SENSOR_ICONS = ("carla_camera", "carla_imu", "carla_gnss")


def write_final_files(evaluation: Evaluation, attempts: Sequence[Attempt]) -> DriveResults:
    """Write all final files of what is in the journal so far, and return the results."""
    driven = {attempt.job: attempt for attempt in attempts if attempt.kind is Kind.DRIVEN}
    results = _results(evaluation, attempts, driven)
    results.save(evaluation.drive.out)
    for repeat in range(evaluation.repeats):
        name = "leaderboard.json" if evaluation.repeats == 1 else f"leaderboard-r{repeat}.json"
        records = _records(evaluation, driven, repeat)
        world = ROUTES_ONLY_WORLD if evaluation.drive.carla else EMBEDDED_WORLD
        sensors = SENSOR_ICONS if evaluation.drive.agent.camera is not None else ()
        LeaderboardResults.of_run(records, len(evaluation.specs), sensors, world).save(evaluation.drive.out / name)
    return results


def _results(
    evaluation: Evaluation, attempts: Sequence[Attempt], driven: dict[Job, Attempt]
) -> DriveResults:
    jobs = evaluation.jobs
    counts = Counter(attempt.job for attempt in attempts)
    last = {attempt.job: attempt for attempt in attempts}
    routes = tuple(result for job in jobs if job in driven and (result := driven[job].result) is not None)
    specs = {spec.id: spec for spec in evaluation.specs}
    missing = tuple(
        NotDriven(
            job.route_id, job.repeat, last[job].kind.value if job in last else "not tried", counts[job],
            last[job].reason if job in last else "", specs[job.route_id].town,
            specs[job.route_id].scenarios[0].type if specs[job.route_id].scenarios else "",
        )
        for job in jobs if job not in driven
    )
    empty = new_results(evaluation.drive, len(jobs))
    return replace(
        empty, routes=routes, not_driven=missing, repeats=evaluation.repeats, spread=_spread(evaluation, driven),
        source=next((attempt.source for attempt in attempts if attempt.source), ""),
        started=min((attempt.began for attempt in attempts), default=empty.started),
    )


def _records(evaluation: Evaluation, driven: dict[Job, Attempt], repeat: int) -> list[RouteRecord]:
    found = []
    for spec in evaluation.specs:
        attempt = driven.get(Job(spec.id, repeat))
        if attempt is not None and attempt.result is not None and attempt.result.record is not None:
            record = RouteRecord.from_json(attempt.result.record)
            name = spec.scenarios[0].name if spec.scenarios else ""
            folder = Path(attempt.result.folder).name  # below `routes`, where `metric_info.json` is looked for
            found.append(replace(record, repetition=repeat, scenario_name=name, save_name=folder))
    return found


def _spread(evaluation: Evaluation, driven: dict[Job, Attempt]) -> dict[str, Spread]:
    """Mean and spread over the repeats of the figures that a table shows, of the drives that could be done.

    Repeats without any are left out, and their drives count as missing too.
    """
    figures: dict[str, list[float]] = {"driving_score": [], "success_rate_pct": [], "completion_pct": []}
    for repeat in range(evaluation.repeats):
        records = _records(evaluation, driven, repeat)
        if records:
            figures["driving_score"].append(float(np.mean([record.score_composed for record in records])))
            figures["success_rate_pct"].append(100.0 * float(np.mean([record.success for record in records])))
            figures["completion_pct"].append(float(np.mean([record.score_route for record in records])))
    missing = len(evaluation.jobs) - len(driven)
    return {name: Spread.of(values, missing) for name, values in figures.items() if values}
