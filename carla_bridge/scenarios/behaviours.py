"""How the actors of scenarios move: vehicles along lines, walkers across roads, flows from a source to a sink.

Vehicles are driven by their pedals and wheel, so contacts are physical on every server. They keep their distance to
whatever stands or drives on their line (intelligent driver model, Treiber et al. 2000), the ego vehicle included;
scenario_runner's flows do not until the first collision, and then push on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from carla_bridge.scenarios.places import Spot
from wamdiff2_core.control.pure_pursuit import curvature_to, steer_for_curvature
from wamdiff2_core.frames import inverse, transform_points
from wamdiff2_core.types import Pose2D, VehicleCommand

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import Actor, Surroundings
    from carla_bridge.scenarios.stage import Stage

LOOKAHEAD_M, LOOKAHEAD_S = 3.0, 0.35
MAX_STEER_RAD = 0.8
SIGHT_M = 60.0
BEND_M, BEND_MPS2, BRAKING_MPS2 = 6.0, 4.5, 2.5  # bends: measured over, driven and braked for with
STARTING_MPS2, GOING_MPS, STUCK_S, HILL_MPS2 = 0.3, 0.8, 0.7, 6.0
SIDE_MARGIN_M = 0.3
SOURCE_ROOM_M = 8.0
FACED_M = 1.3  # from a line to the side of who reaches into its way: half a car and a little
NOTICE_S = 2.5  # nothing appears before the ego vehicle in less time than this


class Track:
    """A line to follow, map frame.

    Args:
        xy_m: (N, 2) points in driving order.
        left_m: shift to the left.
    """

    def __init__(self, xy_m: np.ndarray, left_m: float = 0.0) -> None:
        steps = np.diff(xy_m, axis=0)
        xy_m = xy_m[np.concatenate([[True], np.hypot(steps[:, 0], steps[:, 1]) > 1e-3])]
        if left_m:
            along = np.gradient(xy_m, axis=0)
            along /= np.linalg.norm(along, axis=1, keepdims=True)
            xy_m = xy_m + left_m * np.stack([-along[:, 1], along[:, 0]], axis=1)
        self.xy_m = xy_m
        self._steps = np.diff(xy_m, axis=0)
        self._lengths = np.maximum(np.hypot(self._steps[:, 0], self._steps[:, 1]), 1e-9)
        self.arc_m = np.concatenate([[0.0], np.cumsum(self._lengths)])

    @property
    def length_m(self) -> float:
        """From the first point to the last."""
        return float(self.arc_m[-1])

    def project(self, points_m: np.ndarray, near_m: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Arc length of the line's nearest point for each of (K, 2) points, and the distance to it, left positive.

        Args:
            points_m: map frame.
            near_m: look from 10 m before to 80 m after this arc length only, for lines that come near themselves.
        """
        first, last = 0, len(self._lengths)
        if near_m is not None:
            first = min(max(int(np.searchsorted(self.arc_m, near_m - 10.0)) - 1, 0), last - 1)
            last = min(max(int(np.searchsorted(self.arc_m, near_m + 80.0)), first + 1), last)
        offset = points_m[:, None, :] - self.xy_m[None, first:last]
        steps, lengths = self._steps[first:last], self._lengths[first:last]
        share = np.clip((offset * steps).sum(axis=2) / lengths**2, 0.0, 1.0)
        away = offset - share[..., None] * steps
        distances = np.hypot(away[..., 0], away[..., 1])
        best = distances.argmin(axis=1)
        row = np.arange(len(points_m))
        side = np.sign(steps[best, 0] * offset[row, best, 1] - steps[best, 1] * offset[row, best, 0])
        return self.arc_m[first + best] + share[row, best] * lengths[best], side * distances[row, best]

    def up_to(self, point_m: np.ndarray) -> Track:
        """The line as far as the point of it that is nearest to a point, 10 m at least."""
        arcs, _ = self.project(point_m[None])
        return Track(self.xy_m[: int(np.searchsorted(self.arc_m, max(float(arcs[0]), 10.0))) + 1])

    def pose(self, arc_m: float) -> Pose2D:
        """Pose on the line at an arc length, held at its ends."""
        k = min(max(int(np.searchsorted(self.arc_m, arc_m, side="right")) - 1, 0), len(self._lengths) - 1)
        part = min(max(arc_m - self.arc_m[k], 0.0), self._lengths[k]) / self._lengths[k]
        x, y = self.xy_m[k] + part * self._steps[k]
        return Pose2D(float(x), float(y), float(math.atan2(self._steps[k, 1], self._steps[k, 0])))


    def bend_mps(self, arc_m: float) -> float:
        """Speed at which the bends of the next seconds can be driven."""
        return float(np.interp(arc_m, self.arc_m, self._bend_speeds))

    @cached_property
    def _bend_speeds(self) -> np.ndarray:
        ends = np.array([[self.pose(float(arc) + side).yaw_rad for side in (-BEND_M / 2, BEND_M / 2)]
                         for arc in self.arc_m])
        turned = np.abs((np.diff(ends, axis=1)[:, 0] + math.pi) % (2 * math.pi) - math.pi)
        speeds: np.ndarray = np.sqrt(BEND_MPS2 * BEND_M / np.maximum(turned, 1e-3))
        for k in range(len(speeds) - 2, -1, -1):
            speeds[k] = min(speeds[k], math.sqrt(speeds[k + 1] ** 2 + 2.0 * BRAKING_MPS2 * self._lengths[k]))
        return speeds


