"""Roads between junctions and roads through them, as scenariogeneration objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from carla_bridge.server.town_builder.geometry import Segment
from carla_bridge.server.town_builder.plan import Edge, RoadPlan

if TYPE_CHECKING:
    from scenariogeneration import xodr

LANE_WIDTH_M = 3.5
SIDEWALK_WIDTH_M = 2.5
SHOULDER_WIDTH_M = 1.5
PARKING_WIDTH_M = 2.2
MARK_WIDTH_M = 0.15
SOLID_BEFORE_JUNCTION_M = 15.0
PARKING_FROM_JUNCTION_M, PARKING_TAPER_M = 12.0, 4.0
INNER_SPEED_KMH = 30


@dataclass(frozen=True)
class Way:
    """A way through a junction, one lane wide.

    Attributes:
        road_id: its own.
        junction_id: the junction.
        segments: left edge of the lane.
        entry, exit: road ids at both ends. entry_at_start, exit_at_start: whether it touches the start of that road.
        lane_links: (lane of the entry road, own lane, lane of the exit road), the driving lane first.
        outer_mark: whether the right edge of the driving lane is painted.
    """

    road_id: int
    junction_id: int
    segments: list[Segment]
    entry: int
    entry_at_start: bool
    exit: int
    exit_at_start: bool
    lane_links: tuple[tuple[int, int, int], ...]
    outer_mark: bool


def _planview(segments: list[Segment]) -> xodr.PlanView:
    from scenariogeneration import xodr

    planview = xodr.PlanView()
    for s in segments:
        geometry = xodr.Arc(s.curvature_radpm, length=s.length_m) if s.curvature_radpm else xodr.Line(s.length_m)
        planview.add_fixed_geometry(geometry, s.x_m, s.y_m, s.heading_rad)
    return planview


def _mark(kind: str, color: str = "white", s_offset_m: float = 0.0, lane_change: str = "none") -> xodr.RoadMark:
    from scenariogeneration import xodr

    return xodr.RoadMark(
        xodr.RoadMarkType[kind],
        width=MARK_WIDTH_M,
        soffset=s_offset_m,
        color=xodr.RoadMarkColor[color],
        laneChange=xodr.LaneChange[lane_change],
    )


def _unmarked() -> xodr.RoadMark:
    from scenariogeneration import xodr

    return xodr.RoadMark(xodr.RoadMarkType.none)


def _add_broken_mark(lane: xodr.Lane, length_m: float, color: str, lane_change: str) -> None:
    """Solid near both junctions, broken between; all solid on a short road."""
    if length_m > 3 * SOLID_BEFORE_JUNCTION_M:
        lane.add_roadmark(_mark("solid", color))
        lane.add_roadmark(_mark("broken", color, SOLID_BEFORE_JUNCTION_M, lane_change))
        lane.add_roadmark(_mark("solid", color, length_m - SOLID_BEFORE_JUNCTION_M))
    else:
        lane.add_roadmark(_mark("solid", color))


def _parking_lane(length_m: float) -> xodr.Lane:
    """As wide as a car in the middle of the road, and nothing near the junctions."""
    from scenariogeneration import xodr

    first, last, steep = PARKING_FROM_JUNCTION_M, length_m - PARKING_FROM_JUNCTION_M, PARKING_WIDTH_M / PARKING_TAPER_M
    lane = xodr.Lane(a=0.0, lane_type=xodr.LaneType.parking)
    lane.add_lane_width(0.0, steep, soffset=first)
    lane.add_lane_width(PARKING_WIDTH_M, soffset=first + PARKING_TAPER_M)
    lane.add_lane_width(PARKING_WIDTH_M, -steep, soffset=last - PARKING_TAPER_M)
    lane.add_lane_width(0.0, soffset=last)
    lane.add_roadmark(_unmarked())
    return lane


def _edge_lane(edge: Edge) -> xodr.Lane:
    from scenariogeneration import xodr

    if edge is Edge.SIDEWALK:
        lane = xodr.Lane(a=SIDEWALK_WIDTH_M, lane_type=xodr.LaneType.sidewalk)
    else:
        lane = xodr.Lane(a=SHOULDER_WIDTH_M, lane_type=xodr.LaneType.shoulder)
    lane.add_roadmark(_unmarked())
    return lane


def edge_rank(plan: RoadPlan) -> int:
    """Absolute lane id of a road's outermost lane."""
    return plan.lanes + (2 if plan.parking else 1)


def open_road(road_id: int, plan: RoadPlan, segments: list[Segment]) -> xodr.Road:
    """A road between junctions.

    Raises:
        ValueError: too short for its parking lanes.
    """
    from scenariogeneration import xodr

    length = sum(s.length_m for s in segments)
    name = f"{plan.start}-{plan.end}"
    if plan.parking and length < 2 * (PARKING_FROM_JUNCTION_M + PARKING_TAPER_M):
        raise ValueError(f"road {name}: {length:.1f} m are too short for parking lanes")
    centre = xodr.Lane(a=0.0, lane_type=xodr.LaneType.none)
    if plan.lanes == 1 and not plan.one_way:
        _add_broken_mark(centre, length, "yellow", "none")
    else:
        centre.add_roadmark(_mark("solid", "yellow"))
    section = xodr.LaneSection(0.0, centre)
    sides = (section.add_right_lane,) if plan.one_way else (section.add_left_lane, section.add_right_lane)
    for add in sides:
        for rank in range(1, plan.lanes + 1):
            driving = xodr.Lane(a=LANE_WIDTH_M)
            if rank < plan.lanes:
                _add_broken_mark(driving, length, "white", "both")
            else:
                driving.add_roadmark(_mark("solid"))
            add(driving)
        if plan.parking:
            add(_parking_lane(length))
        add(_edge_lane(plan.edge))
    lanes = xodr.Lanes()
    lanes.add_lanesection(section)
    road = xodr.Road(road_id, _planview(segments), lanes, name=name)
    road.add_type(xodr.RoadType.town, speed=plan.speed_kmh, speed_unit="km/h")
    return road


def connecting_road(way: Way) -> xodr.Road:
    """A road through a junction; its second lane, if any, is a sidewalk."""
    from scenariogeneration import xodr

    centre = xodr.Lane(a=0.0, lane_type=xodr.LaneType.none)
    centre.add_roadmark(_unmarked())
    section = xodr.LaneSection(0.0, centre)
    for before, own, after in way.lane_links:
        lane = xodr.Lane(a=LANE_WIDTH_M) if own == -1 else _edge_lane(Edge.SIDEWALK)
        lane.add_link("predecessor", before)
        lane.add_link("successor", after)
        if own == -1:
            lane.add_roadmark(_mark("solid") if way.outer_mark else _unmarked())
        section.add_right_lane(lane)
    lanes = xodr.Lanes()
    lanes.add_lanesection(section)
    road = xodr.Road(way.road_id, _planview(way.segments), lanes, road_type=way.junction_id)
    road.add_type(xodr.RoadType.town, speed=INNER_SPEED_KMH, speed_unit="km/h")
    contact = {True: xodr.ContactPoint.start, False: xodr.ContactPoint.end}
    road.add_predecessor(xodr.ElementType.road, way.entry, contact[way.entry_at_start])
    road.add_successor(xodr.ElementType.road, way.exit, contact[way.exit_at_start])
    return road
