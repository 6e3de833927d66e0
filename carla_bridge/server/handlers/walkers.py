"""Walkers: control and placement."""

from __future__ import annotations

import math

from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.protocol.arguments import RpcError, number, transform, walker_control
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()


def _walker(world: World, actor_id: int) -> Walker:
    actor = world.actor_or_tombstone(actor_id)
    if not isinstance(actor, Walker):
        raise RpcError(f"actor {actor_id} is no walker")
    return actor


@METHODS.returns_nothing
def apply_control_to_walker(world: World, actor_id: int, control: list) -> None:
    """Set direction and speed of a walker."""
    walker = _walker(world, actor_id)
    walker.direction, walker.speed_mps, walker.jump = walker_control(control)


@METHODS.returns_nothing
def set_walker_state(world: World, actor_id: int, pose: list, speed: float) -> None:
    """Teleport a walker, and let it go on the way it faces."""
    walker, place = _walker(world, actor_id), transform(pose)
    walker.speed_mps = number(speed, "speed")
    walker.place(place)
    yaw = math.radians(place.yaw)
    walker.direction = (math.cos(yaw), math.sin(yaw), 0.0)
