"""Writes a town plan as OpenDRIVE.

A road is a polyline whose corners are rounded to arcs, so every road starts and ends on a straight. All arms of a
junction are cut at the same distance from its centre: equal lanes of any two of them are then joined by one arc or one
line. Straight on, lanes keep their place; one turns right from the outermost lane into the outermost, and left from
the innermost into the innermost; traffic from a one-way road counts lanes from outside, so that a ramp merges into the
nearest.

Two facts of `carla.Map` shape the file: a junction is only seen as one if no road has its id, and connecting roads must
carry one direction each, or every branch appears twice. The file is byte-reproducible: numbers are rounded to 1e-9, the
date is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from carla_bridge.server.town_builder.geometry import Point, ahead, joint, rounded_polyline, wrap
from carla_bridge.server.town_builder.plan import Edge, RoadPlan, TownPlan
from carla_bridge.server.town_builder.roads import LANE_WIDTH_M, Way, connecting_road, edge_rank, open_road

if TYPE_CHECKING:
    from scenariogeneration import xodr

FIRST_JUNCTION_ID = 1000
FIRST_CONNECTING_ROAD_ID = 100
STRAIGHT_RAD, U_TURN_RAD = math.radians(35.0), math.radians(150.0)
GEO_REFERENCE = "+proj=tmerc +lat_0=49.0 +lon_0=8.0 +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m +no_defs"


@dataclass(frozen=True)
class Arm:
    """The end of a road at a junction.

    Attributes:
        road_id, plan: the road.
        at_start: whether it is the road's start that touches the junction.
        end: where the road's middle ends.
        inward_rad: heading of traffic that enters the junction here.
    """

    road_id: int
    plan: RoadPlan
    at_start: bool
    end: Point
    inward_rad: float

    @property
    def lanes_in(self) -> int:
        """Lanes that lead into the junction."""
        return 0 if self.plan.one_way and self.at_start else self.plan.lanes

    @property
    def lanes_out(self) -> int:
        """Lanes that lead out of the junction."""
        return 0 if self.plan.one_way and not self.at_start else self.plan.lanes

    @property
    def edge(self) -> int | None:
        """Absolute id of the sidewalk; None without one."""
        return edge_rank(self.plan) if self.plan.edge is Edge.SIDEWALK else None

    def entering(self, rank: int) -> int:
        """Lane id of entering traffic, counted from the middle of the road."""
        return rank if self.at_start else -rank

    def leaving(self, rank: int) -> int:
        """Lane id of leaving traffic, counted from the middle of the road."""
        return -rank if self.at_start else rank


@dataclass
class JunctionPlan:
    """A junction while the town is laid out: id, centre and arms in order of the roads."""

    junction_id: int
    centre_m: Point
    arms: list[Arm] = field(default_factory=list)


def build_town(plan: TownPlan) -> str:
    """OpenDRIVE 1.4 text of a town; the same plan always gives the same bytes.

    Raises:
        ValueError: the plan has a corner that does not fit, a junction with fewer than three arms, or a lane that leads
            nowhere.
    """
    from scenariogeneration import xodr

    opendrive = xodr.OpenDrive(plan.name, revMinor="4", geo_reference=GEO_REFERENCE)
    junctions = {
        name: JunctionPlan(FIRST_JUNCTION_ID + i, centre) for i, (name, centre) in enumerate(plan.junctions.items())
    }
    for road_id, road_plan in enumerate(plan.roads, start=1):
        opendrive.add_road(_lay_road(plan, road_id, road_plan, junctions))
    connecting_id = FIRST_CONNECTING_ROAD_ID
    for name, junction in junctions.items():
        if len(junction.arms) < 3:
            raise ValueError(f"junction {name}: expected at least 3 arms, got {len(junction.arms)}")
        element = xodr.Junction(name, junction.junction_id)
        for entry in junction.arms:
            for way in _ways(junction, entry, connecting_id):
                opendrive.add_road(connecting_road(way))
                connection = xodr.Connection(entry.road_id, way.road_id, xodr.ContactPoint.start)
                for before, own, _ in way.lane_links:
                    connection.add_lanelink(before, own)
                element.add_connection(connection)
                connecting_id += 1
        opendrive.add_junction(element)
    text = _reproducible_text(_element(opendrive, list(plan.junctions.values())))
    return _with_controls(plan, text, {name: junction.junction_id for name, junction in junctions.items()})


def _lay_road(plan: TownPlan, road_id: int, road: RoadPlan, junctions: dict[str, JunctionPlan]) -> xodr.Road:
    """The road itself; its ends become arms of its junctions."""
    from scenariogeneration import xodr

    start, end = junctions[road.start], junctions[road.end]
    goal = road.end_at or end.centre_m
    waypoints = [start.centre_m, *((x, y) for x, y, _ in road.corners), goal]
    out_rad = math.atan2(waypoints[1][1] - waypoints[0][1], waypoints[1][0] - waypoints[0][0])
    in_rad = math.atan2(waypoints[-1][1] - waypoints[-2][1], waypoints[-1][0] - waypoints[-2][0])
    first = ahead(start.centre_m, out_rad, plan.arm_length_m(road.start))
    last = road.end_at or ahead(end.centre_m, in_rad, -plan.arm_length_m(road.end))
    element = open_road(road_id, road, rounded_polyline(first, road.corners, last))
    element.add_predecessor(xodr.ElementType.junction, start.junction_id)
    element.add_successor(xodr.ElementType.junction, end.junction_id)
    start.arms.append(Arm(road_id, road, True, first, wrap(out_rad + math.pi)))
    end.arms.append(Arm(road_id, road, False, last, in_rad))
    return element


def _ways(junction: JunctionPlan, entry: Arm, first_id: int) -> Iterator[Way]:
    """All ways that start from an arm; the outermost lane's rightmost one carries the sidewalk round the corner."""
    turns = {
        arm: wrap(arm.inward_rad + math.pi - entry.inward_rad)
        for arm in junction.arms
        if arm is not entry and arm.lanes_out
    }
    turns = {arm: turn for arm, turn in turns.items() if abs(turn) < U_TURN_RAD}
    if not entry.lanes_in:
        return
    rightmost = min(turns, key=lambda arm: turns[arm])
    way_id, used = first_id, set()
    for exit_, turn in turns.items():
        for rank_in, rank_out in _lane_pairs(entry, exit_, turn):
            outermost = exit_ is rightmost and rank_in == entry.lanes_in
            used.add(rank_in)
            right = entry.inward_rad - math.pi / 2
            start = ahead(entry.end, right, (rank_in - 1) * LANE_WIDTH_M)
            end_rad = exit_.inward_rad + math.pi
            end = ahead(exit_.end, end_rad - math.pi / 2, (rank_out - 1) * LANE_WIDTH_M)
            links = [(entry.entering(rank_in), -1, exit_.leaving(rank_out))]
            if outermost and entry.edge and exit_.edge and rank_out == exit_.lanes_out:
                links.append((entry.entering(entry.edge), -2, exit_.leaving(exit_.edge)))
            yield Way(
                way_id,
                junction.junction_id,
                joint(start, entry.inward_rad, end, end_rad),
                entry.road_id,
                entry.at_start,
                exit_.road_id,
                exit_.at_start,
                tuple(links),
                outermost,
            )
            way_id += 1
    if len(used) < entry.lanes_in:
        raise ValueError(f"road {entry.road_id}: only lanes {sorted(used)} of {entry.lanes_in} lead on")


