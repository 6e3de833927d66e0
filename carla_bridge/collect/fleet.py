"""The vehicles of an episode in the world, each with a camera of the checkpoint's rig, through the `carla` library."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import carla
import numpy as np

from carla_bridge.client.client import EGO_BLUEPRINT, Simulation
from carla_bridge.client.ego_session import camera_place
from carla_bridge.client.measurements import Stream, camera_frame_from_carla, ego_state_from_carla
from carla_bridge.client.surroundings import Surroundings
from carla_bridge.client.vehicle_control import to_pedals
from carla_bridge.collect.boxes import BoxReader
from carla_bridge.collect.perturbation import Aside, beside
from carla_bridge.collect.sight import Camera
from carla_bridge.nano import NANO_CAMERA
from carla_bridge.routes.navigation import Manoeuvre, RoutePlan
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.frames import compose, flip_y, pose_to_carla, xy_to_carla
from wamdiff2_core.types import EgoState, Pose2D, VehicleCommand

CAMERA_EVERY_TICKS = 10
CLEAR_M, PUSH_CLEAR_M = 14.0, 7.0
FIRST_SHARE = 0.35  # of starts, on the route of the first vehicle, where the scenarios are
REST_M = 70.0  # of a route, at least, that is left where a stretch begins
PICTURE_WAIT_S = 60.0


class UnsteadyError(Exception):
    """A camera did not fire on the first tick after it was subscribed to: its subscription came late."""


@dataclass(frozen=True)
class Picture:
    """A picture with the camera as it was.

    Attributes:
        rgb: (H, W, 3) uint8.
        camera: in the map frame.
    """

    rgb: np.ndarray
    camera: Camera


class Fleet:
    """Vehicles with cameras. A context manager: leaving it destroys what was spawned here.

    Args:
        simulation: the world, with the first vehicle in it.
        rng: of colours and places.
        first: route of the first vehicle.
        plans: routes of the town, to choose places on.

    Attributes:
        ids: of the vehicles; the first is the simulation's own.
    """

    def __init__(
        self, simulation: Simulation, rng: np.random.Generator, first: RoutePlan, plans: Sequence[RoutePlan]
    ) -> None:
        self._simulation, self._rng, self._first, self._plans = simulation, rng, first, plans
        self._world = simulation.world
        self.ids = [simulation.ego_id]
        self._spawned: list[Any] = []
        self._cameras: dict[int, Any] = {}
        self._streams: dict[int, Stream] = {}
        self._boxes = BoxReader(self._world)
        self._batch: list[Any] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in reversed(self._spawned):
            try:
                if hasattr(actor, "stop"):
                    actor.stop()
                actor.destroy()
            except RuntimeError:
                return  # the server is gone, and they with it

    def add(self, around: Surroundings) -> tuple[int, RoutePlan] | None:
        """Put one more vehicle on a free place of some route; None where none was found."""
        found = self.free_start(around, self._rng)
        if found is None:
            return None
        blueprint = self._world.get_blueprint_library().find(EGO_BLUEPRINT)
        blueprint.set_attribute("role_name", "background")  # who stands in a queue is no obstacle
        colors = list(blueprint.get_attribute("color").recommended_values) if blueprint.has_attribute("color") else []
        if colors:
            blueprint.set_attribute("color", colors[int(self._rng.integers(len(colors)))])
        for lift_m in (0.0, 0.3, 0.6):
            place = self._transform(found.start, lift_m)
            actor = self._call(lambda place=place: self._world.try_spawn_actor(blueprint, place), "spawning a vehicle")
            if actor is not None:
                self._spawned.append(actor)
                self.ids.append(int(actor.id))
                return int(actor.id), found
        return None

    def mount_cameras(self, wait_s: float) -> None:
        """Mount a camera on every vehicle.

        Args:
            wait_s: wall clock, for the subscriptions to arrive.
        """
        spec = NANO_CAMERA
        blueprint = self._world.get_blueprint_library().find("sensor.camera.rgb")
        for name, value in (("image_size_x", spec.width_px), ("image_size_y", spec.height_px), ("fov", spec.hfov_deg),
                            ("sensor_tick", 0.05 * CAMERA_EVERY_TICKS)):
            blueprint.set_attribute(name, str(value))
        place = camera_place(spec)
        for actor_id in self.ids:
            vehicle = self._world.get_actor(actor_id)
            camera = self._call(
                lambda vehicle=vehicle: self._world.spawn_actor(blueprint, place, attach_to=vehicle), "a camera"
            )
            self._spawned.append(camera)
            self._cameras[actor_id] = camera
            self._streams[actor_id] = Stream(f"front of {actor_id}", camera, CAMERA_EVERY_TICKS)
        time.sleep(wait_s)

    def learn_phases(self, frame: int, strict: bool) -> bool:
        """Find out when the cameras fire; call it after every tick until it is True.

        Args:
            frame: of the tick.
            strict: all must have fired in this very tick, as they do in the embedded world.

        Raises:
            UnsteadyError: one has not.
        """
        known = [stream.begun(time.monotonic() + (2.0 if strict else 0.2)) for stream in self._streams.values()]
        if strict and not all(known):
            raise UnsteadyError
        if strict and not all(stream.due(frame) for stream in self._streams.values()):
            raise UnsteadyError
        return all(known)

    def pictures(self, frame: int) -> dict[int, Picture]:
        """The pictures of a tick by vehicle."""
        found = {}
        for actor_id, stream in self._streams.items():
            image = stream.take(frame, time.monotonic() + PICTURE_WAIT_S)
            if image is not None:
                rgb = camera_frame_from_carla(stream.name, image, 0).rgb
                found[actor_id] = Picture(rgb, _camera_of(image))
        return found

    def forget(self, actor_id: int) -> None:
        """Take the camera of a vehicle away that is gone."""
        self._streams.pop(actor_id, None)
        camera = self._cameras.pop(actor_id, None)
        if camera is not None:
            camera.stop()
            self._batch.append(carla.command.DestroyActor(camera))
            self._spawned.remove(camera)

    def things(self, snapshot: Any, around: Surroundings, places_m: np.ndarray) -> tuple[list[Any], Any, Any]:
        """Things, their boxes, and the scenery near some places."""
        things, boxes = self._boxes.read(snapshot, around, places_m)
        return things, boxes, self._boxes.scenery

    def state(self, snapshot: Any, actor_id: int, stamp_ns: int) -> EgoState:
        """Motion of a vehicle in a tick."""
        item = snapshot.find(actor_id)
        if item is None:
            raise InfrastructureError(f"frame {snapshot.frame}: vehicle {actor_id} is gone")
        return ego_state_from_carla(item, stamp_ns)

    def drive(self, actor_id: int, command: VehicleCommand) -> None:
        """Set a vehicle's controls from the next tick on."""
        pedals = to_pedals(command, self._simulation.pedal_map)
        control = carla.VehicleControl(throttle=pedals.throttle, steer=pedals.steer, brake=pedals.brake)
        self._batch.append(carla.command.ApplyVehicleControl(actor_id, control))

    def place(self, actor_id: int, pose: Pose2D, speed_mps: float) -> None:
        """Put a vehicle somewhere else, driving straight on."""
        vx, vy = xy_to_carla(speed_mps * math.cos(pose.yaw_rad), speed_mps * math.sin(pose.yaw_rad))
        commands = carla.command
        self._batch += [
            commands.ApplyTransform(actor_id, self._transform(pose, 0.0)),
            commands.ApplyTargetAngularVelocity(actor_id, carla.Vector3D()),
            commands.ApplyTargetVelocity(actor_id, carla.Vector3D(vx, vy, 0.0)),
        ]

    def turn_camera(self, actor_id: int, aside: Aside | None) -> None:
        """Let the next pictures of a vehicle be taken from beside it; only the embedded world takes it as relative.

        Without a place the camera looks at the sky: a picture that nobody wants then costs next to nothing.
        """
        spec = NANO_CAMERA
        if aside is None:
            away = carla.Transform(carla.Location(0.0, 0.0, spec.z_m), carla.Rotation(pitch=89.0))
            self._batch.append(carla.command.ApplyTransform(self._cameras[actor_id].id, away))
            return
        # The vehicle beside stands level: of the mount's angles only the yaw turns with it.
        pose = compose(aside.base_from_aside, Pose2D(spec.x_m, spec.y_m, math.radians(spec.yaw_deg)))
        place = camera_place(replace(spec, x_m=pose.x_m, y_m=pose.y_m, yaw_deg=math.degrees(pose.yaw_rad)))
        self._batch.append(carla.command.ApplyTransform(self._cameras[actor_id].id, place))

    def flush(self) -> None:
        """Send what was asked for in this tick, as one batch."""
        batch, self._batch = self._batch, []
        if batch:
            self._call(lambda: self._simulation.client.apply_batch_sync(batch, False), "client.apply_batch")

    def free_start(self, around: Surroundings, rng: np.random.Generator) -> RoutePlan | None:
        """The rest of a route from a place on it where nobody is near; None when ten tries found none."""
        taken = np.array([[actor.pose.x_m, actor.pose.y_m] for actor in (around.ego, *around.actors)])
        for _ in range(10):
            chosen = self._plans[int(rng.integers(len(self._plans)))]
            plan = self._first if rng.random() < FIRST_SHARE else chosen
            begin_m = rng.uniform(0.0, max(1.0, plan.length_m - REST_M))
            found = rest_of(plan, begin_m)
            gaps = np.hypot(taken[:, 0] - found.start.x_m, taken[:, 1] - found.start.y_m)
            if gaps.min() > CLEAR_M:
                return found
        return None

    def pushed(
        self, around: Surroundings, actor_id: int, pose: Pose2D, aside: Aside
    ) -> Pose2D | None:
        """The place aside of a vehicle; None where somebody is near."""
        there = beside(pose, aside)
        for actor in (around.ego, *around.actors):
            near = math.hypot(actor.pose.x_m - there.x_m, actor.pose.y_m - there.y_m) < PUSH_CLEAR_M
            if near and actor.id != actor_id:
                return None
        return there

    def _transform(self, pose: Pose2D, lift_m: float) -> Any:
        x, y, yaw_deg = pose_to_carla(pose)
        ground = self._simulation.map.get_waypoint(carla.Location(x, y, 0.0))
        z = ground.transform.location.z if ground is not None else 0.0
        return carla.Transform(carla.Location(x, y, z + lift_m), carla.Rotation(yaw=yaw_deg))

    def _call(self, function: Any, what: str) -> Any:
        return self._simulation.call(function, what)


