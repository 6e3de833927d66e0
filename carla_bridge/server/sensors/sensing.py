"""Who measures in a tick: takes every measurement that is due and that someone listens to, and sends it.

`payloads` knows what a measurement is made of; this module knows when it is made and where it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.spawning import Sensor
from carla_bridge.server.contact.contacts import Hit
from carla_bridge.server.geometry.scene import RenderCamera
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.streams import StreamHub
from carla_bridge.server.protocol.wire import SensorType
from carla_bridge.server.sensors import payloads, ranging
from carla_bridge.server.sensors.payloads import GeoReference
from carla_bridge.server.sensors.ray_scene import RayScene

Describe = Callable[[Actor], list]
TakePicture = Callable[[RenderCamera, Sensor], bytes]


@dataclass(frozen=True)
class Tick:
    """What the measurements of one tick have in common.

    Attributes:
        frame, time_s: stamp of the tick.
        dt_s: its length.
        geo_reference: of the town.
        picture: (camera, its sensor) -> BGRA bytes; None when rendering is off.
        rays: what rays can meet in this tick.
        actors: everybody, by id.
    """

    frame: int
    time_s: float
    dt_s: float
    geo_reference: GeoReference
    picture: TakePicture | None
    rays: Callable[[], RayScene]
    actors: Mapping[int, Actor]


def publish(hub: StreamHub, tick: Tick, measuring: Sequence[Sensor], describe: Describe) -> None:
    """Send what the sensors measure."""
    for sensor in measuring:
        # Its clock goes on whether or not anyone listens: when a subscription comes in is nothing of the world's.
        if sensor.type_id == "sensor.other.collision" or not sensor.due(tick.time_s):
            continue
        if not hub.listening(sensor.stream_id):
            continue
        payload = _measure(tick, sensor, describe)
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
                body = payloads.collision_body(describe(hit.actor), other, hit.impulse_ns)
                head = payloads.header(sensor, SensorType.COLLISION, tick.frame, tick.time_s)
                hub.send(sensor.stream_id, head + body)


def scenery(type_id: str) -> list:
    """`Actor` of the protocol for something that is part of the town."""
    return [0, 0, [0, type_id, []], [[0.0] * 3, [0.0] * 3, [0.0] * 3, 0], b"", b""]


def _measure(tick: Tick, sensor: Sensor, describe: Describe) -> bytes | None:
    if sensor.type_id in _CAMERAS:
        if tick.picture is None:
            return None
        width, height, fov = payloads.image_size(sensor)
        p = sensor.pose
        camera = RenderCamera(p.x, p.y, p.z, p.pitch, p.yaw, p.roll, width, height, fov)
        body = wire.image_body(width, height, fov, tick.picture(camera, sensor))
        return payloads.header(sensor, _CAMERAS[sensor.type_id], tick.frame, tick.time_s) + body
    if sensor.type_id == "sensor.other.imu":
        return payloads.header(sensor, SensorType.IMU, tick.frame, tick.time_s) + payloads.imu_body(sensor)
    if sensor.type_id in _RANGING:
        return _measure_range(tick, sensor, describe)
    head = payloads.header(sensor, SensorType.GNSS, tick.frame, tick.time_s)
    return head + payloads.gnss_body(sensor, tick.geo_reference)


_CAMERAS = {
    "sensor.camera.rgb": SensorType.CAMERA_RGB,
    "sensor.camera.depth": SensorType.CAMERA_DEPTH,
    "sensor.camera.semantic_segmentation": SensorType.CAMERA_SEMANTIC,
}
_RANGING = {
    "sensor.lidar.ray_cast": SensorType.LIDAR,
    "sensor.lidar.ray_cast_semantic": SensorType.SEMANTIC_LIDAR,
    "sensor.other.radar": SensorType.RADAR,
    "sensor.other.obstacle": SensorType.OBSTACLE,
}


def _measure_range(tick: Tick, sensor: Sensor, describe: Describe) -> bytes | None:
    kind, scene = _RANGING[sensor.type_id], tick.rays()
    if kind is SensorType.LIDAR:
        body = ranging.lidar_body(sensor, scene, tick.time_s, tick.dt_s)
    elif kind is SensorType.SEMANTIC_LIDAR:
        body = ranging.semantic_lidar_body(sensor, scene, tick.time_s, tick.dt_s)
    elif kind is SensorType.RADAR:
        body = ranging.radar_body(sensor, scene, tick.dt_s)
    else:
        found = ranging.obstacle_ahead(sensor, scene)
        if found is None:
            return None
        actor_id, distance_m = found
        other = describe(tick.actors[actor_id]) if actor_id else scenery("static.unknown")
        body = payloads.obstacle_body(describe(sensor.parent or sensor), other, distance_m)
    return payloads.header(sensor, kind, tick.frame, tick.time_s) + body
