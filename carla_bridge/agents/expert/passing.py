"""Leaving the route's line for a while: around what stands on it, and out of the way of an emergency vehicle.

A detour is a smooth sideways shift of the route between two arc lengths. Only one is driven at a time; it is begun when
the lane that it needs is free for as long as it takes, and until then the vehicle waits with room to steer out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.expert.detour import Detour
from carla_bridge.agents.expert.idm import Ahead
from carla_bridge.agents.expert.keep_right import KeepRight
from carla_bridge.agents.expert.lanes import FeederLanes, SideLanes
from carla_bridge.agents.expert.others import STANDING_MPS, Other
from carla_bridge.agents.expert.road import Road

if TYPE_CHECKING:
    import carla

SIDE_GAP_M = 0.65  # to what is passed
LANE_GAP_M = 0.1  # to the far edge of the lane that is used
JOIN_M = 16.0  # obstacles this close behind one another are passed in one go
WAIT_M = 9.0  # room to steer out that is kept while waiting
LONGEST_CLUSTER_M = 90.0
LOOK_M = 60.0
MAKE_WAY_LOOK_M = (10.0, 25.0, 45.0)
OPEN_END_M = 1e6  # of a detour that somebody else ends
SETTLED_S = 1.0  # something has stood this long before it counts as standing there
BROKEN_DOWN_S = 20.0  # and this long if it was seen to drive
QUEUE_M = 35.0  # vehicles this close before a light's line wait for it
PATIENCE_S, BEHIND_JUNCTION_M = 30.0, 5.5  # how long a car behind a junction is waited for, and how far from it
APPROACH_MPS, APPROACH_DECEL_MPS2, APPROACH_M = 4.5, 1.2, 40.0  # to a place where the opposite lane is needed: to look
PASS_MPS, PASS_ACCEL_MPS2 = 8.0, 2.3
MEETING_S, MEETING_M = 1.0, 6.0  # spare time and room to oncoming traffic
HURRY_AFTER_PLANS, HURRY_SHARE = 40, 0.3  # of these, once it has waited for 10 s
RETURN_M = 18.0
ON_FEEDER_M, FEEDER_MPS = 2.5, 6.0  # whoever slows for a curve will be faster behind it
OUT_SHARE = 0.5  # a way out that is shorter than this many times its offset cannot be steered
CROSSING_SHARE = 0.6  # of the way out, after which the other lane is taken
BACK_SHARE = 0.6  # of the way back to the route's line, after which the other lane is free again


@dataclass(frozen=True)
class Cluster:
    """Obstacles that are passed in one go: their extent along and across the route, and since when all have stood;
    things that cannot drive have always stood."""

    rear_m: float
    front_m: float
    right_m: float
    left_m: float
    standing_s: float


class Passing:
    """Decides on detours along one route."""

    def __init__(self, road: Road, carla_map: carla.Map, half_length_m: float, half_width_m: float) -> None:
        self._road = road
        self._half_m, self._half_width_m = half_length_m, half_width_m
        self.detour: Detour | None = None
        self._sides, self._feeders = SideLanes(road, carla_map), FeederLanes(carla_map)
        self._waited = 0
        self._aside = KeepRight(road, self._sides, half_length_m, half_width_m)

    def offsets(self, s_m: np.ndarray) -> np.ndarray:
        """Shift of the route at arc lengths."""
        shift = np.zeros_like(s_m)
        for detour in (self.detour, self._aside.nudge):
            if detour is not None:
                shift = shift + detour.offsets(s_m)
        return shift

    def update(
        self, others: Sequence[Other], progress_m: float, speed_mps: float, next_line_m: float
    ) -> tuple[list[Ahead], float]:
        """Go on with the detour, or decide on one.

        Args:
            others: everything near the route.
            progress_m: arc length of the vehicle's middle.
            speed_mps: its speed.
            next_line_m: arc length of the next light's stop line.

        Returns:
            Where to wait, if anything is waited for, and a limit of speed.
        """
        if self.detour is not None and progress_m > self.detour.end_m:
            self.detour, self._waited = None, 0
        room_mps = self._aside.update(others, progress_m, on_detour=self.detour is not None)
        ahead, limit_mps = self._go_on(others, progress_m, speed_mps, next_line_m)
        return ahead, min(limit_mps, room_mps)

    def _go_on(
        self, others: Sequence[Other], progress_m: float, speed_mps: float, next_line_m: float
    ) -> tuple[list[Ahead], float]:
        if self.detour is not None and self.detour.yields_to is not None:
            return [], self._let_by(others, progress_m, speed_mps)
        if self.detour is None and self._make_way(others, progress_m, speed_mps):
            return [], max(2.0, 0.6 * speed_mps)
        standing = self._standing(others, progress_m, next_line_m)
        cluster = self._cluster(standing, progress_m)
        if cluster is None:
            return [], math.inf if self.detour is None else self._limit(self.detour, progress_m)
        if self.detour is not None and (self._turns_back(self.detour, others, progress_m, speed_mps)
                                        or self._begins_late(self.detour, cluster, progress_m)):
            self.detour = None
        if self.detour is not None:
            if cluster.front_m + self._half_m + 1.0 > self.detour.leave_m:
                self._extend(cluster, standing)
            return [], self._limit(self.detour, progress_m)
        detour = self._around(cluster, standing, progress_m, speed_mps)
        if detour is not None and self._may_go_on(detour, cluster):
            return [Ahead(cluster.rear_m, 0.0, BEHIND_JUNCTION_M, "waits for it to go on")], math.inf
        if detour is not None and self._free(detour, others, progress_m, speed_mps):
            self.detour = detour
            return [], self._limit(detour, progress_m)
        if detour is None:
            return [], math.inf  # nothing can be done: whatever stands there is followed as any leader
        self._waited += speed_mps < STANDING_MPS
        return [Ahead(cluster.rear_m - WAIT_M + 2.0, 0.0, 2.0, "waits to pass")], math.inf

    @property
    def in_a_hurry(self) -> bool:
        """Whether it is on the opposite lane, or is about to leave for it."""
        return self.detour is not None and self.detour.oncoming

    def _may_go_on(self, detour: Detour, cluster: Cluster) -> bool:
        """Whether it stands just behind a junction, where a car waits more often than it has broken down."""
        if not detour.oncoming or cluster.standing_s >= PATIENCE_S:
            return False
        return self._road.meets_junction(detour.begin_m, detour.full_m)

    def _turns_back(self, detour: Detour, others: Sequence[Other], progress_m: float, speed_mps: float) -> bool:
        """Whether somebody has come into the opposite lane while the vehicle was not yet on it."""
        looks = detour.oncoming and progress_m < self._crossing_m(detour)
        return looks and not self._free(detour, others, progress_m, speed_mps)

    def _begins_late(self, detour: Detour, cluster: Cluster, progress_m: float) -> bool:
        """Whether a detour that was not yet begun is for what stands behind the first obstacle."""
        return progress_m < detour.begin_m and cluster.rear_m - self._half_m < detour.full_m

    @staticmethod
    def _crossing_m(detour: Detour) -> float:
        """About where the vehicle begins to reach into the other lane."""
        return detour.begin_m + CROSSING_SHARE * (detour.full_m - detour.begin_m)

    def _limit(self, detour: Detour, progress_m: float) -> float:
        if detour.oncoming and progress_m < self._crossing_m(detour):
            far_m = detour.full_m - progress_m - APPROACH_M
            return math.sqrt(APPROACH_MPS**2 + 2.0 * APPROACH_DECEL_MPS2 * max(0.0, far_m))
        return PASS_MPS if abs(detour.offset_m) > 0.6 else math.inf

    def _standing(self, others: Sequence[Other], progress_m: float, next_line_m: float) -> list[Other]:
        return [
            other for other in others
            if other.front_m > progress_m - self._half_m and other.rear_m < progress_m + LOOK_M + LONGEST_CLUSTER_M
            and self._stands(other, next_line_m)
        ]

    def _cluster(self, standing: Sequence[Other], progress_m: float) -> Cluster | None:
        """The first group of obstacles that stand in the way of the route's own line."""
        reach = self._half_width_m + 0.25
        cluster: Cluster | None = None
        for other in standing:
            in_way = other.overlaps(-reach, reach)
            stood_s = other.standing_s if other.is_vehicle else math.inf
            if cluster is None:
                if in_way and other.rear_m < progress_m + LOOK_M:
                    cluster = Cluster(other.rear_m, other.front_m, other.right_m, other.left_m, stood_s)
            elif (in_way and other.rear_m - cluster.front_m < JOIN_M
                  and other.front_m - cluster.rear_m < LONGEST_CLUSTER_M):
                cluster = Cluster(
                    cluster.rear_m, max(cluster.front_m, other.front_m), min(cluster.right_m, other.right_m),
                    max(cluster.left_m, other.left_m), min(cluster.standing_s, stood_s),
                )
        return cluster

    def _stands(self, other: Other, next_line_m: float) -> bool:
        """Whether an actor is an obstacle to be passed, and not one that waits for something itself."""
        if other.actor.type_id.startswith("static."):
            return True
        if not other.is_vehicle or other.oncoming:
            return False
        if not other.has_moved and other.actor.role_name != "background":
            return other.standing_s >= SETTLED_S
        return other.standing_s >= BROKEN_DOWN_S and not -5.0 < next_line_m - other.front_m < QUEUE_M

    def _offset(self, cluster: Cluster, standing: Sequence[Other], side: int) -> float:
        """How far to one side (+1 left, -1 right) a free strip lies along a group, whatever else stands there."""
        near = self._half_m + 1.0
        beside = [
            (other.right_m, other.left_m) if side > 0 else (-other.left_m, -other.right_m) for other in standing
            if cluster.rear_m - other.front_m < near and other.rear_m - cluster.front_m < near
        ]
        edge = cluster.left_m if side > 0 else -cluster.right_m
        for near_m, far_m in sorted(beside):
            if near_m < edge + 2.0 * (self._half_width_m + SIDE_GAP_M) and far_m > edge:
                edge = far_m
        return max(0.0, edge + self._half_width_m + SIDE_GAP_M)

    def _around(
        self, cluster: Cluster, standing: Sequence[Other], progress_m: float, speed_mps: float
    ) -> Detour | None:
        """The shorter way around that fits on the road: past the left side or past the right."""
        found: list[tuple[float, Detour]] = []
        for side in (1, -1):
            offset = self._offset(cluster, standing, side)
            places = np.linspace(cluster.rear_m, cluster.front_m, 3)
            lanes = [self._sides.at(float(s), side) for s in places]
            room = min(lane.room_m for lane in lanes)
            if offset + self._half_width_m + LANE_GAP_M > room:
                continue
            needs_lane = offset + self._half_width_m > min(lane.own_m for lane in lanes)
            if needs_lane and not all(lane.usable for lane in lanes):
                continue
            oncoming = needs_lane and any(lane.oncoming for lane in lanes)
            run_m = min(30.0, max(10.0, 2.2 * speed_mps)) * min(1.0, 0.4 + offset / 3.5)
            full_m = cluster.rear_m - self._half_m - 1.0
            begin_m = max(progress_m + 0.5, full_m - run_m)
            leave_m = cluster.front_m + self._half_m + 1.0
            detour = Detour(side * offset, begin_m, full_m, leave_m, leave_m + max(run_m, RETURN_M), oncoming)
            found.append((offset + (3.0 if oncoming else 0.0), detour))
        fits = [item for item in found if item[1].full_m - item[1].begin_m > OUT_SHARE * abs(item[1].offset_m)]
        return min(fits, key=lambda item: item[0])[1] if fits else None

    def _extend(self, cluster: Cluster, standing: Sequence[Other]) -> None:
        assert self.detour is not None
        d = self.detour
        leave_m = cluster.front_m + self._half_m + 1.0
        offset = max(abs(d.offset_m), self._offset(cluster, standing, 1 if d.offset_m > 0 else -1))
        self.detour = Detour(math.copysign(offset, d.offset_m), d.begin_m, d.full_m, leave_m,
                             leave_m + (d.end_m - d.leave_m), d.oncoming, d.yields_to)

    def _free(self, detour: Detour, others: Sequence[Other], progress_m: float, speed_mps: float) -> bool:
        """Whether nobody else needs the strip that a detour takes, while it takes it."""
        right = detour.offset_m - self._half_width_m - 0.3
        left = detour.offset_m + self._half_width_m + 0.3
        back_m = detour.leave_m + BACK_SHARE * (detour.end_m - detour.leave_m)
        spare = HURRY_SHARE if self._waited > HURRY_AFTER_PLANS else 1.0
        lasts_s = time_to_drive(back_m - progress_m, speed_mps) + spare * MEETING_S
        if detour.oncoming and self._fed(detour, others, back_m, lasts_s):
            return False
        for other in others:
            if not other.is_vehicle or not other.overlaps(right, left) or other.actor.speed_mps < STANDING_MPS:
                continue
            if other.overlaps(-0.5, 0.5) and not other.oncoming:
                continue  # in the own lane
            if other.oncoming or other.along_mps < -0.5:
                meeting_m = other.rear_m + other.along_mps * lasts_s
                if other.front_m > progress_m and meeting_m < back_m + self._half_m + spare * MEETING_M:
                    return False
            elif other.front_m > progress_m - self._half_m - 2.0 and other.rear_m < progress_m + self._half_m + 4.0:
                return False
            elif other.front_m <= progress_m - self._half_m - 2.0:
                gap_m = progress_m - self._half_m - other.front_m
                if gap_m < 4.0 + 3.0 * max(0.0, other.along_mps - speed_mps):
                    return False
        return True

    def _fed(self, detour: Detour, others: Sequence[Other], back_m: float, lasts_s: float) -> bool:
        """Whether somebody who is still on the way into the opposite lane will be there before the vehicle is back."""
        place = self._road.places(np.array([back_m]), np.array([detour.offset_m]))[0]
        feeders = self._feeders.towards((float(place[0]), float(place[1])))
        if not len(feeders):
            return False
        for other in others:
            if not other.is_vehicle or other.front_m < back_m or other.actor.speed_mps < STANDING_MPS:
                continue
            gaps = np.hypot(feeders[:, 0] - other.actor.pose.x_m, feeders[:, 1] - other.actor.pose.y_m)
            best = int(np.argmin(gaps))
            with_lane = math.cos(other.actor.pose.yaw_rad - float(feeders[best, 2])) > 0.5
            if gaps[best] < ON_FEEDER_M and with_lane:
                way_m = float(feeders[best, 3]) - other.actor.extent_m[0]
                if way_m < max(other.actor.speed_mps, FEEDER_MPS) * lasts_s + self._half_m + MEETING_M:
                    return True
        return False

    def _make_way(self, others: Sequence[Other], progress_m: float, speed_mps: float) -> bool:
        """Begin to leave the lane to an emergency vehicle that comes up behind."""
        behind = [
            other for other in others
            if other.is_emergency and other.actor.speed_mps > 1.0 and not other.oncoming
            and progress_m - 55.0 < other.front_m < progress_m and other.overlaps(-1.5, 1.5)
        ]
        if not behind:
            return False
        for side in (-1, 1):
            lanes = [self._sides.at(progress_m + far_m, side) for far_m in MAKE_WAY_LOOK_M]
            if not all(lane.usable and lane.driving and not lane.oncoming for lane in lanes):
                continue
            offset = side * 3.5
            run_m = min(30.0, max(12.0, 2.2 * speed_mps))
            detour = Detour(offset, progress_m + 0.5, progress_m + run_m, OPEN_END_M, OPEN_END_M + run_m,
                            yields_to=behind[-1].actor.id)
            if self._free(Detour(offset, progress_m, progress_m + run_m, 0.0, progress_m + 2 * run_m), [
                other for other in others if other.actor.id != behind[-1].actor.id
            ], progress_m, speed_mps):
                self.detour = detour
                return True
        return False

    def _let_by(self, others: Sequence[Other], progress_m: float, speed_mps: float) -> float:
        """Stay aside until the emergency vehicle is past; a limit of speed meanwhile."""
        assert self.detour is not None
        d = self.detour
        passed = next((other for other in others if other.actor.id == d.yields_to), None)
        if passed is None or passed.rear_m > progress_m + self._half_m + 8.0 or passed.actor.speed_mps < STANDING_MPS:
            leave_m = max(progress_m + 2.0, d.full_m)
            self.detour = Detour(d.offset_m, d.begin_m, d.full_m, leave_m, leave_m + max(14.0, 2.2 * speed_mps))
            return PASS_MPS
        return max(1.5, 0.6 * passed.actor.speed_mps)


def time_to_drive(way_m: float, speed_mps: float) -> float:
    """Seconds for a way at `PASS_MPS`, sped up to from another speed."""
    v = min(speed_mps, PASS_MPS)
    run_m = (PASS_MPS**2 - v**2) / (2.0 * PASS_ACCEL_MPS2)
    if way_m <= run_m:
        return (math.sqrt(v**2 + 2.0 * PASS_ACCEL_MPS2 * max(0.0, way_m)) - v) / PASS_ACCEL_MPS2
    return (PASS_MPS - v) / PASS_ACCEL_MPS2 + (way_m - run_m) / PASS_MPS
