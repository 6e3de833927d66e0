"""The two route sets of Wamtown01, which have no scenarios: `demo.xml` is driven and scored, `train.xml` learnt from.

A route is a walk over junctions. Training walks cover every movement (road, junction, next road) of the town, but none
of them takes the roads of a demonstration route in a row: each turn of the demonstration has been seen, the drive has
not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from carla_bridge.server.town_builder import WAMTOWN01, TownPlan

if TYPE_CHECKING:
    import carla

KEYPOINT_STEP_M = 20.0
END_GAP_M = 8.0  # starts and goals stay this far from the ends of a road
TRAINING_LENGTH_M = 260.0  # a training walk ends on the road where it gets longer than this
SEED = 20

Move = tuple[int, int]  # road id and lane id: a road driven in one direction


@dataclass(frozen=True)
class Walk:
    """A route as roads in driving direction, with where on the first and the last road it starts and ends (0..1)."""

    moves: tuple[Move, ...]
    start_share: float
    end_share: float


class RoadNetwork:
    """The roads of a town plan as they can be driven.

    Attributes:
        exits: for each move, the moves that may follow it: every other arm of the junction it leads to.
    """

    def __init__(self, plan: TownPlan) -> None:
        self._plan = plan
        moves = [(road_id, lane) for road_id in range(1, len(plan.roads) + 1) for lane in (-1, 1)]
        self.exits: dict[Move, list[Move]] = {
            move: [after for after in moves if self.begin(after) == self.end(move) and after[0] != move[0]]
            for move in moves
        }

    def begin(self, move: Move) -> str:
        """Junction a move starts from."""
        road = self._plan.roads[move[0] - 1]
        return road.start if move[1] < 0 else road.end

    def end(self, move: Move) -> str:
        """Junction a move leads to."""
        road = self._plan.roads[move[0] - 1]
        return road.end if move[1] < 0 else road.start

    def through(self, junctions: str) -> tuple[Move, ...]:
        """Moves along junction names such as `b0 b1 c1`; the first road between two junctions is taken."""
        names = junctions.split()
        return tuple(
            next(move for move in self.exits if (self.begin(move), self.end(move)) == pair)
            for pair in itertools.pairwise(names)
        )


def demo_walks(network: RoadNetwork) -> list[Walk]:
    """Left turn and straight crossing; bends, right and left turn; corner, right and left turn."""
    return [
        Walk(network.through("b0 b1 c1 d1"), 0.30, 0.60),
        Walk(network.through("c3 b3 b2 a2"), 0.10, 0.60),
        Walk(network.through("b4 a3 b3 b2"), 0.55, 0.70),
    ]


def training_walks(
    network: RoadNetwork, lengths_m: dict[int, float], held_out: Sequence[tuple[Move, ...]]
) -> list[Walk]:
    """Walks that cover every movement at least once, rarest first.

    Args:
        network: the roads.
        lengths_m: length of each road by its id.
        held_out: sequences of moves that no walk may contain.
    """
    rng = np.random.default_rng(SEED)
    used = {(move, after): 0 for move, exits in network.exits.items() for after in exits}
    walks: list[Walk] = []
    while min(used.values()) == 0:
        first = min(used, key=lambda movement: (used[movement], movement))
        moves = list(first)
        used[first] += 1
        start = float(rng.uniform(0.1, 0.6))
        length = (1 - start) * lengths_m[moves[0][0]]
        while length < TRAINING_LENGTH_M:
            length += lengths_m[moves[-1][0]]
            allowed = [
                after for after in network.exits[moves[-1]] if not any(_contains([*moves, after], h) for h in held_out)
            ]
            if length >= TRAINING_LENGTH_M or not allowed:
                break
            after = min(allowed, key=lambda move: (used[moves[-1], move], rng.random()))
            used[moves[-1], after] += 1
            moves.append(after)
        walks.append(Walk(tuple(moves), start, float(rng.uniform(0.5, 0.9))))
    return walks


def _contains(moves: Sequence[Move], part: Sequence[Move]) -> bool:
    return any(tuple(moves[i : i + len(part)]) == tuple(part) for i in range(len(moves) - len(part) + 1))


def routes_xml(
    carla_map: carla.Map, town: str, walks: Sequence[Walk], lengths_m: dict[int, float], first_id: int
) -> str:
    """Walks in Bench2Drive's route form: key points 20 m apart on the roads, none inside junctions."""
    root = ElementTree.Element("routes")
    for i, walk in enumerate(walks):
        route = ElementTree.SubElement(root, "route", {"id": str(first_id + i), "town": town})
        waypoints = ElementTree.SubElement(route, "waypoints")
        for k, (road_id, lane_id) in enumerate(walk.moves):
            length = lengths_m[road_id]
            start = length * walk.start_share if k == 0 else END_GAP_M
            end = length * walk.end_share if k == len(walk.moves) - 1 else length - END_GAP_M
            start, end = max(start, END_GAP_M), min(end, length - END_GAP_M)
            for along in np.linspace(start, end, max(2, round((end - start) / KEYPOINT_STEP_M) + 1)):
                s = along if lane_id < 0 else length - along
                place = carla_map.get_waypoint_xodr(road_id, lane_id, float(s)).transform.location
                xyz = {
                    axis: f"{value + 0.0:.1f}" for axis, value in zip("xyz", (place.x, place.y, place.z), strict=True)
                }
                ElementTree.SubElement(waypoints, "position", xyz)
        ElementTree.SubElement(route, "scenarios")
    ElementTree.indent(root, space="   ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def build_walks() -> dict[str, str]:
    """Text of both files by file name."""
    from carla_bridge.server.town.town import Town

    town = Town.load(WAMTOWN01.name)
    roads = ElementTree.fromstring(town.opendrive).findall("road")
    lengths = {int(road.attrib["id"]): float(road.attrib["length"]) for road in roads}
    network = RoadNetwork(WAMTOWN01)
    demo = demo_walks(network)
    train = training_walks(network, lengths, [walk.moves for walk in demo])
    return {
        "demo.xml": routes_xml(town.map, town.name, demo, lengths, 1),
        "train.xml": routes_xml(town.map, town.name, train, lengths, 100),
    }
