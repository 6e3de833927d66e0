"""What one tick measures: readings in REP-103, made from `carla`'s left-handed ones, and matched to frames."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from carla_bridge.client.server_watch import Fault, next_item, no_fault
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.frames import (
    angular_velocity_from_carla,
    flip_y,
    pose_from_carla,
    rotation,
    yaw_from_compass,
    yaw_rate_from_carla,
)
from wamdiff2_core.types import CameraFrame, EgoState


@dataclass(frozen=True)
class ImuReading:
    """Inertial measurement in base_link.

    Attributes:
        acceleration_mps2: (3,) specific force, gravity included.
        angular_velocity_radps: (3,).
        yaw_rad: heading in the map frame, from the compass.
    """

    acceleration_mps2: np.ndarray
    angular_velocity_radps: np.ndarray
    yaw_rad: float


@dataclass(frozen=True)
class GnssReading:
    """Geodetic position, WGS 84: degrees and metres."""

    latitude_deg: float
    longitude_deg: float
    altitude_m: float


@dataclass(frozen=True)
class Collision:
    """A contact of the ego vehicle.

    Attributes:
        frame: the server's frame number; the message may come a tick later.
        other_type: kind of what was touched.
        impulse_ns: impulse, N s.
        other_id: its actor's id; 0 for what is no actor, such as a building.
        carla_xyz_m: where the ego vehicle was, in CARLA's world.
    """

    frame: int
    other_type: str
    impulse_ns: float
    other_id: int
    carla_xyz_m: tuple[float, float, float]


@dataclass(frozen=True)
class SimulationFrame:
    """The world after one tick.

    Attributes:
        frame: the server's frame number.
        stamp_ns: simulated time, nanoseconds.
        ego: motion and pose of the ego vehicle.
        images: pictures taken on this very frame, by camera name; a camera that was not due is absent.
        collisions: contacts reported since the last tick.
        pictured: an earlier step whose pictures have come only now, in a world that does not wait for them.
    """

    frame: int
    stamp_ns: int
    ego: EgoState
    images: dict[str, CameraFrame] = field(default_factory=dict)
    imu: ImuReading | None = None
    gnss: GnssReading | None = None
    collisions: tuple[Collision, ...] = ()
    pictured: SimulationFrame | None = None


class Stream:
    """Measurements of one sensor, matched to frames."""

    def __init__(self, name: str, actor: Any, period: int, fault: Fault = no_fault) -> None:
        self.name, self.actor, self.period = name, actor, period
        self._phase: int | None = None if period > 1 else 0
        self._begun = False
        self._fault = fault
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        actor.listen(self._queue.put)

    def begun(self, deadline: float) -> bool:
        """Whether measurements come: wait for the first one until `deadline`, which is never handed out.

        It tells on which frames a paced sensor fires.

        Raises:
            InfrastructureError: the server has ended.
        """
        if not self._begun:
            try:
                first = next_item(self._queue, deadline - time.monotonic(), self._fault)
            except queue.Empty:
                return False
            self._phase, self._begun = first.frame % self.period, True
        return True

    def due(self, frame: int) -> bool:
        """Whether the sensor fires on `frame`, as far as is known."""
        return self._phase is not None and frame % self.period == self._phase

    def take(self, frame: int, deadline: float) -> Any | None:
        """The measurement of `frame`, or None when the sensor is not due.

        Raises:
            InfrastructureError: it was due and did not come in time, was left out, or the server has ended.
        """
        if not self.due(frame):
            return None
        newest = None
        while True:
            try:
                measurement = next_item(self._queue, deadline - time.monotonic(), self._fault)
            except queue.Empty:
                raise InfrastructureError(
                    f"sensor {self.name}: nothing for frame {frame} in time, newest is {newest}"
                ) from None
            newest = measurement.frame
            if newest == frame:
                return measurement
            if newest > frame:
                raise InfrastructureError(f"sensor {self.name}: frame {frame} was left out, next is {newest}")

    def drain(self) -> list[Any]:
        """Everything that has come, for a sensor that reports events."""
        events = []
        while not self._queue.empty():
            events.append(self._queue.get())
        return events


def _vector(v: Any) -> np.ndarray:
    return flip_y(np.array([v.x, v.y, v.z]))


def ego_state_from_carla(actor: Any, stamp_ns: int) -> EgoState:
    """Motion and pose of an actor of a snapshot."""
    transform = actor.get_transform()
    pose = pose_from_carla(transform.location.x, transform.location.y, transform.rotation.yaw)
    base_from_map = rotation(pose.yaw_rad).T
    return EgoState(
        velocity_mps=base_from_map @ _vector(actor.get_velocity())[:2],
        acceleration_mps2=base_from_map @ _vector(actor.get_acceleration())[:2],
        yaw_rate_radps=yaw_rate_from_carla(actor.get_angular_velocity().z),
        map_from_base=pose,
        stamp_ns=stamp_ns,
    )


def camera_frame_from_carla(name: str, image: Any, stamp_ns: int) -> CameraFrame:
    """RGB copy of a `carla.Image`."""
    bgra = np.frombuffer(image.raw_data, dtype=np.uint8).reshape(image.height, image.width, 4)
    return CameraFrame(np.ascontiguousarray(bgra[:, :, 2::-1]), stamp_ns, name)


def imu_from_carla(measurement: Any) -> ImuReading:
    """Reading from a `carla.IMUMeasurement`."""
    gyro = measurement.gyroscope
    return ImuReading(
        acceleration_mps2=_vector(measurement.accelerometer),
        angular_velocity_radps=angular_velocity_from_carla(np.array([gyro.x, gyro.y, gyro.z])),
        yaw_rad=yaw_from_compass(measurement.compass),
    )


def gnss_from_carla(measurement: Any) -> GnssReading:
    """Reading from a `carla.GnssMeasurement`."""
    return GnssReading(measurement.latitude, measurement.longitude, measurement.altitude)


def collision_from_carla(event: Any) -> Collision:
    """Contact from a `carla.CollisionEvent`."""
    other = event.other_actor
    here = event.transform.location
    return Collision(event.frame, other.type_id, event.normal_impulse.length(), other.id, (here.x, here.y, here.z))