class Behaviour(Protocol):
    """Something that an actor does."""

    def step(self, stage: Stage, around: Surroundings) -> None:
        """Give the commands of one tick."""


@dataclass(frozen=True)
class Manner:
    """How a vehicle drives.

    Attributes:
        max_accel_mps2, comfort_decel_mps2, max_decel_mps2: limits.
        headway_s, standstill_m: distance kept to what is ahead: standstill + headway * speed.
        heeds_ego: whether it keeps its distance to the ego vehicle too.
        blind: keeps no distance at all.
    """

    max_accel_mps2: float = 2.5
    comfort_decel_mps2: float = 2.5
    max_decel_mps2: float = 7.0
    headway_s: float = 1.0
    standstill_m: float = 2.5
    heeds_ego: bool = True
    blind: bool = False


class LineDriver:
    """Drives a vehicle along a line at a speed.

    Attributes:
        actor_id: the vehicle.
        track: the line.
        cruise_mps: wanted speed; may be changed.
        arc_m: how far it is along the line.
    """

    def __init__(self, actor_id: int, track: Track, cruise_mps: float, manner: Manner = Manner()) -> None:
        self.actor_id, self.track, self.cruise_mps, self.manner = actor_id, track, cruise_mps, manner
        self.arc_m: float | None = None
        self._stuck_since_ns: int | None = None
        self._hill_mps2 = 0.0

    def step(self, stage: Stage, around: Surroundings) -> None:
        """Give the commands of one tick; nothing while the vehicle is not yet, or no longer, in the world."""
        actor = around.actor(self.actor_id)
        if actor is None or not stage.owns(self.actor_id):
            return
        here = np.array([[actor.pose.x_m, actor.pose.y_m]])
        arcs, _ = self.track.project(here, self.arc_m)
        self.arc_m = float(arcs[0])
        accel = self._accel(actor, around)
        accel += self._against_hill(accel, actor.forward_mps, around.stamp_ns)
        stage.drive(self.actor_id, VehicleCommand(self._steer(stage, actor), accel))

    def _against_hill(self, accel: float, forward_mps: float, stamp_ns: int) -> float:
        """What the pedal is pushed further, m/s^2, by a driver whose vehicle does not get going, as bicycles uphill."""
        if accel < STARTING_MPS2 or forward_mps > GOING_MPS:
            self._stuck_since_ns = None
            self._hill_mps2 = self._hill_mps2 if accel > 0.0 else 0.0
        elif self._stuck_since_ns is None:
            self._stuck_since_ns = stamp_ns
        elif stamp_ns - self._stuck_since_ns > STUCK_S * 1e9:
            self._hill_mps2 = min(HILL_MPS2, self._hill_mps2 + 0.05 * accel)
        return self._hill_mps2

    def _steer(self, stage: Stage, actor: Actor) -> float:
        assert self.arc_m is not None
        speed = max(actor.forward_mps, 0.0)
        aim = self.track.pose(self.arc_m + LOOKAHEAD_M + LOOKAHEAD_S * speed)
        if self.arc_m + LOOKAHEAD_M > self.track.length_m:  # straight on beyond the end
            over = self.arc_m + LOOKAHEAD_M - self.track.length_m
            aim = Spot(aim, 0.0).moved(ahead_m=over).pose
        (x, y), = transform_points(inverse(actor.pose), np.array([[aim.x_m, aim.y_m]]))
        wheelbase = stage.wheelbase_m(self.actor_id)
        return steer_for_curvature(curvature_to(float(x), float(y), wheelbase / 2), wheelbase, MAX_STEER_RAD)

    def _accel(self, actor: Actor, around: Surroundings) -> float:
        m, speed = self.manner, max(actor.forward_mps, 0.0)
        assert self.arc_m is not None
        wanted = max(min(self.cruise_mps, self.track.bend_mps(self.arc_m)), 0.01)
        free = m.max_accel_mps2 * (1.0 - (speed / wanted) ** 4) if speed <= wanted else -m.comfort_decel_mps2 * min(
            1.0, (speed - wanted) / 1.0
        )
        if self.cruise_mps <= 0.0:
            free = -m.max_decel_mps2
        accel = free
        ahead = None if m.blind else self._ahead(actor, around)
        if ahead is not None:
            gap, closing = ahead
            wish = m.standstill_m + max(
                0.0, speed * m.headway_s + speed * closing / (2 * math.sqrt(m.max_accel_mps2 * m.comfort_decel_mps2))
            )
            accel = min(free, m.max_accel_mps2 * (1.0 - (speed / wanted) ** 4 - (wish / max(gap, 0.1)) ** 2))
        return min(max(accel, -m.max_decel_mps2), m.max_accel_mps2)

    def _ahead(self, actor: Actor, around: Surroundings) -> tuple[float, float] | None:
        """Gap to the nearest actor on the line ahead, and the speed at which it closes."""
        assert self.arc_m is not None
        others = [other for other in around.actors if other.id != self.actor_id and _is_body(other)]
        if self.manner.heeds_ego:
            others.append(around.ego)
        if not others:
            return None
        places = np.array([[other.pose.x_m, other.pose.y_m] for other in others])
        near = np.hypot(places[:, 0] - actor.pose.x_m, places[:, 1] - actor.pose.y_m) < SIGHT_M
        if not near.any():
            return None
        others = [other for other, is_near in zip(others, near, strict=True) if is_near]
        arcs, sides = self.track.project(places[near], self.arc_m)
        best: tuple[float, float] | None = None
        for other, arc, side in zip(others, arcs, sides, strict=True):
            line_yaw = self.track.pose(float(arc)).yaw_rad
            along, across = _half_sizes(other, line_yaw)
            if arc <= self.arc_m or abs(side) > across + actor.extent_m[1] + SIDE_MARGIN_M:
                continue
            gap = float(arc) - self.arc_m - along - actor.extent_m[0]
            if best is None or gap < best[0]:
                forward = float(other.velocity_mps @ [math.cos(line_yaw), math.sin(line_yaw)])
                best = gap, max(actor.forward_mps, 0.0) - forward
        return best


