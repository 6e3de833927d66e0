"""Scenes to take pictures of: a camera in a lane of a town, with traffic about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.geometry.scene import Lamp, LampColor, RenderActor, RenderCamera, RenderSignal, SignalKind
from carla_bridge.server.town.town import Town

CAMERA_Z_M = 1.8
NEAREST_M = 7.0
COLORS = ((180, 30, 30), (30, 60, 170), (200, 200, 205), (35, 35, 38), (235, 235, 235), (60, 110, 70))
KINDS = (
    *("vehicle.tesla.model3", "vehicle.audi.tt", "vehicle.nissan.patrol_2021", "vehicle.mercedes.sprinter"),
    *("vehicle.dodge.charger_2020", "walker.pedestrian.0001", "vehicle.kawasaki.ninja", "vehicle.nissan.micra"),
    *("vehicle.ford.ambulance", "walker.pedestrian.0004"),
)


@dataclass(frozen=True)
class StreetScene:
    """What `Renderer.render` takes."""

    camera: RenderCamera
    actors: tuple[RenderActor, ...]
    signals: tuple[RenderSignal, ...] = ()


def street_scene(
    town: Town, spawn: int, *, actors: int = 20, width: int = 512, height: int = 256, fov: float = 90.0
) -> StreetScene:
    """A camera above a spawn point, traffic ahead of it within 90 m, all lamps burning, and a red light 38 m ahead.

    Args:
        town: where.
        spawn: index of the spawn point of the camera's carrier.
        actors: how many things there are besides the carrier, all ahead of the camera.
        width, height, fov: of the picture.
    """
    start = town.spawn_points[spawn % len(town.spawn_points)]
    yaw = np.deg2rad(start.rotation.yaw)
    forward, right = np.array([np.cos(yaw), np.sin(yaw)]), np.array([-np.sin(yaw), np.cos(yaw)])
    eye = np.array([start.location.x, start.location.y])
    camera = RenderCamera(*eye.tolist(), CAMERA_Z_M, yaw=start.rotation.yaw, width=width, height=height, fov=fov)
    lamps = Lamp.LOW_BEAM | Lamp.POSITION
    seen = []
    for i in range(actors):
        blueprint = LIBRARY[KINDS[i % len(KINDS)]]
        oncoming = i % 2 == 1
        walks = blueprint.id.startswith("walker")
        ahead = NEAREST_M + (90.0 - NEAREST_M) * (i + 0.5) / max(actors, 1)
        x, y = eye + ahead * forward + (5.0 if walks else -3.5 if oncoming else 0.0) * right
        seen.append(
            RenderActor(
                "walker" if walks else "vehicle",
                float(x),
                float(y),
                0.0,
                0.0,
                start.rotation.yaw + (180.0 if oncoming else 0.0),
                0.0,
                *blueprint.extent_m,
                COLORS[i % len(COLORS)],
                type_id=blueprint.id,
                lamps=Lamp.NONE if walks else lamps | (Lamp.BRAKE if i % 3 == 0 else Lamp.NONE),
                speed_mps=1.4 if walks else 8.0,
            )
        )
    seen.append(RenderActor("vehicle", *eye.tolist(), 0.0, yaw=start.rotation.yaw, lamps=lamps, visible=False))
    foot, head = eye + 38.0 * forward + 4.6 * right, eye + 38.0 * forward + 1.6 * right
    light = RenderSignal(
        SignalKind.TRAFFIC_LIGHT, *foot.tolist(), 0.0, start.rotation.yaw, *head.tolist(), 5.2, LampColor.RED
    )
    return StreetScene(camera, tuple(seen), (light,))
