"""From the key points of a route to a dense path in the map frame.

Bench2Drive writes key points about 2 m apart with one deliberate gap over the junction or merge, so raw key points are
no path. Each key point has several lanes it may lie on (connecting lanes overlap in a junction): the sequence of lanes
is chosen as a whole, the one with the least detour and the least distance from the key points.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.routes.errors import RouteError
from carla_bridge.routes.lane_graph import LaneGraph, LanePlace, Piece
from carla_bridge.routes.navigation import Manoeuvre, RoutePlan, announced
from carla_bridge.routes.route_file import RouteSpec
from wamdiff2_core.frames import flip_y
from wamdiff2_core.types import NavCommand

if TYPE_CHECKING:
    import carla

OVERRUN_M = 40.0
TURN_RAD = np.deg2rad(35.0)  # less than this through a junction is STRAIGHT
CHANGE_HALF_M = 7.5  # a lane change is spread over twice this
MATCH_RADIUS_M = 1.6
DISTANCE_WEIGHT = 4.0  # metres of detour that one square metre off the lane's middle is worth
MAX_OFF_ROAD_M = 8.0


class RoutePlanner:
    """Plans routes on one map, whose lane graph is read once.

    Attributes:
        graph: lanes of the map.
    """

    def __init__(self, carla_map: carla.Map) -> None:
        self.graph = LaneGraph(carla_map)

    def plan(self, spec: RouteSpec) -> RoutePlan:
        """The dense path of a route, with commands, and at least 40 m beyond its goal where the road goes on.

        Raises:
            RouteError: a key point lies off the road, or cannot be reached from the one before.
        """
        pieces = self._match(spec)
        last = pieces[-1]
        overrun = self.graph.follow((last.key, last.end_m), OVERRUN_M)
        path = _Path(self.graph, _joined([*pieces, *overrun]))
        goal_arc = _Path(self.graph, _joined(pieces)).arc_m[-1]
        lanes = [(p.key[0], p.key[2]) for p in _joined(pieces)]
        lanes = [lane for i, lane in enumerate(lanes) if i == 0 or lane != lanes[i - 1]]

        arc = np.arange(0.0, path.arc_m[-1] + 1e-9, 1.0)
        xyz = np.stack([np.interp(arc, path.arc_m, path.xyz_m[:, k]) for k in range(3)], axis=1)
        xy = flip_y(xyz[:, :2])
        tangent = np.gradient(xy, axis=0)
        return RoutePlan(
            route_id=spec.id,
            town=spec.town,
            xy_m=xy,
            yaw_rad=np.arctan2(tangent[:, 1], tangent[:, 0]),
            z_m=xyz[:, 2],
            commands=announced(path.manoeuvres(), arc),
            length_m=float(goal_arc),
            lanes=tuple(lanes),
            manoeuvres=tuple(path.manoeuvres()),
        )

    def _match(self, spec: RouteSpec) -> list[Piece]:
        """The cheapest way past all key points (dynamic programming over the lanes near each of them)."""
        name = f"route {spec.id}"
        points = spec.keypoints_carla
        places = self._candidates(name, points[0])
        best: dict[LanePlace, tuple[float, list[Piece]]] = {
            place: (DISTANCE_WEIGHT * distance**2, []) for place, distance in places
        }
        for k in range(1, len(points)):
            gap = float(np.linalg.norm(points[k, :2] - points[k - 1, :2]))
            goals = dict(self._candidates(name, points[k]))
            reached: dict[LanePlace, tuple[float, list[Piece]]] = {}
            for place, (cost, way) in best.items():
                for goal, (length, pieces) in self.graph.search(place, goals, 4 * gap + 300.0).items():
                    total = cost + length - gap + DISTANCE_WEIGHT * goals[goal] ** 2
                    if goal not in reached or total < reached[goal][0] - 1e-9:
                        reached[goal] = (total, [*way, *pieces])
            if not reached:
                raise RouteError(
                    f"{name}: position {k + 1}",
                    "a place that the lanes lead to from the position before",
                    _text(points[k]),
                    "check the town and the direction of travel",
                )
            best = reached
        return min(best.values(), key=lambda item: item[0])[1]

    def _candidates(self, name: str, point_m: np.ndarray) -> list[tuple[LanePlace, float]]:
        found = self.graph.near(point_m, MATCH_RADIUS_M)
        if found:
            return found
        place, distance = self.graph.nearest(point_m)
        if distance > MAX_OFF_ROAD_M:
            raise RouteError(
                name,
                f"positions within {MAX_OFF_ROAD_M:g} m of a driving lane",
                f"{_text(point_m)}, {distance:.1f} m off",
                "check the town",
            )
        return self.graph.near(point_m, distance + 0.5) or [(place, distance)]


def _text(point_m: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.1f}" for v in point_m) + ")"


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Stretches of the same lane that follow each other made one, empty ones dropped."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].key == piece.key and abs(joined[-1].end_m - piece.start_m) < 0.6:
            joined[-1] = Piece(piece.key, joined[-1].start_m, max(piece.end_m, joined[-1].end_m))
        elif piece.end_m - piece.start_m > 1e-3 or not joined:
            joined.append(piece)
    return joined


class _Path:
    """The centre line of a sequence of lanes, its lane changes spread out, and what it does in junctions."""

    def __init__(self, graph: LaneGraph, pieces: list[Piece]) -> None:
        parts = [graph.lanes[p.key].cut(p.start_m, p.end_m) for p in pieces]
        xyz = np.concatenate(parts)
        starts = np.cumsum([0, *(len(part) for part in parts)])
        changes = [
            # |lane id| grows away from the middle of the road, which is to the right in right-hand traffic
            (
                int(starts[i + 1]),
                NavCommand.CHANGE_RIGHT if abs(after.key[2]) > abs(before.key[2]) else NavCommand.CHANGE_LEFT,
            )
            for i, (before, after) in enumerate(itertools.pairwise(pieces))
            if after.key in graph.lanes[before.key].neighbours
        ]
        xyz = _blend(xyz, [first for first, _ in changes])
        arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(xyz[:, :2], axis=0), axis=1))])
        new = np.concatenate([[True], np.diff(arc) > 1e-6])
        self.xyz_m, self.arc_m = xyz[new], arc[new]

        self._changes = [
            (float(arc[first]) - CHANGE_HALF_M, float(arc[first]) + CHANGE_HALF_M, command)
            for first, command in changes
        ]
        self._junctions: list[tuple[float, float, NavCommand]] = []
        i = 0
        while i < len(pieces):
            j = i
            while j < len(pieces) and graph.lanes[pieces[j].key].in_junction:
                j += 1
            if j > i:
                turn = sum(graph.lanes[p.key].turn_rad for p in pieces[i:j])
                command = (
                    NavCommand.STRAIGHT if abs(turn) < TURN_RAD else NavCommand.RIGHT if turn > 0 else NavCommand.LEFT
                )
                self._junctions.append((float(arc[starts[i]]), float(arc[starts[j] - 1]), command))
            i = max(j, i + 1)

    def manoeuvres(self) -> list[Manoeuvre]:
        """Junctions and lane changes in order."""
        return sorted((Manoeuvre(*item) for item in [*self._changes, *self._junctions]), key=lambda m: m.start_m)


def _blend(xyz_m: np.ndarray, jumps: list[int]) -> np.ndarray:
    """Spread each sideways jump before index `j` evenly over the path around it."""
    arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(xyz_m[:, :2], axis=0), axis=1))])
    blended = xyz_m.copy()
    for j in jumps:
        jump = xyz_m[j] - xyz_m[j - 1]
        half = max(min(CHANGE_HALF_M, arc[j - 1], arc[-1] - arc[j]), 1e-6)
        before, after = np.arange(j), np.arange(j, len(arc))
        for index, centre, sign in ((before, arc[j - 1], 1.0), (after, arc[j], -1.0)):
            t = np.clip(1.0 - np.abs(arc[index] - centre) / half, 0.0, 1.0)
            blended[index] += sign * (0.5 * (1.0 - np.cos(np.pi * t / 2)))[:, None] * jump
    return blended
