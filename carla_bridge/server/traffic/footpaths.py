"""Where walkers walk: the middles of sidewalks, joined at their ends, and the crosswalks between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.server.geometry.polylines import arc_lengths
from carla_bridge.server.geometry.scene import LaneStrip, SignalKind
from carla_bridge.server.town.road_signals import SignalSpec

if TYPE_CHECKING:
    import carla

STEP_M = 2.0
JOIN_M = 2.5  # ends of sidewalks that are this near to each other are joined
KERB_M = 7.0  # a crosswalk leads to a sidewalk within this distance
ARM_M = 6.0  # lights whose stop line is this near to a crosswalk belong to it
NARROW_M = 0.6  # kept from the edges of a sidewalk
LEVEL_M = 3.0


@dataclass(frozen=True)
class Crosswalk:
    """A way over a road, between two nodes; `sign_ids` are the lights that stop the traffic on it."""

    start: int
    end: int
    length_m: float
    sign_ids: tuple[str, ...]


@dataclass
class Footpaths:
    """A graph of places to walk to.

    Attributes:
        xyz_m: (N, 3) nodes.
        room_m: (N,) how far from the middle one may walk there.
        links: for every node, the nodes beside it.
        crosswalks: by their two nodes, in either order.
    """

    xyz_m: np.ndarray
    room_m: np.ndarray
    links: list[list[int]]
    crosswalks: dict[tuple[int, int], Crosswalk] = field(default_factory=dict)

    def nearest(self, x_m: float, y_m: float, z_m: float) -> tuple[int, float] | None:
        """Nearest node on a level, and its distance."""
        gaps = np.hypot(self.xyz_m[:, 0] - x_m, self.xyz_m[:, 1] - y_m)
        gaps = np.where(np.abs(self.xyz_m[:, 2] - z_m) < LEVEL_M, gaps, np.inf)
        if not len(gaps) or not np.isfinite(gaps.min()):
            return None
        return int(gaps.argmin()), float(gaps.min())


def read_footpaths(
    lanes: Sequence[LaneStrip],
    crosswalks: Sequence[np.ndarray],
    carla_map: carla.Map,
    signals: Sequence[SignalSpec],
) -> Footpaths:
    """Footpaths of a town.

    Args:
        lanes, crosswalks, carla_map, signals: as a `Town` has them.
    """
    points: list[np.ndarray] = []
    room: list[float] = []
    links: list[list[int]] = []
    ends: list[int] = []
    for strip in lanes:
        if strip.kind != "sidewalk":
            continue
        first = len(points)
        middle, half = (strip.left_m + strip.right_m) / 2, np.linalg.norm(strip.left_m - strip.right_m, axis=1) / 2
        arc = arc_lengths(middle[:, :2])
        for along in np.linspace(0.0, arc[-1], max(2, round(arc[-1] / STEP_M) + 1)):
            points.append(np.array([np.interp(along, arc, middle[:, k]) for k in range(3)]))
            room.append(max(0.0, float(np.interp(along, arc, half)) - NARROW_M))
            links.append([])
            if len(points) - 1 > first:
                _link(links, len(points) - 2, len(points) - 1)
        ends += [first, len(points) - 1]
    paths = Footpaths(np.array(points).reshape(-1, 3), np.array(room), links)
    for i, a in enumerate(ends):
        for b in ends[i + 1 :]:
            if np.linalg.norm(paths.xyz_m[a] - paths.xyz_m[b]) < JOIN_M and b not in links[a]:
                _link(links, a, b)
    stops = _stops(carla_map, signals)
    for corners in crosswalks:
        _add_crosswalk(paths, corners, stops)
    return paths


def _link(links: list[list[int]], a: int, b: int) -> None:
    links[a].append(b)
    links[b].append(a)


def _stops(carla_map: carla.Map, signals: Sequence[SignalSpec]) -> list[tuple[str, np.ndarray]]:
    found = []
    for spec in signals:
        if spec.kind is SignalKind.TRAFFIC_LIGHT:
            for stop in spec.stops:
                place = carla_map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
                if place is not None:
                    at = place.transform.location
                    found.append((spec.sign_id, np.array([at.x, at.y, at.z])))
    return found


def _add_crosswalk(paths: Footpaths, corners: np.ndarray, stops: list[tuple[str, np.ndarray]]) -> None:
    """One walks between those two opposite sides that are nearer to sidewalks."""
    ways = []
    for k in (0, 1):
        a, b = (corners[k] + corners[k + 1]) / 2, (corners[k + 2] + corners[(k + 3) % 4]) / 2
        kerbs = [paths.nearest(*end) for end in (a, b)]
        if kerbs[0] is not None and kerbs[1] is not None:
            ways.append((kerbs[0][1] + kerbs[1][1], k, a, b, kerbs))
    if not ways:
        return
    _, _, a, b, kerbs = min(ways, key=lambda way: way[:2])
    if max(kerbs[0][1], kerbs[1][1]) > KERB_M or kerbs[0][0] == kerbs[1][0]:
        return
    start, end = len(paths.links), len(paths.links) + 1
    paths.xyz_m = np.concatenate([paths.xyz_m, [a, b]])
    paths.room_m = np.concatenate([paths.room_m, [0.8, 0.8]])
    paths.links += [[], []]
    for one, other in ((kerbs[0][0], start), (start, end), (end, kerbs[1][0])):
        _link(paths.links, one, other)
    signs = sorted({
        sign for sign, at in stops if _distance(at[:2], a[:2], b[:2]) < ARM_M and abs(at[2] - a[2]) < LEVEL_M
    })
    length_m = float(np.linalg.norm(b - a))
    paths.crosswalks[start, end] = Crosswalk(start, end, length_m, tuple(signs))
    paths.crosswalks[end, start] = Crosswalk(end, start, length_m, tuple(signs))


def _distance(point_m: np.ndarray, a_m: np.ndarray, b_m: np.ndarray) -> float:
    """From a point to a stretch."""
    step = b_m - a_m
    share = float(np.clip(np.dot(point_m - a_m, step) / np.dot(step, step), 0.0, 1.0))
    return float(np.linalg.norm(point_m - a_m - share * step))
