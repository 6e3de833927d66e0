"""Vehicles and walkers: control, lights, physics parameters."""

from __future__ import annotations

import math

from carla_bridge.server.actors import Vehicle, Walker
from carla_bridge.server.arguments import RpcError, vehicle_control, walker_control, whole
from carla_bridge.server.poses import Pose, compose
from carla_bridge.server.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
WHEEL_RADIUS_M = 0.35


def _vehicle(world: World, actor_id: int) -> Vehicle:
    actor = world.actor_or_tombstone(actor_id)
    if not isinstance(actor, Vehicle):
        raise RpcError(f"actor {actor_id} is no vehicle")
    return actor


def _walker(world: World, actor_id: int) -> Walker:
    actor = world.actor_or_tombstone(actor_id)
    if not isinstance(actor, Walker):
        raise RpcError(f"actor {actor_id} is no walker")
    return actor


@METHODS.returns_nothing
def apply_control_to_vehicle(world: World, actor_id: int, control: list) -> None:
    """Set pedals and steering; they hold until set anew."""
    vehicle = _vehicle(world, actor_id)
    vehicle.pedals, vehicle.manual_gear, gear = vehicle_control(control)
    if vehicle.manual_gear:
        vehicle.gear = gear


@METHODS.returns_nothing
def apply_control_to_walker(world: World, actor_id: int, control: list) -> None:
    """Set direction and speed of a walker."""
    walker = _walker(world, actor_id)
    walker.direction, walker.speed_mps, walker.jump = walker_control(control)


@METHODS.returns_nothing
def set_vehicle_light_state(world: World, actor_id: int, state: list | int) -> None:
    """Set the light bits of a vehicle."""
    flags = state[0] if isinstance(state, list) and state else state
    _vehicle(world, actor_id).light_flags = whole(flags, "light state")


@METHODS.returns_value
def get_vehicle_light_state(world: World, actor_id: int) -> list:
    """Light bits of a vehicle."""
    return [_vehicle(world, actor_id).light_flags]


@METHODS.returns_value
def get_vehicle_light_states(world: World) -> list:
    """Light bits of all vehicles."""
    return [[actor.id, actor.light_flags] for actor in world.actors.values() if isinstance(actor, Vehicle)]


@METHODS.returns_value
def get_wheel_steer_angle(world: World, actor_id: int, wheel: int) -> float:
    """Angle of a wheel in degrees, right positive; rear wheels do not steer."""
    front = whole(wheel, "wheel") < 2
    return math.degrees(_vehicle(world, actor_id).motion.steer_rad) if front else 0.0


@METHODS.returns_value
def get_physics_control(world: World, actor_id: int) -> list:
    """`VehiclePhysicsControl`: mass, steering limit and wheel places are real; motor and gear values are fillers.

    Wheel positions are world centimetres, as in CARLA; wheelbase and track can be read off them.
    """
    vehicle = _vehicle(world, actor_id)
    model = vehicle.model
    half_base, half_track = model.wheelbase_m / 2, model.track_m / 2
    places = [(half_base, -half_track), (half_base, half_track), (-half_base, -half_track), (-half_base, half_track)]
    if model.wheels == 2:
        places = [(half_base, 0.0), (-half_base, 0.0)]
    wheels = []
    for x, y in places:
        front = x > 0
        at = compose(vehicle.pose, Pose(x, y, WHEEL_RADIUS_M))
        max_steer_deg = math.degrees(model.max_steer_rad) if front else 0.0
        hand_brake_nm = 0.0 if front else 3000.0
        position_cm = [100 * at.x, 100 * at.y, 100 * at.z]
        wheels.append(
            [3.5, 0.25, max_steer_deg, 100 * WHEEL_RADIUS_M, 1500.0, hand_brake_nm, 1000.0, 2.0, 17.0, position_cm]
        )
    torque_curve, steering_curve = [[0.0, 500.0], [5000.0, 500.0]], [[0.0, 1.0], [100.0, 1.0]]
    gears = [[2.85, 0.5, 0.65]]
    head = [torque_curve, 5000.0, 1.0, 0.15, 2.0, 0.35, True, 0.5, 10.0, 4.0, gears]
    return [*head, model.mass_kg, 0.3, [0.0, 0.0, 0.5], steering_curve, wheels, True]


@METHODS.returns_nothing
def apply_physics_control(world: World, actor_id: int, control: list) -> None:
    """Accepted, without effect: the motion model is fixed per blueprint."""
    _vehicle(world, actor_id)


@METHODS.returns_nothing
def show_vehicle_debug_telemetry(world: World, actor_id: int, enabled: bool) -> None:
    """Accepted, without effect."""
    _vehicle(world, actor_id)


@METHODS.returns_value
def get_telemetry_data(world: World, actor_id: int) -> list:
    """`VehicleTelemetryData`: speed and pedals are real, motor and wheels are not modelled."""
    v = _vehicle(world, actor_id)
    p = v.pedals
    return [v.motion.speed_mps, p.steer, p.throttle, p.brake, 0.0, v.gear, 0.0, []]


@METHODS.returns_nothing
def open_vehicle_door(world: World, actor_id: int, door: int) -> None:
    """Accepted, without effect."""
    _vehicle(world, actor_id)


@METHODS.returns_nothing
def close_vehicle_door(world: World, actor_id: int, door: int) -> None:
    """Accepted, without effect."""
    _vehicle(world, actor_id)
