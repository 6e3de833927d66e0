"""The other actors along the route, and where they will be.

A forecast keeps speed and turn of the moment, goes on braking if the actor brakes, and for a moment on speeding up:
right for a few seconds, which is what a driver can count on. Whoever drives along the road, either way, keeps to its
bends: in a bend, the turn of the moment would lead across the other lane. A forecast is a row of discs per actor, so
that one distance tells of a conflict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.agents.expert.road import BACK_M, Road
from wamdiff2_core.frames import wrap_angle, wrap_angles
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import Actor, Surroundings

SEEN_M, ASIDE_M = 150.0, 40.0
STANDING_MPS, MOVED_MPS = 0.2, 0.8  # spawned vehicles settle a little
FORECAST_STEP_S, FORECAST_STEPS = 0.2, 30
SPEEDING_UP_S = 1.5
TIMES_S = FORECAST_STEP_S * np.arange(1, FORECAST_STEPS + 1)
ALONG_RAD, ALONG_M = math.radians(25.0), 7.0  # turned from the road and off its middle by less, one drives along it
OPPOSITE_RAD = math.pi - ALONG_RAD  # turned by more, one comes the other way
FOLLOWING_RADPS, FOLLOWED_S = 0.25, 3.0  # turning by less than this against the bend, looked at for this long
BEND_SEEN_S = (0.0, 0.2, 0.4, 0.6, 0.8)  # how far ahead a driver begins to turn for a bend
SWERVE_DEAD_RADPS, SWERVE_S, DRIFT_S = 0.08, 1.5, 2.0
EMERGENCY = ("police", "ambulance", "firetruck")
DRIVEN_OVER = ("static.prop.dirtdebris",)


@dataclass(frozen=True)
class Other:
    """An actor near the route.

    Attributes:
        actor: as it is.
        rear_m, front_m: extent along the route.
        right_m, left_m: extent across it, left positive.
        along_mps, across_mps: speed along the route, and to its left.
        turned_rad: its heading relative to the route's.
        accel_mps2: change of its speed.
        standing_s: how long it has been standing.
        has_moved: whether it was ever seen to drive or walk.
    """

    actor: Actor
    rear_m: float
    front_m: float
    right_m: float
    left_m: float
    along_mps: float
    across_mps: float
    turned_rad: float
    accel_mps2: float
    standing_s: float
    has_moved: bool

    @property
    def is_vehicle(self) -> bool:
        """Whether it is a vehicle, bicycles included."""
        return self.actor.type_id.startswith("vehicle.")

    @property
    def is_walker(self) -> bool:
        """Whether it is a pedestrian."""
        return self.actor.type_id.startswith("walker.")

    @property
    def is_rider(self) -> bool:
        """Whether it is narrow, as bicycles are."""
        return self.is_vehicle and self.actor.extent_m[1] < 0.5

    @property
    def is_emergency(self) -> bool:
        """Whether it has right of way whatever the signs say, while it drives."""
        return self.is_vehicle and any(word in self.actor.type_id for word in EMERGENCY)

    @property
    def oncoming(self) -> bool:
        """Whether it looks against the route's direction."""
        return abs(self.turned_rad) > math.radians(120.0)

    @property
    def middle_m(self) -> tuple[float, float]:
        """Arc length and distance to the left of its middle."""
        return (self.rear_m + self.front_m) / 2, (self.right_m + self.left_m) / 2

    def overlaps(self, right_m: float, left_m: float) -> bool:
        """Whether it reaches into a strip along the route."""
        return self.right_m < left_m and self.left_m > right_m


