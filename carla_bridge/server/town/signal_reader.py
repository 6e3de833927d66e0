"""Traffic lights and signs of a town, read from its OpenDRIVE signals through `carla.Map`.

One OpenDRIVE signal is one actor, and its id links the two. Lights of a junction that share a controller change
together; a light without one changes alone. Where a signal stands inside a junction, as in CARLA's own towns, the
lanes that it stops are those that lead there.

An actor's x axis lies across the lanes, to the right of traffic, as in CARLA: the leaderboard and the client's
`get_stop_waypoints` look for lanes along the x axis of the trigger volume.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from xml.etree import ElementTree

import carla
import numpy as np

from carla_bridge.server.geometry.poses import Pose, wrap_degrees
from carla_bridge.server.geometry.scene import SignalKind
from carla_bridge.server.town.junctions import TURN_DEG, ahead_m
from carla_bridge.server.town.road_signals import (
    LIGHT_TYPE,
    POLE_GAP_M,
    POLE_STEP_M,
    POLE_TRIES,
    STOP_TYPE,
    YIELD_TYPE,
    LaneStop,
    Post,
    SignalSpec,
)

NEAR_HEAD_M, FAR_HEAD_M, SIGN_HEAD_M = 2.7, 5.2, 2.3
# A light is met from 9 m before its stop line to the junction: who brakes late still knows it.
TRIGGER_BEFORE_M, TRIGGER_BEHIND_AT_MOST_M, TRIGGER_HALF_HEIGHT_M = 9.0, 8.0, 1.5
STOP_TRIGGER_HALF_M, STOP_TRIGGER_BEFORE_M, STOP_TRIGGER_HEIGHT_M = 1.5, 0.75, 0.5
LONGEST_ARM_M = 7.0
HEAD_BEFORE_POLE_M = 0.25
APPROACH_M = 60.0  # a signal further from its junction than this belongs to none
WHEELS = (
    carla.LaneType.Driving, carla.LaneType.Bidirectional, carla.LaneType.Parking, carla.LaneType.Stop,
    carla.LaneType.Shoulder, carla.LaneType.Biking,
)  # fmt: skip
KINDS = {LIGHT_TYPE: SignalKind.TRAFFIC_LIGHT, STOP_TYPE: SignalKind.STOP, YIELD_TYPE: SignalKind.YIELD}


def read_signals(opendrive: str, carla_map: carla.Map) -> tuple[SignalSpec, ...]:
    """Lights, stop signs and yield signs that govern a driving lane, in order of their ids."""
    landmarks: dict[tuple[SignalKind, str], list[carla.Landmark]] = {}
    for landmark in carla_map.get_all_landmarks():
        if landmark.type in KINDS:
            landmarks.setdefault((KINDS[landmark.type], landmark.id), []).append(landmark)
    phases = _phases(opendrive)
    alone: dict[int, itertools.count] = {}
    specs = []
    for (kind, sign_id), group in sorted(landmarks.items(), key=lambda item: _natural(item[0][1])):
        ends = _governed(carla_map, group)
        if not ends:
            continue
        junction_id = _junction_ahead(ends[0])
        phase = phases.get(sign_id)
        if phase is None:
            last = max((p for s, p in phases.items() if (kind, s) in landmarks), default=-1)
            phase = next(alone.setdefault(junction_id, itertools.count(last + 1)))
        specs.append(_spec(carla_map, sign_id, kind, junction_id, phase, ends, group[0]))
    return tuple(specs)


def on_road(carla_map: carla.Map, place: carla.Location) -> bool:
    """Whether a place lies on a lane for wheels."""
    # asked kind by kind: of several kinds the map takes the lane with the nearest middle, which may be a narrow one
    return any(carla_map.get_waypoint(place, project_to_road=False, lane_type=kind) is not None for kind in WHEELS)


def _natural(text: str) -> tuple[int, str]:
    return (int(text), text) if text.isdigit() else (1 << 31, text)


def _phases(opendrive: str) -> dict[str, int]:
    """Place of each signal's controller in its junction, by signal id."""
    root = ElementTree.fromstring(opendrive)
    signals = {
        controller.get("id"): [control.get("signalId", "") for control in controller.findall("control")]
        for controller in root.findall("controller")
    }
    return {
        sign_id: phase
        for junction in root.findall("junction")
        for phase, reference in enumerate(junction.findall("controller"))
        for sign_id in signals.get(reference.get("id"), ())
    }


