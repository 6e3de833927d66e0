"""RPC methods by subject; the name of a function is the name of the method, its arguments are the client's."""

from __future__ import annotations

from carla_bridge.server.handlers import (
    actors,
    batch,
    environment,
    episode,
    harmless,
    motion,
    objects,
    refused,
    signals,
    vehicle_parts,
    vehicles,
    walkers,
)
from carla_bridge.server.protocol.rpc import MethodTable


def all_methods() -> MethodTable:
    """Every method the server answers."""
    table = MethodTable()
    for module in (
        episode, actors, motion, vehicles, vehicle_parts, walkers, signals, environment, objects, harmless, refused,
        batch,
    ):  # fmt: skip
        table.update(module.METHODS)
    return table
