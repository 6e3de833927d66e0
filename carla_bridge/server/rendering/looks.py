"""How the renderer sees what lives in the world."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.labels import label_of
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.geometry.poses import rotation_matrix
from carla_bridge.server.geometry.scene import Lamp, RenderActor, RenderSignal, Rgb

PROP_COLOR: Rgb = (225, 120, 30)
CAR_COLOR: Rgb = (140, 140, 150)
WALKER_COLORS: tuple[Rgb, ...] = ((190, 60, 60), (60, 90, 170), (70, 130, 80), (210, 190, 120))
BRAKE_LAMP_FROM = 0.02  # pedal travel
MOUNT_BESIDE_M, MOUNT_ABOVE_M = 0.3, 0.8  # agents put cameras up to 2.0 m above the ground on the lowest of cars


def bodies(actors: Iterable[Actor], camera: Actor | None) -> list[RenderActor]:
    """Everything with a body, also what is driven over.

    A carrier that the camera is mounted on is not seen, its box is no good picture of a bonnet, but its lamps light the
    road. A camera that follows its carrier from farther away sees it.
    """
    carrier = camera.parent if camera is not None and _mounted(camera) else None
    return [look(actor, visible=actor is not carrier) for actor in actors if any(actor.blueprint.extent_m)]


def _mounted(camera: Actor) -> bool:
    """Whether a camera is in its carrier's box, or where cameras are mounted on one."""
    if camera.parent is None:
        return False
    carrier, extent_m = camera.parent.pose, camera.parent.blueprint.extent_m
    offset = np.array(camera.pose.location) - _foot(camera.parent)
    x, y, z = offset @ rotation_matrix(carrier)
    beside = abs(x) <= extent_m[0] + MOUNT_BESIDE_M and abs(y) <= extent_m[1] + MOUNT_BESIDE_M
    return bool(beside and -MOUNT_BESIDE_M <= z <= 2 * extent_m[2] + MOUNT_ABOVE_M)


def signals(actors: Iterable[Actor]) -> list[RenderSignal]:
    """Traffic lights and signs."""
    return [signal for actor in actors for signal in actor.render_signals()]


def look(actor: Actor, *, visible: bool = True) -> RenderActor:
    """An actor as the renderer takes it; `visible` is False for the carrier of the camera."""
    lamps = Lamp.NONE
    if isinstance(actor, Vehicle):
        kind, color, lamps = "vehicle", _parse_color(actor.attributes.get("color", "")), _lamps(actor)
    elif isinstance(actor, Walker):
        kind, color = "walker", WALKER_COLORS[actor.id % len(WALKER_COLORS)]
    else:
        kind, color = "prop", PROP_COLOR
    p = actor.pose
    foot_x, foot_y, foot_z = _foot(actor)
    return RenderActor(
        kind,
        foot_x,
        foot_y,
        foot_z,
        p.pitch,
        p.yaw,
        p.roll,
        *actor.blueprint.extent_m,
        color,
        type_id=actor.type_id,
        lamps=lamps,
        speed_mps=math.hypot(actor.velocity[0], actor.velocity[1]),
        visible=visible,
        label=label_of(actor),
    )


def _foot(actor: Actor) -> tuple[float, float, float]:
    """Middle of the body's foot; that of a walker who lies is not below its origin."""
    p = actor.pose
    if not isinstance(actor, Walker):
        return p.location
    up = rotation_matrix(p)[:, 2] * actor.blueprint.extent_m[2]
    return p.x - float(up[0]), p.y - float(up[1]), p.z - float(up[2])


def _lamps(vehicle: Vehicle) -> Lamp:
    """What a client switched on, and what the pedals switch on by themselves."""
    lamps = Lamp(vehicle.light_flags & sum(Lamp))
    if vehicle.pedals.brake >= BRAKE_LAMP_FROM:
        lamps |= Lamp.BRAKE
    if vehicle.pedals.reverse:
        lamps |= Lamp.REVERSE
    return lamps


def _parse_color(text: str) -> Rgb:
    try:
        r, g, b = (min(255, max(0, int(part))) for part in text.split(","))
    except ValueError:
        return CAR_COLOR
    return r, g, b
