"""What an evaluation shows on the terminal: a line for each ended attempt, and one that tells how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from carla_bridge.drive.terminal import LiveLine, red_lights, route_line
from carla_bridge.evaluation.attempts import Attempt, Job, Kind
from carla_bridge.evaluation.request import Evaluation
from carla_bridge.recording.results import DriveResults

STYLES = {Kind.INFRASTRUCTURE: "yellow", Kind.UNUSABLE: "magenta", Kind.REFUSED: "red"}


class EvaluationDisplay(LiveLine):
    """Progress of an evaluation."""

    def __init__(self, evaluation: Evaluation, console: Console | None = None) -> None:
        """Prepare to show `evaluation`."""
        super().__init__(30.0, 4, console)
        self._evaluation = evaluation
        self._counts: Counter[Kind] = Counter()
        self._open = 0
        self._walls_s: list[float] = []
        self._scores: list[float] = []

    def begin(self, attempts: Sequence[Attempt], left: int, capacity: int) -> None:
        """Start with what the journal holds, and `left` drives to do, `capacity` at a time."""
        for attempt in attempts:
            self._count(attempt)
        self._open = left
        total = len(self._evaluation.jobs)
        drives = "1 drive" if total == 1 else f"{total} drives"
        self.console.print(f"{drives}, {total - left} done before, {capacity} at a time")

    def ended(self, attempt: Attempt) -> None:
        """Leave a line about an ended attempt."""
        self._count(attempt)
        self._open -= attempt.kind is not Kind.INFRASTRUCTURE
        name = attempt.job.name(self._evaluation.repeats)
        if attempt.result is None:
            line = Text.assemble((f"! {name:<8} ", "bold"), (f"{attempt.kind}: ", STYLES[attempt.kind]), attempt.reason)
        else:
            line = route_line(f"{name:<8}", attempt.result, f"{attempt.reason}, {attempt.wall_s:.0f} s wall")
        self.console.print(line)

    def update(self, running: Mapping[Job, float], capacity: int) -> None:
        """Show how far it is, with `capacity` drives at a time."""
        self.show(lambda: self._line(running, capacity))

    def note(self, text: str) -> None:
        """Leave a line."""
        self.console.print(text)

    def end(self, results: DriveResults) -> None:
        """Leave the final line of figures."""
        spread = ", ".join(f"{name} {text}" for name, text in results.spread_in_words())
        missing = f", {len(results.not_driven)} not driven" if results.not_driven else ""
        self.console.print(Text.assemble(
            (f"{results.completed}/{results.routes_wanted} drives completed{missing}", "bold"),
            f", {spread or 'no scores'}{red_lights(results)}, {results.label}: {self._evaluation.drive.out}",
        ))

    def _count(self, attempt: Attempt) -> None:
        self._counts[attempt.kind] += 1
        if attempt.result is not None:
            self._walls_s.append(attempt.wall_s)
            self._scores.append(attempt.result.completion_pct)

    def _line(self, running: Mapping[Job, float], capacity: int) -> Text:
        done = len(self._evaluation.jobs) - self._open
        spoilt = self._counts[Kind.INFRASTRUCTURE]
        mean = sum(self._scores) / len(self._scores) if self._scores else 0.0
        return Text.assemble(
            (f"  {done}/{len(self._evaluation.jobs)} done", "bold"),
            f", {len(running)} in hand, {spoilt} spoilt attempts, {mean:.1f} % completed on average, "
            f"{self._left(running, capacity)}",
        )

    def _left(self, running: Mapping[Job, float], capacity: int) -> str:
        if not self._walls_s:
            return "time left unknown"
        drives = self._open - sum(running.values())
        seconds = drives * sum(self._walls_s) / len(self._walls_s) / max(1, min(capacity, self._open))
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"about {hours} h {minutes:02d} min left" if hours else f"about {max(0.0, seconds) / 60:.1f} min left"
