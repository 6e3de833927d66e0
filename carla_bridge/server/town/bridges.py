"""Roads that run above others: which parts of a town do, and what carries them.

OpenDRIVE says how high a road is, not what is below it. The ground is taken to be as high as the lowest road near by;
what lies clearly above that is a bridge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import PolygonBuilder, Polygons
from carla_bridge.server.geometry.polylines import arc_lengths, length, resample
from carla_bridge.server.geometry.scene import LaneStrip, Rgb

CELL_M = 30.0
RAISED_M = 4.5  # above the lowest road within one to two cells; hills rise less
SLAB_M, PARAPET_M = 0.9, 0.9
PIECE_M = 2.5
PILLAR_STEP_M, PILLAR_HALF_M = 32.0, 0.7
CLEARANCE_M = 6.0  # from a pillar to the middle of a lane below
CONCRETE: Rgb = (150, 148, 142)
UNDERSIDE: Rgb = (112, 111, 108)
RANGE_M = 300.0


class LowGround:
    """Height of the ground by the lowest road near a place.

    Args:
        lanes: all surfaces of a town.
    """

    def __init__(self, lanes: Sequence[LaneStrip]) -> None:
        points = np.concatenate([np.concatenate([lane.left_m, lane.right_m]) for lane in lanes])
        self._corner = points[:, :2].min(axis=0)
        cells = self._cells(points)
        size = cells.max(axis=0) + 1
        lowest = np.full(size + 2, np.inf)
        np.minimum.at(lowest, (cells[:, 0] + 1, cells[:, 1] + 1), points[:, 2])
        around = [lowest[i : i + size[0], j : j + size[1]] for i in range(3) for j in range(3)]
        self._heights_m = np.min(around, axis=0)
        self.flat = bool(np.ptp(points[:, 2]) < 0.05)

    def _cells(self, points_m: np.ndarray) -> np.ndarray:
        return np.floor((points_m[:, :2] - self._corner) / CELL_M).astype(int)

    def __call__(self, points_m: np.ndarray) -> np.ndarray:
        """(N,) height of the ground at (N, 2 or 3) places; far from all roads, that of the nearest cell with one."""
        cells = np.clip(self._cells(points_m), 0, np.array(self._heights_m.shape) - 1)
        heights = self._heights_m[cells[:, 0], cells[:, 1]]
        return np.where(np.isfinite(heights), heights, np.min(self._heights_m))

    def raised(self, points_m: np.ndarray) -> np.ndarray:
        """(N,) bool: which of (N, 3) points of roads are on a bridge."""
        return points_m[:, 2] - self(points_m) > RAISED_M


def outermost_lanes(lanes: Sequence[LaneStrip]) -> list[LaneStrip]:
    """Lanes outside junctions with free ground to the right of them."""
    return [max(side, key=lambda lane: abs(lane.lane_id)) for side in _carriageways(lanes).values()]


def _carriageways(lanes: Sequence[LaneStrip]) -> dict[tuple[int, float, bool], list[LaneStrip]]:
    """Lanes outside junctions by road, section and side of the reference line."""
    sides: dict[tuple[int, float, bool], list[LaneStrip]] = {}
    for lane in lanes:
        if not lane.in_junction:
            sides.setdefault((lane.road_id, lane.section_s_m, lane.lane_id > 0), []).append(lane)
    return sides


def _free_edges(lanes: Sequence[LaneStrip]) -> list[np.ndarray]:
    """(N, 3) edges of roads outside junctions, each with the road on its left."""
    sides = _carriageways(lanes)
    edges = []
    for (road_id, section_s_m, positive), side in sides.items():
        edges.append(max(side, key=lambda lane: abs(lane.lane_id)).right_m)
        if (road_id, section_s_m, not positive) not in sides:
            edges.append(min(side, key=lambda lane: abs(lane.lane_id)).left_m[::-1])
    return edges


def build_bridges(lanes: Sequence[LaneStrip], ground: LowGround) -> Polygons:
    """Undersides, parapets and pillars of raised roads."""
    bridges = PolygonBuilder(4, Label.BRIDGE)
    if ground.flat:
        return bridges.build()
    for lane in lanes:
        total = length((lane.left_m + lane.right_m) / 2)
        left, right = (_in_short_pieces(edge, total) for edge in (lane.left_m, lane.right_m))
        raised = ground.raised(left) & ground.raised(right)
        down = (0.0, 0.0, -SLAB_M)
        for i in np.flatnonzero(raised[:-1] & raised[1:]):
            quad = np.array([left[i], right[i], right[i + 1], left[i + 1]]) + down
            bridges.add(quad, UNDERSIDE, normal=(0.0, 0.0, -1.0), to_m=RANGE_M)
    for edge in _free_edges(lanes):
        pieces = _in_short_pieces(edge, length(edge))
        _parapet(bridges, pieces, ground.raised(pieces))
    low = np.concatenate([lane.left_m + lane.right_m for lane in lanes]) / 2
    low = low[~ground.raised(low)]
    for lane in lanes:
        if lane.lane_id == -1 and not lane.in_junction:
            _pillars(bridges, lane.left_m, ground, low)
    return bridges.build()


def _in_short_pieces(edge_m: np.ndarray, total_m: float) -> np.ndarray:
    """The edge in pieces so short that the distance of a piece's middle says what hides what.

    `total_m` decides their number, so that both edges of a lane get the same.
    """
    share = np.linspace(0.0, 1.0, max(2, int(np.ceil(total_m / PIECE_M)) + 1))
    return resample(edge_m, share * length(edge_m))


def _parapet(bridges: PolygonBuilder, edge_m: np.ndarray, raised: np.ndarray) -> None:
    """Walls along an edge with a raised road on its left, seen from the road and from outside."""
    for i in np.flatnonzero(raised[:-1] & raised[1:]):
        a, b = edge_m[i], edge_m[i + 1]
        along = (b - a)[:2] / max(float(np.linalg.norm((b - a)[:2])), 1e-9)
        right = np.array([-along[1], along[0], 0.0])
        low, high = np.array((0.0, 0.0, -SLAB_M)), np.array((0.0, 0.0, PARAPET_M))
        inside = [a, b, b + high, a + high]
        outside = [p + 0.3 * right for p in (a + low, b + low, b + high, a + high)]
        bridges.add(inside, CONCRETE, normal=-right, to_m=RANGE_M)
        bridges.add(outside, CONCRETE, normal=right, to_m=RANGE_M)
        bridges.add([inside[3], inside[2], outside[2], outside[3]], CONCRETE, normal=(0.0, 0.0, 1.0), to_m=120.0)
        bridges.add([a + low, b + low, outside[1], outside[0]], UNDERSIDE, normal=(0.0, 0.0, -1.0), to_m=RANGE_M)


def _pillars(bridges: PolygonBuilder, line_m: np.ndarray, ground: LowGround, low_m: np.ndarray) -> None:
    """Square pillars below a raised road's middle, where no road is in their way."""
    arc = arc_lengths(line_m[:, :2])
    for s in np.arange(PILLAR_STEP_M / 2, arc[-1], PILLAR_STEP_M):
        x, y, z = (float(np.interp(s, arc, line_m[:, k])) for k in range(3))
        place = np.array([[x, y, z]])
        if not ground.raised(place)[0] or np.hypot(*(low_m[:, :2] - (x, y)).T).min(initial=np.inf) < CLEARANCE_M:
            continue
        foot, top = float(ground(place)[0]), z - SLAB_M
        for c, s_ in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            normal = np.array((c, s_, 0.0))
            side = np.array((-s_, c, 0.0))
            a, b = ((x, y, 0.0) + PILLAR_HALF_M * (normal + e * side) for e in (-1.0, 1.0))
            corners = [(*a[:2], foot), (*b[:2], foot), (*b[:2], top), (*a[:2], top)]
            bridges.add(corners, CONCRETE, normal=normal, to_m=RANGE_M)
