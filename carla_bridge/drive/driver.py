"""A server and an agent, ready to drive routes one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from carla_bridge.agents.agent import Agent
from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.client.server_process import Address, ServerProcess, parse_address
from carla_bridge.client.server_watch import Fault, no_fault
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.drive.route_run import PLAN_EVERY_TICKS, Progress, RouteRun, RouteSetup
from carla_bridge.drive.run_setup import choose_ros_domain
from carla_bridge.nano import NANO_CAMERA
from carla_bridge.recording.results import RouteResult
from carla_bridge.routes.errors import RouteError
from carla_bridge.server.background import check_background
from carla_bridge.server.town.town_library import TownLibrary
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import UserError

if TYPE_CHECKING:
    from carla_bridge.agents.bridge_node import BridgeNode
    from carla_bridge.client.attached import AttachedSimulation
    from carla_bridge.client.client import Simulation
    from carla_bridge.routes.navigation import RoutePlan
    from carla_bridge.routes.route_file import RouteSpec
    from carla_bridge.routes.route_planner import RoutePlanner

DISPLAY_SIZE_PX = (640, 320)


@dataclass(frozen=True, kw_only=True)
class DriveConfig:
    """A drive, all of it.

    Attributes:
        routes: route file in Bench2Drive's form.
        agent: who drives.
        out: run folder.
        latency: when plans act.
        carla: `HOST:PORT` of a running server; empty starts the embedded one.
        maps: folder of OpenDRIVE files for the embedded server; None for its own towns only.
        vehicles: how many of background traffic: all over the embedded town; near the route with `carla`.
        walkers: how many of them the embedded town has.
        seed: of the embedded world and of a random planner.
        device: torch device of the planner.
        patience: how long plans are waited for over ROS.
        video: whether to take pictures for people and write `drive.mp4`.
        ros_arguments: for the bridge node.
        scenarios: whether those of the routes are played.
        hero: role name of somebody else's vehicle in somebody else's world, to be driven as it is; empty to spawn one
            and move time ourselves.
        tick_wait_s: wall clock; how long such a world may stand still.
        blank_camera: whether the planner is given black pictures.
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
    maps: Path | None = None
    ros_arguments: tuple[str, ...] = ()
    vehicles: int = 0
    walkers: int = 0
    scenarios: bool = True
    hero: str = ""
    tick_wait_s: float = 20.0
    blank_camera: bool = False

    def __post_init__(self) -> None:
        if self.carla:
            parse_address(self.carla)
        if self.seed < 0:
            raise UserError("--seed", "0 or more", self.seed)
        if not self.carla:
            check_background(self.vehicles, self.walkers)
        if self.hero:
            self._check_passive()
        if self.walkers and self.carla:
            raise UserError("--walkers", "0 with --carla: only the embedded server has any of its own", self.walkers)
        if self.blank_camera and self.agent.camera is None:
            raise UserError("--blank-camera", "a planner with a camera", self.agent.spec)
        TownLibrary(self.maps)  # refuses a folder without towns
        if self.ros_arguments and self.agent.link != "ros":
            raise UserError("ROS arguments", f"none, as planner {self.agent.spec} runs without ROS",
                            " ".join(self.ros_arguments))

    def _check_passive(self) -> None:
        """Nothing of another's world is ours to change, and it does not wait for plans."""
        if not self.carla:
            raise UserError("--passive", "--carla HOST:PORT beside it, where the hero's world is", "none")
        for field_name, got in (("--vehicles", self.vehicles), ("--walkers", self.walkers)):
            if got:
                raise UserError(field_name, "0 with --passive: the world is its owner's", got)
        if self.latency.kind != "live":
            raise UserError("--latency", "none with --passive: the world does not wait for plans", self.latency)

    @property
    def display_camera(self) -> CameraSpec:
        """The planner's view in a size for people."""
        width, height = DISPLAY_SIZE_PX
        return replace(self.agent.camera or NANO_CAMERA, name="display", width_px=width, height_px=height)

    @property
    def label(self) -> str:
        """What the figures may be called."""
        return "routes only" if self.carla else "embedded world"


