"""Spots on lanes, the lanes beside them, and what leads into a junction: `carla.Waypoint` in REP-103.

A `Place` is where scenarios put things and what they measure from; what a scenario is about is found from the place
where it is triggered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import carla
import numpy as np

from carla_bridge.routes.lane_graph import lane_key
from carla_bridge.scenarios.errors import ScenarioError
from wamdiff2_core.frames import flip_y, pose_from_carla, pose_to_carla, transform_points, wrap_angle, xy_from_carla
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from carla_bridge.routes.lane_graph import LaneGraph, LaneKey
    from carla_bridge.routes.route_file import CarlaPose

STEP_M = 2.0
JUNCTION_SEARCH_M = 200.0
DIRECTION_RAD = {"opposite": math.pi, "left": -math.pi / 2, "right": math.pi / 2}  # heading of who comes from there
DIRECTION_TOLERANCE_RAD = math.radians(50.0)


@dataclass(frozen=True)
class Spot:
    """Where an actor is put: pose in the map frame and height of the ground."""

    pose: Pose2D
    z_m: float

    def moved(self, ahead_m: float = 0.0, left_m: float = 0.0, turn_rad: float = 0.0) -> Spot:
        """The spot moved in its own axes and turned left."""
        x, y = transform_points(self.pose, np.array([[ahead_m, left_m]]))[0]
        return Spot(Pose2D(float(x), float(y), wrap_angle(self.pose.yaw_rad + turn_rad)), self.z_m)

    @property
    def xy_m(self) -> np.ndarray:
        """(2,) position, map frame."""
        return np.array([self.pose.x_m, self.pose.y_m])

    def is_passed(self, point_m: np.ndarray) -> bool:
        """Whether a point lies in front of the spot, however far."""
        return bool((point_m - self.xy_m) @ [math.cos(self.pose.yaw_rad), math.sin(self.pose.yaw_rad)] > 0.0)


class Place:
    """A point on the middle of a lane.

    Attributes:
        waypoint: the library's own object.
        spot: pose in the lane's direction of travel, and height.
    """

    def __init__(self, waypoint: carla.Waypoint) -> None:
        self.waypoint = waypoint
        transform = waypoint.transform
        self.spot = Spot(
            pose_from_carla(transform.location.x, transform.location.y, transform.rotation.yaw), transform.location.z
        )

    @classmethod
    def at(cls, carla_map: carla.Map, pose: Pose2D, z_m: float = 0.0) -> Place:
        """The nearest driving lane's."""
        x, y, _ = pose_to_carla(pose)
        return cls(carla_map.get_waypoint(carla.Location(x, y, z_m)))

    @classmethod
    def at_point(cls, carla_map: carla.Map, carla_xyz_m: np.ndarray) -> Place:
        """The nearest driving lane's, from (3,) metres of CARLA's world."""
        return cls(carla_map.get_waypoint(carla.Location(*(float(value) for value in carla_xyz_m))))

    @classmethod
    def at_carla(cls, carla_map: carla.Map, place: CarlaPose) -> Place:
        """The nearest driving lane's, from a route file's pose."""
        return cls(carla_map.get_waypoint(carla.Location(place.x_m, place.y_m, place.z_m)))

    @property
    def key(self) -> LaneKey:
        """Road, section and lane id."""
        return lane_key(self.waypoint)

    @property
    def carla_xyz_m(self) -> np.ndarray:
        """(3,) position in CARLA's world."""
        location = self.waypoint.transform.location
        return np.array([location.x, location.y, location.z])

    @property
    def width_m(self) -> float:
        """Width of the lane."""
        return float(self.waypoint.lane_width)

    @property
    def in_junction(self) -> bool:
        """Whether the lane is part of a junction."""
        return bool(self.waypoint.is_junction)

    @property
    def is_sidewalk(self) -> bool:
        """Whether the lane is for walkers."""
        return bool(self.waypoint.lane_type == carla.LaneType.Sidewalk)

    @property
    def is_driving(self) -> bool:
        """Whether the lane is for vehicles on the move."""
        return bool(self.waypoint.lane_type == carla.LaneType.Driving)

    def ahead(self, distance_m: float, what: str, near_m: np.ndarray | None = None) -> Place:
        """The place a distance on along the lane and its successors.

        Args:
            distance_m: how far.
            what: what is to be there, for the message.
            near_m: (N, 2) points of a route, map frame: where the lane branches, the branch nearest to them is taken;
                the first one without.

        Raises:
            ScenarioError: the road ends before.
        """
        return self._moved(distance_m, what, back=False, near_m=near_m)

    def behind(self, distance_m: float, what: str) -> Place:
        """The place a distance back.

        Raises:
            ScenarioError: the road begins after.
        """
        return self._moved(distance_m, what, back=True)

    def _moved(self, distance_m: float, what: str, *, back: bool, near_m: np.ndarray | None = None) -> Place:
        waypoint, left_m = self.waypoint, distance_m
        while left_m > 1e-3:  # in steps: the library follows every branch of one call
            step_m = max(min(left_m, STEP_M), 0.05)
            found = waypoint.previous(step_m) if back else waypoint.next(step_m)
            if not found:
                raise ScenarioError(f"{what}: the road {'begins' if back else 'ends'} within {distance_m:g} m")
            if near_m is not None and len(found) > 1:
                found = sorted(found, key=lambda branch: _distance_m(branch, near_m))
            waypoint, left_m = found[0], left_m - step_m
        return Place(waypoint)

    def up_to_junction(self, distance_m: float, *, back: bool = False) -> Place:
        """As far as a distance on (or back), but not into a junction and not beyond the road's end."""
        place, gone = self, 0.0
        while gone < distance_m:
            found = place.waypoint.previous(1.0) if back else place.waypoint.next(1.0)
            if not found or found[0].is_junction:
                break
            place, gone = Place(found[0]), gone + 1.0
        return place

    def beside(self, side: str) -> Place | None:
        """The next lane of any kind to the `left` or `right` of this one's own direction of travel."""
        found = self.waypoint.get_left_lane() if side == "left" else self.waypoint.get_right_lane()
        return None if found is None else Place(found)

    def side_lane(self, side: str, what: str) -> Place:
        """As `beside`.

        Raises:
            ScenarioError: there is none.
        """
        found = self.beside(side)
        if found is None:
            raise ScenarioError(f"{what}: no lane to the {side}")
        return found

    def opposite_lane(self, what: str) -> Place:
        """The driving lane to the left, which leads the other way.

        Raises:
            ScenarioError: there is none.
        """
        found = self.beside("left")
        if found is None or not found.is_driving or self.waypoint.lane_id * found.waypoint.lane_id > 0:
            raise ScenarioError(f"{what}: no oncoming lane to the left")
        return found

    def same_direction(self) -> list[Place]:
        """All driving lanes that lead the same way, from the leftmost to the rightmost."""
        places = [self]
        for side in ("left", "right"):
            place = self
            while True:
                found = place.beside(side)
                if found is None or not found.is_driving or found.waypoint.lane_id * self.waypoint.lane_id < 0:
                    break
                place = found
                places = [place, *places] if side == "left" else [*places, place]
        return places

    def roadside(self, side: str) -> tuple[Spot, bool]:
        """Middle of the sidewalk at a side, or of the outermost lane without one, and whether it is a sidewalk.

        Seen along this lane, whichever way the lanes on the way there lead.
        """
        place, step = self, side
        while not place.is_sidewalk:
            found = place.beside(step)
            if found is None:
                break
            if found.waypoint.lane_id * place.waypoint.lane_id < 0:  # beyond the road's middle, sides are swapped
                step = "right" if step == "left" else "left"
            place = found
        return Spot(Pose2D(place.spot.pose.x_m, place.spot.pose.y_m, self.spot.pose.yaw_rad), place.spot.z_m), (
            place.is_sidewalk
        )


