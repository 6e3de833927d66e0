"""A route driven on rails through a scenario: the ego vehicle is carried along, everything else is the real thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import carla
import numpy as np

from carla_bridge.client.client import Simulation
from carla_bridge.client.surroundings import Actor, Surroundings
from carla_bridge.leaderboard.criteria import RouteCriteria
from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_file import CarlaPose, RouteSpec, ScenarioSpec, load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.engine import ScenarioEngine
from wamdiff2_core.frames import pose_to_carla
from wamdiff2_core.types import Pose2D

DEMO = ROUTES_FOLDER / "demo.xml"
DT_S = 0.05


@dataclass
class Seen:
    """One tick of a drive."""

    arc_m: float
    around: Surroundings
    running: bool
    wrong_way: bool
    waiting: bool
    touched: tuple[str, ...]

    @property
    def t_s(self) -> float:
        return self.around.stamp_ns * 1e-9


@dataclass
class Drive:
    """What came of it."""

    ticks: list[Seen]
    infractions: list[Infraction]
    ids_before: set[int]
    ids_after: set[int]
    ego_id: int
    engine: ScenarioEngine = field(repr=False)

    def kinds(self) -> list[str]:
        return [str(i.kind) for i in self.infractions if i.kind != "min_speed_infractions"]

    def tracks(self, pattern: str = "") -> dict[int, list[tuple[float, Actor]]]:
        """(time, actor) of all others whose type contains a text, by id relative to the ego vehicle's."""
        found: dict[int, list[tuple[float, Actor]]] = {}
        for seen in self.ticks:
            for actor in seen.around.actors:
                if pattern in actor.type_id:
                    found.setdefault(actor.id - self.ego_id, []).append((seen.t_s, actor))
        return found


class Rails:
    """Drives one route, of the demonstration unless told otherwise, with a scenario each time.

    Args:
        port: of a server in the route's town.
        file: of routes.
        route_id: of one of them; the first by default.
    """

    def __init__(self, port: int, file: Path = DEMO, route_id: str = "") -> None:
        client = carla.Client("127.0.0.1", port)
        client.set_timeout(20.0)
        self.port = port
        self.map = client.get_world().get_map()
        self.planner = RoutePlanner(self.map)
        self.spec = next(spec for spec in load_routes(file) if route_id in ("", spec.id))
        self.plan: RoutePlan = self.planner.plan(self.spec)

    def pose(self, arc_m: float, left_m: float = 0.0) -> Pose2D:
        x, y = self.plan.at(np.array([arc_m]))[0]
        yaw = float(np.interp(arc_m, self.plan.arc_m, np.unwrap(self.plan.yaw_rad)))
        return Pose2D(float(x - left_m * np.sin(yaw)), float(y + left_m * np.cos(yaw)), yaw)

    def point(self, arc_m: float, left_m: float = 0.0) -> dict[str, str]:
        """A place on the route as a route file writes it."""
        x, y, _ = pose_to_carla(self.pose(arc_m, left_m))
        return {"x": f"{x:.1f}", "y": f"{y:.1f}", "z": "0.0"}

    def scenario(self, kind: str, trigger_m: float = 8.0, **parameters: str | Mapping[str, str]) -> RouteSpec:
        """The route with a scenario; a text stands for `value`."""
        x, y, yaw_deg = pose_to_carla(self.pose(trigger_m))
        texts = {tag: {"value": value} if isinstance(value, str) else value for tag, value in parameters.items()}
        scenario = ScenarioSpec(f"{kind}_1", kind, CarlaPose(x, y, 0.0, yaw_deg), texts, "test")
        return RouteSpec(self.spec.id, self.spec.town, self.spec.keypoints_carla, (scenario,))

    def drive(
        self, spec: RouteSpec, *, speed_mps: Callable[[Seen], float] | float = 8.0,
        left_m: Callable[[float], float] = lambda arc_m: 0.0, seed: int = 1, to_m: float = 1e9, max_s: float = 40.0,
        background: int = 0, on_rails: bool = True,
    ) -> Drive:
        """Drive until the scenario is over, the route or the time; off the rails, the ego vehicle stays as it is."""
        with Simulation(port=self.port, ego_pose=self.plan.start, cameras=[], inertial=False) as simulation:
            before = {actor.id for actor in simulation.world.get_actors()}
            with ScenarioEngine(
                simulation, self.plan, spec, self.planner, seed, background
            ) as engine:
                criteria = RouteCriteria(self.plan, self.map, engine)
                simulation.tick()
                engine.set_up(simulation.surroundings())
                arc_m, ticks, seen = 0.0, [], None
                for _ in range(round(max_s / DT_S)):
                    speed = speed_mps if isinstance(speed_mps, float) else speed_mps(seen) if seen else 0.0
                    arc_m += speed * DT_S
                    if on_rails:
                        simulation.place_ego(self.pose(arc_m, left_m(arc_m)), speed)
                    frame = simulation.tick()
                    around = simulation.surroundings()
                    engine.step(around)
                    verdict = criteria.update(frame.stamp_ns, frame.ego, around, frame.collisions)
                    seen = Seen(
                        arc_m, around, bool(engine.running), engine.wrong_way_allowed, engine.waiting_allowed,
                        tuple(contact.other_type for contact in frame.collisions),
                    )
                    ticks.append(seen)
                    if verdict is not None or arc_m > to_m or not (engine.running or engine._waiting):
                        break
            criteria.finish()
            simulation.tick()
            after = {actor.id for actor in simulation.world.get_actors()}
            infractions = [incident.infraction for incident in criteria.incidents]
            return Drive(ticks, infractions, before, after, simulation.ego_id, engine)


def distances(seen: Sequence[Seen], actor_id: int) -> list[float]:
    """Distance of the ego vehicle to an actor at each tick that has it."""
    found = []
    for tick in seen:
        actor = tick.around.actor(actor_id)
        if actor is not None:
            ego = tick.around.ego.pose
            found.append(float(np.hypot(actor.pose.x_m - ego.x_m, actor.pose.y_m - ego.y_m)))
    return found
