"""When to change lanes: for the sake of getting on, if nobody behind has to brake for it.

Kesting, Treiber, Helbing: General lane-changing model MOBIL for car-following models, Transp. Res. Rec. 1999 (2007).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from carla_bridge.routes.lane_graph import LaneKey
from carla_bridge.server.traffic.following import Idm
from carla_bridge.server.traffic.network import ARC, COS, SIN, RoadNetwork, TrafficLane, X, Y
from carla_bridge.server.traffic.routes import Route
from carla_bridge.server.traffic.sight import Bodies

SWING_S, SHORTEST_SWING_M = 3.5, 18.0
BEFORE_LINE_M, AFTER_START_M = 15.0, 25.0  # no change of lanes so near to either end of a lane
SAFE_BRAKING_MPS2 = 2.0
POLITENESS, THRESHOLD_MPS2 = 0.3, 0.4
WIDE_M = 1.9  # bodies whose middle is this near to the middle of a lane are in it
SLOWEST_MPS = 1.0  # wheels do not go sideways


@dataclass(frozen=True)
class Mover:
    """Who thinks about it: actor id, speed, desired speed, half length, present acceleration."""

    who: int
    speed_mps: float
    desired_mps: float
    half_length_m: float
    acceleration_mps2: float


@dataclass(frozen=True)
class Change:
    """A change that is worth it: to which point of which lane, on which side (-1 left, 1 right), and within how far."""

    key: LaneKey
    index: int
    side: int
    length_m: float


def consider(
    network: RoadNetwork,
    route: Route,
    row: int,
    mover: Mover,
    bodies: Bodies,
    idm: Idm,
    bound_for: Mapping[int, LaneKey],
) -> Change | None:
    """The best change of lanes now; None when there is none worth it.

    Args:
        network: the roads.
        route, row: where the mover is.
        mover: who thinks about it.
        bodies: everybody.
        idm: how everybody keeps a distance.
        bound_for: lanes that others are changing to, by actor id; they count as being there.
    """
    lane = network.lanes[route.lane]
    if not lane.neighbours or mover.speed_mps < SLOWEST_MPS:
        return None
    length_m = max(SHORTEST_SWING_M, SWING_S * mover.speed_mps)
    index = route.lane_index(row)
    line_m = lane.hold.arc_m if lane.hold is not None else lane.length_m
    at_m = lane.table[index, ARC]
    if at_m < AFTER_START_M or line_m - at_m < length_m + BEFORE_LINE_M:
        return None
    here = lane.table[index]
    best, best_gain = None, THRESHOLD_MPS2
    for key in lane.neighbours:
        neighbour = network.lanes[key]
        beside = int(np.argmin((neighbour.table[:, X] - here[X]) ** 2 + (neighbour.table[:, Y] - here[Y]) ** 2))
        there = neighbour.table[beside]
        if there[ARC] < AFTER_START_M or neighbour.length_m - there[ARC] < length_m + BEFORE_LINE_M:
            continue
        coming = np.isin(bodies.ids, [who for who, lane_key in bound_for.items() if lane_key == key])
        gain = _gain(neighbour, float(there[ARC]), mover, bodies, idm, coming)
        if gain > best_gain:
            across = (there[Y] - here[Y]) * here[COS] - (there[X] - here[X]) * here[SIN]
            best, best_gain = Change(key, beside, 1 if across > 0 else -1, length_m), gain
    return best


def _gain(lane: TrafficLane, at_m: float, mover: Mover, bodies: Bodies, idm: Idm, coming: np.ndarray) -> float:
    """Advantage over staying, m/s^2, less what it costs the follower there; -inf when it is not safe."""
    table = lane.table
    near = np.flatnonzero(
        (np.abs(bodies.xy_m[:, 0] - np.interp(at_m, table[:, ARC], table[:, X])) < 80.0)
        & (np.abs(bodies.xy_m[:, 1] - np.interp(at_m, table[:, ARC], table[:, Y])) < 80.0)
        & (bodies.ids != mover.who)
        & ~bodies.across
    )
    dx = bodies.xy_m[near, 0, None] - table[None, :, X]
    dy = bodies.xy_m[near, 1, None] - table[None, :, Y]
    gaps = dx * dx + dy * dy
    point = gaps.argmin(axis=1)
    inside = (gaps[np.arange(len(near)), point] < WIDE_M**2) | coming[near]
    near, point = near[inside], point[inside]
    arcs = table[point, ARC] - at_m
    along = bodies.velocity_mps[near, 0] * table[point, COS] + bodies.velocity_mps[near, 1] * table[point, SIN]
    room = np.abs(arcs) - bodies.half_m[near, 0] - mover.half_length_m
    gain = idm.free(np.array(mover.speed_mps), np.array(mover.desired_mps)) - mover.acceleration_mps2
    if len(near) and room.min() < idm.standstill_m:
        return -np.inf
    ahead, behind = arcs > 0, arcs <= 0
    if ahead.any():
        taken = idm.interaction(np.array(mover.speed_mps), room[ahead], along[ahead])
        gain -= taken.max()
    if behind.any():
        cost = idm.interaction(along[behind], room[behind], np.array(mover.speed_mps)).max()
        if cost - idm.acceleration_mps2 > SAFE_BRAKING_MPS2:
            return -np.inf
        gain -= POLITENESS * cost
    return float(gain)
