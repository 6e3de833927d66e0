"""The semantic label of what lives in the embedded world."""

from __future__ import annotations

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.geometry.labels import Label

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
