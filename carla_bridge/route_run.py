"""One route, from the first frame to the verdict: the loop that joins world, planner and controller.

The controller sees plans and the ego state, nothing else; the route reaches the planner as target points and a command.
Wall time stands still for the world while a plan is awaited; `latency` says when the plan acts in simulated time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from carla_bridge.judge import RouteJudge, RouteLimits, Verdict
from carla_bridge.latency import LatencyMode, PlanSchedule
from carla_bridge.navigation import Navigator, RoutePlan
from carla_bridge.recorder import RouteRecorder
from carla_bridge.results import Outcome, PlanRecord, RouteResult, Tick
from wamdiff2_core.config import TargetRule
from wamdiff2_core.control.controller import Controller, PlanInMap
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Plan, VehicleCommand

HOLD = VehicleCommand(0.0, -3.0)
STARTING_TICKS, STARTING_PICTURES = 200, 3


class Contact(Protocol):
    """The ego vehicle touched something; `measurements.Collision` is one."""

    @property
    def other_type(self) -> str: ...


class Frame(Protocol):
    """One simulation step; `measurements.SimulationFrame` is one."""

    @property
    def stamp_ns(self) -> int: ...
    @property
    def ego(self) -> EgoState: ...
    @property
    def images(self) -> Mapping[str, CameraFrame]: ...
    @property
    def collisions(self) -> Sequence[Contact]: ...


class World(Protocol):
    """What is driven in; `client.Simulation` is one."""

    def tick(self) -> Frame: ...
    def apply(self, command: VehicleCommand) -> None: ...


@dataclass(frozen=True)
class Answer:
    """A plan and the wall time it took from sending its frame to receiving it."""

    plan: Plan
    wall_ns: int


class PlannerLink(Protocol):
    """The way to the planner and back; `bridge_node.BridgeNode` is one, over ROS topics."""

    def publish_tick(self, frame: Frame) -> None:
        """Show a step to whoever listens: clock, odometry and inertial sensors."""

    def send(self, frame: Frame, navigation: Navigation) -> None:
        """Give the planner a camera frame and what belongs to it."""

    def wait(self, stamp_ns: int, timeout_s: float) -> Answer | None:
        """The plan made from the frame of `stamp_ns`, or None when it did not come within `timeout_s` of wall time."""

    def heard(self) -> int:
        """How many plans have come so far, late ones included."""

    def fault(self) -> str:
        """What is known about the planner's failure, such as the signal that ended it; empty when nothing is."""


@dataclass(frozen=True)
class Patience:
    """How long the bridge waits for a plan, wall clock.

    Attributes:
        wait_s: for the plan of a frame, while plans come.
        lost_wait_s: for the plan of a frame after one was missed, until a plan comes again, while the vehicle brakes.
        standing_wait_s: the same once it stands: nothing is lost by giving a slow planner time to come back.
    """

    wait_s: float = 5.0
    lost_wait_s: float = 0.05
    standing_wait_s: float = 1.0


class PlannerWatch:
    """Asks for plans, and knows whether the planner still answers."""

    def __init__(self, link: PlannerLink, patience: Patience, expects_plans: bool) -> None:
        self._link, self._patience, self._expects = link, patience, expects_plans
        self._heard_at_loss = 0
        self.lost = False

    def ask(self, stamp_ns: int, standing: bool) -> Answer | None:
        """The answer to the frame just sent; None without a planner, or when it did not come."""
        if not self._expects:
            return None
        patience = self._patience
        # A plan for an older frame is of no use, but tells that the planner lives.
        given_up = self.lost and self._link.heard() == self._heard_at_loss
        lost_wait_s = patience.standing_wait_s if standing and not self._link.fault() else patience.lost_wait_s
        answer = self._link.wait(stamp_ns, lost_wait_s if given_up else patience.wait_s)
        if answer is None and not given_up:
            self._heard_at_loss = self._link.heard()
        self.lost = answer is None
        return answer

    def describe(self) -> str:
        """Why there are no plans, with the wait."""
        fault = self._link.fault()
        return f"no plan within {self._patience.wait_s:g} s of wall time" + (f" ({fault})" if fault else "")


@dataclass(frozen=True)
class Progress:
    """What a terminal shows while a route is driven."""

    route_id: str
    completion: float
    t_s: float
    speed_mps: float
    plans: int
    latency_ms: float


