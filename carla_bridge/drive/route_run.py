"""One route, from the first frame to the verdict: the loop that joins world, planner and controller.

The controller sees plans and the ego state, nothing else; the route reaches a planner as target points and a command.
Wall time stands still for the world while a plan is awaited, and `latency` says when the plan acts in simulated time;
or, with latency `live`, the world is somebody else's and goes on meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from carla_bridge.agents.agent import Agent, Answer, Frame, View
from carla_bridge.client.vehicle_control import HOLD
from carla_bridge.drive.asking import AgentError, Asked, Asking, AskingInTurn, AskingMeanwhile
from carla_bridge.drive.latency import LatencyMode, PlanSchedule
from carla_bridge.drive.planner_loss import PlannerLoss
from carla_bridge.leaderboard.infractions import InfractionKind
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.verdict import Outcome, Verdict
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import PlanRecord, RouteResult, Tick, TimedInfraction, latencies_ms, latency_figures
from carla_bridge.routes.navigation import Navigator, RoutePlan
from carla_bridge.scenarios.errors import ScenarioError
from wamdiff2_core.control.controller import Controller, PlanInMap
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Plan, VehicleCommand

if TYPE_CHECKING:
    from carla_bridge.leaderboard.criteria import Incident
    from carla_bridge.leaderboard.criteria_rules import Contact

LOG = logging.getLogger(__name__)
PLAN_EVERY_TICKS = 5
SCENE_EVERY_TICKS = 4  # at 10 m/s a car moves half its length in between
FIRST_PLAN_TICK = 1  # of each five, without a camera that sets the pace: where the embedded server's cameras fire
STARTING_TICKS, STARTING_MOMENTS = 200, 3
LANE_HALF_WIDTH_M = 1.75
# Ends that the criteria do not see.
FAILURES = {
    Outcome.PLANNER_LOST: RouteStatus.AGENT_CRASHED,
    Outcome.AGENT_CRASHED: RouteStatus.AGENT_CRASHED,
    Outcome.SERVER_LOST: RouteStatus.SIMULATION_CRASHED,
    Outcome.VOID: RouteStatus.SIMULATION_CRASHED,
    Outcome.INTERRUPTED: RouteStatus.FAILED,
}


class World(Protocol):
    """What is driven in: `client.client.Simulation`, or `client.attached.AttachedSimulation` that others move."""

    def tick(self) -> Frame: ...
    def apply(self, command: VehicleCommand) -> None: ...
    def surroundings(self) -> Any:
        """What is around the ego vehicle on the step of the last `tick`; a `surroundings.Surroundings`."""


class Criteria(Protocol):
    """Who judges the driving; `criteria.RouteCriteria` does, as the CARLA leaderboard."""

    @property
    def incidents(self) -> Sequence[Incident]: ...
    @property
    def red_lights_met(self) -> int: ...
    def update(
        self, stamp_ns: int, ego: EgoState, surroundings: Any, contacts: Sequence[Contact]
    ) -> Verdict | None: ...
    def record(self, *, failure: RouteStatus | None, duration_system_s: float) -> RouteRecord: ...


class Scenarios(Protocol):
    """What happens on the way; `scenarios.engine.ScenarioEngine` makes it happen."""

    def set_up(self, around: Any) -> None: ...
    def step(self, around: Any) -> None: ...
    def disturb(self, command: VehicleCommand) -> VehicleCommand: ...
    def close(self) -> None: ...


class Uneventful:
    """A route without scenarios."""

    def set_up(self, around: Any) -> None:
        """Nothing is put."""

    def step(self, around: Any) -> None:
        """Nothing happens."""

    def disturb(self, command: VehicleCommand) -> VehicleCommand:
        """The command as it is."""
        return command

    def close(self) -> None:
        """Nothing was there."""


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
        display_camera: name of the camera of the recorded pictures; empty without.
        latency: when plans act.
        blank_camera: whether the agent's camera shows black.
    """

    route: RoutePlan
    display_camera: str = ""
    latency: LatencyMode = field(default_factory=LatencyMode)
    blank_camera: bool = False