def _governed(carla_map: carla.Map, landmarks: Iterable[carla.Landmark]) -> list[carla.Waypoint]:
    """Where the governed lanes stop, from the road's middle outwards, none inside a junction."""
    ends: dict[tuple[int, int], carla.Waypoint] = {}
    for landmark in landmarks:
        for low, high in landmark.get_lane_validities():
            for lane_id in range(min(low, high), max(low, high) + 1):
                against = landmark.orientation is carla.LandmarkOrientation.Negative
                along = landmark.orientation is carla.LandmarkOrientation.Positive
                if lane_id == 0 or (against and lane_id < 0) or (along and lane_id > 0):
                    continue
                waypoint = carla_map.get_waypoint_xodr(landmark.road_id, lane_id, landmark.s)
                for _ in range(int(2 * APPROACH_M)):  # back out of the junction, unless its ways form a ring
                    if waypoint is None or not waypoint.is_junction:
                        break
                    waypoint = next(iter(waypoint.previous(1.0)), None)
                if waypoint is None or waypoint.is_junction:
                    continue
                if waypoint.lane_type == carla.LaneType.Driving:
                    ends.setdefault((waypoint.road_id, waypoint.lane_id), waypoint)
    return [ends[key] for key in sorted(ends, key=lambda key: (key[0], abs(key[1])))]


def _junction_ahead(waypoint: carla.Waypoint) -> int:
    for _ in range(int(APPROACH_M)):
        if waypoint.is_junction:
            return waypoint.junction_id
        following = waypoint.next(1.0)
        if not following:
            break
        waypoint = following[0]
    return -1


def _lane_at_end(waypoint: carla.Waypoint) -> int:
    """Number of a lane where it leaves its road, if that is near."""
    lane_id, road_id = waypoint.lane_id, waypoint.road_id
    for distance_m in np.arange(0.5, APPROACH_M, 0.5):
        ahead = waypoint.next(float(distance_m))
        if not ahead or ahead[0].road_id != road_id:
            break
        lane_id = ahead[0].lane_id
    return int(lane_id)


def _spec(
    carla_map: carla.Map,
    sign_id: str,
    kind: SignalKind,
    junction_id: int,
    phase: int,
    ends: list[carla.Waypoint],
    landmark: carla.Landmark,
) -> SignalSpec:
    same_road = [end for end in ends if end.road_id == ends[0].road_id]
    yaw = ends[0].transform.rotation.yaw
    stand, ground_z = landmark.transform.location, ends[0].transform.location.z
    pose = Pose(stand.x, stand.y, ground_z, yaw=wrap_degrees(yaw + 90.0))
    first, last = same_road[0], same_road[-1]
    reach = first.transform.location.distance(last.transform.location)
    width = reach + (first.lane_width + last.lane_width) / 2
    height_m = TRIGGER_HALF_HEIGHT_M
    if kind is SignalKind.TRAFFIC_LIGHT:
        behind = _to_junction_m(first)
        back = (TRIGGER_BEFORE_M - behind) / 2
        first, last = (next(iter(end.previous(back)), end) for end in (first, last))
        extent = (width / 2, TRIGGER_BEFORE_M - back, TRIGGER_HALF_HEIGHT_M)
    else:
        # The leaderboard tests a stop's extent along the world's axes, whatever its yaw: a square is the same in both.
        # It counts as stopped who is within 4 m of the middle, so that lies where a bonnet is.
        half, height_m = max(STOP_TRIGGER_HALF_M, width / 2 - 0.3), STOP_TRIGGER_HEIGHT_M
        first, last = (next(iter(end.previous(STOP_TRIGGER_BEFORE_M)), end) for end in (first, last))
        extent = (half, half, TRIGGER_HALF_HEIGHT_M)
    a, b = first.transform.location, last.transform.location
    offset = ((a.x + b.x) / 2 - stand.x, (a.y + b.y) / 2 - stand.y)
    right, forward = ahead_m(yaw + 90.0, 1.0), ahead_m(yaw, 1.0)
    # the actor's x axis points right of traffic, so its y axis points back
    local = (
        offset[0] * right[0] + offset[1] * right[1],
        -(offset[0] * forward[0] + offset[1] * forward[1]),
        height_m,
    )
    height = NEAR_HEAD_M if kind is SignalKind.TRAFFIC_LIGHT else SIGN_HEAD_M
    dx, dy = ahead_m(yaw, -HEAD_BEFORE_POLE_M)
    posts = [Post((stand.x, stand.y, ground_z), (stand.x + dx, stand.y + dy, ground_z + height), yaw)]
    if kind is SignalKind.TRAFFIC_LIGHT:
        posts += _far_post(carla_map, same_road, junction_id)
    stops = tuple(LaneStop(end.road_id, end.lane_id, end.s, _lane_at_end(end)) for end in ends)
    return SignalSpec(sign_id, kind, junction_id, phase, stops, pose, (local, extent), tuple(posts), yaw)


