"""One drive: server, bridge and planner together, over the routes of a file, into a run folder.

The bridge runs in this process and owns the tick; the embedded server and the planner node are children with logs of
their own. Whatever ends the drive, the children end with it, and `results.json` holds what was driven so far.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carla_bridge.latency import LatencyMode
from carla_bridge.planner_child import PlannerChoice
from carla_bridge.processes import ManagedProcess, free_ports, wait_for_port
from carla_bridge.results import DriveResults, Outcome, RouteResult
from carla_bridge.route_run import Patience, RouteRun, RouteSetup
from carla_bridge.run_setup import (
    choose_ros_domain,
    describe_commit,
    describe_machine,
    prepare_folder,
    signals_as_interrupts,
)
from carla_bridge.server_watch import Fault, no_fault
from carla_bridge.terminal import DriveDisplay
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError

if TYPE_CHECKING:
    from carla_bridge.bridge_node import BridgeNode
    from carla_bridge.navigation import RoutePlan
    from carla_bridge.route_file import RouteSpec

PLAN_EVERY_TICKS = 5
SERVER_START_S, PLANNER_START_S = 90.0, 180.0
DISPLAY_SIZE_PX = (640, 320)


@dataclass(frozen=True)
class DriveConfig:
    """A drive, all of it.

    Attributes:
        routes: route file in Bench2Drive's form.
        planner: who plans.
        latency: when plans act.
        out: run folder.
        carla: `HOST:PORT` of a running server; empty starts the embedded one.
        seed: of the embedded world and of a random planner.
        device: torch device of the planner.
        patience: how long plans are waited for.
        video: whether to write `drive.mp4`.
        ros_arguments: for the bridge node.
    """

    routes: Path
    planner: PlannerChoice
    out: Path
    latency: LatencyMode = field(default_factory=LatencyMode)
    carla: str = ""
    seed: int = 0
    device: str = "cpu"
    patience: Patience = field(default_factory=Patience)
    video: bool = True
    ros_arguments: tuple[str, ...] = ()

    @property
    def display_camera(self) -> CameraSpec:
        """The planner's view in a size for people."""
        width, height = DISPLAY_SIZE_PX
        return replace(self.planner.camera, name="display", width_px=width, height_px=height)

    def address(self) -> tuple[str, int] | None:
        """Host and port of `carla`, or None for the embedded server.

        Raises:
            UserError: not HOST:PORT.
        """
        if not self.carla:
            return None
        host, _, port = self.carla.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65535:
            raise UserError("carla", "HOST:PORT", self.carla)
        return host, int(port)


