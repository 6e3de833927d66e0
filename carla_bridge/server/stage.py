"""A town made ready for the world: what depends on nothing but the town, and takes a second or two to work out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from carla_bridge.server.actors.speed_limits import SpeedLimits
from carla_bridge.server.contact.contacts import Scenery
from carla_bridge.server.protocol.wire import Vector
from carla_bridge.server.rendering.town_renderers import TownLike
from carla_bridge.server.sensors.payloads import GeoReference
from carla_bridge.server.sensors.ray_scene import RayScenery


@dataclass(frozen=True)
class Stage:
    """A town, read as far as an episode in it needs.

    Attributes:
        town: the town.
        height_m: height of its ground, as `Terrain` takes it.
        scenery: what can be hit.
        rays: what rays can meet.
        speed_limits: of its roads; None for a town without roads.
        geo_reference: of its origin.
        spawn_transforms: recommended spawn points in the protocol's form.
    """

    town: TownLike
    height_m: Callable[[float, float, float], float] | None
    scenery: Scenery
    rays: RayScenery
    speed_limits: SpeedLimits | None
    geo_reference: GeoReference
    spawn_transforms: list[tuple[Vector, Vector]]

    @classmethod
    def of(cls, town: TownLike) -> Stage:
        """Read a town; in any thread."""
        height_m, road_at = getattr(town, "ground_z_m", None), getattr(town, "road_at", None)
        return cls(
            town,
            height_m,
            Scenery(town.static_boxes),
            RayScenery(town.static_boxes, height_m),
            SpeedLimits(town.opendrive, road_at) if road_at is not None else None,
            GeoReference.of(town.opendrive),
            [
                ((t.location.x, t.location.y, t.location.z), (t.rotation.pitch, t.rotation.yaw, t.rotation.roll))
                for t in town.spawn_points
            ],
        )