@dataclass(frozen=True)
class RouteSetup:
    """All that is fixed for a route.

    Attributes:
        route: the path.
        target_rule: which points of it the planner is shown.
        camera: name of the planner's camera, whose pictures set the pace of planning.
        display_camera: name of the camera of the recorded pictures.
        latency: when plans act.
        patience: how long plans are waited for.
        expects_plans: False to drive without a planner.
        limits: what ends the route.
    """

    route: RoutePlan
    target_rule: TargetRule
    camera: str = "front"
    display_camera: str = "display"
    latency: LatencyMode = field(default_factory=LatencyMode)
    patience: Patience = Patience()
    expects_plans: bool = True
    limits: RouteLimits = field(default_factory=RouteLimits)


class RouteRun:
    """Drives one route; made anew for each.

    Attributes:
        source: what signed the latest plan.
    """

    def __init__(
        self, setup: RouteSetup, world: World, link: PlannerLink, controller: Controller, recorder: RouteRecorder,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.source = ""
        self._setup, self._world, self._link, self._recorder = setup, world, link, recorder
        self._controller, self._on_progress = controller, on_progress
        self._navigator = Navigator(setup.route, setup.target_rule)
        self._judge = RouteJudge(setup.route.length_m, setup.limits)
        self._schedule: PlanSchedule[PlanInMap] = PlanSchedule()
        self._watch = PlannerWatch(link, setup.patience, setup.expects_plans)
        self._start_ns = 0
        self._driven_m = 0.0
        self._plans_received = 0
        self._latest_ms = 0.0
        self._began = time.monotonic()

    def drive(self) -> RouteResult:
        """Drive until the verdict. A lost server or Ctrl-C ends the route with what was driven so far, and a result."""
        self._controller.reset()
        try:
            verdict = self._loop()
        except InfrastructureError as error:
            verdict = Verdict(Outcome.SERVER_LOST, str(error))
        except KeyboardInterrupt:
            verdict = Verdict(Outcome.INTERRUPTED, "stopped by the user")
        return self._result(verdict)

    def _loop(self) -> Verdict:
        frame = self._first_frame()
        self._start_ns = frame.stamp_ns
        while True:
            navigation = self._navigator.update(frame.ego.map_from_base)
            self._link.publish_tick(frame)
            if self._setup.camera in frame.images and not self._schedule.busy(frame.stamp_ns):
                self._plan(frame, navigation)
            in_force = self._schedule.in_force(frame.stamp_ns)
            command = self._controller.step(in_force, frame.ego, frame.stamp_ns)
            self._record_tick(frame, command, in_force)
            contacts = [contact.other_type for contact in frame.collisions]
            verdict = self._judge.update(
                (frame.stamp_ns - self._start_ns) * 1e-9, frame.ego, self._navigator.deviation_m,
                self._navigator.completed, contacts, self._controller.reason,
            )
            if verdict is not None:
                return verdict
            self._world.apply(command)
            frame = self._world.tick()

    def _first_frame(self) -> Frame:
        """Brake from one picture of the planner's camera to the third, where the route begins.

        The brake acts with a lag. Counted from a picture, its state at the beginning is the same in every drive,
        however many ticks the sensors took to come alive.
        """
        pictures = 0
        for _ in range(STARTING_TICKS):
            frame = self._world.tick()
            pictures += self._setup.camera in frame.images
            if pictures == STARTING_PICTURES:
                return frame
            if pictures:
                self._world.apply(HOLD)
        raise InfrastructureError(f"camera {self._setup.camera}: no pictures in {STARTING_TICKS} ticks")

    def _plan(self, frame: Frame, navigation: Navigation) -> None:
        """Send a frame, wait for its plan, and let it act when the latency mode says."""
        self._link.send(frame, navigation)
        was_lost = self._watch.lost
        standing = abs(frame.ego.speed_mps) < self._setup.limits.standing_mps
        answer = self._watch.ask(frame.stamp_ns, standing)
        t_s = (frame.stamp_ns - self._start_ns) * 1e-9
        delay_ns = 0
        if answer is not None:
            delay_ns = self._setup.latency.delay_ns(answer.wall_ns)
            self.source = answer.plan.source
            self._plans_received += 1
            self._latest_ms = answer.wall_ns / 1e6
            self._schedule.occupy(frame.stamp_ns + delay_ns)
            if answer.plan.check.ok and answer.plan.waypoints is not None:
                self._schedule.offer(PlanInMap(answer.plan, frame.ego.map_from_base), frame.stamp_ns + delay_ns)
            if was_lost:
                self._judge.planner_back()
        elif self._watch.lost:
            self._schedule.clear()
            if not was_lost:
                self._judge.planner_lost(t_s, frame.ego, self._watch.describe())
        self._record_plan(frame, navigation, answer, delay_ns)

    def _record_tick(self, frame: Frame, command: VehicleCommand, in_force: PlanInMap | None) -> None:
        ego, pose = frame.ego, frame.ego.map_from_base
        previous = self._recorder.ticks[-1] if self._recorder.ticks else None
        if previous is not None:
            self._driven_m += float(np.hypot(pose.x_m - previous.x_m, pose.y_m - previous.y_m))
        self._recorder.tick(Tick(
            t_ns=frame.stamp_ns - self._start_ns, x_m=pose.x_m, y_m=pose.y_m, yaw_rad=pose.yaw_rad,
            speed_mps=ego.speed_mps, accel_mps2=float(ego.acceleration_mps2[0]), yaw_rate_radps=ego.yaw_rate_radps,
            steer_rad=command.steer_rad, accel_cmd_mps2=command.accel_mps2,
            progress_m=self._navigator.progress_m, deviation_m=self._navigator.deviation_m,
            plan_t_ns=-1 if in_force is None else in_force.stamp_ns - self._start_ns,
        ))
        self._on_progress(Progress(
            self._setup.route.route_id, self._completion(), (frame.stamp_ns - self._start_ns) * 1e-9, ego.speed_mps,
            self._plans_received, self._latest_ms,
        ))

    def _record_plan(self, frame: Frame, navigation: Navigation, answer: Answer | None, delay_ns: int) -> None:
        t_ns = frame.stamp_ns - self._start_ns
        image = f"{t_ns // 1_000_000:07d}.jpg"
        self._recorder.pictures(image, frame.images[self._setup.camera], frame.images.get(self._setup.display_camera))
        pose = frame.ego.map_from_base
        plan = answer.plan if answer is not None else Plan(frame.stamp_ns, None)
        missing = "no planner" if not self._setup.expects_plans else self._watch.describe()
        self._recorder.plan(PlanRecord(
            t_ns=t_ns, pose=(pose.x_m, pose.y_m, pose.yaw_rad), speed_mps=frame.ego.speed_mps,
            command=navigation.command.name, targets_m=navigation.targets_m.tolist(),
            received=answer is not None, ok=answer is not None and plan.check.ok and plan.waypoints is not None,
            message=plan.check.message if answer is not None else missing, text=plan.text,
            waypoints_m=[] if plan.waypoints is None else plan.waypoints.xy_m.tolist(),
            dt_s=0.0 if plan.waypoints is None else plan.waypoints.dt_s,
            wall_ms=answer.wall_ns / 1e6 if answer is not None else 0.0, acts_after_ms=delay_ns / 1e6,
            prefill_ms=plan.stats.prefill_ms, decode_ms=plan.stats.decode_ms, forwards=plan.stats.forwards,
            steps=plan.stats.steps, blocks=plan.stats.blocks, tokens=plan.stats.tokens, image=image,
        ))

    def _completion(self) -> float:
        return min(1.0, self._navigator.progress_m / self._setup.route.length_m)

    def _result(self, verdict: Verdict) -> RouteResult:
        ticks, plans = self._recorder.ticks, self._recorder.plans
        received = [record for record in plans if record.received]
        decoded = [record for record in received if record.forwards]
        expects = self._setup.expects_plans
        return RouteResult(
            route_id=self._setup.route.route_id, town=self._setup.route.town,
            outcome=verdict.outcome, reason=verdict.reason,
            completion_pct=100.0 if verdict.outcome is Outcome.COMPLETED else round(100.0 * self._completion(), 2),
            length_m=round(self._setup.route.length_m, 2), driven_m=round(self._driven_m, 2),
            duration_s=round(ticks[-1].t_ns * 1e-9, 3) if ticks else 0.0,
            wall_s=round(time.monotonic() - self._began, 2),
            max_deviation_m=round(self._judge.max_deviation_m, 3), off_lane_s=round(self._judge.off_lane_s, 2),
            frames_sent=len(plans), plans=len(received),
            plans_unreadable=sum(not record.ok and not record.waypoints_m for record in received),
            plans_refused=sum(not record.ok and bool(record.waypoints_m) for record in received),
            plans_missing=sum(not record.received for record in plans) if expects else 0,
            latency_ms=latency_figures([record.wall_ms for record in received]),
            decode={
                name: round(float(np.mean([getattr(record, name) for record in decoded])), 3)
                for name in ("prefill_ms", "decode_ms", "forwards", "steps", "blocks", "tokens") if decoded
            },
            infractions=tuple(self._judge.infractions), folder=f"routes/{self._setup.route.route_id}",
        )


def latency_figures(wall_ms: list[float]) -> dict[str, float]:
    """`p50`, `p95` and `max` of latencies in milliseconds; empty without any."""
    if not wall_ms:
        return {}
    p50, p95 = np.percentile(wall_ms, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "max": round(max(wall_ms), 2)}
