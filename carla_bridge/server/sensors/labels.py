"""CARLA's semantic labels of what lives in and stands around the embedded world."""

from __future__ import annotations

from enum import IntEnum

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.geometry.scene import BoxKind


class Label(IntEnum):
    """`CityObjectLabel` of the protocol, as far as it occurs here."""

    NONE = 0
    ROADS = 1
    BUILDINGS = 3
    POLES = 6
    TRAFFIC_LIGHT = 7
    VEGETATION = 9
    PEDESTRIANS = 12
    CAR = 14
    TRUCK = 15
    BUS = 16
    MOTORCYCLE = 18
    BICYCLE = 19
    STATIC = 20
    ANY = 255


SCENERY = {
    BoxKind.BUILDING: Label.BUILDINGS,
    BoxKind.TREE: Label.VEGETATION,
    BoxKind.HEDGE: Label.VEGETATION,
    BoxKind.LAMP: Label.POLES,
    BoxKind.POLE: Label.POLES,
}
_VEHICLES = {
    "truck": Label.TRUCK,
    "bus": Label.BUS,
    "motorcycle": Label.MOTORCYCLE,
    "bicycle": Label.BICYCLE,
}


def label_of(actor: Actor) -> Label:
    """The label of an actor's body."""
    if isinstance(actor, Vehicle):
        return _VEHICLES.get(actor.attributes.get("base_type", ""), Label.CAR)
    return Label.PEDESTRIANS if isinstance(actor, Walker) else Label.STATIC
