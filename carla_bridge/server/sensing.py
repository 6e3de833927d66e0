"""Who measures in a tick: takes every measurement that is due and that someone listens to, and sends it.

`sensors` knows what a measurement is made of; this module knows when it is made and where it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carla_bridge.server import sensors, wire
from carla_bridge.server.actors import Actor, Sensor
from carla_bridge.server.contacts import Hit
from carla_bridge.server.scene import RenderCamera
from carla_bridge.server.sensors import GeoReference
from carla_bridge.server.streams import StreamHub
from carla_bridge.server.wire import SensorType

Describe = Callable[[Actor], list]
TakePicture = Callable[[RenderCamera, Sensor], bytes]


@dataclass(frozen=True)
class Tick:
    """What the measurements of one tick have in common.

    Attributes:
        frame, time_s: stamp of the tick.
        geo_reference: of the town.
        picture: (camera, its sensor) -> BGRA bytes; None when rendering is off.
    """

    frame: int
    time_s: float
    geo_reference: GeoReference
    picture: TakePicture | None


def publish(hub: StreamHub, tick: Tick, measuring: Sequence[Sensor]) -> None:
    """Send what the sensors measure."""
    for sensor in measuring:
        if sensor.type_id == "sensor.other.collision" or not hub.listening(sensor.stream_id):
            continue
        if not sensor.due(tick.time_s):
            continue
        payload = _measure(tick, sensor)
        if payload is not None:
            hub.send(sensor.stream_id, payload)


def publish_hits(
    hub: StreamHub, tick: Tick, measuring: Sequence[Sensor], hits: Sequence[Hit], describe: Describe
) -> None:
    """Send collisions to the collision sensors of those who were hit."""
    if not hits:
        return
    for sensor in measuring:
        if sensor.type_id != "sensor.other.collision" or sensor.parent is None or not hub.listening(sensor.stream_id):
            continue
        for hit in hits:
            if hit.actor is sensor.parent:
                other = describe(hit.other) if hit.other is not None else scenery(hit.other_type)
                body = sensors.collision_body(describe(hit.actor), other, hit.impulse_ns)
                head = sensors.header(sensor, SensorType.COLLISION, tick.frame, tick.time_s)
                hub.send(sensor.stream_id, head + body)


def scenery(type_id: str) -> list:
    """`Actor` of the protocol for something that is part of the town."""
    return [0, 0, [0, type_id, []], [[0.0] * 3, [0.0] * 3, [0.0] * 3, 0], b"", b""]


def _measure(tick: Tick, sensor: Sensor) -> bytes | None:
    if sensor.type_id == "sensor.camera.rgb":
        if tick.picture is None:
            return None
        width, height, fov = sensors.image_size(sensor)
        p = sensor.pose
        camera = RenderCamera(p.x, p.y, p.z, p.pitch, p.yaw, p.roll, width, height, fov)
        body = wire.image_body(width, height, fov, tick.picture(camera, sensor))
        return sensors.header(sensor, SensorType.CAMERA_RGB, tick.frame, tick.time_s) + body
    if sensor.type_id == "sensor.other.imu":
        return sensors.header(sensor, SensorType.IMU, tick.frame, tick.time_s) + sensors.imu_body(sensor)
    head = sensors.header(sensor, SensorType.GNSS, tick.frame, tick.time_s)
    return head + sensors.gnss_body(sensor, tick.geo_reference)
