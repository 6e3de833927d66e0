"""Blueprints, spawning, destroying, and what can be asked of any actor.

Queries and physics switches also answer for destroyed actors: a client's worker threads ask late.
"""

from __future__ import annotations

from carla_bridge.server.actors import Vehicle
from carla_bridge.server.arguments import RpcError, transform, vector, whole
from carla_bridge.server.blueprints import definitions
from carla_bridge.server.rpc import MethodTable
from carla_bridge.server.signals import Signal
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
def set_actor_location(world: World, actor_id: int, location: list) -> None:
    """Teleport, keeping the rotation."""
    actor = world.actor_or_tombstone(actor_id)
    pose = actor.attached if actor.parent is not None else actor.pose
    actor.place(transform([location, [pose.pitch, pose.yaw, pose.roll]]))


@METHODS.returns_nothing
def set_actor_transform(world: World, actor_id: int, pose: list) -> None:
    """Teleport; relative to the parent when there is one."""
    world.actor_or_tombstone(actor_id).place(transform(pose))


@METHODS.returns_nothing
def set_actor_target_velocity(world: World, actor_id: int, velocity: list) -> None:
    """Set the velocity (world axes, m/s); a vehicle keeps the part along its heading."""
    world.actor_or_tombstone(actor_id).set_velocity(vector(velocity, "velocity"))


@METHODS.returns_nothing
def set_actor_target_angular_velocity(world: World, actor_id: int, velocity: list) -> None:
    """Accepted, without effect: a bicycle turns by its wheel."""
    world.actor_or_tombstone(actor_id)
    vector(velocity, "angular velocity")


@METHODS.returns_nothing
def enable_actor_constant_velocity(world: World, actor_id: int, velocity: list) -> None:
    """Hold a velocity given in the vehicle's own axes; only the forward part can be held."""
    actor = world.actor(actor_id)
    if not isinstance(actor, Vehicle):
        raise RpcError(f"actor {actor_id} is no vehicle")
    actor.constant_velocity = vector(velocity, "velocity")


@METHODS.returns_nothing
def disable_actor_constant_velocity(world: World, actor_id: int) -> None:
    """Back to the pedals."""
    actor = world.actor_or_tombstone(actor_id)
    if isinstance(actor, Vehicle):
        actor.constant_velocity = None


@METHODS.returns_nothing
def set_actor_simulate_physics(world: World, actor_id: int, enabled: bool) -> None:
    """Whether the actor moves by itself."""
    world.actor_or_tombstone(actor_id).simulated = bool(enabled)


@METHODS.returns_nothing
def set_actor_enable_gravity(world: World, actor_id: int, enabled: bool) -> None:
    """Whether the actor falls to the ground."""
    world.actor_or_tombstone(actor_id).gravity = bool(enabled)


@METHODS.returns_nothing
def set_actor_collisions(world: World, actor_id: int, enabled: bool) -> None:
    """Whether others bump into the actor."""
    actor = world.actor_or_tombstone(actor_id)
    actor.collides = bool(enabled) and actor.blueprint.solid


@METHODS.returns_nothing
def set_actor_autopilot(world: World, actor_id: int, enabled: bool) -> None:
    """The client drives its autopilots itself."""
    world.actor_or_tombstone(actor_id)


@METHODS.returns_nothing
def set_actor_dead(world: World, actor_id: int) -> None:
    """Nothing here lives or dies."""
    world.actor_or_tombstone(actor_id)


@METHODS.returns_value
def get_actor_name(world: World, actor_id: int) -> str:
    """Name of an actor."""
    return world.actor_or_tombstone(actor_id).type_id


@METHODS.returns_value
def get_actor_class_name(world: World, actor_id: int) -> str:
    """Class name of an actor."""
    return world.actor_or_tombstone(actor_id).type_id


def _accepted(name: str, doc: str) -> None:
    """Register a method that checks its actor and does nothing else."""

    def method(world: World, actor_id: int, *rest: object) -> None:
        world.actor_or_tombstone(actor_id)

    method.__name__, method.__doc__ = name, doc
    METHODS.returns_nothing(method)


for _name in (
    "add_actor_impulse", "add_actor_impulse_at_location", "add_actor_force", "add_actor_force_at_location",
    "add_actor_angular_impulse", "add_actor_torque",
):  # fmt: skip
    _accepted(_name, "Accepted, without effect: a kinematic body knows no forces.")
