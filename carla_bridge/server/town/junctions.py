"""Junctions as traffic meets them: arms, ways through, which ways cross, and which arms may go at the same time.

All geometry is sampled from `carla.Map`, in CARLA's left-handed world: yaw in degrees, clockwise from above, a turn to
the right is positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.server.geometry.poses import wrap_degrees

if TYPE_CHECKING:
    import carla

STEP_M = 1.0
LONGEST_PATH_M = 150.0
CLEARANCE_M = 2.2  # ways whose middles come closer cannot be driven side by side: cars are 2 m wide
OPPOSITE_DEG = 135.0  # arms whose traffic meets at a wider angle than this face each other
TURN_DEG = 30.0  # less is straight on


@dataclass(frozen=True)
class Movement:
    """One way from an arm through a junction.

    Attributes:
        lane_id: lane that it starts from.
        path_m: (N, 2) middle of the way, 1 m apart.
        turn_deg: change of heading, positive to the right.
        exit: road and lane that it leads to; None where it leads nowhere.
    """

    lane_id: int
    path_m: np.ndarray
    turn_deg: float
    exit: tuple[int, int] | None

    @property
    def is_left(self) -> bool:
        """Whether it is a left turn."""
        return self.turn_deg < -TURN_DEG

    def meets(self, other: Movement) -> bool:
        """Whether cars on the two ways can touch."""
        apart = self.path_m[:, None] - other.path_m[None]
        return bool((np.hypot(apart[..., 0], apart[..., 1]) < CLEARANCE_M).any())


@dataclass(frozen=True)
class Approach:
    """An arm of a junction, as the traffic sees it that enters there.

    Attributes:
        road_id: the road.
        at_end: whether it is the road's end, in its own direction, that touches the junction.
        end_s_m: where the road meets the junction.
        ends: last waypoint of each entering lane, from the road's middle outwards.
        movements: all ways on.
    """

    road_id: int
    at_end: bool
    end_s_m: float
    ends: tuple[carla.Waypoint, ...]
    movements: tuple[Movement, ...]

    @property
    def lane_ids(self) -> tuple[int, ...]:
        """Entering lanes, from the road's middle outwards."""
        return tuple(end.lane_id for end in self.ends)

    @property
    def yaw_deg(self) -> float:
        """Heading of entering traffic."""
        return self.ends[0].transform.rotation.yaw

    def faces(self, other: Approach) -> bool:
        """Whether the traffic of the two comes from opposite sides."""
        return abs(wrap_degrees(self.yaw_deg - other.yaw_deg)) > OPPOSITE_DEG

    def compatible(self, other: Approach) -> bool:
        """Whether both may go at once.

        They may if none of their ways meet, but for left turns of arms that face each other: those are permissive, and
        yield to oncoming traffic.
        """
        return not any(
            a.meets(b)
            for a in self.movements
            for b in other.movements
            if not (self.faces(other) and (a.is_left or b.is_left))
        )


@dataclass(frozen=True)
class Junction:
    """A junction and its arms, in order of road ids."""

    junction_id: int
    approaches: tuple[Approach, ...]

    @property
    def entering_lanes(self) -> int:
        """Number of lanes that lead into it."""
        return sum(len(approach.ends) for approach in self.approaches)

    @cached_property
    def phases(self) -> tuple[tuple[Approach, ...], ...]:
        """Arms that get green together: arms that face each other first, then whatever else fits."""
        phases: list[list[Approach]] = []
        left = list(self.approaches)
        while left:
            phase = [left.pop(0)]
            for other in sorted(left, key=lambda arm: not arm.faces(phase[0])):
                if all(other.compatible(member) for member in phase):
                    phase.append(other)
                    left.remove(other)
            phases.append(phase)
        return tuple(tuple(phase) for phase in phases)

    @cached_property
    def major(self) -> tuple[Approach, ...]:
        """The two arms that face each other with the most lanes, the straightest among equals; empty without any."""
        pairs = [
            (a, b) for i, a in enumerate(self.approaches) for b in self.approaches[i + 1 :] if a.faces(b)
        ]  # fmt: skip
        if not pairs:
            return ()

        def rank(pair: tuple[Approach, Approach]) -> tuple[int, float]:
            a, b = pair
            return len(a.ends) + len(b.ends), abs(wrap_degrees(a.yaw_deg - b.yaw_deg))

        return max(pairs, key=rank)


def read_junctions(carla_map: carla.Map, road_lengths_m: dict[int, float]) -> tuple[Junction, ...]:
    """Every junction that a driving lane leads into, in order of ids.

    Args:
        carla_map: the town.
        road_lengths_m: length of each road by its id.
    """
    ways: dict[int, dict[tuple[int, bool], dict[int, list[Movement]]]] = {}
    for before, inside in carla_map.get_topology():
        if before.is_junction or not inside.is_junction:
            continue
        arms = ways.setdefault(inside.junction_id, {})
        lanes = arms.setdefault((before.road_id, before.lane_id < 0), {})
        lanes.setdefault(before.lane_id, []).append(_movement(before.lane_id, inside))
    junctions = []
    for junction_id, arms in sorted(ways.items()):
        approaches = []
        for (road_id, at_end), lanes in sorted(arms.items()):
            end_s_m = road_lengths_m[road_id] if at_end else 0.0
            inner = end_s_m - 1e-3 if at_end else 1e-3
            ordered = sorted(lanes, key=abs)
            ends = [carla_map.get_waypoint_xodr(road_id, lane_id, inner) for lane_id in ordered]
            movements = tuple(movement for lane_id in ordered for movement in lanes[lane_id])
            approaches.append(Approach(road_id, at_end, end_s_m, tuple(e for e in ends if e is not None), movements))
        junctions.append(Junction(junction_id, tuple(approach for approach in approaches if approach.ends)))
    return tuple(junctions)


def _movement(lane_id: int, start: carla.Waypoint) -> Movement:
    """Follow a lane inside a junction to its end."""
    waypoint, points = start, []
    for _ in range(int(LONGEST_PATH_M / STEP_M)):
        points.append((waypoint.transform.location.x, waypoint.transform.location.y))
        following = waypoint.next(STEP_M)
        if not following or following[0].junction_id != start.junction_id or not following[0].is_junction:
            break
        waypoint = following[0]
    following = waypoint.next(STEP_M)
    way_out = (following[0].road_id, following[0].lane_id) if following and not following[0].is_junction else None
    turn = wrap_degrees(waypoint.transform.rotation.yaw - start.transform.rotation.yaw)
    return Movement(lane_id, np.array(points), turn, way_out)


def ahead_m(yaw_deg: float, distance_m: float) -> tuple[float, float]:
    """Displacement (x, y) along a heading."""
    return distance_m * math.cos(math.radians(yaw_deg)), distance_m * math.sin(math.radians(yaw_deg))
