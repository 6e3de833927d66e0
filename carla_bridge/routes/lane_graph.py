"""The driving lanes of a `carla.Map` as a graph, with their centre lines.

Written against the map's public calls only, so it works on a map from a server and on one built from a file.
Everything is in CARLA's world. A lane is one lane of one lane section of one road.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wamdiff2_core.frames import wrap_angle

if TYPE_CHECKING:
    import carla

STEP_M = 1.0
CHANGE_RUN_UP_M = 20.0
CHANGE_ROOM_M = 15.0
ALLOWED_CHANGE_COST_M = 10.0
FORBIDDEN_CHANGE_COST_M = 200.0  # a detour of this length is better than crossing a solid line

LaneKey = tuple[int, int, int]  # road id, section id, lane id


@dataclass
class Lane:
    """One lane.

    Attributes:
        key: road, section and lane id.
        xyz_m: (N, 3) centre line in the direction of travel.
        arc_m: (N,) arc length along it.
        in_junction: whether its road is a junction's.
        successors: lanes that go on from its end, in a fixed order.
        neighbours: lane to the left or right with the same direction -> what a change costs, metres.
    """

    key: LaneKey
    xyz_m: np.ndarray
    in_junction: bool
    successors: list[LaneKey] = field(default_factory=list)
    neighbours: dict[LaneKey, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = np.linalg.norm(np.diff(self.xyz_m[:, :2], axis=0), axis=1)
        self.arc_m = np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def length_m(self) -> float:
        """Length of the centre line."""
        return float(self.arc_m[-1])

    def heading_rad(self, *, at_end: bool) -> float:
        """Direction of travel at one end, CARLA's world, clockwise positive."""
        a, b = self.xyz_m[-2:, :2] if at_end else self.xyz_m[:2, :2]
        return float(np.arctan2(b[1] - a[1], b[0] - a[0]))

    @property
    def turn_rad(self) -> float:
        """Change of heading along it, CARLA's sign (right positive), in [-pi, pi)."""
        return _turn_rad(self, self)

    def cut(self, start_m: float, end_m: float) -> np.ndarray:
        """(K, 3) centre line between two arc lengths, both ends included."""
        inner = self.arc_m[(self.arc_m > start_m + 1e-6) & (self.arc_m < end_m - 1e-6)]
        return self.at(np.array([start_m, *inner, end_m]))

    def at(self, arc_m: np.ndarray) -> np.ndarray:
        """(K, 3) points at arc lengths."""
        return np.stack([np.interp(arc_m, self.arc_m, self.xyz_m[:, k]) for k in range(3)], axis=1)

    def project(self, point_m: np.ndarray) -> tuple[float, float]:
        """Arc length of the nearest point of the centre line, and the horizontal distance to it."""
        start, step = self.xyz_m[:-1, :2], np.diff(self.xyz_m[:, :2], axis=0)
        lengths = np.maximum(np.diff(self.arc_m), 1e-9)
        share = np.clip(np.einsum("ij,ij->i", point_m[:2] - start, step) / lengths**2, 0.0, 1.0)
        distances = np.linalg.norm(start + share[:, None] * step - point_m[:2], axis=1)
        best = int(np.argmin(distances))
        return float(self.arc_m[best] + share[best] * lengths[best]), float(distances[best])


@dataclass(frozen=True)
class Piece:
    """A stretch of one lane, by arc length."""

    key: LaneKey
    start_m: float
    end_m: float


LanePlace = tuple[LaneKey, float]  # a lane and an arc length on it


