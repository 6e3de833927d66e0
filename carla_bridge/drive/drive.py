"""One drive over the routes of a file in this process, into a run folder, with a live display.

Whatever ends the drive, the children end with it, and `results.json` holds what was driven so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from carla_bridge.drive.driver import DriveConfig, Driver
from carla_bridge.drive.run_setup import describe_commit, describe_machine, prepare_folder, signals_as_interrupts
from carla_bridge.drive.terminal import DriveDisplay
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.results import DriveResults, latencies_ms, latency_figures, read_plans
from wamdiff2_core.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from carla_bridge.agents.bridge_node import BridgeNode
    from carla_bridge.routes.route_file import RouteSpec


class Drive:
    """One drive; `run` does it, and leaves the run folder behind."""

    def __init__(self, config: DriveConfig, specs: Sequence[RouteSpec]) -> None:
        """Drive `specs`, which are routes of the configured file."""
        self._config, self._specs = config, specs
        self._results = new_results(config, len(specs))

    def run(self, node: BridgeNode | None = None) -> DriveResults:
        """Start what is needed, drive every route, take everything down, and write the report.

        Args:
            node: the bridge, when rclpy runs already; otherwise both are started here if the agent needs them.

        Raises:
            UserError: the server has no such town, or a route cannot be driven there.
            InfrastructureError: server or planner did not start.
            OSError: the disk is full; what was driven is kept as far as it was written.
        """
        from carla_bridge.report import write_report

        self._config.agent.check_device(self._config.device)
        earlier = prepare_folder(self._config.out)
        self._results.save(self._config.out)
        with signals_as_interrupts(), DriveDisplay(len(self._specs)) as display:
            if earlier is not None:
                display.console.print(f"the earlier run is kept in {earlier}")
            try:
                display.note("starting server and planner")
                with Driver(self._config, self._specs[0].town, node) as driver:
                    self._drive(driver, display)
            except (InfrastructureError, UserError, OSError) as error:
                self._results = replace(self._results, error=str(error))
                raise
            except KeyboardInterrupt:
                display.note("stopped by the user")
            finally:
                self._results.save(self._config.out)
            where = self._config.out
            if self._results.routes:
                display.note("report")
                where = write_report(self._config.out, video=self._config.video)
            display.end(self._results, self._latency(), str(where))
        return self._results

    def _latency(self) -> dict[str, float]:
        folders = [self._config.out / route.folder for route in self._results.routes]
        return latency_figures([ms for folder in folders for ms in latencies_ms(read_plans(folder))])

    def _drive(self, driver: Driver, display: DriveDisplay) -> None:
        from carla_bridge.report.lanes import save_lanes

        display.note("planning routes")
        routes = driver.plan(self._specs)
        save_lanes(self._config.out, driver.maps)
        for spec, route in zip(self._specs, routes, strict=True):
            display.begin_route()
            result = driver.drive(spec, route, f"routes/{route.route_id}", display.update)
            display.end_route(result)
            self._results = replace(self._results, routes=(*self._results.routes, result), source=driver.source)
            self._results.save(self._config.out)
            if result.outcome in (Outcome.SERVER_LOST, Outcome.INTERRUPTED):
                error = result.reason if result.outcome is Outcome.SERVER_LOST else ""
                self._results = replace(self._results, error=error)
                break


def new_results(config: DriveConfig, routes_wanted: int) -> DriveResults:
    """The results of a drive that has not driven anything yet."""
    return DriveResults(
        label=config.label,
        planner=config.agent.spec,
        link=config.agent.link,
        source="",
        latency_mode=config.latency.kind,
        latency_ms=config.latency.fixed_ms,
        plan_wait_s=config.patience.wait_s,
        server=config.carla or "embedded",
        routes_file=str(config.routes),
        seed=config.seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        commit=describe_commit(),
        planner_camera=config.agent.camera,
        display_camera=config.display_camera,
        routes=(),
        routes_wanted=routes_wanted,
        vehicles=config.vehicles,
        walkers=config.walkers,
        scenarios=config.scenarios,
        blank_camera=config.blank_camera,
        deadline_ms=config.agent.deadline_ms,
    )
