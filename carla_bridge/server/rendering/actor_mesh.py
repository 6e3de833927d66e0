"""Polygons of moving things in a camera's view: which shape each has, kept by look, and put where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import Polygons, place
from carla_bridge.server.geometry.scene import RenderActor, RenderCamera, Rgb
from carla_bridge.server.rendering.prop_shapes import box, prop, stride_phase, walker
from carla_bridge.server.rendering.shapes import ACTOR_RANGE_M, Shape
from carla_bridge.server.rendering.vehicle_lamps import NO_LAMPS, LampState
from carla_bridge.server.rendering.vehicle_shapes import vehicle
from carla_bridge.server.rendering.view import Seen, View, carla_axes

KEPT_MESHES = 1024


@dataclass(frozen=True)
class _Look:
    """Everything that a mesh depends on; lengths in metres."""

    kind: str
    type_id: str
    ex: float
    ey: float
    ez: float
    color: Rgb
    lamps: LampState = NO_LAMPS
    phase: int = 0

    @classmethod
    def of(cls, actor: RenderActor, time_s: float) -> _Look:
        size = (actor.extent_x, actor.extent_y, actor.extent_z)
        if actor.kind == "vehicle":
            lamps = LampState.at(actor.lamps, time_s) if actor.lamps else NO_LAMPS
            return cls(actor.kind, actor.type_id, *size, actor.color_rgb, lamps)
        if actor.kind == "walker":
            phase = stride_phase(actor.x, actor.y, actor.yaw, actor.speed_mps)
            return cls(actor.kind, actor.type_id, *size, actor.color_rgb, phase=phase)
        return cls(actor.kind, actor.type_id, *size, actor.color_rgb)


@lru_cache(maxsize=KEPT_MESHES)
def _mesh(look: _Look) -> Polygons:
    """Polygons in the actor's own axes."""
    shape, color = Shape(look.ex, look.ey, look.ez), np.array(look.color, dtype=float)
    if look.kind == "vehicle":
        vehicle(shape, look.type_id, color, look.lamps)
    elif look.kind == "walker":
        walker(shape, color, sum(look.color) + sum(map(ord, look.type_id)), look.phase)
    elif look.type_id:
        prop(shape, look.type_id, color)
    else:
        box(shape, color)
    return shape.build()


def actor_mesh(actor: RenderActor, time_s: float) -> Polygons:
    """Polygons of an actor in its own axes: x forward, y right, z up from its foot."""
    return _mesh(_Look.of(actor, time_s))


def see_actors(actors: Sequence[RenderActor], camera: RenderCamera, view: View, time_s: float) -> list[Seen]:
    """Polygons of the actors that a camera may see; those of one part of one actor in painting order.

    An actor that holds the camera is left out.
    """
    if not actors:
        return []
    centres = np.array([(a.x, a.y, a.z + a.extent_z) for a in actors])
    radii = np.array([1.2 * (a.extent_x**2 + a.extent_y**2 + a.extent_z**2) ** 0.5 + 0.5 for a in actors])
    near = np.flatnonzero(view.spheres_in_view(centres, radii, ACTOR_RANGE_M))
    shown = [actors[i] for i in near if actors[i].visible and not _holds(actors[i], camera)]
    if not shown:
        return []
    poses = [((a.x, a.y, a.z), carla_axes(a.pitch, a.yaw, a.roll)) for a in shown]
    meshes = [actor_mesh(actor, time_s) for actor in shown]
    bodies = place(meshes, poses)
    labels = np.repeat([actor.label for actor in shown], [len(mesh) for mesh in meshes]).astype(np.uint8)
    return [view.see(replace(bodies, labels=np.where(bodies.labels == Label.NONE, bodies.labels, labels)))]


def _holds(actor: RenderActor, camera: RenderCamera) -> bool:
    """Whether the camera is inside the actor's box."""
    offset = (camera.x - actor.x, camera.y - actor.y, camera.z - actor.z)
    if max(map(abs, offset)) > actor.extent_x + actor.extent_y + 2 * actor.extent_z:
        return False
    ahead, right, up = carla_axes(actor.pitch, actor.yaw, actor.roll) @ offset
    return bool(abs(ahead) <= actor.extent_x and abs(right) <= actor.extent_y and -0.1 <= up <= 2 * actor.extent_z)
