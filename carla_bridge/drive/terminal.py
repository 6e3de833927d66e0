"""What a drive shows on the terminal: a live line on a screen, plain lines in a log, one line of figures at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from carla_bridge.drive.route_run import Progress
from carla_bridge.leaderboard.infractions import SHORT_NAMES, count_kinds
from carla_bridge.leaderboard.record import RouteRecord
from carla_bridge.recording.results import DriveResults, RouteResult

BAR_CELLS = 24


class LiveLine:
    """One line that tells how far something is: rewritten on a terminal, elsewhere printed from time to time.

    Attributes:
        console: for lines that stay.
    """

    def __init__(self, log_period_s: float, refresh_hz: int, console: Console | None = None) -> None:
        """Prepare it.

        Args:
            log_period_s: between two printed lines, where there is no terminal.
            refresh_hz: how often a terminal's line is drawn.
            console: where to; standard output by default.
        """
        self.console = console or Console(highlight=False, soft_wrap=True)
        live = Live(console=self.console, refresh_per_second=refresh_hz, transient=True)
        self._live = live if self.console.is_terminal else None
        self._log_period_s, self._last_log_s = log_period_s, time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, line: Callable[[], Text]) -> None:
        """Let the line be what `line` gives, if it is to be seen now."""
        if self._live is not None:
            self._live.update(line())
        elif time.monotonic() - self._last_log_s > self._log_period_s:
            self._last_log_s = time.monotonic()
            self.console.print(line())


class DriveDisplay(LiveLine):
    """Progress of a drive."""

    def __init__(self, routes: int, console: Console | None = None) -> None:
        """Prepare to show a drive of `routes` routes."""
        super().__init__(10.0, 8, console)
        self._routes = routes
        self._number = 0
        self._plan_times: deque[float] = deque(maxlen=12)
        self._plan_count = 0

    def note(self, text: str) -> None:
        """Show what is being done now."""
        if self._live is not None:
            self._live.update(Text(f"  {text} …", style="dim"))
        else:
            self.console.print(f"{text} …")

    def begin_route(self) -> None:
        """Count the next route."""
        self._number += 1
        self._plan_count = 0
        self._plan_times.clear()

    def update(self, progress: Progress) -> None:
        """Show the state of the route."""
        if progress.plans > self._plan_count:
            self._plan_times.append(time.monotonic())
        self._plan_count = progress.plans
        self.show(lambda: self._line(progress))

    def end_route(self, result: RouteResult) -> None:
        """Leave a line about a finished route."""
        self._last_log_s = time.monotonic()
        self.console.print(route_line(f"route {result.route_id:<4}", result, result.reason))

    def end(self, results: DriveResults, latency: Mapping[str, float], where: str) -> None:
        """Leave the final line of figures."""
        self.console.print(final_line(results, latency, where))

    def _line(self, progress: Progress) -> Text:
        filled = round(BAR_CELLS * progress.completion)
        times = self._plan_times
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        return Text.assemble(
            (f"  route {progress.route_id} ({self._number}/{self._routes}) ", "bold"),
            ("━" * filled, "cyan"), ("━" * (BAR_CELLS - filled), "grey37"),
            f" {100 * progress.completion:3.0f} %  {progress.t_s:5.1f} s  {progress.speed_mps:4.1f} m/s  "
            f"{rate:4.1f} plans/s  {progress.latency_ms:4.0f} ms",
        )


def route_line(name: str, result: RouteResult, remark: str) -> Text:
    """A driven route in one line: a goal that was reached with infractions does not look like a clean success."""
    counts = _counts(result)
    mark, style = ("✗", "red") if not result.completed else ("!", "yellow") if counts else ("✓", "green")
    score = f", driving score {RouteRecord.from_json(result.record).score_composed:.1f}" if result.record else ""
    what = ", ".join(f"{count} x {SHORT_NAMES.get(kind, kind)}" for kind, count in counts.items())
    return Text.assemble(
        (f"{mark} ", f"bold {style}"), (f"{name} ", "bold"),
        f"{result.completion_pct:5.1f} % of {result.length_m:.0f} m  ", (str(result.outcome), style), score,
        (f", {what}" if what else "", style), (f"  {remark}", "dim"),
    )


def _counts(result: RouteResult) -> Mapping[str, int]:
    return count_kinds(item.kind for item in result.infractions)


def final_line(results: DriveResults, latency: Mapping[str, float], where: str) -> Text:
    """The figures of a drive in one line; `latency` is over all its plans, as `latency_figures` gives it."""
    routes = results.routes
    flawed = sum(route.completed and bool(_counts(route)) for route in routes)
    plans = sum(route.plans for route in routes)
    unreadable = sum(route.plans_unreadable for route in routes)
    refused = sum(route.plans_refused for route in routes)
    times = f", {latency['p50']:.0f} ms median, {latency['p95']:.0f} ms p95" if latency else ""
    style = "red" if results.exit_code else "yellow" if flawed else "green"
    return Text.assemble(
        (f"{results.completed}/{results.routes_wanted} routes completed"
         + (f", {flawed} of them with infractions" if flawed else ""), f"bold {style}"),
        f", {sum(route.driven_m for route in routes):.0f} m "
        f"in {sum(route.duration_s for route in routes):.0f} s simulated, "
        f"{plans} plans ({unreadable} unreadable, {refused} refused){times}{red_lights(results)}, "
        f"latency mode {results.latency_mode}"
        + (f" {results.latency_ms:g} ms" if results.latency_mode == "fixed" else "") + f": {where}",
    )


def red_lights(results: DriveResults) -> str:
    """How many of the red lights that were met were run, in words, with a comma before it; empty without any."""
    run, met = results.red_lights
    return f", {met - run} of {met} red lights respected" if met else ""
