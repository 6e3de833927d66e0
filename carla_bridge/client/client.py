"""The simulation as the bridge sees it: one ego vehicle with sensors, moved tick by tick through the `carla` library.

Works the same against CARLA 0.9.15 and 0.9.16 and against the embedded server. Everything that leaves this module is
REP-103; the library's left-handed numbers end here. The tick is synchronous and exact: it returns when every sensor
that is due for the new frame has delivered precisely that frame.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import carla

from carla_bridge.client.ego_session import EgoSession, short_name
from carla_bridge.client.measurements import (
    SimulationFrame,
    Stream,
    camera_frame_from_carla,
    collision_from_carla,
    ego_state_from_carla,
    gnss_from_carla,
    imu_from_carla,
)
from carla_bridge.client.server_watch import Fault, no_fault
from carla_bridge.client.surroundings import SurroundingsReader
from carla_bridge.client.vehicle_control import HOLD
from carla_bridge.routes.errors import RouteError
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.frames import flip_y, pose_to_carla, rotation
from wamdiff2_core.types import Pose2D

EGO_BLUEPRINT = "vehicle.lincoln.mkz_2020"
WARM_UP_TICKS = 10  # before the start, however long the subscriptions take: a later start would be another world
WARM_UP_PERIODS = 2  # of the slowest camera at least: one that misses its first picture is known by the second
# CARLA refuses to spawn a vehicle that touches the ground; the embedded server has no such trouble.
SPAWN_LIFTS_M = (0.0, 0.2, 0.5)


@dataclass(frozen=True)
class CameraMount:
    """A camera on the ego vehicle, and every how many ticks it takes a picture."""

    spec: CameraSpec = field(default_factory=CameraSpec)
    every_ticks: int = 5


class Simulation(EgoSession):
    """Owns the connection, the tick, the ego vehicle and its sensors. A context manager: leaving it puts the server
    back as it was.

    Attributes:
        map: the server's `carla.Map`.
        pedal_map: how the ego vehicle answers its pedals.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 2000,
        *,
        ego_pose: Pose2D,
        cameras: Sequence[CameraMount] = (CameraMount(),),
        town: str | None = None,
        inertial: bool = True,
        fixed_delta_s: float = 0.05,
        timeout_s: float = 20.0,
        blueprint: str = EGO_BLUEPRINT,
        fault: Fault = no_fault,
        fresh: bool = False,
    ) -> None:
        """Connect, load the town, spawn the ego vehicle and its sensors, and tick a fixed number of times, in which
        every sensor's subscription is waited for.

        The ego vehicle stands with the brake on until it is told otherwise.

        Args:
            host, port: of the server.
            ego_pose: where to spawn, `map_from_base`.
            cameras: the rig of the planner, and any further cameras, as for a video.
            town: name of a town to load when the server has another one open; None keeps what is there.
            inertial: also mount IMU and GNSS.
            fixed_delta_s: simulated time of a tick.
            timeout_s: limit for every call and for every tick, and for all subscriptions together, wall clock.
            blueprint: kind of the ego vehicle.
            fault: what is known about the server's failure, for one that this process has started: its end is noticed
                within a quarter of a second, and not waited for until `timeout_s`.
            fresh: load the town even if it is open, so that lights, weather and traffic are the same on every start,
                however fast the machine is.

        Raises:
            InfrastructureError: no server there, it failed on the way, or a sensor gave nothing until the start.
            RouteError: no such town, or the pose is taken.
            UserError: no such blueprint.
        """
        super().__init__(timeout_s, fault)
        self._fixed_delta_s = fixed_delta_s
        self._streams: dict[str, Stream] = {}
        self._original_settings: Any = None
        try:
            self.call(lambda: self._connect(host, port, town), f"connecting to the CARLA server at {host}:{port}")
            self.call(self._synchronise, "world.apply_settings")
            if fresh:
                self.call(self._reload, "client.load_world")
            self.call(lambda: self._spawn_ego(ego_pose, blueprint), "spawning the ego vehicle")
            self._reader = SurroundingsReader(self._world, self.map, self.ego_id)
            self._mount_sensors(cameras, inertial)
            self._warm_up(max((mount.every_ticks for mount in cameras), default=1))
        except BaseException:
            self.close()
            raise

    def place_ego(self, pose: Pose2D, speed_mps: float = 0.0) -> None:
        """Put the ego vehicle somewhere else, driving straight on at a speed, from the next tick on."""
        self._ego.apply_control(carla.VehicleControl())
        self._ego.set_transform(self._transform(pose, self._lift_m))
        self._ego.set_target_angular_velocity(carla.Vector3D())
        vx, vy = flip_y(rotation(pose.yaw_rad) @ [speed_mps, 0.0])
        self._ego.set_target_velocity(carla.Vector3D(float(vx), float(vy), 0.0))

    def tick(self) -> SimulationFrame:
        """Move the world on by one step.

        Raises:
            InfrastructureError: the server or a sensor did not answer in time.
        """
        deadline = time.monotonic() + self._timeout_s
        frame = self._move_on()
        snapshot = self._world.get_snapshot()
        if snapshot.frame != frame:
            raise InfrastructureError(f"snapshot: expected frame {frame}, got {snapshot.frame}; another client ticks")
        actor = snapshot.find(self._ego.id)
        if actor is None:
            raise InfrastructureError(f"frame {frame}: the ego vehicle is gone")
        stamp_ns = round(snapshot.timestamp.elapsed_seconds * 1e9)
        taken = {name: stream.take(frame, deadline) for name, stream in self._streams.items() if name != "collision"}
        return SimulationFrame(
            frame=frame,
            stamp_ns=stamp_ns,
            ego=ego_state_from_carla(actor, stamp_ns),
            images={
                name: camera_frame_from_carla(name, taken[name], stamp_ns)
                for name in self._cameras
                if taken[name] is not None
            },
            imu=imu_from_carla(taken["imu"]) if "imu" in taken else None,
            gnss=gnss_from_carla(taken["gnss"]) if "gnss" in taken else None,
            collisions=tuple(collision_from_carla(event) for event in self._streams["collision"].drain()),
        )

    def set_weather(self, values: Mapping[str, float]) -> None:
        """Set the weather from the next tick on.

        Args:
            values: fields of `carla.WeatherParameters`; all others are as the library makes them.
        """
        weather = carla.WeatherParameters()
        for name, value in values.items():
            setattr(weather, name, value)
        self.call(lambda: self._world.set_weather(weather), "world.set_weather")

    def _put_back(self) -> None:
        if self._original_settings is not None:
            self._world.apply_settings(self._original_settings)

    def _move_on(self) -> int:
        # The library's own limit comes first; the watchdog's is for waits inside the library that have none.
        return int(self.call(lambda: self._world.tick(self._timeout_s), "world.tick", self._timeout_s + 5.0))

    def _connect(self, host: str, port: int, town: str | None) -> None:
        self._open_world(host, port)
        if town is not None and short_name(self._world.get_map().name) != short_name(town):
            self._load(town)
        self.map = self._world.get_map()

    def _synchronise(self) -> None:
        settings = self._world.get_settings()
        self._original_settings = self._world.get_settings()
        settings.synchronous_mode = True
        settings.fixed_delta_seconds = self._fixed_delta_s
        self._world.apply_settings(settings)

    def _reload(self) -> None:
        """Begin the town anew; time stands still meanwhile, as the settings are kept."""
        self._world = self._client.load_world(short_name(self.map.name), False)
        self.map = self._world.get_map()

    def _load(self, town: str) -> None:
        known = sorted({short_name(name) for name in self._client.get_available_maps()})
        if short_name(town) not in known:
            raise RouteError("town", "one of the server's towns (" + ", ".join(known) + ")", town)
        self._world = self._client.load_world(short_name(town))

    def _transform(self, pose: Pose2D, lift_m: float) -> Any:
        x, y, yaw = pose_to_carla(pose)
        ground = self.map.get_waypoint(carla.Location(x, y, 0.0))
        z = ground.transform.location.z if ground is not None else 0.0
        return carla.Transform(carla.Location(x, y, z + lift_m), carla.Rotation(yaw=yaw))

    def _spawn_ego(self, pose: Pose2D, blueprint: str) -> None:
        library = self._world.get_blueprint_library()
        try:
            description = library.find(blueprint)
        except (IndexError, RuntimeError):
            raise UserError("ego blueprint", "a vehicle of the server", blueprint) from None
        description.set_attribute("role_name", "hero")
        for lift_m in SPAWN_LIFTS_M:
            actor = self._world.try_spawn_actor(description, self._transform(pose, lift_m))
            if actor is not None:
                self._lift_m = lift_m
                self._actors.append(actor)
                break
        else:
            raise RouteError("ego pose", "a free place", pose, "another vehicle may stand there")
        self._take_ego(actor)
        self.apply(HOLD)

    def _mount_sensors(self, cameras: Sequence[CameraMount], inertial: bool) -> None:
        self._cameras = {mount.spec.name: mount for mount in cameras}
        if len(self._cameras) != len(cameras):
            raise UserError("cameras", "distinct names", [mount.spec.name for mount in cameras])
        for name, mount in self._cameras.items():
            period_s = self._fixed_delta_s * mount.every_ticks if mount.every_ticks > 1 else 0.0
            self._mount(name, partial(self._camera, mount.spec, period_s), mount.every_ticks)
        if inertial:
            self._mount("imu", partial(self._central, "sensor.other.imu"))
            self._mount("gnss", partial(self._central, "sensor.other.gnss"))
        self._mount("collision", partial(self._central, "sensor.other.collision"))

    def _mount(self, name: str, describe: Callable[[], tuple[Any, Any]], period: int = 1) -> None:
        def mount() -> None:
            actor = self._world.spawn_actor(*describe(), attach_to=self._ego)
            self._actors.append(actor)
            self._streams[name] = Stream(name, actor, period, self._fault)

        self.call(mount, f"mounting sensor {name}")

    def _warm_up(self, longest_period: int) -> None:
        """Tick a fixed number of times, until subscriptions are live and the phase of every paced camera is known.

        A subscription is seen to be live by a measurement alone, and those are made by ticks alone. So it is the wall
        clock that waits, between the ticks, and their number stays the same on a slow machine.
        """
        silent = [stream for name, stream in self._streams.items() if name != "collision"]
        ticks = WARM_UP_TICKS * math.ceil(max(1, WARM_UP_PERIODS * longest_period / WARM_UP_TICKS))
        for wait_s in warm_up_waits_s(ticks, self._timeout_s):
            self._move_on()
            deadline = time.monotonic() + wait_s
            silent = [stream for stream in silent if not stream.begun(deadline)]
        if silent:
            names = ", ".join(stream.name for stream in silent)
            raise InfrastructureError(f"sensors gave nothing within {self._timeout_s:g} s and {ticks} ticks: {names}")


def warm_up_waits_s(ticks: int, total_s: float) -> list[float]:
    """Wall-clock seconds to wait at most after each of some ticks for sensors that are still silent.

    Each of the first half is twice the one before: what is late at first is most often late by a little, and a camera
    that takes a picture now and then is silent on most ticks.
    """
    shares = [2.0 ** min(k, ticks // 2 - 1) for k in range(ticks)]
    return [total_s * share / sum(shares) for share in shares]
