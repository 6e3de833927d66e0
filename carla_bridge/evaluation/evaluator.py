"""Drives what an evaluation's journal does not have yet, and makes the final files from the journal alone.

Every attempt is one line, on the disk before its result counts. What was in hand when the evaluation was killed is
driven again; so a run that was killed any number of times ends with the same final files as one that was not.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from carla_bridge.drive.run_setup import signals_as_interrupts
from carla_bridge.evaluation.attempts import Attempt, Job, Kind, Task
from carla_bridge.evaluation.display import EvaluationDisplay
from carla_bridge.evaluation.final import write_final_files
from carla_bridge.evaluation.pool import Finished, Pool
from carla_bridge.evaluation.request import Evaluation
from carla_bridge.recording.results import TRAJECTORY_NAME, DriveResults
from carla_bridge.report import write_report
from carla_bridge.report.lanes import merge_lanes
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.journal import JOURNAL_NAME, Journal, check_same_request, read_journal
from wamdiff2_core.outputs import writable_folder

POLL_S = 0.1


class Evaluator:
    """One evaluation; `run` does it, or does the rest of it."""

    def __init__(self, evaluation: Evaluation, pool: Pool, *, overwrite: bool = False) -> None:
        """Drive `evaluation` with `pool`; `overwrite` throws an earlier journal away."""
        self._evaluation, self._pool, self._overwrite = evaluation, pool, overwrite
        self._out = evaluation.drive.out

    def run(self) -> DriveResults:
        """Drive every route that is not driven yet, and write the final files.

        Raises:
            UserError: the folder holds something else, the journal is another evaluation's, or an attempt was refused,
                as with an agent that cannot be used.
            InfrastructureError: attempts fail one after the other, and none has come to an end.
        """
        self._prepare()
        identity = self._evaluation.identity()
        if not self._overwrite:  # a journal without items is taken over by whatever opens it
            path = self._out / JOURNAL_NAME
            check_same_request(path, read_journal(path)[0], identity)
        with Journal(self._out / JOURNAL_NAME, identity, overwrite=self._overwrite, durable=True) as journal:
            attempts = [Attempt.from_json(item, str(journal.path)) for item in journal.items]
            if not attempts:
                for name in ("routes", "failed"):
                    shutil.rmtree(self._out / name, ignore_errors=True)
            with EvaluationDisplay(self._evaluation) as display, signals_as_interrupts():
                try:
                    self._drive(journal, attempts, display)
                except KeyboardInterrupt:
                    display.note("stopped; the same command goes on from here")
                results = write_final_files(self._evaluation, attempts)
                write_report(self._out, video=False)
                self._tell_lost_files(results, display)
                display.end(results)
        return results

    def _tell_lost_files(self, results: DriveResults, display: EvaluationDisplay) -> None:
        lost = [route.folder for route in results.routes if not (self._out / route.folder / TRAJECTORY_NAME).is_file()]
        if lost:
            display.note(
                f"files of {len(lost)} finished drives are gone, such as {lost[0]}: their figures are the journal's, "
                "and the report cannot show them; --overwrite drives everything again"
            )

    def _prepare(self) -> None:
        out = self._out
        if out.exists() and not out.is_dir():
            raise UserError("--out", "a folder", f"a file, {out}")
        writable_folder(out, "--out")
        if any(out.iterdir()) and not (out / JOURNAL_NAME).is_file():
            raise UserError("--out", "an empty folder, or that of an evaluation", str(out), "choose another folder")

    def _drive(self, journal: Journal, attempts: list[Attempt], display: EvaluationDisplay) -> None:
        waiting = deque(open_jobs(self._evaluation, attempts))
        numbers, spoilt = Counter(attempt.job for attempt in attempts), _spoilt(attempts)
        failed_in_a_row = 0
        with self._pool as pool:
            display.begin(attempts, len(waiting), pool.capacity())
            while waiting or pool.running():
                while waiting and pool.has_room():
                    self._start(waiting.popleft())
                for finished in pool.finished():
                    job = finished.attempt.job
                    numbers[job] += 1
                    attempt = self._accept(journal, finished, numbers[job])
                    attempts.append(attempt)
                    display.ended(attempt)
                    if attempt.refusal is not None:
                        raise attempt.refusal.error()
                    failed_in_a_row = failed_in_a_row + 1 if attempt.kind is Kind.INFRASTRUCTURE else 0
                    if attempt.kind is Kind.INFRASTRUCTURE:
                        spoilt[job] += 1
                        if spoilt[job] <= self._evaluation.retries:
                            waiting.append(job)
                self._give_up(failed_in_a_row, attempts)
                for line in pool.news():
                    display.note(line)
                display.update(pool.running(), pool.capacity())
                time.sleep(POLL_S)

    def _start(self, job: Job) -> None:
        name = job.name(self._evaluation.repeats)
        self._pool.start(job, Task.of(job, self._evaluation.drive), self._out / "routes" / name)

    def _accept(self, journal: Journal, finished: Finished, number: int) -> Attempt:
        """Put the files of an attempt where they belong, and its line into the journal."""
        attempt, folder = replace(finished.attempt, number=number), finished.folder
        if attempt.result is not None:
            attempt = replace(attempt, result=replace(attempt.result, folder=f"routes/{folder.name}"))
            merge_lanes(folder, self._out)
        else:
            target = self._out / "failed" / f"{folder.name}-{number}"
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(exist_ok=True)
            folder.rename(target)
        journal.append(attempt.to_json())
        return attempt

    def _give_up(self, failed_in_a_row: int, attempts: Sequence[Attempt]) -> None:
        """End an evaluation that cannot work, instead of trying every route in vain."""
        limit = max(6, 3 * self._pool.capacity())
        if failed_in_a_row >= limit and not any(attempt.kind is Kind.DRIVEN for attempt in attempts):
            raise InfrastructureError(
                f"the first {failed_in_a_row} attempts all failed, the last one with: {attempts[-1].reason};"
                f" logs are in {self._out / 'failed'}"
            )


def open_jobs(evaluation: Evaluation, attempts: Sequence[Attempt]) -> list[Job]:
    """The drives that are neither done nor out of attempts, in order."""
    done = {attempt.job for attempt in attempts if attempt.kind in (Kind.DRIVEN, Kind.UNUSABLE)}
    spoilt = _spoilt(attempts)
    return [job for job in evaluation.jobs if job not in done and spoilt[job] <= evaluation.retries]


def _spoilt(attempts: Sequence[Attempt]) -> Counter[Job]:
    """How many attempts at each drive the infrastructure has spoilt; only they use up retries."""
    return Counter(attempt.job for attempt in attempts if attempt.kind is Kind.INFRASTRUCTURE)
