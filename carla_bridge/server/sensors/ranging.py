"""What range sensors measure: lidar, semantic lidar, radar and the obstacle detector, by casting rays.

A lidar sweeps its beams evenly in angle; a tick takes the sector that it turns through in that time, so that the clouds
of one turn join without gap. Points are in the sensor's own axes. Drop-off, attenuation and noise are CARLA's
formulas. The carrier of a sensor is not seen: sensors ride on a box that stands for bodywork they would look past.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np

from carla_bridge.server.actors.spawning import Sensor
from carla_bridge.server.geometry.poses import Pose, rotation_matrix
from carla_bridge.server.sensors.ray_scene import GROUND, NOTHING, RayScene

MAX_CHANNELS = 512
MAX_RAYS = 1 << 18  # per tick: an attribute must not take the server's memory
MAX_RANGE_M = 500.0
_POINT = np.dtype([("xyz", "<3f4"), ("intensity", "<f4")])
_TAGGED_POINT = np.dtype([("xyz", "<3f4"), ("cos_incidence", "<f4"), ("actor", "<u4"), ("tag", "<u4")])


def lidar_body(sensor: Sensor, scene: RayScene, time_s: float, dt_s: float) -> bytes:
    """Body of a lidar payload: header, then x, y, z, intensity per point, channel by channel."""
    directions, channels, angle_rad = _beams(sensor, time_s, dt_s)
    kept = sensor.noise.random(len(directions)) >= sensor.setting("dropoff_general_rate")
    directions, channel = directions[kept], np.repeat(np.arange(channels), len(kept) // channels)[kept]
    distance, target = _cast(sensor, scene, directions)
    met = target != NOTHING
    distance, directions, channel = distance[met], directions[met], channel[met]
    intensity = np.exp(-max(0.0, sensor.setting("atmosphere_attenuation_rate")) * distance)
    limit, at_zero = sensor.setting("dropoff_intensity_limit"), sensor.setting("dropoff_zero_intensity")
    chance = at_zero / max(limit, 1e-6) * intensity + 1.0 - at_zero
    kept = (intensity > limit) | (sensor.noise.random(len(intensity)) < chance)
    spread_m = max(0.0, sensor.setting("noise_stddev"))
    if spread_m:
        distance = distance + sensor.noise.normal(0.0, spread_m, len(distance))
    points = np.empty(int(kept.sum()), _POINT)
    points["xyz"] = (directions * distance[:, None])[kept]
    points["intensity"] = intensity[kept]
    return _lidar_header(angle_rad, channel[kept], channels) + points.tobytes()


def semantic_lidar_body(sensor: Sensor, scene: RayScene, time_s: float, dt_s: float) -> bytes:
    """Body of a semantic lidar payload: x, y, z, cosine of the angle of incidence, actor id and label per point."""
    directions, channels, angle_rad = _beams(sensor, time_s, dt_s)
    channel = np.repeat(np.arange(channels), len(directions) // channels)
    distance, target = _cast(sensor, scene, directions)
    met = target != NOTHING
    distance, directions, target = distance[met], directions[met], target[met]
    points = np.empty(len(target), _TAGGED_POINT)
    points["xyz"] = directions * distance[:, None]
    world = directions @ rotation_matrix(sensor.pose).T
    points["cos_incidence"] = scene.incidence(np.array(sensor.pose.location), world, distance, target)
    solid = target >= 0
    points["actor"], points["tag"] = 0, scene.label(GROUND)
    points["actor"][solid] = scene.boxes.actor_ids[target[solid]]
    points["tag"][solid] = scene.boxes.labels[target[solid]]
    return _lidar_header(angle_rad, channel[met], channels) + points.tobytes()


def radar_body(sensor: Sensor, scene: RayScene, dt_s: float) -> bytes:
    """Body of a radar payload: velocity (m/s, away positive), azimuth, altitude (rad) and depth (m) per detection."""
    count = _rays(sensor.setting("points_per_second") * dt_s)
    radius, turn = sensor.noise.random(count), sensor.noise.random(count) * 2 * math.pi
    azimuth = radius * np.cos(turn) * math.radians(_clip(sensor.setting("horizontal_fov"), 0.0, 180.0)) / 2
    altitude = radius * np.sin(turn) * math.radians(_clip(sensor.setting("vertical_fov"), 0.0, 180.0)) / 2
    directions = _directions(azimuth, altitude)
    distance, target = _cast(sensor, scene, directions)
    met = target != NOTHING
    distance, target, directions = distance[met], target[met], directions[met]
    moving = np.zeros((len(target), 3))
    solid = target >= 0
    moving[solid] = scene.boxes.velocity_mps[target[solid]]
    world = directions @ rotation_matrix(sensor.pose).T
    velocity = ((moving - np.array(sensor.velocity)) * world).sum(axis=1)
    detections = np.stack([velocity, azimuth[met], altitude[met], distance], axis=1)
    return detections.astype("<f4").tobytes()


def obstacle_ahead(sensor: Sensor, scene: RayScene) -> tuple[int, float] | None:
    """Nearest thing that a ball rolling ahead of the sensor would touch: (actor id, 0 for scenery; distance in m)."""
    ball_m = _clip(sensor.setting("hit_radius"), 0.0, 10.0)
    boxes = scene.boxes
    grown = RayScene(replace(boxes, extent_m=boxes.extent_m + ball_m), scene.ground)
    ahead = rotation_matrix(sensor.pose) @ np.array([[1.0], [0.0], [0.0]])
    for distance, target in grown.along(
        np.array(sensor.pose.location), ahead[:, 0], _clip(sensor.setting("distance"), 0.0, MAX_RANGE_M)
    ):
        if target == GROUND:
            continue
        actor_id = int(boxes.actor_ids[target])
        if actor_id == _carrier(sensor) or (not actor_id and sensor.attributes.get("only_dynamics") == "true"):
            continue
        return actor_id, distance
    return None


def _beams(sensor: Sensor, time_s: float, dt_s: float) -> tuple[np.ndarray, int, float]:
    """Unit directions in the sensor's axes (channels x steps, 3), number of channels, angle at the end of the tick."""
    channels = int(_clip(sensor.setting("channels"), 1, MAX_CHANNELS))
    steps = max(1, _rays(sensor.setting("points_per_second") * dt_s) // channels)
    upper, lower = sensor.setting("upper_fov"), sensor.setting("lower_fov")
    altitude = np.radians(np.linspace(upper, lower, channels) if channels > 1 else np.array([upper]))
    sweep_deg = _clip(sensor.setting("horizontal_fov"), 0.1, 360.0)
    turn_deg = _clip(sensor.setting("rotation_frequency"), 0.0, 1e4) * sweep_deg * dt_s
    start_deg = math.fmod(_clip(sensor.setting("rotation_frequency"), 0.0, 1e4) * sweep_deg * time_s, sweep_deg)
    azimuth_deg = np.mod(start_deg - turn_deg + turn_deg / steps * np.arange(steps), sweep_deg) - sweep_deg / 2
    grid = np.meshgrid(np.radians(azimuth_deg), altitude)
    return _directions(grid[0].ravel(), grid[1].ravel()), channels, math.radians(start_deg)


def _directions(azimuth_rad: np.ndarray, altitude_rad: np.ndarray) -> np.ndarray:
    flat = np.cos(altitude_rad)
    return np.stack([flat * np.cos(azimuth_rad), flat * np.sin(azimuth_rad), np.sin(altitude_rad)], axis=1)


def _cast(sensor: Sensor, scene: RayScene, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pose: Pose = sensor.pose
    world = directions @ rotation_matrix(pose).T
    reach_m = _clip(sensor.setting("range"), 0.0, MAX_RANGE_M)
    return scene.cast(np.array(pose.location), world, reach_m, ignore=(_carrier(sensor),))


def _carrier(sensor: Sensor) -> int:
    return sensor.parent.id if sensor.parent is not None else -1


def _lidar_header(angle_rad: float, channel: np.ndarray, channels: int) -> bytes:
    counts = np.bincount(channel, minlength=channels).astype("<u4")
    return struct.pack("<fI", angle_rad, channels) + counts.tobytes()


def _rays(count: float) -> int:
    return int(_clip(round(count), 1, MAX_RAYS))


def _clip(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)