def _to_junction_m(end: carla.Waypoint) -> float:
    """From a stop line to the junction, metres, as far as it matters."""
    for distance in np.arange(0.25, TRIGGER_BEHIND_AT_MOST_M, 0.25):
        if any(place.is_junction for place in end.next(float(distance))):
            return float(distance)
    return 0.0


def _far_post(carla_map: carla.Map, ends: list[carla.Waypoint], junction_id: int) -> list[Post]:
    """A second head beyond the junction, for who waits too close to see the first; none where there is no room.

    It hangs over the lanes it speaks to, from a pole on the right of the road that leads straight on; at the foot of a
    T it faces them from the other side of the road.
    """
    yaw = ends[0].transform.rotation.yaw
    a, b = ends[0].transform.location, ends[-1].transform.location
    foot = _beside_exit(carla_map, ends[-1], junction_id) or _across(carla_map, b, yaw, junction_id)
    if foot is None:
        return []
    left = ahead_m(yaw - 90.0, 1.0)
    wanted = ((a.x + b.x) / 2 - foot.x) * left[0] + ((a.y + b.y) / 2 - foot.y) * left[1]
    arm = max(0.0, min(LONGEST_ARM_M, wanted))
    head = (foot.x + arm * left[0], foot.y + arm * left[1], foot.z + FAR_HEAD_M)
    return [Post((foot.x, foot.y, foot.z), head, yaw)]


def _beside_exit(carla_map: carla.Map, end: carla.Waypoint, junction_id: int) -> carla.Location | None:
    """Right side of the road that leads straight on."""
    place = _straight_on(end, junction_id)
    if place is None:
        return None
    place = next(iter(place.next(1.5)), place)
    while (outer := place.get_right_lane()) is not None and outer.lane_type in WHEELS:
        place = outer
    right, middle = place.transform.get_right_vector(), place.transform.location
    for step in range(POLE_TRIES):
        reach = place.lane_width / 2 + POLE_GAP_M + step * POLE_STEP_M
        foot = carla.Location(middle.x + reach * right.x, middle.y + reach * right.y, middle.z)
        if not on_road(carla_map, foot):
            return foot
    return None


def _straight_on(end: carla.Waypoint, junction_id: int) -> carla.Waypoint | None:
    """Where the way out of the junction ahead begins that keeps the heading."""
    for distance in range(1, int(2 * APPROACH_M)):
        for place in end.next(float(distance)):
            turn = wrap_degrees(place.transform.rotation.yaw - end.transform.rotation.yaw)
            leaves = not place.is_junction and any(_is_in(before, junction_id) for before in place.previous(1.5))
            if leaves and abs(turn) < TURN_DEG:
                return place
    return None


def _is_in(waypoint: carla.Waypoint, junction_id: int) -> bool:
    return waypoint.is_junction and waypoint.junction_id == junction_id


def _across(carla_map: carla.Map, start: carla.Location, yaw_deg: float, junction_id: int) -> carla.Location | None:
    """First free ground straight ahead beyond everything that belongs to the junction.

    Islands between its ways are no place for a pole that all of them must see.
    """
    line = [carla.Location(start.x + dx, start.y + dy, start.z) for dx, dy in _steps(yaw_deg)]
    roads = [carla_map.get_waypoint(place, project_to_road=False) for place in line]
    inside = [i for i, road in enumerate(roads) if road is not None and _is_in(road, junction_id)]
    if not inside:
        return None
    free = [place for place in line[inside[-1] + 1 :] if not on_road(carla_map, place)]
    return free[1] if len(free) > 1 else None  # the first may stand on the kerb


def _steps(yaw_deg: float) -> list[tuple[float, float]]:
    return [ahead_m(yaw_deg, distance) for distance in np.arange(1.0, APPROACH_M, 0.5)]
