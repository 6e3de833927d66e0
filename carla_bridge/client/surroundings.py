"""What stands and moves around the ego vehicle, once a tick: actors, traffic lights and stop signs, in REP-103.

Privileged knowledge, for the expert, the criteria and the report; no planner sees it. Poses and velocities come from
the snapshot of the tick; what does not change (kind, role, size, stop lines) is asked for once for each actor, and
light states are part of the snapshot in the client library, so that a read costs no call to the server unless an actor
is new. Actors of the kinds vehicle, walker and static are listed; sensors, triggers and the spectator are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import carla
import numpy as np

from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.frames import pose_from_carla, transform_points, xy_from_carla, yaw_rate_from_carla
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from collections.abc import Iterable

LISTED = ("vehicle.", "walker.pedestrian.", "static.prop.")
STOP_LINE_STEP_M = 0.5
MAX_STOP_LINE_STEPS = 200  # 100 m from a trigger volume to its junction; CARLA's are within a few metres


class LightState(Enum):
    """What a traffic light shows."""

    RED = "red"
    YELLOW = "yellow"
    GREEN = "green"
    OFF = "off"
    UNKNOWN = "unknown"


LIGHT_STATES = {
    carla.TrafficLightState.Red: LightState.RED,
    carla.TrafficLightState.Yellow: LightState.YELLOW,
    carla.TrafficLightState.Green: LightState.GREEN,
    carla.TrafficLightState.Off: LightState.OFF,
}


@dataclass(frozen=True)
class Actor:
    """A vehicle, walker or static object.

    Attributes:
        id: the server's.
        type_id: kind, such as `vehicle.tesla.model3`.
        role_name: such as `background`, `scenario` or `hero`; empty when it has none.
        pose: `map_from_actor`.
        z_m: height of the actor's origin.
        velocity_mps: (2,) map frame.
        yaw_rate_radps: left positive.
        extent_m: half length, half width and half height of its box.
        box_centre_m: (2,) centre of its box in its own frame.
    """

    id: int
    type_id: str
    role_name: str
    pose: Pose2D
    z_m: float
    velocity_mps: np.ndarray
    yaw_rate_radps: float
    extent_m: tuple[float, float, float]
    box_centre_m: np.ndarray

    @property
    def speed_mps(self) -> float:
        """Length of the velocity."""
        return float(np.hypot(*self.velocity_mps))

    @property
    def forward_mps(self) -> float:
        """Speed along its heading, negative backwards."""
        return float(self.velocity_mps @ [np.cos(self.pose.yaw_rad), np.sin(self.pose.yaw_rad)])

    def corners_m(self) -> np.ndarray:
        """(4, 2) corners of its box in the map frame, counter-clockwise from the front left."""
        x, y, _ = self.extent_m
        return transform_points(self.pose, self.box_centre_m + np.array([[x, y], [-x, y], [-x, -y], [x, -y]]))


@dataclass(frozen=True)
class StopLine:
    """Where one lane stops for a light: on its middle, in its direction of travel.

    Attributes:
        lane: road and lane id.
        pose: `map_from_line`.
        z_m: height.
        lane_width_m: of that lane.
    """

    lane: tuple[int, int]
    pose: Pose2D
    z_m: float
    lane_width_m: float


@dataclass(frozen=True)
class TrafficLight:
    """A traffic light.

    Attributes:
        id: the server's.
        state: what it shows.
        pose, z_m: of the actor (the pole).
        area_m: (2,) middle of its trigger volume, map frame.
        stop_lines: one a lane that it rules.
    """

    id: int
    state: LightState
    pose: Pose2D
    z_m: float
    area_m: np.ndarray
    stop_lines: tuple[StopLine, ...]


@dataclass(frozen=True)
class StopSign:
    """A stop sign.

    Attributes:
        id: the server's.
        pose, z_m: of the actor (the pole).
        area: `map_from_area`: middle and orientation of its trigger volume.
        extent_m: half sizes of that volume.
    """

    id: int
    pose: Pose2D
    z_m: float
    area: Pose2D
    extent_m: tuple[float, float, float]


@dataclass(frozen=True)
class Surroundings:
    """The world around the ego vehicle at one tick.

    Attributes:
        frame, stamp_ns: of the snapshot.
        ego: the ego vehicle.
        actors: everything else, by rising id.
        lights, stop_signs: all of the town, by rising id.
    """

    frame: int
    stamp_ns: int
    ego: Actor
    actors: tuple[Actor, ...]
    lights: tuple[TrafficLight, ...]
    stop_signs: tuple[StopSign, ...]

    def actor(self, actor_id: int) -> Actor | None:
        """The actor of an id, the ego vehicle excluded."""
        return next((actor for actor in self.actors if actor.id == actor_id), None)


@dataclass(frozen=True)
class _Fixed:
    """What does not change about an actor."""

    type_id: str
    role_name: str
    extent_m: tuple[float, float, float]
    box_centre_m: np.ndarray


class SurroundingsReader:
    """Reads the surroundings of one ego vehicle.

    Args:
        world: the `carla.World`.
        carla_map: its map.
        ego_id: actor id of the ego vehicle.
    """

    def __init__(self, world: carla.World, carla_map: carla.Map, ego_id: int) -> None:
        self._world, self._map, self._ego_id = world, carla_map, ego_id
        self._fixed: dict[int, _Fixed] = {}
        self._lights: dict[int, tuple[Any, TrafficLight]] = {}
        self._signs: dict[int, StopSign] = {}
        self._other: set[int] = set()

    def read(self, snapshot: carla.WorldSnapshot) -> Surroundings:
        """The surroundings at a snapshot; it must be the newest, because light states are those of the last tick.

        Raises:
            InfrastructureError: the ego vehicle is gone.
        """
        seen = {item.id: item for item in snapshot}
        self._learn(seen.keys())
        if self._ego_id not in seen:
            raise InfrastructureError(f"frame {snapshot.frame}: the ego vehicle is gone")
        actors = {key: _actor(key, seen[key], fixed) for key, fixed in self._fixed.items() if key in seen}
        return Surroundings(
            frame=snapshot.frame,
            stamp_ns=round(snapshot.timestamp.elapsed_seconds * 1e9),
            ego=actors.pop(self._ego_id),
            actors=tuple(actors[key] for key in sorted(actors)),
            lights=tuple(
                _with_state(light, LIGHT_STATES.get(handle.get_state(), LightState.UNKNOWN))
                for key, (handle, light) in sorted(self._lights.items()) if key in seen
            ),
            stop_signs=tuple(sign for key, sign in sorted(self._signs.items()) if key in seen),
        )

    def _learn(self, ids: Iterable[int]) -> None:
        """Ask the server about actors that were not there before, and forget those that are gone."""
        ids = set(ids)
        new = ids - self._fixed.keys() - self._lights.keys() - self._signs.keys() - self._other
        self._other &= ids
        for known in (self._fixed, self._lights, self._signs):
            for key in known.keys() - ids:
                del known[key]
        if not new:
            return
        for actor in self._world.get_actors(sorted(new)):
            kind = actor.type_id
            if kind == "traffic.traffic_light":
                self._lights[actor.id] = (actor, self._light(actor))
            elif kind == "traffic.stop":
                self._signs[actor.id] = _sign(actor)
            elif kind.startswith(LISTED):
                box = actor.bounding_box
                extent = (box.extent.x, box.extent.y, box.extent.z)
                centre = xy_from_carla(box.location.x, box.location.y)
                self._fixed[actor.id] = _Fixed(kind, actor.attributes.get("role_name", ""), extent, centre)
            else:
                self._other.add(actor.id)

    def _light(self, actor: carla.TrafficLight) -> TrafficLight:
        transform = actor.get_transform()
        area = transform.transform(actor.trigger_volume.location)
        return TrafficLight(
            id=actor.id, state=LightState.UNKNOWN, pose=_pose(transform), z_m=transform.location.z,
            area_m=xy_from_carla(area.x, area.y), stop_lines=tuple(self._stop_lines(actor, transform, area)),
        )

    def _stop_lines(
        self, actor: carla.TrafficLight, transform: carla.Transform, area: carla.Location
    ) -> Iterable[StopLine]:
        """Lanes under the trigger volume, each followed to the edge of its junction.

        The volume lies across the lanes along its own x axis. Sampled as the CARLA leaderboard's red light test does:
        a metre apart over 90 % of the extent, which keeps off the lanes beside.
        """
        half_m = 0.9 * actor.trigger_volume.extent.x
        yaw = np.deg2rad(transform.rotation.yaw)
        found: dict[tuple[int, int], carla.Waypoint] = {}
        for along in np.arange(-half_m, half_m, 1.0):
            place = carla.Location(area.x + along * float(np.cos(yaw)), area.y + along * float(np.sin(yaw)), area.z)
            waypoint = self._map.get_waypoint(place)
            if waypoint is not None:
                found.setdefault((waypoint.road_id, waypoint.lane_id), waypoint)
        for waypoint in found.values():
            end = waypoint
            for _ in range(MAX_STOP_LINE_STEPS):
                following = [] if end.is_junction else end.next(STOP_LINE_STEP_M)
                if not following or following[0].is_junction:
                    break
                end = following[0]
            yield StopLine(
                (end.road_id, end.lane_id), _pose(end.transform), end.transform.location.z, float(end.lane_width)
            )


def _pose(transform: carla.Transform) -> Pose2D:
    return pose_from_carla(transform.location.x, transform.location.y, transform.rotation.yaw)


def _sign(actor: carla.TrafficSign) -> StopSign:
    transform, volume = actor.get_transform(), actor.trigger_volume
    area = transform.transform(volume.location)
    yaw_deg = transform.rotation.yaw + volume.rotation.yaw
    return StopSign(
        actor.id, _pose(transform), transform.location.z, pose_from_carla(area.x, area.y, yaw_deg),
        (volume.extent.x, volume.extent.y, volume.extent.z),
    )


def _actor(key: int, snapshot: carla.ActorSnapshot, fixed: _Fixed) -> Actor:
    transform, velocity = snapshot.get_transform(), snapshot.get_velocity()
    return Actor(
        id=key, type_id=fixed.type_id, role_name=fixed.role_name, pose=_pose(transform), z_m=transform.location.z,
        velocity_mps=xy_from_carla(velocity.x, velocity.y),
        yaw_rate_radps=yaw_rate_from_carla(snapshot.get_angular_velocity().z),
        extent_m=fixed.extent_m, box_centre_m=fixed.box_centre_m,
    )


def _with_state(light: TrafficLight, state: LightState) -> TrafficLight:
    return TrafficLight(light.id, state, light.pose, light.z_m, light.area_m, light.stop_lines)
