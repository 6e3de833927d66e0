"""An ego vehicle with sensors in a server's world, through the `carla` library, whoever moves time.

Everything that leaves this package is REP-103; the library's left-handed numbers end here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import carla
import numpy as np

from carla_bridge.client.server_watch import Fault, Watchdog, no_fault
from carla_bridge.client.surroundings import Surroundings, SurroundingsReader
from carla_bridge.client.vehicle_control import PedalMap, to_pedals
from carla_bridge.client.versions import check_versions
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.frames import rotation_to_carla, xy_to_carla
from wamdiff2_core.types import VehicleCommand

LOG = logging.getLogger(__name__)
T = TypeVar("T")
LOST_TIMEOUT_S = 1.0  # for putting back a server that does not answer


class EgoSession:
    """Connection, ego vehicle, and what was spawned; leaving the `with` block destroys that and puts back the rest.

    Attributes:
        map: the server's `carla.Map`.
        pedal_map: how the ego vehicle answers its pedals.
    """

    map: Any
    pedal_map: PedalMap
    _reader: SurroundingsReader

    def __init__(self, timeout_s: float, fault: Fault = no_fault) -> None:
        """Hold nothing yet.

        Args:
            timeout_s: limit for every call, wall clock.
            fault: what is known about the server's failure.
        """
        self._timeout_s, self._fault = timeout_s, fault
        self._watchdog = Watchdog(fault)
        self._actors: list[Any] = []
        self._client: Any = None
        self._world: Any = None
        self._ego: Any = None
        self._lost = False  # whether a call has failed, as to a server that hangs
        self._closed = False

    @property
    def world(self) -> Any:
        """The `carla.World`, for what this class does not do."""
        return self._world

    @property
    def client(self) -> Any:
        """The `carla.Client`, for batches of commands."""
        return self._client

    @property
    def lost(self) -> bool:
        """Whether a call has failed, as to a server that has ended or hangs."""
        return self._lost

    def limit_calls(self, timeout_s: float | None = None) -> None:
        """Let further calls wait for the server so long at most, wall clock; None: as long as it was made with."""
        self._client.set_timeout(self._timeout_s if timeout_s is None else timeout_s)

    @property
    def ego_id(self) -> int:
        """Actor id of the ego vehicle."""
        return int(self._ego.id)

    def apply(self, command: VehicleCommand) -> None:
        """Set the ego vehicle's controls for the next ticks."""
        pedals = to_pedals(command, self.pedal_map)
        self._ego.apply_control(carla.VehicleControl(throttle=pedals.throttle, steer=pedals.steer, brake=pedals.brake))

    def speed_limit_mps(self) -> float:
        """Speed limit where the ego vehicle is; 0 when none is known."""
        return float(self._ego.get_speed_limit()) / 3.6

    def call(self, function: Callable[[], T], what: str, timeout_s: float = math.inf) -> T:
        """The result of a call that waits for the server; each is short, so that few are left behind by Ctrl-C.

        Args:
            function: calls the library.
            what: names it in messages.
            timeout_s: wall clock; by default the library's own limit holds.

        Raises:
            InfrastructureError: it failed, it did not come back in time, or the server has ended.
        """
        try:
            return self._watchdog.call(function, what, timeout_s)
        except InfrastructureError:
            self._lost = True
            raise

    def surroundings(self) -> Surroundings:
        """Everything around the ego vehicle at the last tick: privileged, not for planners."""
        return self.call(lambda: self._reader.read(self._snapshot()), "reading the surroundings")

    def close(self) -> None:
        """Destroy what was spawned and put the rest back. Never raises; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            # What a call that Ctrl-C left behind has spawned is known once it is back.
            lost = self._lost or not self._watchdog.idle(LOST_TIMEOUT_S)
            if lost and self._client is not None:
                self._client.set_timeout(LOST_TIMEOUT_S)
            if self._world is not None and not self._fault():
                self._let_go()
            for actor in reversed(self._actors):
                if hasattr(actor, "stop"):
                    actor.stop()
                if self._fault():
                    continue  # it went with the server
                # The library logs a time-out here instead of raising it.
                if not actor.destroy() and lost:
                    raise RuntimeError(f"actor {actor.id} was not destroyed")
            if self._world is not None and not self._fault():
                self._put_back()
        except RuntimeError as error:
            # Each further call to a lost server would wait for its own time-out.
            LOG.warning("the server was not put back as it was: %s", error)
        self._actors.clear()
        self._watchdog.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _snapshot(self) -> Any:
        """The `carla.WorldSnapshot` of the last tick."""
        return self._world.get_snapshot()

    def _let_go(self) -> None:
        """Done on closing, before the actors are destroyed."""

    def _put_back(self) -> None:
        """Done on closing, after that."""

    def _open_world(self, host: str, port: int) -> None:
        self._client = carla.Client(host, port, worker_threads=4)
        self._client.set_timeout(self._timeout_s)
        check_versions(self._client, f"{host}:{port}")
        # This one call keeps the interpreter's lock, so nothing is noticed before it comes back.
        self._world = self._client.get_world()

    def _take_ego(self, actor: Any) -> None:
        """Let `actor` be the ego vehicle."""
        self._ego = actor
        steering = max(wheel.max_steer_angle for wheel in actor.get_physics_control().wheels)
        self.pedal_map = PedalMap(max_steer_rad=float(np.deg2rad(steering)))

    def _sensor(self, blueprint: str, attributes: dict[str, str] | None = None) -> Any:
        """Description of a sensor to spawn."""
        description = self._world.get_blueprint_library().find(blueprint)
        for key, value in (attributes or {}).items():
            description.set_attribute(key, value)
        return description

    def _central(self, blueprint: str) -> tuple[Any, Any]:
        """Description and place of a sensor in the vehicle's middle."""
        return self._sensor(blueprint), carla.Transform()

    def _camera(self, spec: CameraSpec, period_s: float) -> tuple[Any, Any]:
        """Description and place on the vehicle of a camera; a period of 0 is every tick."""
        description = self._sensor("sensor.camera.rgb", {
            "image_size_x": str(spec.width_px), "image_size_y": str(spec.height_px), "fov": str(spec.hfov_deg),
            "sensor_tick": str(period_s),
        })
        return description, camera_place(spec)


def camera_place(spec: CameraSpec) -> carla.Transform:
    """Where a camera of the rig sits on its vehicle."""
    place = carla.Location(*xy_to_carla(spec.x_m, spec.y_m), spec.z_m)
    return carla.Transform(place, carla.Rotation(*rotation_to_carla(spec.roll_deg, spec.pitch_deg, spec.yaw_deg)))


def short_name(map_name: str) -> str:
    """`Town01` of `Carla/Maps/Town01`."""
    return map_name.rsplit("/", 1)[-1]
