"""What drivers know of the roads: lanes as rows of points, where ways cross, and where one stops."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from carla_bridge.routes.lane_graph import FORBIDDEN_CHANGE_COST_M, Lane, LaneGraph, LaneKey
from carla_bridge.server.actors.speed_limits import SpeedLimits
from carla_bridge.server.town.road_signals import SignalSpec

if TYPE_CHECKING:
    import carla

X, Y, COS, SIN, LIMIT, ARC = range(6)  # columns of a table of points
FIELDS = 6
SPACING_M = 1.0
LATERAL_MPS2 = 2.2  # sideways acceleration that a driver bears in a curve
SLOWEST_CURVE_MPS = 2.5
CLEARANCE_M = 2.7  # ways whose middles come closer than this cannot be driven at the same time
TURN_RAD = math.radians(30.0)
LEVEL_M = 4.0


@dataclass(frozen=True)
class Conflict:
    """Two ways through a junction that cross or merge: from where to where on each, by arc length."""

    other: LaneKey
    own_m: tuple[float, float]
    other_m: tuple[float, float]


@dataclass(frozen=True)
class Hold:
    """A stop line on a lane, by arc length, and the signals it belongs to."""

    arc_m: float
    specs: tuple[SignalSpec, ...]


@dataclass
class TrafficLane:
    """A lane as drivers see it.

    Attributes:
        key, length_m, in_junction: as in the graph.
        table: (N, 6) points along its middle, at most 1 m apart: x, y, direction as cosine and sine, speed limit in m/s
            (lower in curves), arc length.
        successors: lanes to go on to, without those that lead to a dead end if there are others.
        neighbours: lanes to change to.
        conflicts: with other ways through the junction.
        hold: its stop line.
        turn: -1 for a left turn, 1 for a right turn, 0 for neither.
    """

    key: LaneKey
    table: np.ndarray
    in_junction: bool
    successors: list[LaneKey] = field(default_factory=list)
    neighbours: list[LaneKey] = field(default_factory=list)
    conflicts: tuple[Conflict, ...] = ()
    hold: Hold | None = None
    turn: int = 0

    @cached_property
    def slowest_mps(self) -> float:
        """Speed at its tightest place."""
        return float(self.table[:, LIMIT].min())

    @property
    def length_m(self) -> float:
        """Arc length of the whole."""
        return float(self.table[-1, ARC])


class RoadNetwork:
    """The driving lanes of a town; read once.

    Args:
        carla_map: the town's map.
        opendrive: its text.
        signals: its lights and signs.
    """

    def __init__(self, carla_map: carla.Map, opendrive: str, signals: Sequence[SignalSpec]) -> None:
        graph = LaneGraph(carla_map)
        limits = _SectionLimits(opendrive)
        self.lanes: dict[LaneKey, TrafficLane] = {}
        for key, lane in graph.lanes.items():
            self.lanes[key] = TrafficLane(key, _table(lane, limits.mps(key)), lane.in_junction)
        live = _live(graph)
        for key, lane in graph.lanes.items():
            ours = self.lanes[key]
            ours.successors = [s for s in lane.successors if s in live] or list(lane.successors)
            allowed = (n for n, cost in lane.neighbours.items() if cost < FORBIDDEN_CHANGE_COST_M)
            ours.neighbours = [n for n in allowed if n in live]
            bend = graph.turn_rad(key) if lane.in_junction else 0.0
            ours.turn = 0 if abs(bend) < TURN_RAD else int(math.copysign(1, bend))
        self.live = frozenset(live)
        self._mark_conflicts(graph)
        self._mark_holds(carla_map, graph, signals)
        self._points = np.concatenate([lane.table[:, : SIN + 1] for lane in self.lanes.values()])
        self._z = np.concatenate(
            [np.interp(self.lanes[k].table[:, ARC], lane.arc_m, lane.xyz_m[:, 2]) for k, lane in graph.lanes.items()]
        )
        self._owners = [(key, i) for key, lane in self.lanes.items() for i in range(len(lane.table))]
        sizes = itertools.accumulate((len(lane.table) for lane in self.lanes.values()), initial=0)
        self._starts = dict(zip(self.lanes, sizes, strict=False))

    def locate(
        self, x_m: float, y_m: float, z_m: float, yaw_rad: float, radius_m: float = 3.0, most_rad: float = 1.2
    ) -> list[tuple[LaneKey, int]]:
        """Lanes that lead past a place in about a direction, with the index of the nearest point; nearest first."""
        dx, dy = self._points[:, X] - x_m, self._points[:, Y] - y_m
        near = np.flatnonzero((dx * dx + dy * dy < radius_m * radius_m) & (np.abs(self._z - z_m) < LEVEL_M))
        along = self._points[near, COS] * math.cos(yaw_rad) + self._points[near, SIN] * math.sin(yaw_rad)
        near = near[along > math.cos(most_rad)]
        order = near[np.argsort(dx[near] ** 2 + dy[near] ** 2, kind="stable")]
        found: dict[LaneKey, int] = {}
        for index in order.tolist():
            key, i = self._owners[index]
            found.setdefault(key, i)
        return list(found.items())

    def height_m(self, key: LaneKey, index: int) -> float:
        """Height of a point of a lane."""
        return float(self._z[self._starts[key] + index])

    def _mark_conflicts(self, graph: LaneGraph) -> None:
        """Find the pairs of junction lanes that come too close, but for those that part from the same lane."""
        inside = [lane for lane in self.lanes.values() if lane.in_junction]
        before: dict[LaneKey, set[LaneKey]] = defaultdict(set)
        for key, lane in graph.lanes.items():
            for successor in lane.successors:
                before[successor].add(key)
        boxes = np.array([(*lane.table[:, :2].min(0), *lane.table[:, :2].max(0)) for lane in inside]).reshape(-1, 4)
        heights = np.array([graph.lanes[lane.key].xyz_m[:, 2].mean() for lane in inside])
        found: dict[LaneKey, list[Conflict]] = defaultdict(list)
        for i, lane in enumerate(inside):
            close = (boxes[:, :2] < boxes[i, 2:] + CLEARANCE_M).all(axis=1)
            close &= (boxes[:, 2:] > boxes[i, :2] - CLEARANCE_M).all(axis=1)
            close &= np.abs(heights - heights[i]) < LEVEL_M
            for j in np.flatnonzero(close).tolist():
                other = inside[j]
                linked = other.key in lane.successors or lane.key in other.successors
                if j <= i or linked or before[lane.key] & before[other.key]:
                    continue
                gaps = np.hypot(
                    lane.table[:, None, X] - other.table[None, :, X], lane.table[:, None, Y] - other.table[None, :, Y]
                )
                own, others = np.nonzero(gaps < CLEARANCE_M)
                if len(own):
                    a = (float(lane.table[own.min(), ARC]), float(lane.table[own.max(), ARC]))
                    b = (float(other.table[others.min(), ARC]), float(other.table[others.max(), ARC]))
                    found[lane.key].append(Conflict(other.key, a, b))
                    found[other.key].append(Conflict(lane.key, b, a))
        for key, conflicts in found.items():
            self.lanes[key].conflicts = tuple(conflicts)

    def _mark_holds(self, carla_map: carla.Map, graph: LaneGraph, signals: Sequence[SignalSpec]) -> None:
        marks: dict[LaneKey, list[tuple[float, SignalSpec]]] = defaultdict(list)
        for spec in signals:
            for stop in spec.stops:
                waypoint = carla_map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
                if waypoint is None:
                    continue
                key = (waypoint.road_id, waypoint.section_id, waypoint.lane_id)
                if key in graph.lanes:
                    place = waypoint.transform.location
                    arc_m, _ = graph.lanes[key].project(np.array([place.x, place.y]))
                    marks[key].append((arc_m, spec))
        for key, found in marks.items():
            self.lanes[key].hold = Hold(min(arc for arc, _ in found), tuple(spec for _, spec in found))


class _SectionLimits:
    """Speed limits by lane section."""

    def __init__(self, opendrive: str) -> None:
        self._limits = SpeedLimits(opendrive, lambda x, y, z: None)
        self._starts = {
            int(road.get("id", 0)): [float(e.get("s", 0.0)) for e in road.findall("lanes/laneSection")]
            for road in ElementTree.fromstring(opendrive).iter("road")
        }

    def mps(self, key: LaneKey) -> float:
        """Limit at the start of the section that a lane belongs to."""
        starts = self._starts.get(key[0], [])
        start_m = starts[key[1]] if key[1] < len(starts) else 0.0
        return self._limits.on(key[0], start_m) / 3.6


def with_directions(points_m: np.ndarray, limit_mps: np.ndarray) -> np.ndarray:
    """Table of points from their places and the limits there: adds directions and arc lengths, and slows for curves."""
    table = np.empty((len(points_m), FIELDS))
    table[:, :2] = points_m
    steps = np.diff(points_m, axis=0)
    lengths = np.hypot(steps[:, 0], steps[:, 1])
    table[:, ARC] = np.concatenate([[0.0], np.cumsum(lengths)])
    chords = np.empty_like(points_m)
    chords[1:-1] = points_m[2:] - points_m[:-2]
    chords[0], chords[-1] = steps[0], steps[-1]
    yaw = np.unwrap(np.arctan2(chords[:, 1], chords[:, 0]))
    table[:, COS], table[:, SIN] = np.cos(yaw), np.sin(yaw)
    table[:, LIMIT] = limit_mps
    if len(points_m) > 2:
        reach = min(3, len(points_m) - 1)
        bent = np.abs(yaw[reach:] - yaw[:-reach]) / np.maximum(table[reach:, ARC] - table[:-reach, ARC], 0.1)
        curvature = np.interp(
            table[:, ARC], (table[reach:, ARC] + table[:-reach, ARC]) / 2, bent
        )
        slow = np.sqrt(LATERAL_MPS2 / np.maximum(curvature, 1e-4))
        table[:, LIMIT] = np.minimum(table[:, LIMIT], np.maximum(slow, SLOWEST_CURVE_MPS))
    return table


def _table(lane: Lane, limit_mps: float) -> np.ndarray:
    count = max(2, math.ceil(lane.length_m / SPACING_M) + 1)
    points = lane.at(np.linspace(0.0, lane.length_m, count))[:, :2]
    return with_directions(points, np.full(count, limit_mps))


def _live(graph: LaneGraph) -> set[LaneKey]:
    """Lanes from which one can drive on for ever; all of them where there is no such lane."""
    live = set(graph.lanes)
    while True:
        dead = {key for key in live if not any(s in live for s in graph.lanes[key].successors)}
        if not dead:
            return live or set(graph.lanes)
        live -= dead