class RouteRun:
    """Drives one route; made anew for each.

    Attributes:
        source: what signed the latest plan.
    """

    def __init__(
        self, setup: RouteSetup, world: World, agent: Agent, criteria: Criteria, recorder: RouteRecorder,
        scenarios: Scenarios | None = None, on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Join them.

        Args:
            setup: route and rules.
            world: at the route's start, with the agent's cameras and the display camera mounted.
            agent: already started on the route.
            criteria: judge of this route.
            recorder: of the route's files.
            scenarios: of this route; None for a route without any.
            on_progress: told of every tick.
        """
        self.source = ""
        self._setup, self._world, self._agent, self._recorder = setup, world, agent, recorder
        self._criteria, self._scenarios = criteria, scenarios or Uneventful()
        self._controller, self._on_progress = Controller(), on_progress
        cameras = [camera.name for camera in agent.needs.cameras]
        self._camera = cameras[0] if cameras else ""
        self._shown: CameraFrame | None = None
        self._asking: Asking = AskingMeanwhile(agent) if self._live else AskingInTurn(agent)
        self._navigator = Navigator(setup.route, agent.needs.target_rule)
        self._loss = PlannerLoss()
        self._schedule: PlanSchedule[PlanInMap] = PlanSchedule()
        self._lost = False
        self._ticks = 0
        self._start_ns = 0
        self._driven_m = self._max_deviation_m = self._off_lane_s = 0.0
        self._plans_received = self._plans_missing = 0
        self._latest_ms = 0.0
        self._began = time.monotonic()

    def drive(self) -> RouteResult:
        """Drive until the verdict.

        A lost server, an agent that raises, a scenario that cannot be played, or Ctrl-C ends the route with what was
        driven so far, and a result.
        """
        try:
            verdict = self._loop()
        except InfrastructureError as error:
            verdict = Verdict(Outcome.SERVER_LOST, str(error))
        except ScenarioError as error:
            verdict = Verdict(Outcome.VOID, str(error))
        except AgentError as error:
            verdict = Verdict(Outcome.AGENT_CRASHED, str(error))
        except KeyboardInterrupt:
            verdict = Verdict(Outcome.INTERRUPTED, "stopped by the user")
        finally:
            self._scenarios.close()
            self._asking.close()
        return self._result(verdict)

    def _loop(self) -> Verdict:
        self._scenarios.set_up(self._world.surroundings())
        frame = self._first_frame()
        self._start_ns = (frame.pictured or frame).stamp_ns
        while True:
            surroundings = self._world.surroundings()
            self._scenarios.step(surroundings)
            self._agent.watch(frame)
            moment = frame.pictured or frame
            navigation = self._navigator.update(moment.ego.map_from_base)
            if moment is not frame:
                self._navigator.update(frame.ego.map_from_base)
            if self._due(frame) and not self._schedule.busy(frame.stamp_ns) and not self._asking.busy:
                self._asking.ask(View(moment, navigation, surroundings if self._agent.needs.surroundings else None))
            if (asked := self._asking.take()) is not None:
                self._receive(asked, frame)
            in_force = self._schedule.in_force(frame.stamp_ns)
            command = self._controller.step(in_force, frame.ego, frame.stamp_ns)
            self._record_tick(frame, command, in_force)
            if len(self._recorder.ticks) % SCENE_EVERY_TICKS == 1:
                self._recorder.scene(frame.stamp_ns - self._start_ns, surroundings)
            verdict = self._criteria.update(frame.stamp_ns, frame.ego, surroundings, frame.collisions)
            verdict = verdict or self._loss.update((frame.stamp_ns - self._start_ns) * 1e-9, frame.ego.speed_mps)
            if verdict is not None:
                return self._explained(verdict)
            self._world.apply(self._scenarios.disturb(command))
            frame = self._tick()

    def _explained(self, verdict: Verdict) -> Verdict:
        """The verdict, with what the controller says about a vehicle that stands."""
        why = self._controller.reason
        return replace(verdict, reason=f"{verdict.reason}: {why}") if verdict.outcome is Outcome.BLOCKED and why \
            else verdict

    @property
    def _live(self) -> bool:
        return self._setup.latency.kind == "live"

    def _tick(self) -> Frame:
        self._ticks += 1
        frame = self._world.tick()
        if self._setup.blank_camera:
            frame = blank(frame, self._camera)
        self._shown = (frame.pictured or frame).images.get(self._setup.display_camera, self._shown)
        return frame

    def _due(self, frame: Frame) -> bool:
        """Whether a plan is wanted: with every picture of the agent's camera, or as often without one, whether or not
        there are pictures for people."""
        if self._camera:
            return self._camera in (frame.pictured or frame).images
        return self._ticks % PLAN_EVERY_TICKS == FIRST_PLAN_TICK

    def _first_frame(self) -> Frame:
        """Brake from one moment that a plan is due to the third, where the route begins; in a world that goes on, the
        route begins at the first.

        The brake acts with a lag. Counted from such a moment, its state at the beginning is the same in every drive,
        however many ticks the sensors took to come alive.
        """
        moments = 0
        for _ in range(STARTING_TICKS):
            frame = self._tick()
            moments += self._due(frame)
            if moments == (1 if self._live else STARTING_MOMENTS):
                return frame
            if moments:
                self._world.apply(HOLD)
        raise InfrastructureError(f"camera {self._camera}: no pictures in {STARTING_TICKS} ticks")

    def _receive(self, asked: Asked, frame: Frame) -> None:
        """Let a plan act when the latency mode says; `frame` is now, which may be later than the moment shown."""
        answer, silence, moment = asked.answer, asked.silence, asked.view.frame
        was_lost, self._lost = self._lost, bool(silence)
        delay_ns = 0
        if answer is not None:
            delay_ns = self._setup.latency.delay_ns(answer.wall_ns, frame.stamp_ns - moment.stamp_ns)
            self.source = answer.plan.source
            self._plans_received += 1
            self._latest_ms = answer.wall_ns / 1e6
            self._schedule.occupy(moment.stamp_ns + delay_ns)
            if answer.plan.check.ok and answer.plan.waypoints is not None:
                self._schedule.offer(PlanInMap(answer.plan, moment.ego.map_from_base), moment.stamp_ns + delay_ns)
            if was_lost:
                self._loss.back()
        elif silence:
            self._plans_missing += 1
            self._schedule.clear()
            if not was_lost:
                self._loss.lost((frame.stamp_ns - self._start_ns) * 1e-9, frame.ego, silence)
        self._record_plan(moment, asked.view.navigation, answer, delay_ns, silence)

    def _record_tick(self, frame: Frame, command: VehicleCommand, in_force: PlanInMap | None) -> None:
        ego, pose = frame.ego, frame.ego.map_from_base
        previous = self._recorder.ticks[-1] if self._recorder.ticks else None
        if previous is not None:
            self._driven_m += float(np.hypot(pose.x_m - previous.x_m, pose.y_m - previous.y_m))
            if self._navigator.deviation_m > LANE_HALF_WIDTH_M:
                self._off_lane_s += (frame.stamp_ns - self._start_ns - previous.t_ns) * 1e-9
        self._max_deviation_m = max(self._max_deviation_m, self._navigator.deviation_m)
        self._recorder.tick(Tick(
            t_ns=frame.stamp_ns - self._start_ns, x_m=pose.x_m, y_m=pose.y_m, yaw_rad=pose.yaw_rad,
            speed_mps=ego.speed_mps, accel_mps2=float(ego.acceleration_mps2[0]), yaw_rate_radps=ego.yaw_rate_radps,
            steer_rad=command.steer_rad, accel_cmd_mps2=command.accel_mps2,
            progress_m=self._navigator.progress_m, deviation_m=self._navigator.deviation_m,
            plan_t_ns=-1 if in_force is None else in_force.stamp_ns - self._start_ns,
        ), ego)
        self._on_progress(Progress(
            self._setup.route.route_id, self._completion(), (frame.stamp_ns - self._start_ns) * 1e-9, ego.speed_mps,
            self._plans_received, self._latest_ms,
        ))

    def _record_plan(
        self, frame: Frame, navigation: Navigation, answer: Answer | None, delay_ns: int, silence: str
    ) -> None:
        t_ns = frame.stamp_ns - self._start_ns
        # Without a camera that sets the pace, the newest picture for people may be some ticks older.
        seen, shown = frame.images.get(self._camera), frame.images.get(self._setup.display_camera, self._shown)
        image = ""
        if seen is not None or shown is not None:
            image = f"{t_ns // 1_000_000:07d}.jpg"
            self._recorder.pictures(image, seen, shown)
        pose = frame.ego.map_from_base
        plan = answer.plan if answer is not None else Plan(frame.stamp_ns, None)
        self._recorder.plan(PlanRecord(
            t_ns=t_ns, pose=(pose.x_m, pose.y_m, pose.yaw_rad), speed_mps=frame.ego.speed_mps,
            command=navigation.command.name, targets_m=navigation.targets_m.tolist(),
            received=answer is not None, ok=answer is not None and plan.check.ok and plan.waypoints is not None,
            message=plan.check.message if answer is not None else silence or "no planner", text=plan.text,
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
        wall_s = round(time.monotonic() - self._began, 2)
        record = self._criteria.record(failure=FAILURES.get(verdict.outcome), duration_system_s=wall_s)
        infractions = [*self._loss.infractions, *(
            TimedInfraction(str(item.infraction.kind), item.t_s, item.x_m, item.y_m, item.infraction.text)
            for item in self._criteria.incidents
            if item.infraction.kind is not InfractionKind.MIN_SPEED  # twenty a route, that cost nothing; in the record
        )]
        received = [record for record in plans if record.received]
        decoded = [record for record in received if record.forwards]
        return RouteResult(
            route_id=self._setup.route.route_id, town=self._setup.route.town,
            outcome=verdict.outcome, reason=verdict.reason,
            completion_pct=record.score_route,
            length_m=round(self._setup.route.length_m, 2), driven_m=round(self._driven_m, 2),
            duration_s=round(ticks[-1].t_ns * 1e-9, 3) if ticks else 0.0,
            wall_s=wall_s,
            max_deviation_m=round(self._max_deviation_m, 3), off_lane_s=round(self._off_lane_s, 2),
            frames_sent=len(plans), plans=len(received),
            plans_unreadable=sum(not record.ok and not record.waypoints_m for record in received),
            plans_refused=sum(not record.ok and bool(record.waypoints_m) for record in received),
            plans_missing=self._plans_missing,
            latency_ms=latency_figures(latencies_ms(received)),
            decode={
                name: round(float(np.mean([getattr(record, name) for record in decoded])), 3)
                for name in ("prefill_ms", "decode_ms", "forwards", "steps", "blocks", "tokens") if decoded
            },
            infractions=tuple(sorted(infractions, key=lambda item: item.t_s)), record=record.to_json(0),
            folder=f"routes/{self._setup.route.route_id}", red_lights_met=self._criteria.red_lights_met,
        )


def blank(frame: Frame, camera: str) -> Frame:
    """The step with a black picture in place of the camera's."""
    dark = {name: replace(image, rgb=np.zeros_like(image.rgb)) if name == camera else image
            for name, image in frame.images.items()}
    earlier = None if frame.pictured is None else blank(frame.pictured, camera)
    changed: Any = frame
    return replace(changed, images=dark, pictured=earlier)