class Driver:
    """Starts on entering the `with` block, and ends everything that it has started on leaving it.

    Attributes:
        maps: the towns' `carla.Map` by name, once routes are planned.
        source: what signed the latest plan.
    """

    def __init__(self, config: DriveConfig, town: str, node: BridgeNode | None = None) -> None:
        """Say what to start.

        Args:
            config: the drive.
            town: that an embedded server opens first.
            node: the bridge, when rclpy runs already; otherwise both are started here if the agent needs them.

        Raises:
            UserError: the address is wrong.
        """
        self._config, self._town, self._node = config, town, node
        self._address = parse_address(config.carla) if config.carla else None
        self._server_fault: Fault = no_fault
        self._stack = ExitStack()
        self._planners: dict[str, RoutePlanner] = {}
        self.maps: dict[str, Any] = {}
        self.source = ""

    def __enter__(self) -> Driver:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def plan(self, specs: Sequence[RouteSpec]) -> list[RoutePlan]:
        """Plan routes on the server's own maps, so that a bad one is told before the first is driven.

        Raises:
            RouteError: the server has no such town, or a route does not lie on its lanes.
            UserError: several routes for a hero that is driven once.
        """
        from carla_bridge.routes.route_planner import RoutePlanner

        if self._config.hero and len(specs) != 1:
            raise UserError("--routes", "one route for --passive", f"{len(specs)} routes",
                            "choose one with --routes-subset ID")
        for spec in specs:
            if spec.town not in self.maps:
                self.maps[spec.town] = self._map(spec)
                self._planners[spec.town] = RoutePlanner(self.maps[spec.town])
        return [self._planners[spec.town].plan(spec) for spec in specs]

    def drive(
        self, spec: RouteSpec, route: RoutePlan, folder: str, on_progress: Callable[[Progress], None]
    ) -> RouteResult:
        """Drive a route from its start to its verdict, with its scenarios and in its weather; a hero of somebody else's
        without, as they are the world's owner's.

        Args:
            spec: the route as its file says it.
            route: its path, as `plan` has made it.
            folder: of its files, relative to the run folder.
            on_progress: told of every tick.
        """
        from carla_bridge.client.client import Simulation
        from carla_bridge.leaderboard.criteria import RouteCriteria
        from carla_bridge.recording.recorder import RouteRecorder
        from carla_bridge.scenarios.engine import ScenarioEngine

        config, agent = self._config, self._agent
        if not config.scenarios:
            spec = replace(spec, scenarios=())
        display = (config.display_camera,) if config.video else ()
        setup = RouteSetup(route, display[0].name if display else "", config.latency, config.blank_camera)
        with RouteRecorder(config.out / folder, route) as recorder, \
                self._world(route, (*agent.needs.cameras, *display)) as world:
            agent.start(route, world.map)
            scenarios = None
            if isinstance(world, Simulation):
                # The embedded server has put its own.
                background = config.vehicles if config.carla else 0
                scenarios = ScenarioEngine(world, route, spec, self._planners[spec.town], config.seed, background)
            criteria = RouteCriteria(route, world.map, scenarios)
            run = RouteRun(setup, world, agent, criteria, recorder, scenarios, on_progress)
            result = run.drive()
        self.source = run.source or self.source
        return replace(result, folder=folder, scenario=spec.scenarios[0].type if spec.scenarios else "")

    def agent_fault(self) -> str:
        """How a process that the agent depends on has ended; empty when none has."""
        return self._agent.fault()

    def _start(self) -> None:
        config, logs = self._config, self._config.out / "logs"
        if config.agent.link == "ros" and self._node is None:
            choose_ros_domain(keep=config.agent.kind == "external")
        # Children come before rclpy where that is started here: its threads and a fork do not go together well.
        server = None
        if self._address is None:
            self._check_town()
            server = self._stack.enter_context(ServerProcess(
                self._town, config.seed, logs / "server.log", config.maps, config.vehicles, config.walkers
            ))
            self._server_fault = server.fault
        self._agent = self._open_agent(logs / "planner.log")
        self._server: Address = self._address or server.wait()  # type: ignore[union-attr]

    def _check_town(self) -> None:
        """Raise `RouteError` unless the embedded server will have the town."""
        library = TownLibrary(self._config.maps)
        try:
            library.find(self._town, "town in --routes")
        except UserError as error:
            raise RouteError(error.field, error.expected, error.got, error.fix) from None

    def _open_agent(self, log_path: Path) -> Agent:
        config = self._config
        if config.agent.link == "ros":
            from carla_bridge.agents.ros_planner import RosPlanner

            planner = RosPlanner(config.agent, config.seed, config.device, log_path, config.patience,
                                 config.ros_arguments, self._node)
            return self._stack.enter_context(planner).connect(self._server_fault)
        agent = config.agent.make(config.seed, config.device)
        self._stack.callback(agent.close)
        return agent

    def _world(self, route: RoutePlan, cameras: Sequence[CameraSpec]) -> Simulation | AttachedSimulation:
        """The world at the route's start: made so, or found so.

        Raises:
            UserError: a hero that is to be driven is not there, or is somewhere else.
        """
        from carla_bridge.client.client import CameraMount, Simulation

        config, agent = self._config, self._agent
        if not config.hero:
            mounts = [CameraMount(spec, PLAN_EVERY_TICKS) for spec in cameras]
            return Simulation(*self._server, ego_pose=route.start, cameras=mounts, town=route.town,
                              inertial=agent.needs.inertial, fault=self._server_fault, fresh=True)
        world = self._attach(route.town, cameras)
        try:
            world.check_start(route.start, route.route_id)
        except BaseException:
            world.close()
            raise
        return world

    def _attach(self, town: str, cameras: Sequence[CameraSpec]) -> AttachedSimulation:
        from carla_bridge.client.attached import AttachedSimulation

        config = self._config
        return AttachedSimulation(*self._server, role_name=config.hero, town=town, cameras=cameras,
                                  tick_wait_s=config.tick_wait_s)

    def _map(self, spec: RouteSpec) -> Any:
        """The `carla.Map` that the server has for a route's town."""
        from carla_bridge.client.client import Simulation
        from wamdiff2_core.frames import pose_from_carla

        if self._config.hero:
            with self._attach(spec.town, ()) as world:
                return world.map
        first = spec.keypoints_carla[0]
        pose = pose_from_carla(float(first[0]), float(first[1]), 0.0)
        with Simulation(*self._server, ego_pose=pose, cameras=(), town=spec.town, inertial=False,
                        fault=self._server_fault) as simulation:
            return simulation.map