@dataclass(frozen=True)
class Junction:
    """The junction that a lane leads to.

    Attributes:
        entry: last place of that lane before it.
        arms: last places of all other lanes that lead into it, and of those beside `entry`.
    """

    entry: Place
    arms: tuple[Place, ...]

    @classmethod
    def ahead_of(cls, place: Place) -> Junction:
        """The first junction ahead on a lane.

        Raises:
            ScenarioError: none within 200 m.
        """
        waypoint, gone = place.waypoint, 0.0
        while not waypoint.is_junction:
            found = waypoint.next(1.0)
            gone += 1.0
            if not found or gone > JUNCTION_SEARCH_M:
                raise ScenarioError(f"no junction within {JUNCTION_SEARCH_M:g} m of the trigger point")
            entry, waypoint = waypoint, found[0]
        if gone == 0.0:
            raise ScenarioError("the trigger point lies inside a junction")
        arms: dict[LaneKey, Place] = {}
        for begin, _ in waypoint.get_junction().get_waypoints(carla.LaneType.Driving):
            for before in begin.previous(1.0):
                if not before.is_junction:
                    arms.setdefault(Place(before).key, Place(before))
        return cls(Place(entry), tuple(arms[key] for key in sorted(arms)))

    def coming_from(self, side: str) -> list[Place]:
        """Arms whose traffic comes from the `left`, `right` or `opposite` as seen from the entry, best match first."""
        def off_rad(arm: Place) -> float:
            return abs(wrap_angle(arm.spot.pose.yaw_rad - self.entry.spot.pose.yaw_rad - DIRECTION_RAD[side]))

        found = sorted((round(off_rad(arm), 6), arm.key, arm) for arm in self.arms)
        return [arm for off, _, arm in found if off < DIRECTION_TOLERANCE_RAD]

    def arm(self, side: str) -> Place:
        """The best match of `coming_from`.

        Raises:
            ScenarioError: no arm there.
        """
        found = self.coming_from(side)
        if not found:
            raise ScenarioError(f"no lane leads into the junction from the {side}")
        return found[0]


