"""The lanes beside the route, and from where traffic comes into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.expert.road import Road
from wamdiff2_core.frames import xy_from_carla, xy_to_carla, yaw_from_carla

if TYPE_CHECKING:
    import carla

FEEDER_LOOK_M, FEEDER_STEP_M, FEEDER_POINTS = 110.0, 4.0, 250


@dataclass(frozen=True)
class Side:
    """A lane beside the route's.

    Attributes:
        own_m: how far the route's own lane reaches.
        room_m: how far from the route's line the vehicle may reach on that side.
        usable: whether there is a lane at all to drive on.
        oncoming: whether it is of the opposite direction.
        driving: whether it is a driving lane, and no shoulder or parking lane.
    """

    own_m: float
    room_m: float
    usable: bool
    oncoming: bool
    driving: bool = False


class SideLanes:
    """Looks up what lies beside a route."""

    def __init__(self, road: Road, carla_map: carla.Map) -> None:
        self._road, self._map = road, carla_map

    def at(self, s_m: float, side: int) -> Side:
        """What lies on one side of the route (+1 left, -1 right) at an arc length."""
        import carla

        here = self._waypoint(s_m)
        if here is None or here.is_junction:
            return Side(0.0, 0.0, False, False)
        heading = yaw_from_carla(here.transform.rotation.yaw)
        along = float(self._road.yaw_rad[self._road.index(s_m)])
        same_way = math.cos(heading - along) > 0
        # To the left of the route is to the left of the lane when both go the same way.
        lane = here.get_left_lane() if (side > 0) == same_way else here.get_right_lane()
        own_m = here.lane_width / 2
        if lane is None:
            return Side(own_m, own_m, False, False)
        oncoming = lane.lane_id * here.lane_id < 0
        if lane.lane_type == carla.LaneType.Driving:
            return Side(own_m, own_m + lane.lane_width, True, oncoming, True)
        soft = lane.lane_type in (carla.LaneType.Shoulder, carla.LaneType.Parking, carla.LaneType.Biking)
        return Side(own_m, own_m + (lane.lane_width if soft else 0.0), soft and not oncoming, False)

    def _waypoint(self, s_m: float) -> carla.Waypoint | None:
        import carla

        return self._map.get_waypoint(carla.Location(*xy_to_carla(*self._road.xy_m[self._road.index(s_m)]), 0.0))


class FeederLanes:
    """From where traffic comes into a lane: its own upstream part, and all lanes that lead into that."""

    def __init__(self, carla_map: carla.Map) -> None:
        self._map = carla_map
        self._known: dict[tuple[int, int], np.ndarray] = {}

    def towards(self, place_m: tuple[float, float]) -> np.ndarray:
        """(K, 4) places on those lanes: x, y, heading of travel, and way left to `place_m`; map frame."""
        import carla

        key = round(place_m[0] / 3.0), round(place_m[1] / 3.0)
        if key not in self._known:
            start = self._map.get_waypoint(carla.Location(*xy_to_carla(*place_m), 0.0))
            found: list[tuple[float, float, float, float]] = []
            heap = [] if start is None else [(start, 0.0)]
            while heap:
                here, way_m = heap.pop()
                transform = here.transform
                x, y = xy_from_carla(transform.location.x, transform.location.y)
                found.append((x, y, yaw_from_carla(transform.rotation.yaw), way_m))
                if way_m < FEEDER_LOOK_M and len(found) < FEEDER_POINTS:
                    heap += [(before, way_m + FEEDER_STEP_M) for before in here.previous(FEEDER_STEP_M)]
            self._known[key] = np.array(found).reshape(-1, 4)
        return self._known[key]
