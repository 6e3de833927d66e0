"""RPC methods by subject; the name of a function is the name of the method, its arguments are the client's."""

from __future__ import annotations

from carla_bridge.server.handlers import actors, batch, environment, episode, signals, vehicles
from carla_bridge.server.rpc import MethodTable


def all_methods() -> MethodTable:
    """Every method the server answers."""
    table = MethodTable()
    for module in (episode, actors, vehicles, signals, environment, batch):
        table.update(module.METHODS)
    return table
