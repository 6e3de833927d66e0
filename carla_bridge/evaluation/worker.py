"""The process of one attempt: `python -m carla_bridge.evaluation.worker FOLDER`, with the task in that folder.

It starts a server and an agent, drives the route, and leaves `attempt.json`. Without that file it did not come to an
end. While it drives, `progress.json` is written again and again: by its age the pool sees that it hangs.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from carla_bridge.drive.driver import Driver
from carla_bridge.drive.route_run import Progress
from carla_bridge.drive.run_setup import signals_as_interrupts
from carla_bridge.evaluation.attempts import PROGRESS_NAME, TASK_NAME, Attempt, Kind, Refusal, Task
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.report.lanes import save_lanes
from carla_bridge.routes.errors import RouteError
from carla_bridge.routes.route_file import load_routes
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.threads import wait_without_spinning

PROGRESS_PERIOD_S = 0.5


class Heartbeat:
    """Writes progress, but not on every tick."""

    def __init__(self, folder: Path) -> None:
        self._path, self._last_s = folder / PROGRESS_NAME, 0.0

    def beat(self, progress: Progress) -> None:
        """Tell that a tick is done."""
        now = time.monotonic()
        if now - self._last_s >= PROGRESS_PERIOD_S:
            self._last_s = now
            figures = {"completion": progress.completion, "t_s": progress.t_s, "speed_mps": progress.speed_mps}
            self._path.write_text(json.dumps(figures))


def attempt(task: Task, folder: Path) -> Attempt:
    """Drive the route of a task, and say what it came to.

    Args:
        task: what to drive.
        folder: for its files.
    """
    began, start_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    blank = Attempt(task.route_id, task.repeat, 0, Kind.INFRASTRUCTURE, "", task.seed, began=began)
    try:
        done = _drive(task, folder, blank)
    except InfrastructureError as error:
        done = replace(blank, reason=str(error))
    except KeyboardInterrupt:
        done = replace(blank, reason="stopped")
    except UserError as error:
        # What is wrong with a route says nothing about the others; anything else is wrong with all of them.
        if isinstance(error, RouteError):
            done = replace(blank, kind=Kind.UNUSABLE, reason=str(error))
        else:
            done = replace(blank, kind=Kind.REFUSED, reason=str(error), refusal=Refusal.of(error))
    return replace(done, wall_s=round(time.monotonic() - start_s, 2))


def _drive(task: Task, folder: Path, blank: Attempt) -> Attempt:
    config = task.config(folder)
    spec = next(spec for spec in load_routes(config.routes) if spec.id == task.route_id)
    with Driver(config, spec.town) as driver:
        route, = driver.plan([spec])
        save_lanes(folder, driver.maps)
        result = driver.drive(spec, route, "", Heartbeat(folder).beat)
        fault = driver.agent_fault()
    done = replace(blank, source=driver.source, reason=result.reason)
    if result.outcome in (Outcome.SERVER_LOST, Outcome.INTERRUPTED):
        return done
    if result.outcome is Outcome.VOID:
        return replace(done, kind=Kind.UNUSABLE)
    if fault:  # whatever the vehicle did after that, it was not driven by the agent
        return replace(done, reason=f"{fault}; {result.reason}")
    return replace(done, kind=Kind.DRIVEN, result=replace(result, repeat=task.repeat))


def main(folder: Path) -> int:
    """Do the task of a folder; the exit code is 0 once `attempt.json` is written."""
    wait_without_spinning()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with signals_as_interrupts():
        attempt(Task.load(folder / TASK_NAME), folder).save(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
