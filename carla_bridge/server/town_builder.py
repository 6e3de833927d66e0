"""Wamtown01: the town of the embedded world, written as OpenDRIVE.

A town is a plan of junction centres and the roads between them; a road is a polyline whose corners are rounded to arcs,
so every road starts and ends on a straight that points at its junction's centre. All arms of a junction are cut at the
same distance from the centre: any two of them are then joined exactly by one arc or one line.

Two facts of `carla.Map` shape the file: a junction is only seen as one if no road has its id, and connecting roads must
carry one direction each, or every branch appears twice. The file is byte-reproducible: numbers are rounded to 1e-9, the
date is fixed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wamdiff2_core.journal import replace_file
from wamdiff2_core.outputs import writable_file

if TYPE_CHECKING:
    from scenariogeneration import xodr

LANE_WIDTH_M = 3.5
SIDEWALK_WIDTH_M = 2.5
MARK_WIDTH_M = 0.15
ARM_LENGTH_M = 12.0  # junction centre to the end of a road; the tightest right turn has a lane radius of 10.25 m
SOLID_BEFORE_JUNCTION_M = 15.0
FIRST_JUNCTION_ID = 1000
FIRST_CONNECTING_ROAD_ID = 100
GEO_REFERENCE = "+proj=tmerc +lat_0=49.0 +lon_0=8.0 +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m +no_defs"


@dataclass(frozen=True)
class RoadPlan:
    """A road between two junctions.

    Attributes:
        start, end: names of the junctions.
        corners: (x_m, y_m, radius_m) between them, OpenDRIVE frame (x east, y north).
        speed_kmh: speed limit.
    """

    start: str
    end: str
    corners: tuple[tuple[float, float, float], ...] = ()
    speed_kmh: int = 40


@dataclass(frozen=True)
class TownPlan:
    """Junction centres by name, metres, OpenDRIVE frame, and the roads between them."""

    name: str
    junctions: dict[str, tuple[float, float]]
    roads: tuple[RoadPlan, ...]


WAMTOWN01 = TownPlan(
    name="Wamtown01",
    junctions={
        "a1": (120.0, 0.0),
        "a2": (260.0, 0.0),
        "a3": (400.0, 0.0),
        "b0": (0.0, 120.0),
        "b1": (120.0, 120.0),
        "b2": (260.0, 130.0),
        "b3": (400.0, 120.0),
        "b4": (530.0, 120.0),
        "c0": (0.0, 250.0),
        "c1": (120.0, 250.0),
        "c2": (262.0, 262.0),
        "c3": (400.0, 250.0),
        "c4": (530.0, 250.0),
        "d1": (120.0, 370.0),
        "d2": (270.0, 370.0),
        "d3": (400.0, 370.0),
    },
    roads=(
        RoadPlan("a1", "b0", ((0.0, 0.0, 40.0),)),
        RoadPlan("a1", "a2"),
        RoadPlan("a2", "a3"),
        RoadPlan("a3", "b4", ((530.0, 0.0, 60.0),), 50),
        # the southern bypass: a long, gentle S between two corners
        RoadPlan(
            "a1", "a3", ((120.0, -75.0, 45.0), (215.0, -75.0, 90.0), (305.0, -120.0, 90.0), (400.0, -120.0, 45.0)), 50
        ),
        RoadPlan("b0", "b1"),
        RoadPlan("b1", "b2", ((170.0, 120.0, 60.0), (210.0, 130.0, 60.0))),
        RoadPlan("b2", "b3"),
        RoadPlan("b3", "b4"),
        RoadPlan("a1", "b1"),
        RoadPlan("a2", "b2"),
        RoadPlan("a3", "b3"),
        RoadPlan("b0", "c0"),
        RoadPlan("b1", "c1"),
        RoadPlan("b2", "c2"),
        RoadPlan("b3", "c3", ((400.0, 155.0, 35.0), (420.0, 185.0, 35.0), (400.0, 215.0, 35.0))),
        # the eastern loop: out, back on a bulge, tight corners
        RoadPlan("b4", "c4", ((610.0, 120.0, 25.0), (600.0, 185.0, 60.0), (610.0, 250.0, 25.0))),
        RoadPlan("b4", "c4"),
        RoadPlan("c0", "c1"),
        RoadPlan("c1", "c2"),
        RoadPlan("c2", "c3", ((310.0, 268.0, 50.0), (350.0, 250.0, 50.0))),
        RoadPlan("c3", "c4"),
        RoadPlan("c0", "d1", ((0.0, 370.0, 30.0),)),
        RoadPlan("c1", "d1"),
        RoadPlan("c2", "d2"),
        RoadPlan("c3", "d3"),
        RoadPlan("d1", "d2", ((160.0, 370.0, 40.0), (195.0, 385.0, 60.0), (230.0, 370.0, 40.0))),
        RoadPlan("d2", "d3"),
        RoadPlan("d3", "c4", ((530.0, 370.0, 50.0),), 50),
    ),
)


@dataclass(frozen=True)
class Segment:
    """A line (curvature 0) or arc of a reference line: start pose, length and curvature (left positive), 1/m."""

    x_m: float
    y_m: float
    heading_rad: float
    length_m: float
    curvature_radpm: float = 0.0


@dataclass
class Arm:
    """The end of a road at a junction.

    Attributes:
        road_id: the road.
        at_start: whether it is the road's start that touches the junction.
        inward_rad: heading of traffic that enters the junction here.
    """

    road_id: int
    at_start: bool
    inward_rad: float


@dataclass
class JunctionPlan:
    """A junction while the town is laid out: id, centre and arms in order of the roads."""

    junction_id: int
    centre_m: tuple[float, float]
    arms: list[Arm] = field(default_factory=list)


def _wrap(angle_rad: float) -> float:
    return (angle_rad + math.pi) % (2 * math.pi) - math.pi


def rounded_polyline(
    start: tuple[float, float], corners: tuple[tuple[float, float, float], ...], end: tuple[float, float]
) -> list[Segment]:
    """Reference line through `start`, rounded `corners` and `end`.

    Raises:
        ValueError: a corner's arc does not fit between its neighbours.
    """
    points = [start, *((x, y) for x, y, _ in corners), end]
    headings = [math.atan2(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(points)]
    turns = [_wrap(b - a) for a, b in itertools.pairwise(headings)]
    cuts = [0.0, *(r * math.tan(abs(turn) / 2) for (_, _, r), turn in zip(corners, turns, strict=True)), 0.0]
    segments = []
    for i, heading in enumerate(headings):
        length = math.dist(points[i], points[i + 1]) - cuts[i] - cuts[i + 1]
        if length < -1e-9:
            raise ValueError(f"corner at {points[i + 1]}: its arc overlaps the next one by {-length:.2f} m")
        x = points[i][0] + cuts[i] * math.cos(heading)
        y = points[i][1] + cuts[i] * math.sin(heading)
        if length > 1e-6:
            segments.append(Segment(x, y, heading, length))
        if i < len(turns) and abs(turns[i]) > 1e-9:
            radius = corners[i][2]
            end_x, end_y = x + max(length, 0.0) * math.cos(heading), y + max(length, 0.0) * math.sin(heading)
            segments.append(Segment(end_x, end_y, heading, radius * abs(turns[i]), math.copysign(1 / radius, turns[i])))
    return segments


def _planview(segments: list[Segment]) -> xodr.PlanView:
    from scenariogeneration import xodr

    planview = xodr.PlanView()
    for s in segments:
        geometry = xodr.Arc(s.curvature_radpm, length=s.length_m) if s.curvature_radpm else xodr.Line(s.length_m)
        planview.add_fixed_geometry(geometry, s.x_m, s.y_m, s.heading_rad)
    return planview


def _mark(kind: str, color: str = "white", s_offset_m: float = 0.0) -> xodr.RoadMark:
    from scenariogeneration import xodr

    return xodr.RoadMark(
        xodr.RoadMarkType[kind],
        width=MARK_WIDTH_M,
        soffset=s_offset_m,
        color=xodr.RoadMarkColor[color],
        laneChange=xodr.LaneChange["none"],
    )


def _two_way_road(road_id: int, name: str, segments: list[Segment], speed_kmh: int) -> xodr.Road:
    """One lane and one sidewalk each way; the centre line turns solid near the junctions."""
    from scenariogeneration import xodr

    length = sum(s.length_m for s in segments)
    centre = xodr.Lane(a=0.0, lane_type=xodr.LaneType.none)
    if length > 3 * SOLID_BEFORE_JUNCTION_M:
        for kind, s_offset in (
            ("solid", 0.0),
            ("broken", SOLID_BEFORE_JUNCTION_M),
            ("solid", length - SOLID_BEFORE_JUNCTION_M),
        ):
            centre.add_roadmark(_mark(kind, "yellow", s_offset))
    else:
        centre.add_roadmark(_mark("solid", "yellow"))
    section = xodr.LaneSection(0.0, centre)
    for add in (section.add_left_lane, section.add_right_lane):
        driving = xodr.Lane(a=LANE_WIDTH_M)
        driving.add_roadmark(_mark("solid"))
        sidewalk = xodr.Lane(a=SIDEWALK_WIDTH_M, lane_type=xodr.LaneType.sidewalk)
        sidewalk.add_roadmark(xodr.RoadMark(xodr.RoadMarkType.none))
        add(driving)
        add(sidewalk)
    lanes = xodr.Lanes()
    lanes.add_lanesection(section)
    road = xodr.Road(road_id, _planview(segments), lanes, name=name)
    road.add_type(xodr.RoadType.town, speed=speed_kmh, speed_unit="km/h")
    return road


def _connecting_road(road_id: int, junction: JunctionPlan, entry: Arm, exit_: Arm, *, outermost: bool) -> xodr.Road:
    """The one-way road from `entry` to `exit_`; the outermost one of an arm carries the sidewalk round the corner."""
    from scenariogeneration import xodr

    turn = _wrap(exit_.inward_rad + math.pi - entry.inward_rad)
    x = junction.centre_m[0] - ARM_LENGTH_M * math.cos(entry.inward_rad)
    y = junction.centre_m[1] - ARM_LENGTH_M * math.sin(entry.inward_rad)
    if abs(turn) < 1e-9:
        segment = Segment(x, y, entry.inward_rad, 2 * ARM_LENGTH_M)
    else:
        radius = ARM_LENGTH_M / math.tan(abs(turn) / 2)
        segment = Segment(x, y, entry.inward_rad, radius * abs(turn), math.copysign(1 / radius, turn))

    # traffic that leaves a road at its end drives on lane -1, at its start on lane 1; sidewalks lie outside of them
    def link(lane: xodr.Lane, rank: int) -> xodr.Lane:
        lane.add_link("predecessor", rank if entry.at_start else -rank)
        lane.add_link("successor", -rank if exit_.at_start else rank)
        return lane

    centre = xodr.Lane(a=0.0, lane_type=xodr.LaneType.none)
    centre.add_roadmark(xodr.RoadMark(xodr.RoadMarkType.none))
    section = xodr.LaneSection(0.0, centre)
    driving = link(xodr.Lane(a=LANE_WIDTH_M), 1)
    driving.add_roadmark(_mark("solid") if outermost else xodr.RoadMark(xodr.RoadMarkType.none))
    section.add_right_lane(driving)
    if outermost:
        sidewalk = link(xodr.Lane(a=SIDEWALK_WIDTH_M, lane_type=xodr.LaneType.sidewalk), 2)
        sidewalk.add_roadmark(xodr.RoadMark(xodr.RoadMarkType.none))
        section.add_right_lane(sidewalk)
    lanes = xodr.Lanes()
    lanes.add_lanesection(section)
    road = xodr.Road(road_id, _planview([segment]), lanes, road_type=junction.junction_id)
    road.add_type(xodr.RoadType.town, speed=30, speed_unit="km/h")
    contact = {True: xodr.ContactPoint.start, False: xodr.ContactPoint.end}
    road.add_predecessor(xodr.ElementType.road, entry.road_id, contact[entry.at_start])
    road.add_successor(xodr.ElementType.road, exit_.road_id, contact[exit_.at_start])
    return road


def build_town(plan: TownPlan = WAMTOWN01) -> str:
    """OpenDRIVE 1.4 text of a town; the same plan always gives the same bytes.

    Raises:
        ValueError: the plan has a corner that does not fit, or a junction with fewer than three arms.
    """
    from scenariogeneration import xodr

    opendrive = xodr.OpenDrive(plan.name, revMinor="4", geo_reference=GEO_REFERENCE)
    junctions = {
        name: JunctionPlan(FIRST_JUNCTION_ID + i, centre) for i, (name, centre) in enumerate(plan.junctions.items())
    }
    for road_id, road_plan in enumerate(plan.roads, start=1):
        start, end = junctions[road_plan.start], junctions[road_plan.end]
        waypoints = [start.centre_m, *((x, y) for x, y, _ in road_plan.corners), end.centre_m]
        out_rad = math.atan2(waypoints[1][1] - waypoints[0][1], waypoints[1][0] - waypoints[0][0])
        in_rad = math.atan2(waypoints[-1][1] - waypoints[-2][1], waypoints[-1][0] - waypoints[-2][0])
        segments = rounded_polyline(
            (
                start.centre_m[0] + ARM_LENGTH_M * math.cos(out_rad),
                start.centre_m[1] + ARM_LENGTH_M * math.sin(out_rad),
            ),
            road_plan.corners,
            (end.centre_m[0] - ARM_LENGTH_M * math.cos(in_rad), end.centre_m[1] - ARM_LENGTH_M * math.sin(in_rad)),
        )
        road = _two_way_road(road_id, f"{road_plan.start}-{road_plan.end}", segments, road_plan.speed_kmh)
        road.add_predecessor(xodr.ElementType.junction, start.junction_id)
        road.add_successor(xodr.ElementType.junction, end.junction_id)
        opendrive.add_road(road)
        start.arms.append(Arm(road_id, True, _wrap(out_rad + math.pi)))
        end.arms.append(Arm(road_id, False, in_rad))

    connecting_id = FIRST_CONNECTING_ROAD_ID
    for name, junction in junctions.items():
        if len(junction.arms) < 3:
            raise ValueError(f"junction {name}: expected at least 3 arms, got {len(junction.arms)}")
        element = xodr.Junction(name, junction.junction_id)
        for entry in junction.arms:
            exits = [arm for arm in junction.arms if arm is not entry]
            rightmost = min(exits, key=lambda arm: _wrap(arm.inward_rad + math.pi - entry.inward_rad))
            for exit_ in exits:
                outermost = exit_ is rightmost
                opendrive.add_road(_connecting_road(connecting_id, junction, entry, exit_, outermost=outermost))
                connection = xodr.Connection(entry.road_id, connecting_id, xodr.ContactPoint.start)
                for rank in (1, 2) if outermost else (1,):
                    connection.add_lanelink(rank if entry.at_start else -rank, -rank)
                element.add_connection(connection)
                connecting_id += 1
        opendrive.add_junction(element)
    return _reproducible_text(opendrive, list(plan.junctions.values()))


def _reproducible_text(opendrive: xodr.OpenDrive, centres: list[tuple[float, float]]) -> str:
    """XML with a fixed date, a true bounding box of the junctions, and floats rounded past any platform's last bit."""
    from xml.etree import ElementTree

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
    for element in root.iter():
        for key, value in element.attrib.items():
            if "." in value or "e-" in value:
                try:
                    element.attrib[key] = f"{round(float(value), 9) + 0.0:.9f}".rstrip("0").rstrip(".")
                except ValueError:
                    continue
    ElementTree.indent(root, space=" ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def town(
    out: Annotated[Path, typer.Option(help="File to write the OpenDRIVE text of Wamtown01 to.")] = Path(
        "Wamtown01.xodr"
    ),
) -> None:
    """Write the town of the embedded world as an OpenDRIVE file."""
    replace_file(writable_file(out, "out"), build_town())
    typer.echo(f"{out}: {len(WAMTOWN01.junctions)} junctions, {len(WAMTOWN01.roads)} roads")
