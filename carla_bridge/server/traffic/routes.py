"""Where a vehicle is going: a row of points ahead of it, and the junctions and stop lines on it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from carla_bridge.routes.lane_graph import LaneKey
from carla_bridge.server.traffic.network import ARC, FIELDS, LIMIT, Hold, RoadNetwork, with_directions

ROWS = 256  # points of a route that are kept
BEHIND = 5  # points kept behind the vehicle
JOINT_M = 0.3  # points closer than this to the last one are left out where lanes join
LINE_BEFORE_M = 2.0  # without a stop line one waits this far before the junction
FAR_M = 1e6


@dataclass
class Crossing:
    """A stop line with the junction behind it; either may be missing.

    Attributes:
        hold_m: where to wait, by arc length of the route.
        leave_m: where the junction ends; equal to `hold_m` for a stop line without a junction.
        ways: lanes through it, with the arc length of the route where each begins.
        approach: the lane that leads to it.
        hold: stop line of that lane.
        turn: of the way through it: -1 left, 1 right, 0 neither.
        stopped: a stop sign has been obeyed.
        arrived: order of arrival, once close.
        admitted: may go.
        exit_full: did not get in last time because there is no room beyond.
    """

    hold_m: float
    leave_m: float
    ways: list[tuple[LaneKey, float]] = field(default_factory=list)
    approach: LaneKey | None = None
    hold: Hold | None = None
    turn: int = 0
    stopped: bool = False
    arrived: int | None = None
    admitted: bool = False
    exit_full: bool = False


@dataclass
class Leg:
    """A lane on a route: arc length of the route at its first point (which may lie behind the route's first)."""

    key: LaneKey
    start_m: float


class Route:
    """A way along lanes that goes on for ever.

    Args:
        network: the roads.
        key, index: lane and point on it to start from.
        chooser: draws the turns.

    Attributes:
        table: (ROWS, 6) points as in `network`; arc lengths grow along the whole route. Rows from `count` on repeat the
            last point.
        crossings: what lies ahead, in order; the first one may have been entered.
        legs: lanes in order, the present one first.
    """

    def __init__(self, network: RoadNetwork, key: LaneKey, index: int, chooser: random.Random) -> None:
        self._network, self._chooser = network, chooser
        self.table = np.zeros((ROWS, FIELDS))
        self.count = 0
        self.crossings: list[Crossing] = []
        self.legs: list[Leg] = []
        self._tail, self._next = key, index
        self._begin_leg(key, index)
        self.extend(0)

    @property
    def end_m(self) -> float:
        """Arc length of the last point."""
        return float(self.table[self.count - 1, ARC])

    @property
    def lane(self) -> LaneKey:
        """The lane that the vehicle is on."""
        return self.legs[0].key

    def lane_index(self, row: int) -> int:
        """Index of the point of the present lane beside a point of the route."""
        lane = self._network.lanes[self.lane]
        along = self.table[row, ARC] - self.legs[0].start_m
        return int(np.clip(np.searchsorted(lane.table[:, ARC], along), 0, len(lane.table) - 1))

    def extend(self, row: int) -> int:
        """Forget what lies behind and go on ahead; returns the row that the point of `row` has now."""
        drop = max(0, row - BEHIND)
        if drop:
            self.table[: self.count - drop] = self.table[drop : self.count].copy()
            self.count -= drop
        while self.count < ROWS:
            lane = self._network.lanes[self._tail]
            if self._next < len(lane.table):
                rows = lane.table[self._next : self._next + ROWS - self.count]
                self._append(rows)
                self._next += len(rows)
                continue
            if not lane.successors:
                break
            self._tail, self._next = self._chooser.choice(lane.successors), 0
            self._begin_leg(self._tail, 0)
        self.table[self.count :] = self.table[self.count - 1]
        return row - drop

    def pass_by(self, arc_m: float) -> None:
        """Forget lanes that lie behind an arc length."""
        while len(self.legs) > 1 and self.legs[1].start_m <= arc_m:
            self.legs.pop(0)

    def change_to(self, key: LaneKey, index: int, row: int, length_m: float) -> int:
        """Swing over to the neighbouring lane within a length.

        Args:
            key, index: neighbour, and its point beside the vehicle.
            row: point of the route beside the vehicle.
            length_m: of the swing.

        Returns:
            The row beside the vehicle on the changed route.
        """
        now = self.table[row]
        other = Route(self._network, key, index, self._chooser)
        along = other.table[: other.count, ARC] - other.table[0, ARC]
        share = np.clip(along / length_m, 0.0, 1.0)
        share = share * share * (3.0 - 2.0 * share)
        ours = self.table[row : self.count]
        beside = np.stack([np.interp(along, ours[:, ARC] - now[ARC], ours[:, k]) for k in (0, 1)], axis=1)
        points = beside + share[:, None] * (other.table[: other.count, :2] - beside)
        swung = int(np.searchsorted(along, length_m)) + 1
        table = with_directions(points[: swung + 2], other.table[: swung + 2, LIMIT])
        other.table[:swung, :ARC] = table[:swung, :ARC]
        self.table, self.count = other.table, other.count
        self.crossings, self.legs = other.crossings, other.legs
        self._tail, self._next = other._tail, other._next
        return 0

    def _begin_leg(self, key: LaneKey, index: int) -> None:
        lane = self._network.lanes[key]
        start_m = -float(lane.table[index, ARC])
        if self.count:
            gap = lane.table[index, :2] - self.table[self.count - 1, :2]
            start_m += self.end_m + float(np.hypot(gap[0], gap[1]))
        previous = self.legs[-1].key if self.legs else None
        self.legs.append(Leg(key, start_m))
        if lane.in_junction:
            self._enter(key, start_m, previous)
        elif lane.hold is not None and start_m + lane.hold.arc_m > (self.end_m if self.count else 0.0):
            hold_m = start_m + lane.hold.arc_m
            self.crossings.append(Crossing(hold_m, hold_m, [], key, lane.hold))

    def _enter(self, key: LaneKey, start_m: float, previous: LaneKey | None) -> None:
        lane = self._network.lanes[key]
        end_m = start_m + lane.length_m
        last = self.crossings[-1] if self.crossings else None
        if last is not None and last.ways and previous is not None and self._network.lanes[previous].in_junction:
            last.ways.append((key, start_m))
            last.leave_m = end_m
            last.turn = last.turn or lane.turn
        elif last is not None and not last.ways and last.approach == previous:
            last.ways.append((key, start_m))
            last.leave_m, last.turn = end_m, lane.turn
        else:
            self.crossings.append(
                Crossing(start_m - LINE_BEFORE_M, end_m, [(key, start_m)], previous, None, lane.turn)
            )

    def _append(self, rows: np.ndarray) -> None:
        start_m = self.legs[-1].start_m
        if self.count and start_m + rows[0, ARC] - self.end_m < JOINT_M:
            rows = rows[1:]
        room = self.table[self.count : self.count + len(rows)]
        room[:] = rows
        room[:, ARC] += start_m
        self.count += len(rows)
