"""Drives what a run's journal does not have yet: one evaluator a route, some at a time, spoilt attempts again.

A route that never comes to an end status is set aside and named; it does not stop the others, and the scorer counts it
as missing. Nothing is merged: each driven route leaves one result file, in the evaluator's own form.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from carla_bridge.bench2drive.attempt import (
    RESULTS_NAME,
    Ended,
    EvaluatorOptions,
    ShardAttempt,
    ShardEnd,
    end_leftovers,
)
from carla_bridge.drive.run_setup import describe_commit, describe_machine, signals_as_interrupts
from carla_bridge.leaderboard.record import EMBEDDED_WORLD
from carla_bridge.leaderboard.results import LeaderboardResults
from carla_bridge.score.sources import SHARDS
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import JOURNAL_NAME, Journal, replace_file
from wamdiff2_core.outputs import writable_folder

ROUTES_NAME, AGENT = "routes.xml", "agent"
POLL_S = 0.2


@dataclass(frozen=True)
class RunConfig:
    """A run, all of it.

    Attributes:
        options: of each attempt; its route file is the one that was asked for.
        routes: id and town of each route to drive, in the file's order.
        out: folder of the run.
        workers: evaluators at a time.
        retries: further attempts at a route whose attempt was spoilt.
        planner: name of what drives, for the record: checkpoint hash, or address.
        carla_version: of the evaluator's client.
    """

    options: EvaluatorOptions
    routes: tuple[tuple[str, str], ...]
    out: Path
    workers: int = 1
    retries: int = 2
    planner: str = ""
    carla_version: str = ""

    def identity(self) -> dict[str, Any]:
        """What a journal must agree on to be gone on with."""
        options = self.options
        return {
            "routes": [route_id for route_id, _ in self.routes], "planner": self.planner,
            "world": EMBEDDED_WORLD if options.checkout.embedded else "", "carla": self.carla_version,
            "traffic_seed": options.traffic_seed, "bench2drive": _evaluator_commit(options.checkout.root),
        }  # fmt: skip


class Bench2DriveRun:
    """One run; `drive` does it, or does the rest of it."""

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        """Prepare; nothing is started yet.

        Raises:
            UserError: the folder cannot be written to, or holds something else.
        """
        self._config, self._out = config, config.out
        self._console = console or Console(highlight=False, soft_wrap=True)
        if config.out.is_dir() and any(config.out.iterdir()) and not (config.out / JOURNAL_NAME).is_file():
            raise UserError("--out", "an empty folder, or that of such a run", str(config.out))
        writable_folder(config.out, "--out")

    def drive(self) -> list[dict[str, Any]]:
        """Drive every route that has no result yet, and return the last attempt of each.

        Raises:
            UserError: the journal is another run's.
        """
        config = self._config
        path = self._out / JOURNAL_NAME
        with Journal(path, config.identity(), durable=True, begin_anew="choose another --out") as journal:
            end_leftovers(self._out / "attempts")
            (self._out / SHARDS).mkdir(exist_ok=True)
            self._write_routes()
            attempts = list(journal.items)
            with signals_as_interrupts():
                try:
                    self._drive(journal, attempts)
                except KeyboardInterrupt:
                    self._console.print("stopped; the same command goes on from here")
            last = {attempt["route_id"]: attempt for attempt in attempts}
            summary = {"machine": describe_machine(), "commit": describe_commit(), **config.identity()}
            replace_file(self._out / "run.json", json.dumps(summary | {"attempts": attempts}, indent=1) + "\n")
        return [last[route_id] for route_id, _ in config.routes if route_id in last]

    def _drive(self, journal: Journal, attempts: list[dict[str, Any]]) -> None:
        config = self._config
        numbers = Counter(attempt["route_id"] for attempt in attempts)
        done = {attempt["route_id"] for attempt in attempts if not _spoilt(attempt, config.retries)}
        waiting = deque(route_id for route_id, _ in config.routes if route_id not in done)
        self._console.print(f"{len(config.routes)} routes, {len(done)} done before, {config.workers} at a time")
        running: list[ShardAttempt] = []
        try:
            while waiting or running:
                while waiting and len(running) < config.workers:
                    route_id = waiting.popleft()
                    folder = self._out / "attempts" / f"{route_id}-{numbers[route_id] + 1}"
                    running.append(ShardAttempt(route_id, config.options, folder, self._out / AGENT))
                for attempt in list(running):
                    ended = attempt.poll()
                    if ended is None:
                        continue
                    running.remove(attempt)
                    numbers[attempt.route_id] += 1
                    item = self._accept(attempt, ended, numbers[attempt.route_id])
                    journal.append(item)
                    attempts.append(item)
                    if _spoilt(item, config.retries):
                        waiting.append(attempt.route_id)
                time.sleep(POLL_S)
        finally:
            for attempt in running:
                attempt.stop()

    def _accept(self, attempt: ShardAttempt, ended: Ended, number: int) -> dict[str, Any]:
        """Keep the result of an attempt where it counts, and make its line for the journal."""
        final = ended.kind is ShardEnd.DRIVEN or (ended.kind is ShardEnd.AGENT and number > self._config.retries)
        if final:
            results = LeaderboardResults.load(attempt.folder / RESULTS_NAME)
            if self._config.options.checkout.embedded:
                records = tuple(replace(record, world=EMBEDDED_WORLD) for record in results.records)
                replace(results, records=records, world=EMBEDDED_WORLD).save(self._shard(attempt.route_id))
            else:  # theirs, byte for byte
                replace_file(self._shard(attempt.route_id), (attempt.folder / RESULTS_NAME).read_text())
        record = ended.record
        item = {
            "route_id": attempt.route_id, "number": number, "kind": str(ended.kind), "reason": ended.reason,
            "wall_s": round(ended.wall_s, 1), "status": str(record.status) if record else "",
            "completion_pct": record.score_route if record else 0.0,
            "score": record.score_composed if record else 0.0,
            "duration_game_s": record.duration_game_s if record else 0.0, "kept": final,
        }  # fmt: skip
        mark = "[green]✓[/]" if ended.kind is ShardEnd.DRIVEN else "[red]✗[/]"
        figures = f"{item['completion_pct']:.1f} %, {item['score']:.2f}" if final else str(ended.kind)
        self._console.print(f"{mark} {attempt.route_id:<6} {figures}  {ended.reason}  ({ended.wall_s:.0f} s)")
        return item

    def _shard(self, route_id: str) -> Path:
        return self._out / SHARDS / f"{route_id}.json"

    def _write_routes(self) -> None:
        """The routes of this run alone, as what its results are scored against."""
        tree = ElementTree.parse(self._config.options.routes)
        wanted = {route_id for route_id, _ in self._config.routes}
        root = tree.getroot()
        for route in list(root):
            if route.get("id") not in wanted:
                root.remove(route)
        replace_file(self._out / ROUTES_NAME, ElementTree.tostring(root, encoding="unicode") + "\n")


def outcome_table(config: RunConfig, last: Sequence[Mapping[str, Any]]) -> Table:
    """Each route with what its last attempt came to."""
    towns = dict(config.routes)
    world = "embedded world, not Bench2Drive" if config.options.checkout.embedded else "Bench2Drive"
    table = Table("route", "town", "attempts", "outcome", "status or reason", "completed", "score", "simulated s",
                  title=f"routes ({world})", title_justify="left")
    for item in last:
        table.add_row(
            item["route_id"], towns[item["route_id"]], str(item["number"]), item["kind"],
            item["status"] if item["kept"] else item["reason"], f"{item['completion_pct']:.1f} %",
            f"{item['score']:.2f}", f"{item['duration_game_s']:.1f}",
        )
    return table


def _spoilt(item: Mapping[str, Any], retries: int) -> bool:
    """Whether a route is to be driven again after this attempt."""
    return item["kind"] in (ShardEnd.AGENT, ShardEnd.INFRASTRUCTURE) and item["number"] <= retries


def _evaluator_commit(root: Path) -> str:
    """A hash of their evaluator's and scenarios' sources, as checkouts are not always repositories."""
    import hashlib

    digest = hashlib.sha256()
    for folder in ("leaderboard/leaderboard", "scenario_runner/srunner"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
