"""What sensors measure: stream payloads of camera, IMU, GNSS and collision sensors.

IMU axes are the sensor's (x forward, y right, z up): specific force in m/s^2, so +9.81 on z at rest, and rates in
rad/s. The compass is 0 at north (world -y) and grows clockwise. GNSS uses the spherical Mercator projection that
Bench2Drive's agents invert, with north along -y. (`carla.Map.transform_to_geolocation` of 0.9.16 does neither: it
projects by the file's own geoReference and takes +y for north.)
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from xml.etree import ElementTree

import msgpack

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.spawning import Sensor
from carla_bridge.server.dynamics.motion import GRAVITY_MPS2
from carla_bridge.server.geometry.poses import rotation_matrix
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.wire import SensorType, Vector

EARTH_RADIUS_M = 6378137.0
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class GeoReference:
    """Latitude and longitude of the world's origin, degrees; CARLA's fallback is 42, 2."""

    latitude_deg: float = 42.0
    longitude_deg: float = 2.0

    @classmethod
    def of(cls, opendrive: str) -> GeoReference:
        """Read `+lat_0` and `+lon_0` from an OpenDRIVE file's `geoReference`, with whatever blanks it has."""
        projection = _projection(opendrive)
        latitude, longitude = (
            re.search(rf"\b{name}\s*=\s*({_NUMBER})", projection) for name in ("lat_0", "lon_0")
        )
        if latitude is None or longitude is None:
            return cls()
        return cls(float(latitude[1]), float(longitude[1]))

    def geodetic(self, location: Vector) -> Vector:
        """Latitude and longitude in degrees, altitude in metres, of a place in CARLA's world."""
        x, y, z = location
        scale = math.cos(math.radians(self.latitude_deg))
        east = scale * math.radians(self.longitude_deg) * EARTH_RADIUS_M + x
        north = scale * EARTH_RADIUS_M * math.log(math.tan(math.radians(90.0 + self.latitude_deg) / 2)) - y
        longitude = math.degrees(east / (EARTH_RADIUS_M * scale))
        latitude = 2 * math.degrees(math.atan(math.exp(north / (EARTH_RADIUS_M * scale)))) - 90.0
        return latitude, longitude, z


def _projection(opendrive: str) -> str:
    """Text of the header's `geoReference`; empty without one."""
    try:
        for _, element in ElementTree.iterparse(io.BytesIO(opendrive.encode("utf-8", "replace"))):
            if element.tag == "geoReference":
                return element.text or ""
            if element.tag in ("header", "road"):
                break
    except ElementTree.ParseError:
        pass
    return ""


def header(sensor: Actor, kind: SensorType, frame: int, time_s: float) -> bytes:
    """Payload header with the sensor's own pose."""
    return wire.sensor_header(kind, frame, time_s, sensor.pose.as_transform())


def imu_body(sensor: Sensor) -> bytes:
    """Specific force, rates and compass at the sensor's place on its parent."""
    carrier = sensor.parent or sensor
    roll_rate, pitch_rate, rate = map(math.radians, carrier.angular_velocity)
    spin_up = carrier.yaw_acceleration_radps2
    arm_x, arm_y = sensor.pose.x - carrier.pose.x, sensor.pose.y - carrier.pose.y
    force_world = (  # a sensor off the vehicle's origin feels the turn, and the change of the turn
        carrier.acceleration[0] - rate * rate * arm_x - spin_up * arm_y,
        carrier.acceleration[1] - rate * rate * arm_y + spin_up * arm_x,
        carrier.acceleration[2] + GRAVITY_MPS2,
    )
    sensor_from_world = rotation_matrix(sensor.pose).T
    force = sensor_from_world @ force_world
    c, s = math.cos(math.radians(carrier.pose.yaw)), math.sin(math.radians(carrier.pose.yaw))
    rates = sensor_from_world @ (c * roll_rate - s * pitch_rate, s * roll_rate + c * pitch_rate, rate)
    for i, axis in enumerate("xyz"):
        force[i] += sensor.jitter(f"noise_accel_stddev_{axis}")
        rates[i] += sensor.setting(f"noise_gyro_bias_{axis}")
        rates[i] += sensor.jitter(f"noise_gyro_stddev_{axis}")
    compass = math.radians(sensor.pose.yaw + 90.0) % (2 * math.pi)
    return msgpack.packb([force.tolist(), rates.tolist(), compass])


def gnss_body(sensor: Sensor, reference: GeoReference) -> bytes:
    """Latitude, longitude (degrees) and altitude (metres)."""
    fix = list(reference.geodetic(sensor.pose.location))
    for i, axis in enumerate(("lat", "lon", "alt")):
        fix[i] += sensor.setting(f"noise_{axis}_bias")
        fix[i] += sensor.jitter(f"noise_{axis}_stddev")
    return msgpack.packb(fix)


def collision_body(own: list, other: list, impulse: Vector) -> bytes:
    """Both actors as the RPC describes them, and the impulse on the sensor's owner in N s, world axes."""
    return msgpack.packb([own, other, list(impulse)])


def obstacle_body(own: list, other: list, distance_m: float) -> bytes:
    """Both actors as the RPC describes them, and the distance to the obstacle."""
    return msgpack.packb([own, other, distance_m])


def image_size(sensor: Sensor) -> tuple[int, int, float]:
    """Width and height in pixels, and horizontal field of view in degrees."""
    return int(sensor.setting("image_size_x")), int(sensor.setting("image_size_y")), sensor.setting("fov")