class LaneGraph:
    """All driving lanes of a map.

    Args:
        carla_map: the map; it is read once.
    """

    def __init__(self, carla_map: carla.Map) -> None:
        self.lanes: dict[LaneKey, Lane] = {}
        begins: dict[LaneKey, carla.Waypoint] = {}
        links: list[tuple[LaneKey, LaneKey]] = []
        for begin, following in carla_map.get_topology():
            begins.setdefault(lane_key(begin), begin)
            begins.setdefault(lane_key(following), following)
            links.append((lane_key(begin), lane_key(following)))
        for key in sorted(begins):
            # CARLA's walk goes on to the end of the road, through later lane sections
            walk = itertools.takewhile(lambda w, key=key: lane_key(w) == key, begins[key].next_until_lane_end(STEP_M))
            waypoints = [begins[key], *walk]
            points = [(w.transform.location.x, w.transform.location.y, w.transform.location.z) for w in waypoints]
            xyz = np.array(points, dtype=np.float64)
            xyz = xyz[np.concatenate([[True], np.linalg.norm(np.diff(xyz[:, :2], axis=0), axis=1) > 1e-3])]
            if len(xyz) < 2:
                yaw = np.deg2rad(begins[key].transform.rotation.yaw)
                xyz = np.stack([xyz[0], xyz[0] + 0.01 * np.array([np.cos(yaw), np.sin(yaw), 0.0])])
            lane = Lane(key, xyz, bool(begins[key].is_junction))
            lane.neighbours = _neighbours(waypoints, set(begins))
            self.lanes[key] = lane
        self._sections_after: dict[LaneKey, LaneKey] = {}
        self._sections_before: dict[LaneKey, LaneKey] = {}
        for key, successor in sorted(set(links)):
            if key != successor:
                self.lanes[key].successors.append(successor)
                if successor[:2] == (key[0], key[1] - int(np.sign(key[2]))):
                    self._sections_after.setdefault(key, successor)
                    self._sections_before.setdefault(successor, key)
        self._points = np.concatenate([lane.xyz_m for lane in self.lanes.values()])
        self._owners = [lane for lane in self.lanes.values() for _ in range(len(lane.xyz_m))]

    def near(self, point_m: np.ndarray, radius_m: float) -> list[tuple[LanePlace, float]]:
        """Places of all lanes within a horizontal distance, nearest first, with that distance; one place a lane."""
        gaps = np.linalg.norm(self._points[:, :2] - point_m[:2], axis=1)
        level = np.abs(self._points[:, 2] - point_m[2]) < 5.0  # bridges
        index = np.flatnonzero((gaps < radius_m + STEP_M) & level)
        keys = sorted({self._owners[i].key for i in index})
        found = []
        for key in keys:
            arc, distance = self.lanes[key].project(point_m)
            if distance <= radius_m:
                found.append(((key, arc), distance))
        return sorted(found, key=lambda item: item[1])

    def nearest(self, point_m: np.ndarray) -> tuple[LanePlace, float]:
        """Nearest place of all lanes, and its horizontal distance."""
        lane = self._owners[int(np.argmin(np.linalg.norm(self._points - point_m, axis=1)))]
        arc, distance = lane.project(point_m)
        return (lane.key, arc), distance

    def search(
        self, start: LanePlace, goals: Iterable[LanePlace], limit_m: float
    ) -> dict[LanePlace, tuple[float, list[Piece]]]:
        """Shortest ways from one place to several (Dijkstra).

        Args:
            start: where to start.
            goals: where to go.
            limit_m: ways longer than this are not found.

        Returns:
            For each goal that can be reached: cost (metres driven plus the cost of lane changes) and the pieces.
        """
        wanted: dict[LaneKey, list[LanePlace]] = {}
        for goal in goals:
            wanted.setdefault(goal[0], []).append(goal)
        missing = sum(len(places) for places in wanted.values())
        found: dict[LanePlace, tuple[float, list[Piece]]] = {}
        counter = itertools.count()
        settled: set[tuple[LaneKey, int]] = set()
        heap: list[tuple[float, int, LaneKey, float, LanePlace | None, list[Piece]]] = []
        heapq.heappush(heap, (0.0, next(counter), *start, None, []))
        while heap and missing:
            cost, _, key, arc, reached, pieces = heapq.heappop(heap)
            if cost > limit_m:
                break
            if reached is not None:
                if reached not in found:
                    found[reached] = (cost, pieces)
                    missing -= 1
                continue
            if (key, round(arc)) in settled:
                continue
            settled.add((key, round(arc)))
            lane = self.lanes[key]
            for goal in wanted.get(key, ()):
                # keypoints are rounded to 0.1 m: one that lies a little behind is the same place
                if goal[1] >= arc - 0.5:
                    end = max(goal[1], arc)
                    heapq.heappush(
                        heap, (cost + end - arc, next(counter), *goal, goal, [*pieces, Piece(key, arc, end)])
                    )
            for successor in lane.successors:
                way = [*pieces, Piece(key, arc, lane.length_m)]
                heapq.heappush(heap, (cost + lane.length_m - arc, next(counter), successor, 0.0, None, way))
            for neighbour, change_cost in lane.neighbours.items():
                for change in self._changes(lane, self.lanes[neighbour], arc, wanted.get(neighbour, ())):
                    share = change / lane.length_m
                    way = [*pieces, Piece(key, arc, change)]
                    there = share * self.lanes[neighbour].length_m
                    heapq.heappush(
                        heap, (cost + change - arc + change_cost, next(counter), neighbour, there, None, way)
                    )
        return found

    @staticmethod
    def _changes(lane: Lane, neighbour: Lane, arc_m: float, goals: Iterable[LanePlace]) -> list[float]:
        """Arc lengths on `lane` at which to cross over: with some run-up, but before a goal on the neighbour.

        Key points 2 m apart may jump to the neighbour, so a goal there allows a short change; passing on needs room.
        """
        ends = [goal[1] / neighbour.length_m * lane.length_m for goal in goals]
        if lane.length_m - arc_m >= CHANGE_ROOM_M:
            ends.append(lane.length_m)
        return sorted({min(arc_m + CHANGE_RUN_UP_M, (arc_m + end) / 2) for end in ends if end >= arc_m})

    def follow(self, place: LanePlace, distance_m: float) -> list[Piece]:
        """Go on from a place by at least a distance along the straightest successors, as far as there are any."""
        key, arc = place
        pieces: list[Piece] = []
        left = distance_m
        while True:
            lane = self.lanes[key]
            end = min(lane.length_m, arc + left)
            pieces.append(Piece(key, arc, end))
            left -= end - arc
            if left <= 1e-6 or not lane.successors:
                return pieces
            key, arc = (
                min(lane.successors, key=lambda successor: (round(abs(self.turn_rad(successor)), 6), successor)),
                0.0,
            )

    def turn_rad(self, key: LaneKey) -> float:
        """Change of heading along a lane, CARLA's sign (right positive), in [-pi, pi).

        Inside a junction it is that of the whole way through, whose road has several lane sections in some towns: the
        same for the lane of each of them.
        """
        first = last = key
        if self.lanes[key].in_junction:
            while first in self._sections_before:
                first = self._sections_before[first]
            while last in self._sections_after:
                last = self._sections_after[last]
        return _turn_rad(self.lanes[first], self.lanes[last])


def _turn_rad(first: Lane, last: Lane) -> float:
    return wrap_angle(last.heading_rad(at_end=True) - first.heading_rad(at_end=False))


def lane_key(waypoint: carla.Waypoint) -> LaneKey:
    """The lane that a waypoint lies on."""
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id


def _neighbours(waypoints: list[carla.Waypoint], known: set[LaneKey]) -> dict[LaneKey, float]:
    """Same-direction lanes beside this one; a change is allowed if the marks allow it anywhere along the lane."""
    middle = waypoints[len(waypoints) // 2]
    if middle.is_junction:
        return {}
    sampled = waypoints[:: max(1, len(waypoints) // 8)]
    allowed = {name for w in sampled for name in ("Left", "Right") if str(w.lane_change) in (name, "Both")}
    found = {}
    for name, neighbour in (("Left", middle.get_left_lane()), ("Right", middle.get_right_lane())):
        if neighbour is None or neighbour.lane_id * middle.lane_id < 0 or lane_key(neighbour) not in known:
            continue
        found[lane_key(neighbour)] = ALLOWED_CHANGE_COST_M if name in allowed else FORBIDDEN_CHANGE_COST_M
    return found