def lane_line(graph: LaneGraph, start: Place, distance_m: float, turn: str = "straight") -> np.ndarray:
    """(N, 2) centre line from a place on, map frame.

    Args:
        graph: lanes of the map.
        start: where to begin.
        distance_m: how far, as long as the road goes on.
        turn: what to do at the first junction, `straight`, `left` or `right`; straight on after it.
    """
    key, (arc_m, _) = start.key, graph.lanes[start.key].project(start.carla_xyz_m)
    points, left_m, turned = [], distance_m, False
    while True:
        lane = graph.lanes[key]
        end_m = min(lane.length_m, arc_m + left_m)
        points.append(lane.cut(arc_m, end_m))
        left_m -= end_m - arc_m
        if left_m <= 1e-6 or not lane.successors:
            break
        key, arc_m = _successor(graph, lane.successors, "straight" if turned else turn), 0.0
        turned = turned or graph.lanes[key].in_junction
    xy = flip_y(np.concatenate(points)[:, :2])
    apart = np.concatenate([[True], np.hypot(*np.diff(xy, axis=0).T) > 1e-3])
    return np.asarray(xy[apart])


def _successor(graph: LaneGraph, keys: list[LaneKey], turn: str) -> LaneKey:
    """The lane that turns most as asked."""

    def score(key: LaneKey) -> tuple[float, LaneKey]:
        turn_rad = graph.turn_rad(key)  # CARLA's sense, right positive
        wanted = {"straight": abs(turn_rad), "left": turn_rad, "right": -turn_rad}[turn]
        return round(wanted, 6), key

    return min(keys, key=score)


def _distance_m(waypoint: carla.Waypoint, points_m: np.ndarray) -> float:
    x, y = xy_from_carla(waypoint.transform.location.x, waypoint.transform.location.y)
    return float(np.hypot(points_m[:, 0] - x, points_m[:, 1] - y).min())
