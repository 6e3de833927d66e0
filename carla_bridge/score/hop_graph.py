"""Routes in hops of one metre, as CARLA's own global route planner counts them.

Bench2Drive's junction rule compares a route's completion with a share of *planner hops*, not of metres: hops are dense
over a junction and sparse between key points two metres apart, where each pair of key points gives one or two. A
planner that only finds the same way would count differently, so this one follows the counting of
`agents.navigation.global_route_planner` (CARLA 0.9.13 and later): nodes at rounded lane ends, A* over hops with lane
changes for nothing, and a way that ends within two metres of each key point. Everything is in CARLA's world.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.routes.lane_graph import LaneKey, lane_key

if TYPE_CHECKING:
    import carla

HOP_M = 1.0
END_M = 2 * HOP_M
CHANGE_HOPS = 5  # a lane change lands this far along the other lane
MOST_HOPS = 100_000  # longer than any lane: a map whose lane never comes near its end

Node = tuple[float, ...]  # rounded lane end, or where a dead end stops


class NoHops(ValueError):  # noqa: N818
    """The planner finds no way; the message says where."""


@dataclass
class _Edge:
    """One lane from its entry to its exit, or a lane change, which has no waypoints of its own."""

    inner: list[carla.Waypoint]
    entry: carla.Waypoint
    exit: carla.Waypoint
    is_change: bool = False

    def __post_init__(self) -> None:
        self.waypoints = [] if self.is_change else [self.entry, *self.inner, self.exit]
        self.xyz_m = np.array([_xyz(waypoint) for waypoint in self.waypoints])
        self.hops = 0 if self.is_change else len(self.inner) + 1

    def nearest(self, waypoint: carla.Waypoint) -> int:
        """Index of the nearest of all waypoints."""
        return int(np.argmin(np.linalg.norm(self.xyz_m - _xyz(waypoint), axis=1)))

    def after_change(self, waypoint: carla.Waypoint) -> carla.Waypoint:
        """Where a change from `waypoint` lands on this lane."""
        if not self.inner:
            return self.exit
        nearest = int(np.argmin(np.linalg.norm(self.xyz_m[1:-1] - _xyz(waypoint), axis=1)))
        return self.inner[min(nearest + CHANGE_HOPS, len(self.inner) - 1)]


class HopGraph:
    """The lanes of one map in hops; the map is read once."""

    def __init__(self, carla_map: carla.Map) -> None:
        self._map = carla_map
        self._edges: dict[Node, dict[Node, _Edge]] = {}
        self._ends: dict[LaneKey, tuple[Node, Node]] = {}
        lanes = [(entry, exit_, _hops(entry, exit_)) for entry, exit_ in carla_map.get_topology()]
        for entry, exit_, inner in lanes:
            self._ends[lane_key(entry)] = (_node(entry), _node(exit_))
            self._add(_node(entry), _node(exit_), _Edge(inner, entry, exit_))
        for _, exit_, _ in lanes:
            if lane_key(exit_) not in self._ends:
                self._add_dead_end(exit_)
        for entry, _, inner in lanes:
            self._add_changes(entry, inner)

    def junction_flags(self, keypoints: Sequence[carla.Location]) -> list[bool]:
        """Whether each hop of a route lies in a junction.

        Args:
            keypoints: of the route; hops are counted from each to the next.

        Raises:
            NoHops: a key point lies on no lane of the graph, or does not lead to the next.
        """
        return [waypoint.is_junction for a, b in itertools.pairwise(keypoints) for waypoint in self._trace(a, b)]

    def _trace(self, origin: carla.Location, destination: carla.Location) -> list[carla.Waypoint]:
        start, end = self._ends_at(origin), self._ends_at(destination)
        nodes = [*self._search(start[0], end[0]), end[1]]
        here, goal = self._map.get_waypoint(origin), self._map.get_waypoint(destination)
        end_xyz = np.array([destination.x, destination.y, destination.z])
        trace: list[carla.Waypoint] = []
        for i, (node, after) in enumerate(itertools.pairwise(nodes)):
            edge = self._edges.get(node, {}).get(after)
            if edge is None:
                raise NoHops(f"a lane near ({node[0]:g}, {node[1]:g}) that ends at once")
            if edge.is_change:
                trace.append(here)
                from_node, to_node = self._ends[lane_key(edge.exit)]
                here = self._edges[from_node][to_node].after_change(here)
                trace.append(here)
                continue
            first = edge.nearest(here)
            for k in range(first, len(edge.waypoints)):
                here = edge.waypoints[k]
                trace.append(here)
                if i < len(nodes) - 2:
                    continue
                if np.linalg.norm(edge.xyz_m[k] - end_xyz) < END_M:
                    break
                if lane_key(here) == lane_key(goal) and first > edge.nearest(goal):
                    break
        return trace

    def _ends_at(self, location: carla.Location) -> tuple[Node, Node]:
        waypoint = self._map.get_waypoint(location)
        if waypoint is None or lane_key(waypoint) not in self._ends:
            raise NoHops(f"no lane at ({location.x:g}, {location.y:g})")
        return self._ends[lane_key(waypoint)]

    def _search(self, source: Node, target: Node) -> list[Node]:
        """A* over hops; the straight distance in metres is taken as the least number of hops."""
        counter = itertools.count()
        cheapest: dict[Node, int] = {source: 0}
        parents: dict[Node, Node | None] = {}
        heap: list[tuple[float, int, int, Node, Node | None]] = [(0.0, next(counter), 0, source, None)]
        while heap:
            _, _, cost, node, parent = heapq.heappop(heap)
            if cost > cheapest[node]:
                continue
            parents[node] = parent
            if node == target:
                way = [node]
                while (before := parents[way[-1]]) is not None:
                    way.append(before)
                return way[::-1]
            for after, edge in self._edges.get(node, {}).items():
                if cost + edge.hops < cheapest.get(after, MOST_HOPS):
                    cheapest[after] = cost + edge.hops
                    left_m = float(np.linalg.norm(np.subtract(after, target)))
                    heapq.heappush(heap, (cost + edge.hops + left_m, next(counter), cost + edge.hops, after, node))
        raise NoHops(f"no way from ({source[0]:g}, {source[1]:g}) to ({target[0]:g}, {target[1]:g})")

    def _add(self, node: Node, after: Node, edge: _Edge) -> None:
        self._edges.setdefault(node, {})[after] = edge

    def _add_dead_end(self, waypoint: carla.Waypoint) -> None:
        """A lane that nothing follows: it begins where another ends, and stops at its last hop."""
        inner = []
        following = waypoint.next(HOP_M)
        while following and lane_key(following[0]) == lane_key(waypoint):
            inner.append(following[0])
            following = following[0].next(HOP_M)
        stop = _xyz(inner[-1]) if inner else (*_xyz(waypoint), 1.0)  # a node of its own
        self._ends[lane_key(waypoint)] = (_node(waypoint), stop)
        if inner:
            self._add(_node(waypoint), stop, _Edge(inner, waypoint, inner[-1]))

    def _add_changes(self, entry: carla.Waypoint, inner: Sequence[carla.Waypoint]) -> None:
        """Links to the lanes beside, one a side, from the first hop whose marking allows the change."""
        if entry.is_junction:
            return
        for side in ("Right", "Left"):
            for waypoint in inner:
                marking = waypoint.right_lane_marking if side == "Right" else waypoint.left_lane_marking
                if marking is None or str(marking.lane_change) not in (side, "Both"):
                    continue
                beside = waypoint.get_right_lane() if side == "Right" else waypoint.get_left_lane()
                if beside is None or str(beside.lane_type) != "Driving" or beside.road_id != waypoint.road_id:
                    continue
                lane = self._map.get_waypoint(beside.transform.location)
                if lane is not None and lane_key(lane) in self._ends:
                    self._add(_node(entry), self._ends[lane_key(lane)][0], _Edge([], waypoint, beside, is_change=True))
                    break


def _hops(entry: carla.Waypoint, exit_: carla.Waypoint) -> list[carla.Waypoint]:
    """Waypoints a metre apart between the ends of a lane; of a lane shorter than that the next one anyway."""
    end = np.array(_xyz(exit_))
    following = entry.next(HOP_M)
    if np.linalg.norm(np.array(_xyz(entry)) - end) <= HOP_M:
        return following[:1]
    inner: list[carla.Waypoint] = []
    while following and np.linalg.norm(np.array(_xyz(following[0])) - end) > HOP_M and len(inner) < MOST_HOPS:
        inner.append(following[0])
        following = following[0].next(HOP_M)
    return inner


def _xyz(waypoint: carla.Waypoint) -> tuple[float, float, float]:
    location = waypoint.transform.location
    return location.x, location.y, location.z


def _node(waypoint: carla.Waypoint) -> Node:
    return tuple(float(np.round(value)) + 0.0 for value in _xyz(waypoint))
