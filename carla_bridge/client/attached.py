"""Somebody else's ego vehicle in somebody else's world: we look through sensors of our own and set its controls.

The owner moves time, in synchronous or asynchronous mode, and waits for nobody. Nothing is loaded, ticked, set or
destroyed here but our sensors. Pictures come a little after their step; a frame hands them out with that step.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import carla
import numpy as np

from carla_bridge.client.ego_session import EgoSession, short_name
from carla_bridge.client.measurements import (
    SimulationFrame,
    camera_frame_from_carla,
    collision_from_carla,
    ego_state_from_carla,
)
from carla_bridge.client.server_watch import next_item
from carla_bridge.client.surroundings import SurroundingsReader
from carla_bridge.client.vehicle_control import HOLD
from carla_bridge.routes.errors import RouteError
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.frames import pose_to_carla
from wamdiff2_core.types import Pose2D, VehicleCommand

MOST_BEHIND = 5  # steps that may wait to be handled; of more, all but the newest are left out
REMEMBERED = 100  # steps whose pictures are still welcome
START_RADIUS_M = 10.0  # the hero may stand beside the route's first point, or a little before or after it


class AttachedSimulation(EgoSession):
    """The world around a hero that somebody else has spawned, as it goes by. Leaving it destroys our sensors, and lets
    a hero that was driven brake."""

    def __init__(
        self, host: str, port: int, *, role_name: str = "hero", town: str | None = None,
        cameras: Sequence[CameraSpec] = (), camera_period_s: float = 0.25, tick_wait_s: float = 20.0,
        timeout_s: float = 20.0,
    ) -> None:
        """Connect, find the hero, mount the sensors, and wait for a picture of each camera.

        Args:
            host, port: of the server.
            role_name: of the hero.
            town: that must be open; None takes any.
            cameras: to mount on the hero.
            camera_period_s: simulated time between pictures.
            tick_wait_s: wall clock; how long the world may stand still.
            timeout_s: limit for every call, wall clock.

        Raises:
            RouteError: another town is open.
            UserError: there is no such hero, or there are several.
            InfrastructureError: no server there, nobody ticks it, or it failed on the way.
        """
        super().__init__(timeout_s)
        self._tick_wait_s = tick_wait_s
        self._where = f"{host}:{port}"
        self._callback: int | None = None
        self._snapshots: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._current: Any = None
        self._contacts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pictures: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._names = [camera.name for camera in cameras]
        self._arrived: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, SimulationFrame] = {}
        self._driven = False
        try:
            self.call(lambda: self._open_world(host, port), f"connecting to the CARLA server at {self._where}")
            self.map = self.call(self._world.get_map, "world.get_map")
            if town is not None and short_name(self.map.name) != short_name(town):
                raise RouteError("route's town", f"{short_name(self.map.name)}, which the server has open", town,
                                "choose a route in it with --routes-subset; a passive drive loads nothing")
            self._callback = self.call(lambda: self._world.on_tick(self._snapshots.put), "world.on_tick")
            self._next_snapshot()
            self._take_ego(self.call(lambda: self._find(role_name), "looking for the hero"))
            self._reader = SurroundingsReader(self._world, self.map, self.ego_id)
            self.call(lambda: self._mount(cameras, camera_period_s), "mounting sensors")
        except BaseException:
            self.close()
            raise

    def check_start(self, start: Pose2D, route_id: str) -> None:
        """Raise `UserError` unless the hero is where a route begins, and looks along it."""
        self._next_snapshot()
        pose = self._step().ego.map_from_base
        away_m = float(np.hypot(pose.x_m - start.x_m, pose.y_m - start.y_m))
        turned_deg = abs(float(np.rad2deg((pose.yaw_rad - start.yaw_rad + np.pi) % (2 * np.pi) - np.pi)))
        if away_m > START_RADIUS_M or turned_deg > 90.0:
            x, y, yaw = pose_to_carla(start)
            raise UserError(
                "--hero", f"a vehicle within {START_RADIUS_M:g} m of the start of route {route_id}, looking along it",
                f"one {away_m:.1f} m from it, turned by {turned_deg:.0f} degrees",
                f"place it at x {x:.1f}, y {y:.1f}, yaw {round(yaw)}",
            )

    def apply(self, command: VehicleCommand) -> None:
        """Set the hero's controls.

        Raises:
            InfrastructureError: it is gone.
        """
        self._driven = True
        try:
            super().apply(command)
        except RuntimeError as error:
            raise InfrastructureError(f"the hero cannot be driven any more: {error}") from error

    def tick(self) -> SimulationFrame:
        """The next step that the world makes; steps are left out when more than five wait.

        Raises:
            InfrastructureError: the world stands still, or the hero is gone.
        """
        self._next_snapshot()
        step = self._step()
        self._steps[step.frame] = step
        for old in [frame for frame in self._steps if frame <= step.frame - REMEMBERED]:
            del self._steps[old]
        return replace(step, collisions=tuple(map(collision_from_carla, _drain(self._contacts))),
                       pictured=self._pictured())

    def _next_snapshot(self) -> None:
        """Make the next snapshot the current one."""
        try:
            snapshot = next_item(self._snapshots, self._tick_wait_s, self._fault)
        except queue.Empty:
            raise InfrastructureError(
                f"no tick for {self._tick_wait_s:g} s: nobody ticks the world at {self._where}, or it has ended; "
                "a passive drive waits for its owner to tick"
            ) from None
        if self._snapshots.qsize() > MOST_BEHIND:
            snapshot = _drain(self._snapshots)[-1]
        self._current = snapshot

    def _snapshot(self) -> Any:
        return self._current

    def _step(self) -> SimulationFrame:
        """The current step, without pictures and contacts."""
        snapshot = self._current
        actor = snapshot.find(self._ego.id)
        if actor is None:
            raise InfrastructureError(
                f"frame {snapshot.frame}: the hero, actor {self._ego.id}, is gone; its owner has destroyed it, or has "
                "loaded another world"
            )
        stamp_ns = round(snapshot.timestamp.elapsed_seconds * 1e9)
        return SimulationFrame(snapshot.frame, stamp_ns, ego_state_from_carla(actor, stamp_ns))

    def _pictured(self) -> SimulationFrame | None:
        """The newest step that all cameras' pictures have come of since the last call."""
        for name, image in _drain(self._pictures):
            self._arrived.setdefault(image.frame, {})[name] = image
        whole = [frame for frame, images in self._arrived.items()
                 if frame in self._steps and len(images) == len(self._names)]
        if not whole:
            return None
        step, images = self._steps[max(whole)], self._arrived[max(whole)]
        self._arrived = {frame: images for frame, images in self._arrived.items() if frame > step.frame}
        return replace(step, images={
            name: camera_frame_from_carla(name, image, step.stamp_ns) for name, image in images.items()
        })

    def _find(self, role_name: str) -> Any:
        vehicles = list(self._world.get_actors().filter("vehicle.*"))
        heroes = [actor for actor in vehicles if actor.attributes.get("role_name") == role_name]
        wanted = f"one vehicle with the role name {role_name}"
        if not heroes:
            roles = sorted({actor.attributes.get("role_name", "") for actor in vehicles} - {""})
            raise UserError("--hero", wanted, f"none among {len(vehicles)} vehicles"
                            + (f", which have the roles {', '.join(roles)}" if roles else ""), "its owner spawns it")
        if len(heroes) > 1:
            raise UserError("--hero", wanted, f"{len(heroes)}: actors {', '.join(str(hero.id) for hero in heroes)}",
                            "give the one to drive a role name of its own")
        return heroes[0]

    def _mount(self, cameras: Sequence[CameraSpec], period_s: float) -> None:
        """Spawn the sensors in one call, so that all cameras take their pictures on the same steps."""
        wanted = [self._central("sensor.other.collision")] + [self._camera(camera, period_s) for camera in cameras]
        commands = [carla.command.SpawnActor(what, where, self._ego) for what, where in wanted]
        answers = self._client.apply_batch_sync(commands, False)
        self._actors += [self._world.get_actor(answer.actor_id) for answer in answers if not answer.error]
        for answer in answers:
            if answer.error:
                raise RuntimeError(answer.error)
        collision, *eyes = self._actors
        collision.listen(self._contacts.put)
        for name, eye in zip(self._names, eyes, strict=True):
            eye.listen(lambda image, name=name: self._pictures.put((name, image)))

    def _let_go(self) -> None:
        if self._callback is not None:
            self._world.remove_on_tick(self._callback)
        if self._driven and self._current is not None and self._current.find(self._ego.id) is not None:
            super().apply(HOLD)


def _drain(items: queue.SimpleQueue[Any]) -> list[Any]:
    """All that is in a queue now."""
    taken = []
    deadline_s = time.monotonic() + 1.0  # whoever fills it may be faster
    while not items.empty() and time.monotonic() < deadline_s:
        taken.append(items.get())
    return taken
