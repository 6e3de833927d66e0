"""Background traffic of an episode: who there is, and how it makes room for what clients spawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.routes.lane_graph import LaneKey
from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.traffic.footpaths import Footpaths
from carla_bridge.server.traffic.network import ARC, COS, SIN, RoadNetwork, X, Y

if TYPE_CHECKING:
    from carla_bridge.server.world import World

ROLE = "background"
LIFT_M = 0.05
END_GAP_M = 12.0  # nobody starts so near to either end of a lane
APART_M = 12.0  # between vehicles at the start
AWAY_M = 60.0  # who makes room goes so far away from everybody whom the server does not drive
TRIES = 400
SPAWN_TRIES = 10
ROOM_M, ROOM_S, ROOM_MPS2 = 6.0, 1.5, 4.0  # what a new actor needs of the way of a vehicle that comes towards it
BIG = ("firetruck", "fusorosa", "european_hgv", "ambulance", "sprinter")  # too long for the tightest turns
KINDS = ("car", "van", "motorcycle")
SHARES = (0.82, 0.1, 0.08)


class Population:
    """Keeps the background traffic of one episode.

    Args:
        world: the world.
        network, paths: where vehicles and walkers can be.
    """

    def __init__(self, world: World, network: RoadNetwork, paths: Footpaths) -> None:
        self._world, self._network, self._paths = world, network, paths
        self._chooser = random.Random(f"{world.seed}/population")
        self._ids: set[int] = set()
        self._places = _places(network)
        self._sidewalk = [i for i, links in enumerate(paths.links) if len(links) == 2]

    def fill(self, vehicles: int, walkers: int) -> tuple[int, int]:
        """Add so many vehicles and walkers; returns how many there was room for."""
        cars, people = _vehicles(), [name for name in LIBRARY if name.startswith("walker.")]
        drive = walk = 0
        for _ in range(vehicles):
            kind = self._chooser.choice(cars[self._chooser.choices(KINDS, SHARES)[0]])
            drive += self._spawn(kind, self._free_place)
        for _ in range(walkers):
            walk += self._spawn(self._chooser.choice(people), self._free_sidewalk)
        return drive, walk

    def make_room(self, actor: Actor) -> None:
        """Move background vehicles and walkers away from where an actor is about to appear.

        Those move that stand there, and those that could not help running into it.
        """
        box = actor.box()
        for actor_id in sorted(self._ids):
            other = self._world.actors.get(actor_id)
            if other is None:
                self._ids.discard(actor_id)
                continue
            dx, dy = box.x - other.pose.x, box.y - other.pose.y
            reach = box.radius + other.box().radius
            gap = math.hypot(dx, dy) - reach
            speed = math.hypot(other.velocity[0], other.velocity[1])
            towards = (dx * other.velocity[0] + dy * other.velocity[1]) > 0
            room = ROOM_M + towards * (ROOM_S * speed + speed * speed / (2 * ROOM_MPS2))
            if isinstance(other, Walker):
                room = 0.5
            if gap < room:
                self._move(other, box.x, box.y)

    def _move(self, actor: Actor, x_m: float, y_m: float) -> None:
        place = self._free_place((x_m, y_m)) if isinstance(actor, Vehicle) else self._free_sidewalk((x_m, y_m))
        if place is not None:
            if isinstance(actor, Walker):
                place.z += actor.foot_m
            actor.place(place)
            actor.set_velocity((0.0, 0.0, 0.0))

    def _spawn(self, kind: str, find_place: Callable[[], Pose | None]) -> bool:
        """Add an actor, if there is room."""
        attributes = [["driver", 3, "server"], ["role_name", 3, ROLE]]
        for _ in range(SPAWN_TRIES):
            place = find_place()
            if place is None:
                return False
            if kind.startswith("walker."):
                place.z += LIBRARY[kind].extent_m[2]
            try:
                self._ids.add(self._world.spawn([0, kind, attributes], place).id)
            except RpcError:  # a lamp or another walker stands there
                continue
            return True
        return False

    def _free_place(self, away_from: tuple[float, float] | None = None) -> Pose | None:
        """A place on a lane with room around it."""
        bodies = (a for a in self._world.actors.values() if a.collides and a.parent is None)
        taken = _table((a.pose.x, a.pose.y) for a in bodies)
        others = self._others(away_from)
        for _ in range(TRIES if self._places else 0):
            key, index = self._chooser.choice(self._places)
            row = self._network.lanes[key].table[index]
            if _clear(row[X], row[Y], taken, APART_M) and _clear(row[X], row[Y], others, AWAY_M):
                yaw = math.degrees(math.atan2(row[SIN], row[COS]))
                return Pose(float(row[X]), float(row[Y]), self._network.height_m(key, index) + LIFT_M, yaw=yaw)
        return None

    def _free_sidewalk(self, away_from: tuple[float, float] | None = None) -> Pose | None:
        others = self._others(away_from) if away_from is not None else _table(())
        for _ in range(TRIES if self._sidewalk else 0):
            x, y, z = self._paths.xyz_m[self._chooser.choice(self._sidewalk)].tolist()
            if _clear(x, y, others, AWAY_M / 2):
                return Pose(x, y, z + LIFT_M, yaw=self._chooser.uniform(-180.0, 180.0))
        return None

    def _others(self, away_from: tuple[float, float] | None) -> np.ndarray:
        """(N, 2) places of vehicles that clients drive, and one place more."""
        found = [
            (a.pose.x, a.pose.y)
            for a in self._world.actors.values()
            if isinstance(a, Vehicle) and a.attributes.get("driver") != "server"
        ]
        return _table([*found, away_from] if away_from is not None else found)


def _table(places: Iterable[tuple[float, float]]) -> np.ndarray:
    return np.array(list(places)).reshape(-1, 2)


def _clear(x_m: float, y_m: float, taken: np.ndarray, apart_m: float) -> bool:
    """Whether none of (N, 2) places is near."""
    return bool(((taken[:, 0] - x_m) ** 2 + (taken[:, 1] - y_m) ** 2 > apart_m * apart_m).all())


def _places(network: RoadNetwork) -> list[tuple[LaneKey, int]]:
    """Points of lanes to start from."""
    return [
        (key, index)
        for key, lane in network.lanes.items()
        if not lane.in_junction and key in network.live
        for index in range(0, len(lane.table), 4)
        if END_GAP_M < lane.table[index, ARC] < (lane.hold.arc_m if lane.hold else lane.length_m) - END_GAP_M
    ]


def _vehicles() -> dict[str, list[str]]:
    """Blueprints of everyday traffic by kind."""
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for blueprint in LIBRARY.values():
        values = {attribute.name: attribute.default for attribute in blueprint.attributes}
        usual = values.get("special_type", "") in ("", "taxi") and not any(name in blueprint.id for name in BIG)
        if blueprint.id.startswith("vehicle.") and usual and values.get("base_type") in kinds:
            kinds[values["base_type"]].append(blueprint.id)
    return kinds
