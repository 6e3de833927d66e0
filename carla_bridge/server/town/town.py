"""A town: an OpenDRIVE file, its `carla.Map`, and the geometry that the renderer and the collision test need.

Works for any OpenDRIVE file that CARLA can read. Lane surfaces are sampled through `carla.Map`, so they agree with what
a client sees; which lanes and marks exist is read from the XML, because `carla.Map` cannot list them.

A file that is not ours and has no signals gets some (`opendrive_signals`), in the text that clients see too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import carla
import numpy as np

from carla_bridge.server.geometry.scene import LaneStrip, MarkLine, SignalKind, StaticBox
from carla_bridge.server.town.ground import GroundHeight
from carla_bridge.server.town.islands import find_islands
from carla_bridge.server.town.opendrive_signals import has_signals, with_signals
from carla_bridge.server.town.road_signals import SignalSpec
from carla_bridge.server.town.scenery import build_scenery, pole_box
from carla_bridge.server.town.signal_reader import on_road, read_signals
from carla_bridge.server.town.town_library import DEFAULT_TOWN, SHIPPED_FOLDER, TownLibrary
from wamdiff2_core.errors import UserError

SURFACE_LANES = (
    "driving",
    "bidirectional",
    "parking",
    "shoulder",
    "stop",
    "biking",
    "sidewalk",
    "border",
    "restricted",
)
SAMPLE_STEP_M = 1.5
MAX_SEGMENT_M = 12.0
MAX_SAGITTA_M = 0.03
MAX_SAG_M = 0.01
STOP_LINE_SHARE, STOP_LINE_WIDTH_M = 0.94, 0.4  # of the lane's width; along the road
SPAWN_STEP_M = 25.0
SPAWN_END_GAP_M = 10.0
_EPSILON_M = 1e-3  # CARLA assigns a joint to one of the two sections: stay inside of the one that is meant


@dataclass(frozen=True)
class LaneSpan:
    """One lane of one lane section: where it lies along its road."""

    road_id: int
    lane_id: int
    kind: str
    in_junction: bool
    start_s_m: float
    end_s_m: float


@dataclass(frozen=True)
class Town:
    """A loaded town.

    Attributes:
        name: last part of the map name, such as `Wamtown01`.
        opendrive: text of the OpenDRIVE file.
        map: CARLA's own map of it.
    """

    name: str
    opendrive: str
    map: carla.Map

    @classmethod
    def load(cls, name_or_path: str | Path = DEFAULT_TOWN) -> Town:
        """Load a shipped town by name (`Wamtown01`, `Carla/Maps/Wamtown01`) or any town from a file: a `Path`, or a
        name that ends with `.xodr`.

        Shipped towns are what they are; any other file without signals is given some.

        Raises:
            UserError: no such town or file, or CARLA cannot read the file.
        """
        is_file = isinstance(name_or_path, Path) or name_or_path.endswith(".xodr")
        path = Path(name_or_path) if is_file else TownLibrary().find(str(name_or_path))
        try:
            opendrive = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"town {path}", "an OpenDRIVE file", str(error)) from error
        town = cls.from_opendrive(path.stem, opendrive)
        if path.parent.resolve() == SHIPPED_FOLDER.resolve() or has_signals(opendrive):
            return town
        return cls.from_opendrive(path.stem, with_signals(path.stem, opendrive))

    @classmethod
    def from_opendrive(cls, name: str, opendrive: str) -> Town:
        """Make a town from OpenDRIVE text.

        Raises:
            UserError: CARLA cannot read the text, or it has no driving lane.
        """
        try:
            ElementTree.fromstring(opendrive)
            carla_map = carla.Map(name, opendrive)
        except (ElementTree.ParseError, RuntimeError) as error:
            raise UserError(f"town {name}", "an OpenDRIVE file that CARLA can read", str(error)) from error
        if not carla_map.get_topology():
            raise UserError(f"town {name}", "an OpenDRIVE file with driving lanes", "none")
        return cls(name, opendrive, carla_map)

    @cached_property
    def spawn_points(self) -> list[carla.Transform]:
        """Poses on the ground in the middle of driving lanes, 25 m apart, clear of junctions; in a fixed order."""
        points = []
        for span in self._spans:
            if span.kind != "driving" or span.in_junction:
                continue
            for s in np.arange(span.start_s_m + SPAWN_END_GAP_M, span.end_s_m - SPAWN_END_GAP_M, SPAWN_STEP_M):
                waypoint = self.map.get_waypoint_xodr(span.road_id, span.lane_id, float(s))
                if waypoint is not None:
                    points.append(waypoint.transform)
        return points

    @cached_property
    def lanes(self) -> tuple[LaneStrip, ...]:
        """Surfaces of all lanes that one can drive, park or walk on."""
        strips = (self._strip(span) for span in self._spans if span.kind in SURFACE_LANES)
        return tuple(strip for strip in strips if strip is not None)

    @cached_property
    def marks(self) -> tuple[MarkLine, ...]:
        """Painted lines and kerbs, by the file's `roadMark` elements, and the stop lines of its signals."""
        along = (
            mark for road in self._roads for section in self._sections(road) for mark in self._section_marks(*section)
        )
        return (*along, *self._stop_lines())

    @cached_property
    def crosswalks(self) -> tuple[np.ndarray, ...]:
        """Crosswalks, each (4, 3) corners in CARLA's world; the first side runs along the road."""
        corners = [(c.x, c.y, c.z) for c in self.map.get_crosswalks()]
        polygons, begin = [], 0
        for i in range(1, len(corners)):
            # the map gives one list for all; each polygon ends where it began
            if i > begin and corners[i] == corners[begin]:
                polygons.append(np.array(corners[begin:i]))
                begin = i + 1
        return tuple(polygon for polygon in polygons if len(polygon) == 4)

    @cached_property
    def islands(self) -> tuple[np.ndarray, ...]:
        """Asphalt between the ways of junctions, as rectangles (4, 3)."""
        return find_islands(self.lanes, self.ground_z_m)

    @cached_property
    def signals(self) -> tuple[SignalSpec, ...]:
        """Traffic lights and signs, in order of their ids."""
        return read_signals(self.opendrive, self.map)

    @cached_property
    def ground_z_m(self) -> GroundHeight:
        """Height of the ground: `ground_z_m(x_m, y_m, near_z_m=None)`, metres, CARLA's world."""
        return GroundHeight(self.lanes)

    def road_at(self, x_m: float, y_m: float, z_m: float) -> tuple[int, float] | None:
        """Road id, and s in metres, of the driving lane nearest to a place in CARLA's world."""
        waypoint = self.map.get_waypoint(carla.Location(x_m, y_m, z_m))
        return None if waypoint is None else (waypoint.road_id, waypoint.s)

    @cached_property
    def static_boxes(self) -> tuple[StaticBox, ...]:
        """What can be hit beside the roads; depends on nothing but the town's name and file.

        The poles of lights and signs come last. One that a file puts onto a lane is left out: CARLA's stand beside it.
        """
        posts = [(post, spec.kind) for spec in self.signals for post in spec.posts]
        scenery = build_scenery(self.name, self.lanes, [post.foot_m[:2] for post, _ in posts])
        beside = [(post, kind) for post, kind in posts if not on_road(self.map, carla.Location(*post.foot_m))]
        return (*scenery, *(pole_box(post, kind) for post, kind in beside))

    def _stop_lines(self) -> list[MarkLine]:
        lines = []
        for spec in self.signals:
            for stop in spec.stops:
                place = self.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
                if place is None:
                    continue
                middle, right = place.transform.location, place.transform.get_right_vector()
                reach = place.lane_width / 2 * STOP_LINE_SHARE
                ends = [(middle.x + k * right.x, middle.y + k * right.y, middle.z) for k in (-reach, reach)]
                kind = "yield_line" if spec.kind is SignalKind.YIELD else "stop_line"
                lines.append(MarkLine(np.array(ends), kind, "white", STOP_LINE_WIDTH_M))
        return lines

    def lane_polylines(self) -> list[np.ndarray]:
        """Edges of all driving lanes, each (N, 2) metres in CARLA's world, to draw a map from."""
        return [edge[:, :2] for lane in self.lanes if lane.kind == "driving" for edge in (lane.left_m, lane.right_m)]

    @cached_property
    def _roads(self) -> list[ElementTree.Element]:
        return ElementTree.fromstring(self.opendrive).findall("road")

    @staticmethod
    def _sections(road: ElementTree.Element) -> list[tuple[ElementTree.Element, ElementTree.Element, float, float]]:
        """(road, lane section, start s, end s) for every lane section."""
        sections = road.findall("lanes/laneSection")
        starts = [float(section.get("s", 0.0)) for section in sections]
        ends = [*starts[1:], float(road.get("length", 0.0))]
        return [
            (road, section, start, end)
            for section, start, end in zip(sections, starts, ends, strict=True)
            if end - start > 4 * _EPSILON_M
        ]

    @cached_property
    def _spans(self) -> list[LaneSpan]:
        return [
            LaneSpan(
                int(road.get("id", 0)),
                int(lane.get("id", 0)),
                lane.get("type", "none"),
                road.get("junction", "-1") != "-1",
                start,
                end,
            )
            for parent in self._roads
            for road, section, start, end in self._sections(parent)
            for lane in (*section.findall("left/lane"), *section.findall("right/lane"))
        ]

    def _edges(
        self, road_id: int, lane_id: int, start_s_m: float, end_s_m: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Left and right edge of a lane, thinned where straight, ordered by s; None when it has no width."""
        count = max(2, int((end_s_m - start_s_m) / SAMPLE_STEP_M) + 2)
        rows = []
        for s in np.linspace(start_s_m + _EPSILON_M, end_s_m - _EPSILON_M, count):
            waypoint = self.map.get_waypoint_xodr(road_id, lane_id, float(s))
            if waypoint is None:
                continue
            pose = waypoint.transform
            right = pose.get_right_vector()
            rows.append(
                (
                    pose.location.x,
                    pose.location.y,
                    pose.location.z,
                    right.x,
                    right.y,
                    right.z,
                    waypoint.lane_width / 2,
                    pose.rotation.yaw,
                    pose.rotation.pitch,
                )
            )
        table = np.array(rows)
        if len(table) < 2 or table[:, 6].max() < 0.05:
            return None
        table = table[_thin(table)]
        reach = table[:, 3:6] * table[:, 6:7]
        return table[:, :3] - reach, table[:, :3] + reach

    def _strip(self, span: LaneSpan) -> LaneStrip | None:
        edges = self._edges(span.road_id, span.lane_id, span.start_s_m, span.end_s_m)
        if edges is None:
            return None
        left, right = edges if span.lane_id < 0 else (edges[0][::-1], edges[1][::-1])
        return LaneStrip(span.road_id, span.start_s_m, span.lane_id, span.in_junction, span.kind, left, right)

    def _section_marks(
        self, road: ElementTree.Element, section: ElementTree.Element, start: float, end: float
    ) -> list[MarkLine]:
        road_id = int(road.get("id", 0))
        marks = []
        for lane in section.iter("lane"):
            lane_id = int(lane.get("id", 0))
            elements = lane.findall("roadMark")
            starts = [start + float(e.get("sOffset", 0.0)) for e in elements]
            for element, s0, s1 in zip(elements, starts, [*starts[1:], end], strict=True):
                kinds = element.get("type", "none").split()
                if kinds[0] not in ("solid", "broken", "curb") or s1 - s0 < 0.1:
                    continue
                line = self._boundary(section, road_id, lane_id, s0, s1)
                if line is None:
                    continue
                color = "yellow" if element.get("color") == "yellow" else "white"
                width = float(element.get("width") or 0.15)
                offsets = (0.0,) if len(kinds) == 1 else (-width, width)
                for kind, offset in zip(kinds, offsets, strict=False):
                    marks.append(MarkLine(_shifted(line, offset), kind, color, width))
        return marks

    def _boundary(
        self, section: ElementTree.Element, road_id: int, lane_id: int, start_s_m: float, end_s_m: float
    ) -> np.ndarray | None:
        """The line a lane's mark lies on: its outer edge, or for lane 0 the inner edge of a neighbour."""
        present = {int(lane.get("id", 0)) for lane in section.iter("lane")}
        neighbour = lane_id or next((n for n in (-1, 1) if n in present), None)
        if neighbour is None:
            return None
        edges = self._edges(road_id, neighbour, start_s_m, end_s_m)
        if edges is None:
            return None
        # traffic of either direction has the outer edge of its lane on the right
        return edges[1] if lane_id else edges[0]


def _thin(table: np.ndarray) -> np.ndarray:
    """Indices of samples to keep: the ends, and so many that chords stay close to the arc and short."""
    keep = [0]
    for i in range(1, len(table) - 1):
        last = table[keep[-1]]
        turned = abs((np.deg2rad(table[i + 1, 7] - last[7]) + np.pi) % (2 * np.pi) - np.pi)
        far = np.hypot(*(table[i + 1, :2] - last[:2]))
        widened = abs(table[i + 1, 6] - last[6])
        steepened = abs(np.deg2rad(table[i + 1, 8] - last[8]))
        bent = turned * far / 8 > MAX_SAGITTA_M or steepened * far / 8 > MAX_SAG_M
        if bent or far > MAX_SEGMENT_M or widened > 0.05:
            keep.append(i)
    return np.array([*keep, len(table) - 1])


def _shifted(line_m: np.ndarray, offset_m: float) -> np.ndarray:
    """Parallel line at a sideways offset."""
    if offset_m == 0.0:
        return line_m
    tangent = np.gradient(line_m[:, :2], axis=0)
    tangent /= np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-9)
    shifted = line_m.copy()
    shifted[:, :2] += offset_m * np.stack([-tangent[:, 1], tangent[:, 0]], axis=1)
    return shifted
