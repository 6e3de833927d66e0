"""The traffic rules that the CARLA leaderboard watches: collisions, red lights, stop signs, standing still.

Thresholds and order of tests are those of Bench2Drive 0.0.4 (`atomic_criteria.py`), its quirks included, so that a
drive is judged as it would be there. Everything here is REP-103; positions in texts are CARLA's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from carla_bridge.client.surroundings import LightState, StopLine, StopSign, Surroundings
from carla_bridge.leaderboard.infractions import Infraction
from wamdiff2_core.frames import transform_points, xy_from_carla, xy_to_carla

if TYPE_CHECKING:
    import carla

SAME_ACTOR_S, SAME_PLACE_M, MOVING_MPS = 5.0, 5.0, 0.1
LIGHT_RANGE_M = 15.0
MET_M = 12.0
FORGOTTEN_M = 40.0
ALIGNED_COS = 0.8
TAIL_NEAR, TAIL_BEYOND_M = 0.8, 1.0  # the tail reaches from 0.8 half lengths to 1 m behind the rear end
LINE_HALF_WIDTHS = 0.6  # of the lane's width to each side
STOP_RANGE_M, STOP_STEP_M, STOP_STEPS = 4.0, 0.5, 8
STOP_BOX_SCALE = 1.2
BACKWARDS = -0.17  # cosine of 100 degrees
SIGN_SEARCH_M = 15.0  # signs farther away than this cannot be within 4 m of the lane ahead
BLOCKED_MPS, BLOCKED_S = 0.1, 60.0


class Contact(Protocol):
    """The ego vehicle touched something; `measurements.Collision` is one."""

    @property
    def other_type(self) -> str: ...
    @property
    def other_id(self) -> int: ...
    @property
    def carla_xyz_m(self) -> tuple[float, float, float]: ...


@dataclass(frozen=True)
class Moment:
    """One tick, as the criteria see it.

    Attributes:
        t_s: simulated time since the route began.
        around: the surroundings.
        contacts: what the ego vehicle has touched since the last tick.
    """

    t_s: float
    around: Surroundings
    contacts: Sequence[Contact]

    @property
    def here_m(self) -> np.ndarray:
        """(2,) position of the ego vehicle, map frame."""
        pose = self.around.ego.pose
        return np.array([pose.x_m, pose.y_m])

    @property
    def heading(self) -> np.ndarray:
        """(2,) unit vector along the ego vehicle, map frame."""
        yaw = self.around.ego.pose.yaw_rad
        return np.array([np.cos(yaw), np.sin(yaw)])

    @property
    def carla_xyz_m(self) -> tuple[float, float, float]:
        """Position of the ego vehicle in CARLA's world."""
        ego = self.around.ego
        return carla_xyz_m(ego.pose.x_m, ego.pose.y_m, ego.z_m)


def carla_xyz_m(x_m: float, y_m: float, z_m: float) -> tuple[float, float, float]:
    """A position of the map frame in CARLA's world."""
    return *xy_to_carla(x_m, y_m), z_m