def _is_body(actor: Actor) -> bool:
    """Whether it stops a car: flat debris does not."""
    return actor.extent_m[2] > 0.1


def _half_sizes(actor: Actor, yaw_rad: float) -> tuple[float, float]:
    """Half extent of an actor's box along and across a direction."""
    turn = actor.pose.yaw_rad - yaw_rad
    c, s = abs(math.cos(turn)), abs(math.sin(turn))
    x, y, _ = actor.extent_m
    return c * x + s * y, s * x + c * y


class Crossing:
    """A walker goes straight on for a distance and is taken away.

    Attributes:
        done: whether it has arrived.
    """

    def __init__(self, actor_id: int, spot: Spot, speed_mps: float, distance_m: float, wait_s: float = 0.0) -> None:
        self._id, self._spot, self._speed, self._distance = actor_id, spot, speed_mps, distance_m
        self._wait_s = wait_s
        self._since_ns: int | None = None
        self.done = False

    def step(self, stage: Stage, around: Surroundings) -> None:
        """Give the commands of one tick."""
        self._since_ns = around.stamp_ns if self._since_ns is None else self._since_ns
        age_s = (around.stamp_ns - self._since_ns) * 1e-9 - self._wait_s
        if self.done or age_s < 0.0:
            return
        actor = around.actor(self._id)
        gone_m = 0.0 if actor is None else float(np.hypot(*(self._spot.xy_m - [actor.pose.x_m, actor.pose.y_m])))
        # one that is held up, as by a car, gives up after the time it would have taken
        if gone_m >= self._distance or age_s >= self._distance / self._speed:
            self.done = True
            stage.remove([self._id])
        else:
            stage.walk(self._id, self._spot.pose.yaw_rad, self._speed)


