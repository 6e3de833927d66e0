"""The base of all scenarios: a script that runs from its trigger to its end, one step a tick.

`set_up` puts what stands there from the beginning of the route; `script` is a generator that begins when the ego
vehicle comes to the trigger point and gives up control once a tick. Behaviours that were started go on beside it. When
the script ends, everything that the scenario has put is taken away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.routes.route_file import RouteSpec, ScenarioSpec
from carla_bridge.scenarios.behaviours import Behaviour, Flow, Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Place, Spot, lane_line
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import VehicleCommand

if TYPE_CHECKING:
    import carla

    from carla_bridge.client.surroundings import Actor, Surroundings
    from carla_bridge.routes.navigation import RoutePlan
    from carla_bridge.routes.route_planner import RoutePlanner
    from carla_bridge.scenarios.stage import Stage

Script = Iterator[None]
SIDES = ("left", "right")
CAR_ATTEMPTS = 6
BUMPER_LANE_M = 2.2  # a background vehicle within this of a line is on it


@dataclass
class Scene:
    """What all scenarios of a route share.

    Attributes:
        stage: what they act through.
        plan: the route.
        planner: routes and lanes of the town.
        around: the surroundings at this tick.
        speed_limit_mps: of the road that the ego vehicle is on, for traffic without a speed of its own.
    """

    stage: Stage
    plan: RoutePlan
    planner: RoutePlanner
    around: Surroundings
    speed_limit_mps: float = 30.0 / 3.6


class Scenario(ABC):
    """One scenario of a route.

    Attributes:
        name, type: from the route file.
        time_limit_s: after which it ends with a penalty; None for scenarios without. While one with a limit runs, the
            ego vehicle may stand as long as it takes.
        wrong_way: whether the ego vehicle has to use the opposite lane now.
    """

    time_limit_s: ClassVar[float | None] = None

    def __init__(self, spec: ScenarioSpec, scene: Scene) -> None:
        self.spec, self.scene, self.stage = spec, scene, scene.stage
        self.name, self.type = spec.name, spec.type
        self.trigger = Place.at_carla(scene.stage.simulation.map, spec.trigger)
        self.wrong_way = False
        self._mine: list[int] = []
        self._running: list[Behaviour] = []
        self._script: Script | None = None
        self._began_ns = 0
        self._timed_out = False
        self.over = False

    def set_up(self) -> None:  # noqa: B027 (most scenarios put something, some do not)
        """Put what is there from the beginning of the route.

        Raises:
            ScenarioError: it cannot be put.
            UserError: a parameter is missing or wrong.
        """

    def approach(self) -> None:  # noqa: B027 (as above)
        """What happens on every tick before the trigger."""

    @abstractmethod
    def script(self) -> Script:
        """What happens from the trigger on; yields once a tick."""

    def verdicts(self) -> list[Infraction]:
        """Infractions that only the scenario knows, asked for once it is over or the route is."""
        return []

    def disturb(self, command: VehicleCommand) -> VehicleCommand:
        """What becomes of the ego vehicle's command while the scenario runs."""
        return command

    def begin(self) -> None:
        """Start the script."""
        self._script = self.script()
        self._began_ns = self.scene.around.stamp_ns

    def step(self) -> None:
        """Run one tick of script and behaviours."""
        assert self._script is not None
        for behaviour in list(self._running):
            behaviour.step(self.stage, self.scene.around)
        self._timed_out = self.time_limit_s is not None and self.age_s > self.time_limit_s
        if self._timed_out or _has_ended(self._script):
            self.close()

    def close(self) -> None:
        """Take away what the scenario has put."""
        if self.over:
            return
        self.over = True
        if self._script is not None:
            self._script.close()  # type: ignore[attr-defined]
        for behaviour in self._running:
            if isinstance(behaviour, Flow):
                behaviour.close(self.stage)
        self.stage.remove(self._mine)
        self.wrong_way = False

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._script is not None and not self.over

    def infractions(self) -> list[Infraction]:
        """All that it has to report at its end."""
        late = [Infraction.scenario_timeout()] if self._timed_out else []
        return late + (self.verdicts() if self._script is not None else [])

    # what scripts are written with

    @property
    def ego(self) -> Actor:
        """The ego vehicle now."""
        return self.scene.around.ego

    @property
    def ego_m(self) -> np.ndarray:
        """(2,) where the ego vehicle is, map frame."""
        return np.array([self.ego.pose.x_m, self.ego.pose.y_m])

    @property
    def age_s(self) -> float:
        """Time since the trigger."""
        return (self.scene.around.stamp_ns - self._began_ns) * 1e-9

    def put(self, kind: str, spot: Spot, *, role: str = "scenario", speed_mps: float = 0.0) -> int:
        """Spawn an actor that stays until the scenario ends; its id."""
        actor_id = self.stage.spawn(kind, spot, role=role, speed_mps=speed_mps)
        self._mine.append(actor_id)
        return actor_id

    def put_car(self, spot: Spot, *, role: str = "scenario") -> int:
        """Spawn an ordinary car that stays until the scenario ends; of those drawn, the first that there is room for.

        Raises:
            ScenarioError: there is room for none of them.
        """
        for _ in range(CAR_ATTEMPTS):
            actor_id = self.stage.try_spawn(self.stage.car(), spot, role=role)
            if actor_id is not None:
                self._mine.append(actor_id)
                return actor_id
        raise ScenarioError(f"no room for a car at ({spot.pose.x_m:.1f}, {spot.pose.y_m:.1f}) of the map frame")

    def start(self, behaviour: Behaviour) -> None:
        """Let a behaviour go on beside the script until the end."""
        self._running.append(behaviour)

    def stop(self, behaviour: Behaviour) -> None:
        """End a behaviour; its actors stay."""
        self._running.remove(behaviour)

    def until(self, condition: Callable[[], bool]) -> Script:
        """Wait for a condition, which is asked once a tick."""
        while not condition():
            yield

    def wait(self, seconds: float) -> Script:
        """Let time pass."""
        until_ns = self.scene.around.stamp_ns + round(seconds * 1e9)
        while self.scene.around.stamp_ns < until_ns:
            yield

    def forever(self) -> Script:
        """Never end; the time limit does."""
        while True:
            yield

    def ego_drives(self, distance_m: float) -> Script:
        """Wait until the ego vehicle has driven a distance from here."""
        driven, last = 0.0, self.ego_m
        while driven < distance_m:
            yield
            driven, last = driven + float(np.hypot(*(self.ego_m - last))), self.ego_m

    def ego_near(self, spot: Spot, distance_m: float) -> bool:
        """Whether the ego vehicle is within a distance."""
        return bool(np.hypot(*(self.ego_m - spot.xy_m)) < distance_m)

    def ego_arrives(self, spot: Spot, time_s: float, distance_m: float) -> bool:
        """Whether the ego vehicle gets there within a time at its speed, or is within a distance."""
        distance = float(np.hypot(*(self.ego_m - spot.xy_m)))
        return distance < max(time_s * self.ego.speed_mps, distance_m)

    def first_of(self, *scripts: Script) -> Script:
        """Run scripts side by side until one ends."""
        while not any(_has_ended(script) for script in scripts):
            yield

    def through_junction(self) -> Script:
        """Wait until the ego vehicle has gone into a junction and come out of it."""
        yield from self.until(lambda: self._ego_place().in_junction)
        yield from self.until(lambda: not self._ego_place().in_junction)

    def _ego_place(self) -> Place:
        return Place.at(self.stage.simulation.map, self.ego.pose, self.ego.z_m)

    def lane_track(self, start: Place, distance_m: float, *, turn: str = "straight", left_m: float = 0.0) -> Track:
        """Line along lanes from a place on."""
        return Track(lane_line(self.scene.planner.graph, start, distance_m, turn), left_m)

    def route_track(self, start: np.ndarray, end: np.ndarray, what: str) -> Track:
        """Line along lanes between two (3,) positions of CARLA's world.

        Raises:
            ScenarioError: no lanes lead there.
        """
        try:
            plan = self.scene.planner.plan(RouteSpec(self.name, self.scene.plan.town, np.stack([start, end])))
        except UserError as error:
            raise ScenarioError(f"{what}: {error}") from error
        return Track(plan.at(np.append(np.arange(0.0, plan.length_m, 1.0), plan.length_m)))

    def place_ahead(self, distance_m: float, what: str) -> Place:
        """The place on the route's lanes a distance after the trigger.

        Raises:
            ScenarioError: the road ends before.
        """
        return self.trigger.ahead(distance_m, what, self.scene.plan.xy_m)

    def clear(self, track: Track, first_m: float = 0.0, last_m: float = float("inf")) -> None:
        """Take background vehicles off a line."""
        found = [
            actor for actor in self.scene.around.actors
            if actor.role_name == "background" and actor.type_id.startswith("vehicle.")
        ]
        if not found:
            return
        arcs, sides = track.project(np.array([[actor.pose.x_m, actor.pose.y_m] for actor in found]))
        self.stage.remove_background(
            actor.id for actor, arc, side in zip(found, arcs, sides, strict=True)
            if abs(side) < BUMPER_LANE_M and first_m <= arc <= last_m
        )


def _has_ended(script: Script) -> bool:
    """Run a script for one tick."""
    for _ in script:
        return False
    return True


def heights(carla_map: carla.Map, track: Track, z_m: float) -> Callable[[float], float]:
    """Height of the lanes under a line, by arc length; `z_m` is that at its beginning."""
    arcs = np.arange(0.0, track.length_m + 10.0, 10.0)
    found = []
    for arc in arcs:
        z_m = Place.at(carla_map, track.pose(float(arc)), z_m).spot.z_m
        found.append(z_m)
    return lambda arc_m: float(np.interp(arc_m, arcs, found))