def _lane_pairs(entry: Arm, exit_: Arm, turn_rad: float) -> list[tuple[int, int]]:
    """(lane of the entry, lane of the exit), both counted from the middle of the road."""
    ways_in, ways_out = entry.lanes_in, exit_.lanes_out
    if turn_rad < -STRAIGHT_RAD:
        return [(ways_in, ways_out)]
    if turn_rad > STRAIGHT_RAD:
        return [(1, 1)]
    common = range(min(ways_in, ways_out))
    if entry.plan.one_way:
        return [(ways_in - k, ways_out - k) for k in reversed(common)]
    return [(k + 1, k + 1) for k in common]


def _with_controls(plan: TownPlan, text: str, junction_ids: dict[str, int]) -> str:
    """The text with the plan's lights and signs."""
    from carla_bridge.server.town.opendrive_signals import Control, with_signals

    chosen = {
        junction_ids[name]: control
        for names, control in (
            (plan.lights, Control.LIGHTS),
            (plan.stop_signs, Control.STOP_SIGNS),
            (plan.yield_signs, Control.YIELD_SIGNS),
        )
        for name in names
    }
    if not chosen:
        return text
    return _reproducible_text(ElementTree.fromstring(with_signals(plan.name, text, chosen)))


def _element(opendrive: xodr.OpenDrive, centres: list[Point]) -> ElementTree.Element:
    """XML with a fixed date and a true bounding box of the junctions."""
    root = opendrive.get_element()
    header = root.find("header")
    if header is None:
        raise RuntimeError("scenariogeneration wrote an OpenDRIVE file without a header")
    xs, ys = zip(*centres, strict=True)
    header.attrib |= {
        "date": "2026-01-01T00:00:00",
        "north": str(max(ys)),
        "south": str(min(ys)),
        "east": str(max(xs)),
        "west": str(min(xs)),
    }
    return root


def _reproducible_text(root: ElementTree.Element) -> str:
    """Indented XML with floats rounded past any platform's last bit."""
    for element in root.iter():
        for key, value in element.attrib.items():
            if "." in value or "e-" in value:
                try:
                    element.attrib[key] = f"{round(float(value), 9) + 0.0:.9f}".rstrip("0").rstrip(".")
                except ValueError:
                    continue
    ElementTree.indent(root, space=" ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
