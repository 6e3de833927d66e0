"""Workers on this machine: a process for each attempt, watched until it ends or hangs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol

from carla_bridge.evaluation.attempts import PROGRESS_NAME, WORKER_LOG, Attempt, Job, Kind, Task, read_attempt
from wamdiff2_core.processes import ManagedProcess

START_LIMIT_S, TICK_LIMIT_S = 360.0, 120.0  # until the first tick: server and planner start; then between ticks
STOP_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Finished:
    """An attempt that is over, and the folder of its files."""

    attempt: Attempt
    folder: Path


class Pool(Protocol):
    """Runs attempts side by side; a context manager, whose end stops those that are left."""

    def __enter__(self) -> Pool: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def capacity(self) -> int:
        """How many attempts may run side by side now."""

    def has_room(self) -> bool:
        """Whether another attempt may be started."""

    def start(self, job: Job, task: Task, folder: Path) -> None:
        """Begin an attempt; its files go to `folder`, which is emptied first."""

    def finished(self) -> list[Finished]:
        """The attempts that have ended since the last call."""

    def running(self) -> dict[Job, float]:
        """Attempts in hand, and which share of the route is driven."""

    def news(self) -> list[str]:
        """What is to be told the user since the last call, a line each."""


@dataclass
class _Running:
    """An attempt in hand: `stamp` is its progress file's when it last changed (0 without one), seen at `changed_s` of
    the steady clock."""

    process: ManagedProcess
    folder: Path
    task: Task
    began: str
    began_s: float
    changed_s: float
    stamp: int = 0


class LocalPool:
    """Workers as child processes; when this process ends, however it ends, so do they, and all that they started."""

    def __init__(self, workers: int) -> None:
        """Run at most `workers` attempts at a time."""
        self._workers = workers
        self._running: dict[Job, _Running] = {}

    def capacity(self) -> int:
        """See `Pool`."""
        return self._workers

    def has_room(self) -> bool:
        """See `Pool`."""
        return len(self._running) < self._workers

    def start(self, job: Job, task: Task, folder: Path) -> None:
        """See `Pool`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        task.save(folder)
        command = [sys.executable, "-m", "carla_bridge.evaluation.worker", str(folder)]
        process = ManagedProcess(f"route {folder.name}", command, folder / WORKER_LOG)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        now_s = time.monotonic()
        self._running[job] = _Running(process, folder, task, began, now_s, now_s)

    def finished(self) -> list[Finished]:
        """See `Pool`."""
        over = []
        for job, item in list(self._running.items()):
            hung = "" if not item.process.alive() else self._hung(item)
            if item.process.alive() and not hung:
                continue
            item.process.stop(STOP_PATIENCE_S)
            over.append(Finished(self._outcome(item, hung), item.folder))
            del self._running[job]
        return over

    def running(self) -> dict[Job, float]:
        """See `Pool`."""
        return {job: _completion(item.folder) for job, item in self._running.items()}

    def news(self) -> list[str]:
        """See `Pool`."""
        return []

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for item in self._running.values():
            item.process.stop(STOP_PATIENCE_S)
        self._running.clear()

    @staticmethod
    def _hung(item: _Running) -> str:
        """How long a worker has done nothing, if that is too long."""
        progress, now_s = item.folder / PROGRESS_NAME, time.monotonic()
        stamp = progress.stat().st_mtime_ns if progress.is_file() else 0
        if stamp != item.stamp:
            item.stamp, item.changed_s = stamp, now_s
        limit_s = TICK_LIMIT_S if stamp else START_LIMIT_S
        return f"no tick for {limit_s:g} s" if now_s - item.changed_s > limit_s else ""

    @staticmethod
    def _outcome(item: _Running, hung: str) -> Attempt:
        done = None if hung else read_attempt(item.folder)
        if done is not None:
            return done
        tail = item.process.log_tail(1)
        reason = hung or item.process.describe_end() + (f": {tail}" if tail else "")
        task = item.task
        lost = Attempt(task.route_id, task.repeat, 0, Kind.INFRASTRUCTURE, reason, task.seed, began=item.began)
        return replace(lost, wall_s=round(time.monotonic() - item.began_s, 2))


def _completion(folder: Path) -> float:
    try:
        return float(json.loads((folder / PROGRESS_NAME).read_text())["completion"])
    except (OSError, ValueError):
        return 0.0
