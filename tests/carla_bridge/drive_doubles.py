"""A world and a planner in memory, for the drive loop and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import carla
import numpy as np

from carla_bridge.agents.agent import Agent, Answer, Needs
from carla_bridge.agents.linked import LinkedPlanner, Patience
from carla_bridge.client.surroundings import Actor, Surroundings
from carla_bridge.drive.route_run import RouteRun, RouteSetup
from carla_bridge.leaderboard.criteria import RouteCriteria
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import RouteResult
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.types import (
    CameraFrame,
    Check,
    DecodeStats,
    EgoState,
    NavCommand,
    Plan,
    Pose2D,
    VehicleCommand,
    Waypoints,
)

TICK_NS = 50_000_000
START_NS = 7 * TICK_NS
PATIENT = Patience()


def straight_route(length_m: float = 60.0) -> RoutePlan:
    """Along x through (0, 0), 40 m longer than its length."""
    x = np.arange(0.0, length_m + 41.0)
    xy = np.stack([x, 0 * x], axis=1)
    return RoutePlan("7", "Nowhere", xy, 0 * x, 0 * x, (NavCommand.FOLLOW,) * len(x), length_m)


@dataclass(frozen=True)
class FakeFrame:
    stamp_ns: int
    ego: EgoState
    images: dict[str, CameraFrame]
    collisions: tuple = ()
    pictured: None = None


@dataclass
class FakeWorld:
    """A kinematic bicycle on a plane; a picture every fifth tick."""

    speed_mps: float = 0.0
    x_m: float = 0.0
    y_m: float = 0.0
    yaw_rad: float = 0.0
    ticks: int = 0
    command: VehicleCommand = field(default_factory=lambda: VehicleCommand(0.0, 0.0))
    wall_x_m: float = 1e9
    commands: list[VehicleCommand] = field(default_factory=list)

    def apply(self, command: VehicleCommand) -> None:
        self.command = command

    def tick(self) -> FakeFrame:
        self.commands.append(self.command)
        dt = TICK_NS * 1e-9
        accel = self.command.accel_mps2 if self.ticks > START_NS // TICK_NS else 0.0
        self.x_m += self.speed_mps * np.cos(self.yaw_rad) * dt
        self.y_m += self.speed_mps * np.sin(self.yaw_rad) * dt
        self.yaw_rad += self.speed_mps * np.tan(self.command.steer_rad) / 2.86 * dt
        self.speed_mps = max(0.0, self.speed_mps + accel * dt)
        self.ticks += 1
        stamp_ns = self.ticks * TICK_NS
        hit = ()
        if self.x_m > self.wall_x_m:
            here = (self.x_m, -self.y_m, 0.0)
            hit = (SimpleNamespace(other_type="static.building", other_id=0, carla_xyz_m=here),)
            self.speed_mps = 0.0
        images = {}
        if self.ticks % 5 == 0:
            for name, size in (("front", (16, 32)), ("display", (32, 64))):
                images[name] = CameraFrame(np.full((*size, 3), self.ticks % 250, np.uint8), stamp_ns, name)
        ego = EgoState(np.array([self.speed_mps, 0.0]), np.array([accel, 0.0]), 0.0,
                       Pose2D(self.x_m, self.y_m, self.yaw_rad), stamp_ns)
        return FakeFrame(stamp_ns, ego, images, hit)


    def surroundings(self) -> Surroundings:
        """The ego vehicle alone on a plane."""
        pose = Pose2D(self.x_m, self.y_m, self.yaw_rad)
        velocity = self.speed_mps * np.array([np.cos(self.yaw_rad), np.sin(self.yaw_rad)])
        ego = Actor(1, "vehicle.lincoln.mkz_2020", "hero", pose, 0.0, velocity, 0.0, (2.45, 1.08, 0.74), np.zeros(2))
        return Surroundings(self.ticks, self.ticks * TICK_NS, ego, (), (), ())


STRAIGHT_ROAD = """<OpenDRIVE><header revMajor="1" revMinor="4" name="Nowhere"/>
<road name="" length="2000" id="1" junction="-1"><planView>
<geometry s="0" x="-500" y="1.75" hdg="0" length="2000"><line/></geometry></planView>
<lanes><laneSection s="0"><center><lane id="0" type="none"/></center><right><lane id="-1" type="driving">
<width sOffset="0" a="3.5" b="0" c="0" d="0"/></lane></right></laneSection></lanes></road></OpenDRIVE>"""


@cache
def straight_map() -> carla.Map:
    """One lane along x, 3.5 m wide, in which `straight_route` lies."""
    return carla.Map("Nowhere", STRAIGHT_ROAD)


def drive_route(folder: Path, agent: Agent, world: FakeWorld, route: RoutePlan, setup: RouteSetup) -> RouteResult:
    """A whole route, judged by the real criteria."""
    agent.start(route, straight_map())
    with RouteRecorder(folder, route) as recorder:
        return RouteRun(setup, world, agent, RouteCriteria(route, straight_map()), recorder).drive()


def straight_plan(stamp_ns: int, speed_mps: float = 6.0) -> Plan:
    x_m = speed_mps * 0.5 * np.arange(1, 7)
    waypoints = Waypoints(np.stack([x_m, 0 * x_m], axis=1), 0.5)
    return Plan(stamp_ns, waypoints, "3.0,0.0", DecodeStats(5.0, 9.0, 4, 3, 2, 33), source="double")


def unreadable_plan(stamp_ns: int) -> Plan:
    return Plan(stamp_ns, None, "?", check=Check(False, "not waypoints"), source="double")


@dataclass
class FakeLink:
    """A planner that answers as `answer` says: a plan and its wall time, or None to stay silent.

    Attributes:
        waits: (stamp, limit) of each wait.
    """

    answer: Callable[[int], tuple[Plan, int] | None]
    waits: list[tuple[int, float]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    count: int = 0
    late: int = 0
    why: str = "it was ended by SIGKILL"

    def show_route(self, route: RoutePlan) -> None:
        """Nobody looks."""

    def publish_tick(self, frame: FakeFrame) -> None:
        """Nobody listens."""

    def send(self, frame: FakeFrame, navigation: object) -> None:
        self.sent.append(frame.stamp_ns)

    def wait(self, stamp_ns: int, timeout_s: float) -> Answer | None:
        self.waits.append((stamp_ns, timeout_s))
        answer = self.answer(stamp_ns)
        if answer is None:
            return None
        self.count += 1
        return Answer(*answer)

    def heard(self) -> int:
        return self.count + self.late

    def fault(self) -> str:
        return self.why


def linked(link: FakeLink, patience: Patience = PATIENT) -> LinkedPlanner:
    """The agent at the end of a link, with one camera and target points 10 and 20 m ahead."""
    return LinkedPlanner(link, Needs((CameraSpec(),), target_rule=TargetRule("arc_length", (10.0, 20.0))), patience)
