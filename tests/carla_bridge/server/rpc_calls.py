"""Calls into a world by the name of the request, without sockets."""

from __future__ import annotations

from typing import Any

from carla_bridge.server.handlers import all_methods
from carla_bridge.server.protocol.rpc import answer
from carla_bridge.server.world import World

METHODS = all_methods()


def call(world: World, name: str, *arguments: Any) -> Any:
    """Result of a request that must not fail."""
    error, result = answer(METHODS, world, name, list(arguments))
    assert error is None, error
    return result


def value(world: World, name: str, *arguments: Any) -> Any:
    """Value of a request that must succeed."""
    ((ok, result),) = call(world, name, *arguments)
    assert ok == 1, result
    return result