class CollisionRule:
    """Contacts, counted once.

    Ignored below 0.1 m/s, within 5 s of the last one with the same actor, and within 5 m of the last one. Upstream's
    sensor is heard before the speeds of the tick are: one that the contact has stopped was still moving.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        self._last_s = 0.0
        self._last_m: np.ndarray | None = None
        self._last_mps = 0.0

    def update(self, moment: Moment) -> list[Infraction]:
        """The collisions of this tick."""
        speed_mps = max(self._last_mps, moment.around.ego.speed_mps)
        self._last_mps = moment.around.ego.speed_mps
        if self._last_m is not None and np.linalg.norm(moment.here_m - self._last_m) > SAME_PLACE_M:
            self._last_m = None
        if self._last_id is not None and moment.t_s - self._last_s > SAME_ACTOR_S:
            self._last_id = None
        found = []
        for contact in moment.contacts:
            if contact.other_id == self._last_id or self._last_m is not None:
                continue
            if speed_mps < MOVING_MPS:
                continue
            self._last_s, self._last_m = moment.t_s, moment.here_m
            if contact.other_id != 0:
                self._last_id = contact.other_id
            infraction = Infraction.collision(contact.other_type, contact.other_id, contact.carla_xyz_m)
            if infraction is not None:
                found.append(infraction)
        return found


class RedLightRule:
    """Red lights run: the tail of the vehicle crosses the stop line of its own lane while the light is red.

    A light counts once in a row: only the last one is remembered.
    """

    def __init__(self, carla_map: carla.Map) -> None:
        self._map = carla_map
        self._last_id: int | None = None

    def update(self, moment: Moment) -> list[Infraction]:
        """Red lights run at this tick."""
        ego = moment.around.ego
        half_m = ego.extent_m[0]
        tail = transform_points(ego.pose, np.array([[-TAIL_NEAR * half_m, 0.0], [-half_m - TAIL_BEYOND_M, 0.0]]))
        found, lane = [], None
        for light in moment.around.lights:
            if light.id == self._last_id or light.state is not LightState.RED:
                continue
            if np.linalg.norm(light.area_m - moment.here_m) > LIGHT_RANGE_M:
                continue
            if lane is None:
                lane = self._lane_at(tail[1], ego.z_m)
            if any(_crosses(tail, line, lane, moment.heading) for line in light.stop_lines):
                found.append(Infraction.red_light(light.id, carla_xyz_m(light.pose.x_m, light.pose.y_m, light.z_m)))
                self._last_id = light.id
        return found

    def _lane_at(self, point_m: np.ndarray, z_m: float) -> tuple[int, int]:
        import carla

        waypoint = self._map.get_waypoint(carla.Location(*carla_xyz_m(float(point_m[0]), float(point_m[1]), z_m)))
        return waypoint.road_id, waypoint.lane_id


class RedLightsMet:
    """Counts red lights that the vehicle came up to: within 12 m of the stop line of its lane, while it is red.

    A light counts again once the vehicle was farther than 40 m from its line.

    Attributes:
        count: so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[int, np.ndarray] = {}

    def update(self, moment: Moment) -> None:
        """Look at the lights of this tick."""
        here_m, heading = moment.here_m, moment.heading
        left = [key for key, line_m in self._known.items() if np.linalg.norm(line_m - here_m) > FORGOTTEN_M]
        for key in left:
            del self._known[key]
        front_m = here_m + moment.around.ego.extent_m[0] * heading
        for light in moment.around.lights:
            if light.state is not LightState.RED or light.id in self._known:
                continue
            for line in light.stop_lines:
                if math.hypot(line.pose.x_m - front_m[0], line.pose.y_m - front_m[1]) > MET_M + line.lane_width_m:
                    continue
                along = np.array([np.cos(line.pose.yaw_rad), np.sin(line.pose.yaw_rad)])
                gap = np.array([line.pose.x_m, line.pose.y_m]) - front_m
                aside_m = abs(float(along[0] * gap[1] - along[1] * gap[0]))
                if heading @ along > ALIGNED_COS and 0.0 <= along @ gap <= MET_M and aside_m <= line.lane_width_m / 2:
                    self._known[light.id] = np.array([line.pose.x_m, line.pose.y_m])
                    self.count += 1
                    break


def _crosses(tail_m: np.ndarray, line: StopLine, lane: tuple[int, int], heading: np.ndarray) -> bool:
    along = np.array([np.cos(line.pose.yaw_rad), np.sin(line.pose.yaw_rad)])
    if line.lane != lane or heading @ along <= 0:
        return False
    middle = np.array([line.pose.x_m, line.pose.y_m])
    aside = LINE_HALF_WIDTHS * line.lane_width_m * np.array([-along[1], along[0]])
    return segments_meet(tail_m[0], tail_m[1], middle - aside, middle + aside)