def seen_by(around: Surroundings, actor_id: int) -> Surroundings:
    """The surroundings of another vehicle."""
    if actor_id == around.ego.id:
        return around
    ego = around.actor(actor_id)
    if ego is None:
        raise InfrastructureError(f"frame {around.frame}: vehicle {actor_id} is gone")
    others = sorted([around.ego, *(actor for actor in around.actors if actor.id != actor_id)], key=lambda a: a.id)
    return replace(around, ego=ego, actors=tuple(others))


def rest_of(plan: RoutePlan, begin_m: float) -> RoutePlan:
    """A route from a place on it on."""
    first = int(np.searchsorted(plan.arc_m, begin_m))
    gone_m = float(plan.arc_m[first])
    rest = tuple(
        Manoeuvre(max(0.0, item.start_m - gone_m), item.end_m - gone_m, item.command)
        for item in plan.manoeuvres if item.end_m > gone_m
    )
    return replace(
        plan, xy_m=plan.xy_m[first:], yaw_rad=plan.yaw_rad[first:], z_m=plan.z_m[first:],
        commands=plan.commands[first:], length_m=plan.length_m - gone_m, manoeuvres=rest,
    )


def _camera_of(image: Any) -> Camera:
    matrix = np.array(image.transform.get_matrix())
    focal_px = image.width / 2 / math.tan(math.radians(image.fov) / 2)
    return Camera(flip_y(matrix[:3, 3]), flip_y(matrix[:3, :3].T), image.width, image.height, focal_px)