class Drive:
    """One drive; `run` does it, and leaves the run folder behind."""

    def __init__(self, config: DriveConfig) -> None:
        """Check what can be checked before anything is started.

        Raises:
            UserError: routes, address or run folder are wrong.
        """
        from carla_bridge.route_file import load_routes

        self._config = config
        self._specs = load_routes(config.routes)
        self._address = config.address()
        self._planner_process: ManagedProcess | None = None
        self._server_process: ManagedProcess | None = None
        self._results = DriveResults(
            planner=config.planner.spec,
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
            planner_camera=config.planner.camera,
            display_camera=config.display_camera,
            routes=(),
            routes_wanted=len(self._specs),
        )

    def run(self, node: BridgeNode | None = None) -> DriveResults:
        """Start what is needed, drive every route, take everything down, and write the report.

        Args:
            node: the bridge, when rclpy runs already; otherwise both are started here.

        Raises:
            UserError: the server has no such town, or a route cannot be driven there.
            InfrastructureError: server or planner did not start.
        """
        from carla_bridge.report import write_report

        prepare_folder(self._config.out)
        self._results.save(self._config.out)
        with signals_as_interrupts(), DriveDisplay(len(self._specs)) as display:
            try:
                with ExitStack() as stack:
                    self._drive(stack, display, node)
            except (InfrastructureError, UserError) as error:
                self._results = replace(self._results, error=str(error))
                raise
            except KeyboardInterrupt:
                display.note("stopped by the user before the first route")
            finally:
                self._results.save(self._config.out)
            display.note("report")
            write_report(self._config.out, video=self._config.video)
            display.end(self._results, str(self._config.out / "index.html"))
        return self._results

    def _drive(self, stack: ExitStack, display: DriveDisplay, node: BridgeNode | None) -> None:
        display.note("starting server and planner")
        if node is None:
            choose_ros_domain(keep=self._config.planner.kind == "external")
        # Children come before rclpy where that is started here: its threads and a fork do not go together well.
        self._start_server(stack)
        self._start_planner(stack)
        if node is None:
            node = self._start_bridge(stack)
        node.camera = self._config.planner.camera
        node.fault, node.server_fault = self._planner_fault, self._server_fault
        if self._config.planner.expects_plans:
            self._wait_for_planner(node)
        address = self._address or ("127.0.0.1", self._wait_for_server())
        display.note("planning routes")
        routes = self._plan_routes(address)
        for route in routes:
            display.begin_route()
            result = self._drive_route(route, address, node, display)
            display.end_route(result)
            self._results = replace(self._results, routes=(*self._results.routes, result))
            self._results.save(self._config.out)
            if result.outcome in (Outcome.SERVER_LOST, Outcome.INTERRUPTED):
                error = result.reason if result.outcome is Outcome.SERVER_LOST else ""
                self._results = replace(self._results, error=error)
                break

    def _drive_route(
        self, route: RoutePlan, address: tuple[str, int], node: BridgeNode, display: DriveDisplay
    ) -> RouteResult:
        from carla_bridge.client import CameraMount, Simulation
        from carla_bridge.recorder import RouteRecorder
        from wamdiff2_core.control.controller import Controller

        specs = (self._config.planner.camera, self._config.display_camera)
        cameras = [CameraMount(spec, PLAN_EVERY_TICKS) for spec in specs]
        node.show_route(route)
        setup = RouteSetup(
            route, self._config.planner.target_rule, self._config.planner.camera.name, self._config.display_camera.name,
            self._config.latency, self._config.patience, self._config.planner.expects_plans,
        )
        with RouteRecorder(self._config.out / "routes" / route.route_id, route) as recorder, \
                Simulation(*address, ego_pose=route.start, cameras=cameras, town=route.town,
                           fault=self._server_fault) as simulation:
            run = RouteRun(setup, simulation, node, Controller(), recorder, display.update)
            result = run.drive()
        if run.source:
            self._results = replace(self._results, source=run.source)
        return result

    def _start_server(self, stack: ExitStack) -> None:
        if self._address is not None:
            return
        self._port = free_ports(3)
        command = [sys.executable, "-m", "carla_bridge.server", "--port", str(self._port),
                   "--town", self._specs[0].town, "--seed", str(self._config.seed)]
        process = ManagedProcess("embedded server", command, self._config.out / "logs" / "server.log")
        self._server_process = stack.enter_context(process)

    def _wait_for_server(self) -> int:
        server = self._server_process
        assert server is not None
        try:
            wait_for_port(self._port, server.alive, SERVER_START_S)
        except InfrastructureError as error:
            if server.returncode == ExitCode.WRONG_USE:
                raise UserError(f"routes {self._config.routes}", "a town that the embedded server has",
                                self._specs[0].town, server.log_tail(1)) from None
            raise InfrastructureError(f"{error}: {server.log_tail(1)}") from None
        return self._port

    def _start_planner(self, stack: ExitStack) -> None:
        command = self._config.planner.command(self._config.seed, self._config.device)
        if command is not None:
            log = self._config.out / "logs" / "planner.log"
            process = ManagedProcess("planner node", command, log)
            self._planner_process = stack.enter_context(process)

    def _wait_for_planner(self, node: BridgeNode) -> None:
        process = self._planner_process
        try:
            node.wait_for_planner(process.alive if process is not None else lambda: True, PLANNER_START_S)
        except InfrastructureError as error:
            if process is None:
                raise
            tail = process.log_tail(1)
            if process.returncode == ExitCode.WRONG_USE:
                raise UserError("planner", "one that can be loaded", self._config.planner.spec, tail) from None
            raise InfrastructureError(f"{error}: {tail}") from None

    def _start_bridge(self, stack: ExitStack) -> BridgeNode:
        import rclpy

        from carla_bridge.bridge_node import BridgeNode, start_ros

        start_ros(self._config.ros_arguments)
        stack.callback(rclpy.try_shutdown)
        node = BridgeNode()
        stack.callback(node.close)
        return node

    def _planner_fault(self) -> str:
        return "" if self._planner_process is None else self._planner_process.fault()

    def _server_fault(self) -> str:
        return "" if self._server_process is None else self._server_process.fault()

    def _plan_routes(self, address: tuple[str, int]) -> list[RoutePlan]:
        """Plan every route on the server's own map, so that a bad one is told before the first is driven."""
        from carla_bridge.report.lanes import save_lanes
        from carla_bridge.route_planner import RoutePlanner

        maps: dict[str, Any] = {}
        planners: dict[str, RoutePlanner] = {}
        for spec in self._specs:
            if spec.town not in maps:
                maps[spec.town] = server_map(address, spec, self._server_fault)
                planners[spec.town] = RoutePlanner(maps[spec.town])
        save_lanes(self._config.out, maps)
        return [planners[spec.town].plan(spec) for spec in self._specs]


def server_map(address: tuple[str, int], spec: RouteSpec, fault: Fault = no_fault) -> Any:
    """The `carla.Map` that the server has for a route's town; `fault` tells of the server's end."""
    from carla_bridge.client import Simulation
    from wamdiff2_core.frames import pose_from_carla

    first = spec.keypoints_carla[0]
    pose = pose_from_carla(float(first[0]), float(first[1]), 0.0)
    with Simulation(*address, ego_pose=pose, cameras=(), town=spec.town, inertial=False,
                    fault=fault) as simulation:
        return simulation.map
