"""Where in a town what can happen: stretches of road, and ways through junctions with their control.

Everything is found from the town's own lanes and signals, so a scenario can be laid into any generated town.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import carla
import numpy as np

from carla_bridge.routes.lane_graph import Lane, LaneKey, lane_key
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.places import Place
from carla_bridge.server.geometry.scene import SignalKind
from carla_bridge.server.town.town import Town
from wamdiff2_core.frames import wrap_angle

if TYPE_CHECKING:
    from collections.abc import Iterator

STRAIGHT_RAD = math.radians(30.0)
TURN_RAD = math.radians(45.0)
CONTROL = {SignalKind.TRAFFIC_LIGHT: "light", SignalKind.STOP: "stop", SignalKind.YIELD: "yield"}


@dataclass(frozen=True)
class Stretch:
    """A lane between two junctions.

    Attributes:
        lane: its centre line.
        lanes: how many lead the same way.
        is_outermost: whether no other driving lane lies to its right.
        oncoming: whether the lane to its left leads the other way.
        one_way: whether no lane of its road leads the other way.
        sidewalk: whether walkers can go to its right.
    """

    lane: Lane
    lanes: int
    is_outermost: bool
    oncoming: bool
    one_way: bool
    sidewalk: bool

    @property
    def key(self) -> LaneKey:
        """Of the lane."""
        return self.lane.key

    @property
    def length_m(self) -> float:
        """Of the lane."""
        return self.lane.length_m


@dataclass(frozen=True)
class SurveyedMovement:
    """A way through a junction.

    Attributes:
        entry, through, exit: the lanes.
        turn_rad: change of heading, left positive.
        control: what rules the entry: `light`, `stop`, `yield` or `none`.
        signed: whether anything rules any entry of the junction.
        arms: how many roads meet there.
        heading_rad: of traffic on the entry, map frame.
    """

    entry: Stretch
    through: LaneKey
    exit: Stretch
    turn_rad: float
    control: str
    signed: bool
    arms: int
    heading_rad: float

    @property
    def is_straight(self) -> bool:
        """Whether it goes straight on."""
        return abs(self.turn_rad) < STRAIGHT_RAD

    @property
    def is_left(self) -> bool:
        """Whether it turns left."""
        return self.turn_rad > TURN_RAD

    @property
    def is_right(self) -> bool:
        """Whether it turns right."""
        return self.turn_rad < -TURN_RAD


class TownSurvey:
    """What there is in a town.

    Args:
        town: the town.

    Attributes:
        planner: of its map.
    """

    def __init__(self, town: Town) -> None:
        self.town, self.map = town, town.map
        self.planner = RoutePlanner(town.map)
        self.graph = self.planner.graph

    @cached_property
    def stretches(self) -> dict[LaneKey, Stretch]:
        """All lanes outside of junctions."""
        found = {}
        for key, lane in sorted(self.graph.lanes.items()):
            if lane.in_junction:
                continue
            middle = self.place(key, lane.length_m / 2)
            same = middle.same_direction()
            left = same[0].beside("left")
            _, sidewalk = middle.roadside("right")
            oncoming = left is not None and left.is_driving
            found[key] = Stretch(lane, len(same), same[-1].key == key, oncoming and same[0].key == key, not oncoming,
                                 sidewalk)
        return found

    @cached_property
    def movements(self) -> list[SurveyedMovement]:
        """All ways through junctions."""
        control = {
            (stop.road_id, stop.lane_id): CONTROL[spec.kind] for spec in self.town.signals for stop in spec.stops
        }
        entries: dict[int, set[LaneKey]] = {}
        ways: list[tuple[Stretch, LaneKey, Stretch, int]] = []
        for key, stretch in self.stretches.items():
            for through in stretch.lane.successors:
                lane = self.graph.lanes[through]
                if not lane.in_junction:
                    continue
                junction = self.place(through, lane.length_m / 2).waypoint.junction_id
                entries.setdefault(junction, set()).add(key)
                ways += [
                    (stretch, through, self.stretches[end], junction)
                    for end in lane.successors if end in self.stretches
                ]
        found = []
        for entry, through, end, junction in ways:
            rules = [control.get((road, lane), "none") for road, _, lane in entries[junction]]
            road, _, lane_id = entry.key
            turn = wrap_angle(entry.lane.heading_rad(at_end=True) - end.lane.heading_rad(at_end=False))
            found.append(SurveyedMovement(
                entry, through, end, turn, control.get((road, lane_id), "none"), any(rule != "none" for rule in rules),
                len({road for road, _, _ in entries[junction]}), -entry.lane.heading_rad(at_end=True),
            ))
        return found

    def place(self, key: LaneKey, arc_m: float) -> Place:
        """A place on a lane, by arc length in its direction of travel."""
        lane = self.graph.lanes[key]
        x, y, z = (float(value) for value in lane.at(np.array([arc_m]))[0])
        waypoint = self.map.get_waypoint(carla.Location(x, y, z))
        if (waypoint.road_id, waypoint.section_id, waypoint.lane_id) == key:
            return Place(waypoint)
        # connecting lanes overlap: walk along the lane itself
        first = next(begin for pair in self._topology for begin in pair if lane_key(begin) == key)
        ahead = first.next(max(arc_m, 0.05)) if arc_m > 0.05 else [first]
        return Place(next((w for w in ahead if lane_key(w) == key), first))

    @cached_property
    def _topology(self) -> list[tuple[carla.Waypoint, carla.Waypoint]]:
        return list(self.map.get_topology())

    def into(self, exit_: Stretch) -> Iterator[SurveyedMovement]:
        """All movements that lead onto a lane."""
        return (movement for movement in self.movements if movement.exit.key == exit_.key)

    def side_kind(self, key: LaneKey, arc_m: float, side: str) -> str:
        """Kind of the lane beside a place, such as `Parking`; empty when there is none."""
        beside = self.place(key, arc_m).beside(side)
        return "" if beside is None else str(beside.waypoint.lane_type)