class Flow:
    """Vehicles that come out of the beginning of a line, one after another, and vanish at its end.

    None comes while the ego vehicle could not react to it, or drives on the line the other way: whoever overtakes there
    has been seen from where the vehicles come from, and two that meet in one lane could neither get on.

    Args:
        track: the line.
        height_m: height of the ground at an arc length of it.
        speed_mps: of all vehicles.
        gaps_m: least and greatest distance between two; each is drawn.
        kind: gives the blueprint of the next vehicle.
        populated: whether the line is full of vehicles from the start.
        manner: how they drive.
    """

    def __init__(
        self, track: Track, height_m: Callable[[float], float], speed_mps: float, gaps_m: tuple[float, float],
        kind: Callable[[], str], *, populated: bool = False, manner: Manner = Manner(headway_s=0.8),
    ) -> None:
        self.track = track
        self._height_m, self._speed, self._gaps, self._kind = height_m, speed_mps, gaps_m, kind
        self._populated, self._manner = populated, manner
        self._drivers: list[LineDriver] = []
        self._gap_m: float | None = None

    def step(self, stage: Stage, around: Surroundings) -> None:
        """Spawn, drive and take away."""
        if self._gap_m is None:
            self._gap_m = self._draw(stage)
            if self._populated:
                self._populate(stage, around)
        for driver in list(self._drivers):
            actor = around.actor(driver.actor_id)
            if actor is not None and driver.arc_m is not None and driver.arc_m > self.track.length_m - 2.0:
                stage.remove([driver.actor_id])
                self._drivers.remove(driver)
            else:
                driver.step(stage, around)
        newest = min((driver.arc_m or 0.0 for driver in self._drivers), default=math.inf)
        if newest > self._gap_m:
            self._emit(stage, around, 0.0)

    def close(self, stage: Stage) -> None:
        """Take all vehicles away."""
        stage.remove([driver.actor_id for driver in self._drivers])
        self._drivers.clear()

    def _populate(self, stage: Stage, around: Surroundings) -> None:
        arc_m = self.track.length_m - 5.0
        while arc_m > SOURCE_ROOM_M:
            self._emit(stage, around, arc_m)
            assert self._gap_m is not None
            arc_m -= self._gap_m

    def _emit(self, stage: Stage, around: Surroundings, arc_m: float) -> None:
        spot = Spot(self.track.pose(arc_m), self._height_m(arc_m))
        bodies = [around.ego, *around.actors]
        if any(np.hypot(*(spot.xy_m - [b.pose.x_m, b.pose.y_m])) < SOURCE_ROOM_M for b in bodies):
            return
        if self._surprises(spot, around.ego) or (self._manner.heeds_ego and self._faces(arc_m, around.ego)):
            return
        actor_id = stage.try_spawn(self._kind(), spot, speed_mps=self._speed)
        if actor_id is not None:
            driver = LineDriver(actor_id, self.track, self._speed, self._manner)
            driver.arc_m = arc_m
            self._drivers.append(driver)
            self._gap_m = self._draw(stage)

    def _surprises(self, spot: Spot, ego: Actor) -> bool:
        """Whether a vehicle that begins at a spot would be at the ego vehicle at once."""
        away = np.array([ego.pose.x_m, ego.pose.y_m]) - spot.xy_m
        distance_m = max(float(np.hypot(*away)), 1e-6)
        begins = self._speed * np.array([math.cos(spot.pose.yaw_rad), math.sin(spot.pose.yaw_rad)])
        return bool((begins - ego.velocity_mps) @ away / distance_m * NOTICE_S > distance_m)

    def _faces(self, arc_m: float, ego: Actor) -> bool:
        """Whether the ego vehicle is on the line after an arc length and looks against it."""
        arcs, sides = self.track.project(np.array([[ego.pose.x_m, ego.pose.y_m]]))
        turned = math.cos(ego.pose.yaw_rad - self.track.pose(float(arcs[0])).yaw_rad)
        return turned < -0.5 and abs(float(sides[0])) < ego.extent_m[1] + FACED_M and arc_m < float(arcs[0])

    def _draw(self, stage: Stage) -> float:
        return float(stage.rng.uniform(*self._gaps))
