"""Blueprints, spawning, destroying, and what can be asked of any actor, destroyed ones included."""

from __future__ import annotations

from carla_bridge.server.actors.signals import Signal
from carla_bridge.server.catalogue.blueprints import definitions
from carla_bridge.server.protocol.arguments import RpcError, transform, whole
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()


@METHODS.returns_value
def get_actor_definitions(world: World) -> list:
    """The blueprint library."""
    return definitions(world.dialect)


@METHODS.returns_value
def get_spectator(world: World) -> list:
    """The spectator; it survives every episode."""
    return world.describe(world.spectator)


@METHODS.returns_value
def get_actors_by_id(world: World, ids: list) -> list:
    """Descriptions of those that live."""
    if not isinstance(ids, list):
        raise RpcError("ids: expected a list")
    return [world.describe(world.actors[i]) for i in ids if isinstance(i, int) and i in world.actors]


@METHODS.returns_value
def spawn_actor(world: World, description: list, pose: list) -> list:
    """Create an actor in the world."""
    return world.describe(world.spawn(description, transform(pose)))


@METHODS.returns_value
def spawn_actor_with_parent(
    world: World, description: list, pose: list, parent_id: int, attachment: int = 0, bone: str = ""
) -> list:
    """Create an actor fixed to another; every kind of attachment is rigid here."""
    return world.describe(world.spawn(description, transform(pose), whole(parent_id, "parent")))


@METHODS.returns_value
def destroy_actor(world: World, actor_id: int) -> bool:
    """Remove an actor; true also when it is gone already."""
    destroy(world, actor_id)
    return True


def destroy(world: World, actor_id: int) -> None:
    """Remove an actor that a client may remove.

    Raises:
        RpcError: there never was such an actor, or it is part of the town.
    """
    if isinstance(world.actor_or_tombstone(actor_id), Signal):
        raise RpcError(f"actor {actor_id} is part of the town and cannot be destroyed")
    world.destroy(actor_id)


@METHODS.returns_value
def get_actor_bounding_box(world: World, actor_id: int) -> list:
    """Box of the body, relative to the actor."""
    return world.actor_or_tombstone(actor_id).bounding_box()


@METHODS.returns_nothing
def set_actor_autopilot(world: World, actor_id: int, enabled: bool) -> None:
    """The client drives its autopilots itself."""
    world.actor_or_tombstone(actor_id)


@METHODS.returns_nothing
def set_actor_dead(world: World, actor_id: int) -> None:
    """Nothing here lives or dies."""
    world.actor_or_tombstone(actor_id)
