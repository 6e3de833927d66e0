"""Moving actors about: teleports, velocities, blows, and the switches of their physics.

All of it also answers for destroyed actors: a client's worker threads ask late.
"""

from __future__ import annotations

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.protocol.arguments import RpcError, transform, vector
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
HARDEST_MPS, HARDEST_RADPS = 150.0, 30.0  # what one blow may change


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
    """Set the velocity (world axes, m/s); of a vehicle the tyres soon take the part across its heading."""
    world.actor_or_tombstone(actor_id).set_velocity(vector(velocity, "velocity"))


@METHODS.returns_nothing
def set_actor_target_angular_velocity(world: World, actor_id: int, velocity: list) -> None:
    """Set the yaw rate of a vehicle in degrees/s, clockwise positive; its tyres soon have their way with it."""
    actor, (_, _, yaw_rate) = world.actor_or_tombstone(actor_id), vector(velocity, "angular velocity")
    if isinstance(actor, Vehicle):
        actor.set_yaw_rate(yaw_rate)


@METHODS.returns_nothing
def enable_actor_constant_velocity(world: World, actor_id: int, velocity: list) -> None:
    """Hold a velocity given in the vehicle's own axes; only the forward part can be held."""
    actor = world.actor_or_tombstone(actor_id)
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
def add_actor_impulse(world: World, actor_id: int, impulse: list) -> None:
    """Change the velocity by an impulse in N s, world axes; the part in the ground's plane counts."""
    _strike(world.actor_or_tombstone(actor_id), impulse, 1.0)


@METHODS.returns_nothing
def add_actor_impulse_at_location(world: World, actor_id: int, impulse: list, location: list) -> None:
    """The same, striking at a place in the world: off the middle it makes the body spin."""
    _strike(world.actor_or_tombstone(actor_id), impulse, 1.0, location)


@METHODS.returns_nothing
def add_actor_force(world: World, actor_id: int, force: list) -> None:
    """Let a force in N, world axes, act for one tick."""
    _strike(world.actor_or_tombstone(actor_id), force, world.delta_s)


@METHODS.returns_nothing
def add_actor_force_at_location(world: World, actor_id: int, force: list, location: list) -> None:
    """The same, acting at a place in the world."""
    _strike(world.actor_or_tombstone(actor_id), force, world.delta_s, location)


@METHODS.returns_nothing
def add_actor_angular_impulse(world: World, actor_id: int, impulse: list) -> None:
    """Change the yaw rate by an angular impulse in N m s, clockwise positive; bodies do not roll over."""
    _turn(world.actor_or_tombstone(actor_id), vector(impulse, "angular impulse")[2])


@METHODS.returns_nothing
def add_actor_torque(world: World, actor_id: int, torque: list) -> None:
    """Let a torque in N m, clockwise positive, act for one tick."""
    _turn(world.actor_or_tombstone(actor_id), vector(torque, "torque")[2] * world.delta_s)


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


def _strike(actor: Actor, impulse: list, seconds: float, location: list | None = None) -> None:
    x, y, _ = vector(impulse, "impulse or force")
    inverse_mass, inverse_inertia = actor.inverse_mass()
    lever_x, lever_y = 0.0, 0.0
    if location is not None:
        at = vector(location, "location")
        lever_x, lever_y = at[0] - actor.pose.x, at[1] - actor.pose.y
    spin = (lever_x * y - lever_y * x) * seconds * inverse_inertia
    _kick(actor, x * seconds * inverse_mass, y * seconds * inverse_mass, spin)


def _turn(actor: Actor, angular_impulse: float) -> None:
    _kick(actor, 0.0, 0.0, angular_impulse * actor.inverse_mass()[1])


def _kick(actor: Actor, dvx_mps: float, dvy_mps: float, spin_radps: float) -> None:
    """Change an actor's motion, by no more than what leaves numbers that physics can go on with."""
    actor.kick(
        max(-HARDEST_MPS, min(HARDEST_MPS, dvx_mps)),
        max(-HARDEST_MPS, min(HARDEST_MPS, dvy_mps)),
        max(-HARDEST_RADPS, min(HARDEST_RADPS, spin_radps)),
    )
