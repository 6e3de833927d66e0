"""Runs the scenarios and the weather of one route: sets them up, triggers them, steps them, and cleans up.

Deterministic for a seed: every random choice comes from one generator per scenario, and time is simulated time. A
scenario that cannot be set up makes its route void: it is an error, never a route without it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.leaderboard.route_weather import RouteWeather
from carla_bridge.scenarios.background import BackgroundTraffic
from carla_bridge.scenarios.behaviours import Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.registry import SCENARIOS
from carla_bridge.scenarios.scenario import Scenario, Scene
from carla_bridge.scenarios.stage import Stage
from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.frames import pose_from_carla, wrap_angle
from wamdiff2_core.types import VehicleCommand

if TYPE_CHECKING:
    from carla_bridge.client.client import Simulation
    from carla_bridge.client.surroundings import Surroundings
    from carla_bridge.routes.navigation import RoutePlan
    from carla_bridge.routes.route_file import RouteSpec, ScenarioSpec
    from carla_bridge.routes.route_planner import RoutePlanner

TRIGGER_M = 2.0
DEFAULT_LIMIT_MPS = 30.0 / 3.6  # on roads without a limit
TRIGGER_YAW_RAD = math.radians(10.0)


class ScenarioEngine:
    """The scenarios of one route. A context manager: leaving it takes their actors away.

    Call `set_up` once the ego vehicle stands at the start, then `step` on every tick before the agent acts.

    Args:
        simulation: the world.
        plan: the planned route.
        spec: the route as its file says it.
        planner: of the same map.
        seed: of the run; routes and scenarios draw differently from it.
        background: how many vehicles of ordinary traffic drive near the route.
    """

    def __init__(
        self, simulation: Simulation, plan: RoutePlan, spec: RouteSpec, planner: RoutePlanner, seed: int = 0,
        background: int = 0,
    ) -> None:
        self._simulation, self._plan, self._spec, self._planner, self._seed = simulation, plan, spec, planner, seed
        self._track, self._weather = Track(plan.xy_m), RouteWeather(plan, spec.weathers)
        self._progress_m = 0.0
        self._scene: Scene | None = None
        self._waiting: list[tuple[float, Scenario]] = []
        self._running: list[Scenario] = []
        self._stages: list[Stage] = []
        self._infractions: list[Infraction] = []
        self._background = BackgroundTraffic(simulation, plan, background, seed) if background else None

    def __enter__(self) -> ScenarioEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waiting_allowed(self) -> bool:
        """Whether a scenario with a time limit is running: standing still is no fault then."""
        return any(scenario.time_limit_s is not None for scenario in self._running)

    @property
    def wrong_way_allowed(self) -> bool:
        """Whether a scenario makes the ego vehicle use the opposite lane."""
        return any(scenario.wrong_way for scenario in self._running)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the scenarios that are running."""
        return tuple(scenario.name for scenario in self._running)

    def take_infractions(self) -> Sequence[Infraction]:
        """Infractions of scenarios that have ended since the last call."""
        taken, self._infractions = self._infractions, []
        return taken

    def set_up(self, around: Surroundings) -> None:
        """Put everything that is there from the beginning, and set the weather of the start.

        Raises:
            ScenarioError: a scenario is unknown, does not belong to the route, or cannot be set up; the route is void.
        """
        self._simulation.set_weather(self._weather.start)
        for index, spec in enumerate(self._spec.scenarios):
            kind = SCENARIOS.get(spec.type)
            if kind is None:
                raise ScenarioError(f"{_name(spec)}: no such type; {did_you_mean(spec.type, SCENARIOS)}")
            digest = hashlib.sha256(f"{self._seed}/{self._spec.id}/{index}/{spec.name}".encode()).digest()
            stage = Stage(self._simulation, np.random.default_rng(int.from_bytes(digest[:8], "big")))
            self._stages.append(stage)
            scene = Scene(stage, self._plan, self._planner, around)
            trigger_m = self._trigger_arc_m(spec)
            with _Naming(spec):
                scenario = kind(spec, scene)
                scenario.set_up()
            self._waiting.append((trigger_m, scenario))
        if self._background is not None:
            self._background.put()
        for stage in self._stages:
            stage.flush(around)

    def step(self, around: Surroundings) -> None:
        """Trigger what is due and run one tick of everything that runs; the weather follows the ego vehicle.

        Raises:
            ScenarioError: a scenario cannot go on; the route is void.
        """
        pose = around.ego.pose
        weather = self._weather.update(pose)
        if weather is not None:
            self._simulation.set_weather(weather)
        arcs, _ = self._track.project(np.array([[pose.x_m, pose.y_m]]), self._progress_m)
        self._progress_m = max(self._progress_m, float(arcs[0]))
        for trigger_m, scenario in list(self._waiting):
            scenario.scene.around = around
            if self._progress_m < trigger_m - TRIGGER_M:
                scenario.approach()
            else:
                self._waiting.remove((trigger_m, scenario))
                self._running.append(scenario)
                scenario.scene.speed_limit_mps = self._speed_limit_mps()
                with _Naming(scenario.spec):
                    scenario.begin()
        for scenario in list(self._running):
            scenario.scene.around = around
            with _Naming(scenario.spec):
                scenario.step()
            if scenario.over:
                self._running.remove(scenario)
                self._infractions += scenario.infractions()
        for stage in self._stages:
            stage.flush(around)

    def disturb(self, command: VehicleCommand) -> VehicleCommand:
        """What becomes of the ego vehicle's command: scenarios in which it loses grip change it."""
        for scenario in self._running:
            command = scenario.disturb(command)
        return command

    def close(self) -> None:
        """End all scenarios and take their actors away; `take_infractions` then has the last ones. Never raises."""
        for scenario in self._running:
            scenario.close()
            self._infractions += scenario.infractions()
        self._running.clear()
        self._waiting.clear()
        for stage in self._stages:
            stage.close()
        self._stages.clear()
        if self._background is not None:
            self._background.close()

    def _trigger_arc_m(self, spec: ScenarioSpec) -> float:
        """Where on the route a scenario is triggered.

        Raises:
            ScenarioError: its trigger point is not on the route, or looks another way.
        """
        pose = pose_from_carla(spec.trigger.x_m, spec.trigger.y_m, spec.trigger.yaw_deg)
        away = np.hypot(self._plan.xy_m[:, 0] - pose.x_m, self._plan.xy_m[:, 1] - pose.y_m)
        turned = np.array([abs(wrap_angle(yaw - pose.yaw_rad)) for yaw in self._plan.yaw_rad])
        # the trigger may lie a little before the first key point
        fits = (away < TRIGGER_M + 1.0) & (turned < TRIGGER_YAW_RAD)
        if not fits.any():
            raise ScenarioError(
                f"{_name(spec)}: its trigger point is not on the route: {away.min():.1f} m off, "
                f"turned by {math.degrees(turned[int(away.argmin())]):.0f} degrees there"
            )
        return float(self._plan.arc_m[int(np.where(fits, away, np.inf).argmin())])

    def _speed_limit_mps(self) -> float:
        limit_mps = self._simulation.speed_limit_mps()
        return limit_mps if limit_mps > 0 else DEFAULT_LIMIT_MPS


class _Naming:
    """Names the scenario in errors that leave a block, and makes wrong parameters an error of the scenario."""

    def __init__(self, spec: ScenarioSpec) -> None:
        self._spec = spec

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            raise ScenarioError(str(error)) from error
        if isinstance(error, ScenarioError):
            raise ScenarioError(f"{_name(self._spec)}: {error}") from error


def _name(spec: ScenarioSpec) -> str:
    where = f"{spec.where}: " if spec.where else ""
    return f"{where}scenario {spec.name} ({spec.type})"