class OthersReader:
    """Projects the surroundings on one route, tick by tick, and remembers speeds."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._speeds: dict[int, tuple[int, float]] = {}
        self._standing_since_ns: dict[int, int] = {}
        self._moved: set[int] = set()

    def read(self, around: Surroundings, progress_m: float) -> list[Other]:
        """The actors near the route, by rising distance along it.

        Args:
            around: of this moment; time must not run back.
            progress_m: where the ego vehicle is on the route.
        """
        ego = np.array([around.ego.pose.x_m, around.ego.pose.y_m])
        near = [
            actor for actor in around.actors
            if abs(actor.z_m - around.ego.z_m) < 4.0 and not actor.type_id.startswith(DRIVEN_OVER)
            and math.hypot(actor.pose.x_m - ego[0], actor.pose.y_m - ego[1]) < SEEN_M
        ]
        if not near:
            self._speeds.clear()
            return []
        corners = self._road.project(np.concatenate([actor.corners_m() for actor in near]), progress_m)
        corners = corners.reshape(len(near), 4, 2)
        low, high = corners.min(axis=1), corners.max(axis=1)
        headings = self._road.headings(corners[:, :, 0].mean(axis=1))
        found = []
        for i, actor in enumerate(near):
            accel, standing_s = self._motion(actor, around.stamp_ns)
            if low[i, 1] > ASIDE_M or high[i, 1] < -ASIDE_M or high[i, 0] < progress_m - BACK_M + 5.0:
                continue
            cos, sin = math.cos(headings[i]), math.sin(headings[i])
            vx, vy = actor.velocity_mps
            found.append(Other(
                actor, float(low[i, 0]), float(high[i, 0]), float(low[i, 1]), float(high[i, 1]),
                float(cos * vx + sin * vy), float(cos * vy - sin * vx),
                wrap_angle(actor.pose.yaw_rad - float(headings[i])), accel, standing_s,
                actor.id in self._moved,
            ))
        return sorted(found, key=lambda other: (other.rear_m, other.actor.id))

    def _motion(self, actor: Actor, stamp_ns: int) -> tuple[float, float]:
        before_ns, before_mps = self._speeds.get(actor.id, (stamp_ns, actor.speed_mps))
        self._speeds[actor.id] = stamp_ns, actor.speed_mps
        dt_s = (stamp_ns - before_ns) * 1e-9
        accel = (actor.speed_mps - before_mps) / dt_s if dt_s > 0 else 0.0
        if actor.speed_mps >= STANDING_MPS:
            self._standing_since_ns.pop(actor.id, None)
            if actor.speed_mps > MOVED_MPS:
                self._moved.add(actor.id)
            return accel, 0.0
        since = self._standing_since_ns.setdefault(actor.id, stamp_ns)
        return accel, (stamp_ns - since) * 1e-9


@dataclass(frozen=True)
class Discs:
    """A body at the times `TIMES_S`.

    Attributes:
        centres_m: (T, K, 2), map frame.
        radius_m: of each disc.
    """

    centres_m: np.ndarray
    radius_m: float

    def hits(self, other: Discs, margin_m: float) -> np.ndarray:
        """(T,) whether the two come closer than a margin."""
        gaps = self.centres_m[:, :, None] - other.centres_m[:, None]
        reach = self.radius_m + other.radius_m + margin_m
        return (np.einsum("tijk,tijk->tij", gaps, gaps) < reach**2).any(axis=(1, 2))


def discs(poses_xyyaw: np.ndarray, half_length_m: float, half_width_m: float) -> Discs:
    """Cover a box at (T, 3) poses of its middle with discs."""
    count = max(1, min(5, math.ceil(half_length_m / half_width_m)))
    part = half_length_m / count
    places = -half_length_m + part * (2 * np.arange(count) + 1)
    axes = np.stack([np.cos(poses_xyyaw[:, 2]), np.sin(poses_xyyaw[:, 2])], axis=1)
    centres = poses_xyyaw[:, None, :2] + places[None, :, None] * axes[:, None]
    # Discs that reach the box's corners would be half as wide again as it: its sides count.
    return Discs(centres, max(half_width_m, 0.9 * math.hypot(part, half_width_m)))


def forecast(other: Other, road: Road) -> Discs:
    """Where an actor will be at `TIMES_S`."""
    way = _way(other)
    poses = _along_road(other, road, way) if follows(other, road) else _by_turn(other, way)
    return discs(poses, *other.actor.extent_m[:2])


def follows(other: Other, road: Road) -> bool:
    """Whether a vehicle drives along the road, either way, and turns as its bends do; never sure in a junction."""
    s, d = other.middle_m
    if (not other.is_vehicle or abs(math.cos(other.turned_rad)) < math.cos(ALONG_RAD) or abs(d) > ALONG_M
            or not 0.0 < s < road.length_m or road.meets_junction(s, s + FOLLOWED_S * other.along_mps)):
        return False
    return abs(_swerve_radps(other, road)) < FOLLOWING_RADPS


def _pace(other: Other, road: Road) -> float:
    """Progress along the route for each metre driven: the inside of a bend is shorter."""
    s, d = other.middle_m
    return 1.0 / max(0.3, 1.0 - float(road.bends(np.array([s]))[0]) * d)


def _swerve_radps(other: Other, road: Road) -> float:
    """How fast a vehicle turns against the bend that it is in, or is about to be in."""
    ahead_m = other.middle_m[0] + other.along_mps * np.array(BEND_SEEN_S)
    bend = road.bends(ahead_m) * other.along_mps * _pace(other, road)
    rate = other.actor.yaw_rate_radps
    return rate - float(np.clip(rate, bend.min(), bend.max()))


def _way(other: Other) -> np.ndarray:
    """(T,) metres that an actor makes, negative backwards."""
    actor = other.actor
    speed = math.copysign(actor.speed_mps, actor.forward_mps) if other.is_vehicle else actor.speed_mps
    change = other.accel_mps2 if other.is_vehicle and abs(other.accel_mps2) > 0.3 else 0.0
    change = min(2.0, max(-6.0, change))
    until_s = abs(speed) / -change if change < 0 else SPEEDING_UP_S
    t = np.minimum(TIMES_S, until_s)
    way = abs(speed) * t + 0.5 * change * t**2
    if change >= 0:
        way = way + (abs(speed) + change * until_s) * np.maximum(0.0, TIMES_S - until_s)
    return np.asarray(math.copysign(1.0, speed) * way)


def _along_road(other: Other, road: Road, way_m: np.ndarray) -> np.ndarray:
    """(T, 3) poses of a vehicle that follows the road's bends.

    A drift to the side is held for `DRIFT_S`, a turn against the bend for `SWERVE_S`.
    """
    s, d = other.middle_m
    swerve = _swerve_radps(other, road)
    swerve = swerve if abs(swerve) > SWERVE_DEAD_RADPS else 0.0
    arcs = s + math.cos(other.turned_rad) * way_m * _pace(other, road)
    aside = d + other.across_mps * np.minimum(TIMES_S, DRIFT_S)
    aside = aside + 0.5 * other.along_mps * swerve * np.minimum(TIMES_S, SWERVE_S) ** 2
    return np.column_stack([road.places(arcs, aside), road.headings(arcs) + other.turned_rad])


def _by_turn(other: Other, way_m: np.ndarray) -> np.ndarray:
    """(T, 3) poses of an actor that holds its turn for 2 s: longer, a wobble becomes a circle."""
    actor = other.actor
    direction = actor.pose.yaw_rad
    if not other.is_vehicle and actor.speed_mps > STANDING_MPS:
        direction = math.atan2(actor.velocity_mps[1], actor.velocity_mps[0])
    rate = actor.yaw_rate_radps if other.is_vehicle and abs(actor.yaw_rate_radps) > 0.05 else 0.0
    yaw = direction + rate * np.minimum(TIMES_S, 2.0)
    steps = np.diff(way_m, prepend=0.0)
    centre = actor.corners_m().mean(axis=0)
    x, y = centre[0] + np.cumsum(steps * np.cos(yaw)), centre[1] + np.cumsum(steps * np.sin(yaw))
    return np.column_stack([x, y, yaw if other.is_vehicle else np.full(len(yaw), actor.pose.yaw_rad)])


def ego_discs(road: Road, s_m: np.ndarray, d_m: np.ndarray, pose: Pose2D, extent_m: Sequence[float]) -> Discs:
    """The ego vehicle along the route, at arc lengths (T,) and distances to its left (T,)."""
    places = road.places(s_m, d_m)
    steps = np.diff(places, axis=0, prepend=[[pose.x_m, pose.y_m]])
    moving = np.hypot(*steps.T) > 0.05
    yaw = np.where(moving, np.arctan2(steps[:, 1], steps[:, 0]), road.headings(s_m))
    yaw = np.where(np.abs(wrap_angles(yaw - road.headings(s_m))) < 1.0, yaw, road.headings(s_m))
    return discs(np.column_stack([places, yaw]), extent_m[0], extent_m[1])
