"""One route in a process of Bench2Drive's evaluator: started, watched, and judged by what it left behind.

An evaluator for each route: it then ends with its server, so nothing is carried from route to route, and the parked
cars of a route do not depend on the routes before it. What happens on the road is the evaluator's to judge; here is
told only whether a record is one of driving, or of a program that failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from carla_bridge.bench2drive.checkout import AGENT_FILE, EVALUATOR, Checkout
from carla_bridge.leaderboard.record import EMBEDDED_WORLD, NOT_DRIVEN_OUT, RouteRecord, RouteStatus
from carla_bridge.leaderboard.results import LeaderboardResults, ResultsFileError
from carla_bridge.leases import TRAFFIC_MANAGER, lease_ports
from wamdiff2_core.journal import replace_file
from wamdiff2_core.processes import ManagedProcess

RESULTS_NAME, LOG_NAME, PROCESSES_NAME = "results.json", "evaluator.log", "processes.json"
SKIPPED = "Skipping scenario"
SCAN_S = 1.0
AGENT_FAULTS = (RouteStatus.AGENT_CRASHED, RouteStatus.AGENT_NOT_SET_UP, RouteStatus.SENSORS_INVALID)


class ShardEnd(StrEnum):
    """What an attempt came to.

    DRIVEN: to an end status, whichever.
    VOID: the same, but the route's scenario was not there: the evaluator has left it out.
    AGENT: our agent failed as a program.
    INFRASTRUCTURE: the evaluator or its server failed, or stood still.
    """

    DRIVEN = "driven"
    VOID = "void"
    AGENT = "agent failed"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class EvaluatorOptions:
    """What all attempts have in common.

    Attributes:
        checkout: where everything is.
        routes: route file.
        agent_config: for the agent file: `HOST:PORT` of a planner, or a checkpoint folder.
        device: torch device of planners that the agent starts.
        gpu_rank: of CARLA.
        traffic_seed: of the traffic manager.
        stall_s: wall-clock seconds without a line of the evaluator after which it is given up.
    """

    checkout: Checkout
    routes: Path
    agent_config: str
    device: str = "cpu"
    gpu_rank: int = 0
    traffic_seed: int = 0
    stall_s: float = 600.0


@dataclass(frozen=True)
class Ended:
    """An attempt that is over: what it came to, in words too, and its record if it left one."""

    kind: ShardEnd
    reason: str
    wall_s: float
    record: RouteRecord | None = None


class ShardAttempt:
    """One evaluator with its server and planner; `poll` until it has ended."""

    def __init__(self, route_id: str, options: EvaluatorOptions, folder: Path, save_path: Path) -> None:
        """Start it.

        Args:
            route_id: which route.
            options: see there.
            folder: for its files; emptied first.
            save_path: for the agent's files.
        """
        self.route_id, self.folder = route_id, folder
        self._options = options
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_path.mkdir(parents=True, exist_ok=True)
        self._lease = lease_ports()
        checkout, port = options.checkout, self._lease.number
        command = [
            str(checkout.python), str(checkout.root / EVALUATOR), f"--routes={options.routes.resolve()}",
            f"--routes-subset={route_id}", "--track=SENSORS", f"--checkpoint={folder / RESULTS_NAME}",
            f"--debug-checkpoint={folder / 'live_results.txt'}", f"--agent={AGENT_FILE}",
            f"--agent-config={options.agent_config}", f"--port={port}",
            f"--traffic-manager-port={port + TRAFFIC_MANAGER}", f"--traffic-manager-seed={options.traffic_seed}",
            f"--gpu-rank={options.gpu_rank}",
        ]  # fmt: skip
        environment = checkout.environment(save_path) | {"WAMDIFF2_DEVICE": options.device}
        # The evaluator reads its weather table relative to where it runs.
        command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(checkout.root), *command]
        self._process = ManagedProcess(f"evaluator of route {route_id}", command, folder / LOG_NAME, environment)
        self._began_s = self._heard_s = self._scanned_s = time.monotonic()
        self._log_bytes = 0
        self._children: set[tuple[int, int]] = set()

    def poll(self) -> Ended | None:
        """What it came to, once it is over; one that stands still is ended."""
        now_s = time.monotonic()
        if self._process.alive():
            if now_s - self._scanned_s > SCAN_S:
                self._scanned_s = now_s
                self._note_children()
                size = (self.folder / LOG_NAME).stat().st_size
                if size != self._log_bytes:
                    self._log_bytes, self._heard_s = size, now_s
            if now_s - self._heard_s < self._options.stall_s:
                return None
            reason = f"no line for {self._options.stall_s:g} s: {self._last_line()}"
            self.stop()
            return Ended(ShardEnd.INFRASTRUCTURE, reason, now_s - self._began_s)
        code = self._process.returncode
        self.stop()
        ended = judge(self.folder, code or 0, self._options.checkout.embedded)
        return replace(ended, wall_s=now_s - self._began_s)

    def stop(self) -> None:
        """End it, and everything that it has started. Idempotent."""
        self._note_children()
        self._process.stop(patience_s=5.0)
        # The evaluator starts its server in a session of its own, and forgets it when it is killed itself.
        _end(self._children)
        self._lease.close()

    def _note_children(self) -> None:
        """Remember what the evaluator has started, on the disk too, for the case that this process is killed."""
        found = self._children | set(_descendants(self._process.pid))
        if found != self._children:
            self._children = found
            replace_file(self.folder / PROCESSES_NAME, json.dumps(sorted(found)) + "\n")

    def _last_line(self) -> str:
        return (self._process.log_tail(1) or "it has written nothing")[:200]


def end_leftovers(attempts: Path) -> None:
    """End what the attempts of a run that was killed have left running; `attempts` holds their folders."""
    for path in attempts.glob(f"*/{PROCESSES_NAME}"):
        _end((pid, started) for pid, started in json.loads(path.read_text()))


def judge(folder: Path, code: int, embedded: bool) -> Ended:
    """What an evaluator that has ended left in its folder.

    Args:
        folder: with its result file and log.
        code: its exit status, negative for a signal.
        embedded: whether it ran in the embedded world; records then say so.
    """
    log = (folder / LOG_NAME).read_text(errors="replace")
    try:
        results = LeaderboardResults.load(folder / RESULTS_NAME)
    except (OSError, ResultsFileError) as error:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Ended(ShardEnd.INFRASTRUCTURE, f"{how}, result file {error}: {_reason(log)}", 0.0)
    if len(results.records) != 1:
        fault = results.faults[0].reason if results.faults else _reason(log)
        return Ended(ShardEnd.INFRASTRUCTURE, f"exit code {code}, {len(results.records)} records: {fault}", 0.0)
    record = results.records[0]
    if embedded:
        record = replace(record, world=EMBEDDED_WORLD)
    if record.status in AGENT_FAULTS:
        return Ended(ShardEnd.AGENT, f"{record.status}: {_reason(log)}", 0.0, record)
    if record.status in NOT_DRIVEN_OUT or code != 0:
        return Ended(ShardEnd.INFRASTRUCTURE, f"{record.status}, exit code {code}: {_reason(log)}", 0.0, record)
    if SKIPPED in log:
        line = next(line for line in log.splitlines() if SKIPPED in line)
        return Ended(ShardEnd.VOID, line.strip()[:200], 0.0, record)
    return Ended(ShardEnd.DRIVEN, record.status, 0.0, record)


def _reason(log: str) -> str:
    """The last error of a log: the line that ends its last traceback, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and "=== [Agent]" not in line]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    if starts:
        for line in lines[starts[-1] + 1 :]:
            if not line.startswith(("File ", "^")) and line.split(":")[0].isidentifier() and ":" in line:
                return line[:200]
            if line.split(":")[0].replace(".", "").isidentifier() and ("Error" in line or "Exception" in line):
                return line[:200]
    return lines[-1][:200] if lines else "it has written nothing"


def _end(processes: Iterable[tuple[int, int]]) -> None:
    """Kill those of the processes that still run, each told from a later one of its pid by when it began."""
    for pid, started in processes:
        if _start_time(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[tuple[int, int]]:
    """Pid and start time of each living process below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            yield child, _start_time(child)
            waiting.append(child)


def _start_time(pid: int) -> int:
    """When a process began, in the kernel's ticks: tells it from a later one of the same pid; -1 when it is gone."""
    fields = _stat(pid)
    return int(fields[19]) if fields else -1


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` from the state on; empty when the process has ended, reaped or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
    return fields if fields and fields[0] not in "ZX" else []
