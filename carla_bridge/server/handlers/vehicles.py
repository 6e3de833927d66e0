"""Vehicles: control, lights, telemetry."""

from __future__ import annotations

from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.dynamics.ackermann import AckermannTarget
from carla_bridge.server.protocol.arguments import RpcError, numbers, vehicle_control, whole
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
ACKERMANN_FIELDS, GAINS = 5, 6


def vehicle_of(world: World, actor_id: int) -> Vehicle:
    """A vehicle, destroyed or not.

    Raises:
        RpcError: there never was such an actor, or it is something else.
    """
    actor = world.actor_or_tombstone(actor_id)
    if not isinstance(actor, Vehicle):
        raise RpcError(f"actor {actor_id} is no vehicle")
    return actor


@METHODS.returns_nothing
def apply_control_to_vehicle(world: World, actor_id: int, control: list) -> None:
    """Set pedals and steering; they hold until set anew."""
    vehicle = vehicle_of(world, actor_id)
    vehicle.pedals, vehicle.manual_gear, gear = vehicle_control(control)
    vehicle.ackermann = None
    if vehicle.manual_gear:
        vehicle.gear = gear


@METHODS.returns_nothing
def apply_ackermann_control_to_vehicle(world: World, actor_id: int, control: list) -> None:
    """Drive by wheel angle and speed until pedals are set again; the jerk is not used."""
    vehicle = vehicle_of(world, actor_id)
    steer, steer_speed, speed, acceleration, _ = numbers(control, ACKERMANN_FIELDS, "ackermann control")
    vehicle.ackermann = AckermannTarget(steer, steer_speed, speed, acceleration)


@METHODS.returns_value
def get_ackermann_controller_settings(world: World, actor_id: int) -> list[float]:
    """Gains as last set: speed P, I, D, acceleration P, I, D."""
    return list(vehicle_of(world, actor_id).ackermann_gains)


@METHODS.returns_nothing
def apply_ackermann_controller_settings(world: World, actor_id: int, gains: list) -> None:
    """Keep gains; they have no effect, as the motion model is inverted instead."""
    vehicle_of(world, actor_id).ackermann_gains = tuple(numbers(gains, GAINS, "ackermann settings"))


@METHODS.returns_nothing
def set_vehicle_light_state(world: World, actor_id: int, state: list | int) -> None:
    """Set the light bits of a vehicle."""
    flags = state[0] if isinstance(state, list) and state else state
    vehicle_of(world, actor_id).light_flags = whole(flags, "light state")


@METHODS.returns_value
def get_vehicle_light_state(world: World, actor_id: int) -> list:
    """Light bits of a vehicle."""
    return [vehicle_of(world, actor_id).light_flags]


@METHODS.returns_value
def get_vehicle_light_states(world: World) -> list:
    """Light bits of all vehicles."""
    return [[actor.id, actor.light_flags] for actor in world.actors.values() if isinstance(actor, Vehicle)]


@METHODS.returns_value
def get_telemetry_data(world: World, actor_id: int) -> list:
    """`VehicleTelemetryData`: speed and pedals are real, motor and wheels are not modelled."""
    v = vehicle_of(world, actor_id)
    p = v.pedals
    return [v.motion.speed_mps, p.steer, p.throttle, p.brake, 0.0, v.gear, 0.0, []]


@METHODS.returns_nothing
def show_vehicle_debug_telemetry(world: World, actor_id: int, enabled: bool) -> None:
    """Accepted, not drawn."""
    vehicle_of(world, actor_id)