def segments_meet(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> bool:
    """Whether the segments a-b and c-d have a point in common, ends included."""

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    def between(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> bool:
        return bool(np.all(np.minimum(p, q) <= r) and np.all(r <= np.maximum(p, q)))

    sides = side(a, b, c), side(a, b, d), side(c, d, a), side(c, d, b)
    if sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0:
        return True
    ends = ((a, b, c), (a, b, d), (c, d, a), (c, d, b))
    return any(s == 0 and between(*three) for s, three in zip(sides, ends, strict=True))


class StopSignRule:
    """Stop signs run: the vehicle leaves the reach of a sign that it came into without having stood there."""

    def __init__(self, carla_map: carla.Map) -> None:
        self._map = carla_map
        self._target: StopSign | None = None
        self._stood = False
        self._last_run: int | None = None

    def update(self, moment: Moment) -> list[Infraction]:
        """The stop sign run at this tick, if any."""
        near = [s for s in moment.around.stop_signs if _distance(s, moment.here_m) < SIGN_SEARCH_M]
        if self._target is None and not near:
            return []
        ahead, lane_heading = self._lane_ahead(moment)
        if self._target is None:
            forwards = moment.around.ego.velocity_mps @ moment.heading >= BACKWARDS
            with_lane = moment.heading @ lane_heading >= BACKWARDS
            if forwards and with_lane:
                self._target = next((sign for sign in near if _reaches(sign, ahead)), None)
            return []
        self._stood = self._stood or moment.around.ego.speed_mps < MOVING_MPS
        if _reaches(self._target, ahead):
            return []
        sign, stood = self._target, self._stood
        self._target, self._stood = None, False
        if stood or self._last_run == sign.id:
            return []
        self._last_run = sign.id
        return [Infraction.stop_sign(sign.id, carla_xyz_m(sign.pose.x_m, sign.pose.y_m, sign.z_m))]

    def _lane_ahead(self, moment: Moment) -> tuple[np.ndarray, np.ndarray]:
        """(K, 2) points on the lane from beside the vehicle to 4 m ahead, and the (2,) direction of the lane."""
        import carla

        waypoint = self._map.get_waypoint(carla.Location(*moment.carla_xyz_m))
        yaw = np.deg2rad(waypoint.transform.rotation.yaw)
        places = [waypoint.transform.location]
        for _ in range(STOP_STEPS):
            following = waypoint.next(STOP_STEP_M)
            if not following:
                break
            waypoint = following[0]
            places.append(waypoint.transform.location)
        return np.array([xy_from_carla(place.x, place.y) for place in places]), xy_from_carla(np.cos(yaw), np.sin(yaw))


def _distance(sign: StopSign, point_m: np.ndarray) -> float:
    return float(np.hypot(sign.area.x_m - point_m[0], sign.area.y_m - point_m[1]))


def _reaches(sign: StopSign, ahead_m: np.ndarray) -> bool:
    """Whether the sign is within 4 m and a point of the lane ahead lies in its box.

    The box is not turned with the sign, as upstream.
    """
    if _distance(sign, ahead_m[0]) > STOP_RANGE_M:
        return False
    offset = np.abs(ahead_m - [sign.area.x_m, sign.area.y_m])
    return bool(np.any(np.all(offset < STOP_BOX_SCALE * np.array(sign.extent_m[:2]), axis=1)))


class BlockedRule:
    """Standing below 0.1 m/s for 60 s; the clock is off while a scenario lets the vehicle wait."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._active = True

    def update(self, moment: Moment, waiting_allowed: bool) -> Infraction | None:
        """The infraction once the vehicle is blocked."""
        if self._active == waiting_allowed:
            self._active = not waiting_allowed
            self._since_s = moment.t_s
        if not self._active:
            return None
        if moment.around.ego.speed_mps >= BLOCKED_MPS or self._since_s is None:
            self._since_s = moment.t_s
            return None
        return Infraction.blocked(moment.carla_xyz_m) if moment.t_s - self._since_s > BLOCKED_S else None
