"""One drive: server and agent together, over the routes of a file, into a run folder.

This process owns the tick; the embedded server and, over ROS, the planner node are children with logs of their own.
Whatever ends the drive, the children end with it, and `results.json` holds what was driven so far.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carla_bridge.agents.agent import Agent
from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.collect import NANO_CAMERA
from carla_bridge.latency import LatencyMode
from carla_bridge.results import DriveResults, Outcome, RouteResult
from carla_bridge.route_run import PLAN_EVERY_TICKS, RouteRun, RouteSetup
from carla_bridge.run_setup import (
    choose_ros_domain,
    describe_commit,
    describe_machine,
    prepare_folder,
    signals_as_interrupts,
)
from carla_bridge.server_process import Address, ServerProcess, parse_address
from carla_bridge.server_watch import Fault, no_fault
from carla_bridge.terminal import DriveDisplay
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from carla_bridge.bridge_node import BridgeNode
    from carla_bridge.navigation import RoutePlan
    from carla_bridge.route_file import RouteSpec

DISPLAY_SIZE_PX = (640, 320)


@dataclass(frozen=True)
class DriveConfig:
    """A drive, all of it.

    Attributes:
        routes: route file in Bench2Drive's form.
        agent: who drives.
        out: run folder.
        latency: when plans act.
        carla: `HOST:PORT` of a running server; empty starts the embedded one.
        seed: of the embedded world and of a random planner.
        device: torch device of the planner.
        patience: how long plans are waited for over ROS.
        video: whether to take pictures for people and write `drive.mp4`.
        ros_arguments: for the bridge node.
    """

    routes: Path
    agent: AgentChoice
    out: Path
    latency: LatencyMode = field(default_factory=LatencyMode)
    carla: str = ""
    seed: int = 0
    device: str = "cpu"
    patience: Patience = field(default_factory=Patience)
    video: bool = True
    ros_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ros_arguments and self.agent.link != "ros":
            raise UserError("ROS arguments", f"none, as planner {self.agent.spec} runs without ROS",
                            " ".join(self.ros_arguments))

    @property
    def display_camera(self) -> CameraSpec:
        """The planner's view in a size for people."""
        width, height = DISPLAY_SIZE_PX
        return replace(self.agent.camera or NANO_CAMERA, name="display", width_px=width, height_px=height)

    @property
    def label(self) -> str:
        """What the figures may be called."""
        return "routes only" if self.carla else "embedded world"


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
        self._address = parse_address(config.carla) if config.carla else None
        self._server_fault: Fault = no_fault
        self._results = DriveResults(
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
            routes_wanted=len(self._specs),
        )

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

        prepare_folder(self._config.out)
        self._results.save(self._config.out)
        with signals_as_interrupts(), DriveDisplay(len(self._specs)) as display:
            try:
                with ExitStack() as stack:
                    self._drive(stack, display, node)
            except (InfrastructureError, UserError, OSError) as error:
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
        config, logs = self._config, self._config.out / "logs"
        if config.agent.link == "ros" and node is None:
            choose_ros_domain(keep=config.agent.kind == "external")
        server = None
        if self._address is None:
            server = stack.enter_context(ServerProcess(self._specs[0].town, config.seed, logs / "server.log"))
            self._server_fault = server.fault
        agent = self._open_agent(stack, node)
        address = self._address or server.wait()  # type: ignore[union-attr]
        display.note("planning routes")
        for route in self._plan_routes(address):
            display.begin_route()
            result = self._drive_route(route, address, agent, display)
            display.end_route(result)
            self._results = replace(self._results, routes=(*self._results.routes, result))
            self._results.save(config.out)
            if result.outcome in (Outcome.SERVER_LOST, Outcome.INTERRUPTED):
                error = result.reason if result.outcome is Outcome.SERVER_LOST else ""
                self._results = replace(self._results, error=error)
                break

    def _open_agent(self, stack: ExitStack, node: BridgeNode | None) -> Agent:
        config = self._config
        if config.agent.link == "ros":
            from carla_bridge.agents.ros_planner import RosPlanner

            planner = RosPlanner(config.agent, config.seed, config.device, config.out / "logs" / "planner.log",
                                 config.patience, config.ros_arguments, node)
            return stack.enter_context(planner).connect(self._server_fault)
        agent = config.agent.make(config.seed, config.device)
        stack.callback(agent.close)
        return agent

    def _drive_route(self, route: RoutePlan, address: Address, agent: Agent, display: DriveDisplay) -> RouteResult:
        from carla_bridge.client import CameraMount, Simulation
        from carla_bridge.recorder import RouteRecorder
        from wamdiff2_core.control.controller import Controller

        specs = [*agent.needs.cameras, *([self._config.display_camera] if self._config.video else [])]
        cameras = [CameraMount(spec, PLAN_EVERY_TICKS) for spec in specs]
        setup = RouteSetup(route, self._config.display_camera.name if self._config.video else "", self._config.latency)
        with RouteRecorder(self._config.out / "routes" / route.route_id, route) as recorder, \
                Simulation(*address, ego_pose=route.start, cameras=cameras, town=route.town,
                           inertial=agent.needs.inertial, fault=self._server_fault) as simulation:
            agent.start(route, simulation.map)
            run = RouteRun(setup, simulation, agent, Controller(), recorder, display.update)
            result = run.drive()
        if run.source:
            self._results = replace(self._results, source=run.source)
        return result

    def _plan_routes(self, address: Address) -> list[RoutePlan]:
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


def server_map(address: Address, spec: RouteSpec, fault: Fault = no_fault) -> Any:
    """The `carla.Map` that the server has for a route's town; `fault` tells of the server's end."""
    from carla_bridge.client import Simulation
    from wamdiff2_core.frames import pose_from_carla

    first = spec.keypoints_carla[0]
    pose = pose_from_carla(float(first[0]), float(first[1]), 0.0)
    with Simulation(*address, ego_pose=pose, cameras=(), town=spec.town, inertial=False,
                    fault=fault) as simulation:
        return simulation.map
