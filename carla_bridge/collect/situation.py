"""What goes on around a vehicle at one moment: for the tags of a sample, for what is kept of it, and for questions.

All of it is what the expert noticed when it made its plan. That is privileged: what a picture does not show is left out
of questions later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from carla_bridge.agents.expert.agent import Noticed
from carla_bridge.agents.expert.idm import Ahead, IdmConfig, idm_accel
from carla_bridge.agents.expert.others import Other
from carla_bridge.agents.expert.road import Road
from wamdiff2_core.frames import wrap_angle
from wamdiff2_core.types import NavCommand, Waypoints

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import Surroundings, TrafficLight

LIGHT_LOOK_M, ON_LANE_M, WITH_LANE_RAD = 60.0, 1.5, math.radians(60.0)
LEAD_LOOK_M, PEOPLE_LOOK_M, PATH_SIDE_M, PEOPLE_SIDE_M = 45.0, 40.0, 1.3, 4.5
BRAKING_MPS2, HARD_LEAD_M = -1.5, 30.0
STANDING_MPS, STANDING_WAY_M = 0.3, 0.6
CRUISE_MPS = 8.0
REASON_MPS2 = 0.4  # a thing ahead that takes less of the free acceleration than this is no reason
# Shares of moments that are kept, by tag; `keep_rate` has the exception.
KEEP_RATES = {
    "hazard": 1.0, "starting": 1.0, "stopping": 1.0, "red": 1.0, "standing": 0.25, "green": 0.6, "turn": 0.6,
    "following": 0.5, "free": 0.2,
}  # fmt: skip
FRESH_STANDING_S = 1.5


@dataclass(frozen=True)
class Lead:
    """Who is ahead in the vehicle's own strip.

    Attributes:
        id: of its actor.
        kind: its blueprint.
        gap_m: bumper to bumper.
        speed_mps: along the route.
    """

    id: int
    kind: str
    gap_m: float
    speed_mps: float


@dataclass(frozen=True)
class Beside:
    """Somebody on foot, or something that stands in the way.

    Attributes:
        id: of its actor.
        ahead_m: from the front, along the route.
        left_m: of the path, to its near side; 0 in it, right negative.
    """

    id: int
    ahead_m: float
    left_m: float


@dataclass(frozen=True)
class Situation:
    """A moment.

    Attributes:
        light_id, light_state, light_m: the next light of the route within 60 m of the front; id 0 without one.
        lead: nearest in the vehicle's own strip, within 45 m.
        people: on foot near the path, within 40 m, nearest first.
        obstacles: what stands in the path for good, within 40 m, nearest first.
        stop_sign_m: distance to the place where a sign asks to stop; infinite without one.
        reason: what the expert brakes or waits for, in its words; empty when the way is free.
        reason_id: the actor or light that this is; 0 for none.
        shift_m: of a detour, left positive.
        lead_brakes: whether the lead slows down hard.
    """

    light_id: int
    light_state: str
    light_m: float
    lead: Lead | None
    people: tuple[Beside, ...]
    obstacles: tuple[Beside, ...]
    stop_sign_m: float
    reason: str
    reason_id: int
    shift_m: float
    lead_brakes: bool


def read_situation(noticed: Noticed, road: Road, around: Surroundings, speed_mps: float) -> Situation:
    """The situation of a plan.

    Args:
        noticed: by the expert.
        road: its route.
        around: of the same moment.
        speed_mps: of the vehicle.
    """
    light, light_m = _next_light(noticed, road, around)
    leads = [other for other in noticed.others if other.front_m > noticed.front_m]
    by_kind = {other.rear_m: other for other in leads}
    entries = [entry for entry in noticed.ahead if entry.rear_m in by_kind and entry.why.startswith("vehicle.")]
    lead, brakes = None, False
    if entries:
        first = min(entries, key=lambda entry: entry.rear_m)
        other, gap_m = by_kind[first.rear_m], first.rear_m - noticed.front_m
        if gap_m < LEAD_LOOK_M:
            lead = Lead(other.actor.id, other.actor.type_id, gap_m, other.along_mps)
            brakes = other.accel_mps2 < BRAKING_MPS2 and gap_m < HARD_LEAD_M
    near = [other for other in leads if other.rear_m - noticed.front_m < PEOPLE_LOOK_M]
    people = tuple(_beside(other, noticed) for other in near
                   if other.is_walker and other.overlaps(-PEOPLE_SIDE_M, PEOPLE_SIDE_M))
    obstacles = tuple(_beside(other, noticed) for other in near
                      if _is_obstacle(other) and other.overlaps(-PATH_SIDE_M, PATH_SIDE_M))
    reason = _reason(noticed, speed_mps)
    why = "" if reason is None else reason.why
    reason_id = 0
    if why.endswith(" light") and light is not None:
        reason_id = light.id
    elif reason is not None and reason.rear_m in by_kind:
        reason_id = by_kind[reason.rear_m].actor.id
    signs = [entry.rear_m - noticed.front_m for entry in noticed.ahead if entry.why == "stop sign"]
    return Situation(
        light.id if light is not None else 0, light.state.value if light is not None else "", light_m, lead, people,
        obstacles, min(signs, default=math.inf), why, reason_id, noticed.shift_m, brakes,
    )


def way_m(waypoints: Waypoints) -> float:
    """Length of the way along waypoints."""
    return float(np.hypot(*np.diff(np.vstack([[0.0, 0.0], waypoints.xy_m]), axis=0).T).sum())


def keep_rate(tag: str, plan: Waypoints, standing_s: float) -> float:
    """Share of such moments that is kept; one after another of a vehicle that stays where it is are all alike.

    Args:
        tag: of the moment.
        plan: of the expert.
        standing_s: how long the vehicle has been standing.
    """
    if tag in ("standing", "hazard") and standing_s > 0.0 and way_m(plan) < STANDING_WAY_M:
        return 1.0 if standing_s <= FRESH_STANDING_S else KEEP_RATES["standing"]
    return KEEP_RATES[tag]


def tag_of(situation: Situation, speed_mps: float, command: NavCommand, plan: Waypoints) -> str:
    """The one word that decides what is kept; a key of `KEEP_RATES`."""
    way = np.vstack([[0.0, 0.0], plan.xy_m])
    steps = np.hypot(*np.diff(way, axis=0).T)
    end_mps = float(steps[-1]) / plan.dt_s
    on_foot = situation.reason.startswith(("walker.", "crossing walker.", "crossing vehicle.bike"))
    waits = situation.reason == "waits to pass" or abs(situation.shift_m) > 0.5
    if on_foot or waits or situation.lead_brakes or (situation.obstacles and situation.obstacles[0].ahead_m < 30.0):
        return "hazard"
    if speed_mps < STANDING_MPS and way_m(plan) < STANDING_WAY_M:
        return "standing"
    if speed_mps < 2.0 and end_mps > speed_mps + 1.0:
        return "starting"
    if speed_mps > 1.0 and end_mps < 0.5 * speed_mps:
        return "stopping"
    if situation.light_id and situation.light_m < 45.0:
        return "red" if situation.light_state in ("red", "yellow") else "green"
    if command is not NavCommand.FOLLOW:
        return "turn"
    return "following" if situation.lead is not None and situation.lead.gap_m < 25.0 else "free"


def extra_of(situation: Situation) -> dict[str, Any]:
    """The situation as keys of a sample."""
    found: dict[str, Any] = {}
    if situation.light_id:
        found["light"] = {"state": situation.light_state, "distance_m": round(situation.light_m, 1)}
    if situation.lead is not None:
        lead = situation.lead
        found["lead"] = {"kind": lead.kind, "gap_m": round(lead.gap_m, 1), "speed_mps": round(lead.speed_mps, 1)}
    if situation.people:
        person = situation.people[0]
        found["pedestrian"] = {"ahead_m": round(person.ahead_m, 1), "left_m": round(person.left_m, 1)}
    if situation.obstacles:
        found["obstacle_m"] = round(situation.obstacles[0].ahead_m, 1)
    if math.isfinite(situation.stop_sign_m):
        found["stop_sign_m"] = round(situation.stop_sign_m, 1)
    if situation.reason:
        found["reason"] = situation.reason
    if abs(situation.shift_m) > 0.3:
        found["detour_m"] = round(situation.shift_m, 1)
    return found


def _next_light(noticed: Noticed, road: Road, around: Surroundings) -> tuple[TrafficLight | None, float]:
    """The first light whose stop line the route crosses, and how far its line is."""
    pairs = [(light, line) for light in around.lights for line in light.stop_lines]
    here = road.xy_m[road.index(noticed.progress_m)]
    pairs = [(light, line) for light, line in pairs
             if math.hypot(line.pose.x_m - here[0], line.pose.y_m - here[1]) < LIGHT_LOOK_M + 20.0]
    if not pairs:
        return None, math.inf
    places = road.project(np.array([[line.pose.x_m, line.pose.y_m] for _, line in pairs]), noticed.progress_m)
    headings = road.headings(places[:, 0])
    best: tuple[TrafficLight | None, float] = (None, math.inf)
    for (light, line), (s_m, d_m), heading in zip(pairs, places, headings, strict=True):
        room_m = float(s_m) - noticed.front_m
        turned = abs(wrap_angle(float(heading) - line.pose.yaw_rad))
        if abs(d_m) < ON_LANE_M and turned < WITH_LANE_RAD and -1.0 < room_m < min(LIGHT_LOOK_M, best[1]):
            best = light, room_m
    return best


def _beside(other: Other, noticed: Noticed) -> Beside:
    side = 0.0 if other.overlaps(-PATH_SIDE_M, PATH_SIDE_M) else other.right_m if other.right_m > 0 else other.left_m
    return Beside(other.actor.id, max(0.0, other.rear_m - noticed.front_m), side)


def _is_obstacle(other: Other) -> bool:
    if other.actor.type_id.startswith("static."):
        return True
    stands = other.is_vehicle and not other.has_moved and other.standing_s >= 1.0 and not other.oncoming
    return stands and other.actor.role_name != "background"


def _reason(noticed: Noticed, speed_mps: float) -> Ahead | None:
    """Of all things ahead, the one that takes most of the acceleration that a free road would allow."""
    config = IdmConfig()
    free = config.max_accel_mps2 * (1.0 - (min(speed_mps, CRUISE_MPS) / CRUISE_MPS) ** 4)

    def accel(entry: Ahead) -> float:
        return idm_accel(speed_mps, CRUISE_MPS, entry.rear_m - noticed.front_m, entry, config)

    first = min(noticed.ahead, key=accel, default=None)
    return first if first is not None and accel(first) < free - REASON_MPS2 else None
