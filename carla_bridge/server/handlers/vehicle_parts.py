"""Wheels, doors and physics parameters of vehicles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.geometry.poses import Pose, compose
from carla_bridge.server.handlers.vehicles import vehicle_of
from carla_bridge.server.protocol.arguments import RpcError, number, whole
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
WHEEL_RADIUS_M = 0.35
DRAG_AREA_KGPM = 1.2 * 2.2  # usual air density times frontal area
TYRE_FRICTION = 3.5  # what CARLA's tyres have; the model's `tyre_friction` is a share of it
LAST_WHEEL, LAST_DOOR = 3, 6
PHYSICS_FIELDS, WHEEL_FIELDS = 17, 10
MASS_FIELD, DRAG_FIELD, WHEELS_FIELD = 11, 12, 15


@METHODS.returns_value
def get_wheel_steer_angle(world: World, actor_id: int, wheel: int) -> float:
    """Angle of a wheel in degrees, right positive; rear wheels, of which a bike's is wheel 1, do not steer."""
    vehicle = vehicle_of(world, actor_id)
    front = whole(wheel, "wheel", LAST_WHEEL) < vehicle.model.wheels // 2
    return math.degrees(vehicle.motion.steer_rad) if front else 0.0


@METHODS.returns_nothing
def set_wheel_steer_direction(world: World, actor_id: int, wheel: int, degrees: float) -> None:
    """Accepted, without effect: in CARLA it turns the picture of a wheel only."""
    vehicle_of(world, actor_id), whole(wheel, "wheel", LAST_WHEEL), number(degrees, "angle")


@METHODS.returns_value
def get_wheel_pitch_angle(world: World, actor_id: int, wheel: int) -> float:
    """Wheels are not drawn: 0."""
    vehicle_of(world, actor_id), whole(wheel, "wheel", LAST_WHEEL)
    return 0.0


@METHODS.returns_nothing
def set_wheel_pitch_angle(world: World, actor_id: int, wheel: int, degrees: float) -> None:
    """Accepted, without effect: in CARLA it turns the picture of a wheel only."""
    vehicle_of(world, actor_id), whole(wheel, "wheel", LAST_WHEEL), number(degrees, "angle")


@METHODS.returns_nothing
def open_vehicle_door(world: World, actor_id: int, door: int) -> None:
    """Accepted, without effect: bodies are boxes."""
    vehicle_of(world, actor_id), whole(door, "door", LAST_DOOR)


@METHODS.returns_nothing
def close_vehicle_door(world: World, actor_id: int, door: int) -> None:
    """Accepted, without effect: bodies are boxes."""
    vehicle_of(world, actor_id), whole(door, "door", LAST_DOOR)


@METHODS.returns_value
def get_physics_control(world: World, actor_id: int) -> list:
    """`VehiclePhysicsControl`: mass, drag, steering limit, tyre friction and wheel places are real, the rest fillers.

    Wheel positions are world centimetres, as in CARLA; wheelbase and track can be read off them.
    """
    vehicle = vehicle_of(world, actor_id)
    model = vehicle.model
    torque_curve, steering_curve = [[0.0, 500.0], [5000.0, 500.0]], [[0.0, 1.0], [100.0, 1.0]]
    gears = [[2.85, 0.5, 0.65]]
    head = [torque_curve, 5000.0, 1.0, 0.15, 2.0, 0.35, True, 0.5, 10.0, 4.0, gears]
    drag = 2 * model.drag_per_m * model.mass_kg / DRAG_AREA_KGPM
    return [*head, model.mass_kg, drag, [0.0, 0.0, 0.5], steering_curve, _wheels(vehicle), True]


@METHODS.returns_nothing
def apply_physics_control(world: World, actor_id: int, control: list) -> None:
    """Take over mass, drag, steering limit and tyre friction; the motion model has no use for the rest."""
    vehicle = vehicle_of(world, actor_id)
    if not isinstance(control, list) or len(control) != PHYSICS_FIELDS or not isinstance(control[WHEELS_FIELD], list):
        raise RpcError(f"physics control: expected {PHYSICS_FIELDS} fields with a list of wheels")
    wheels = [_wheel(wheel) for wheel in control[WHEELS_FIELD]]
    if not wheels:
        raise RpcError("physics control: expected wheels, got none")
    mass_kg = number(control[MASS_FIELD], "mass")
    drag = number(control[DRAG_FIELD], "drag coefficient")
    if mass_kg < 1.0 or drag < 0.0:
        raise RpcError(f"physics control: expected a mass of at least 1 kg and no negative drag, got {mass_kg}, {drag}")
    frictions, angles_deg = zip(*wheels, strict=True)
    vehicle.model = replace(
        vehicle.model,
        mass_kg=mass_kg,
        drag_per_m=drag * DRAG_AREA_KGPM / (2 * mass_kg),
        max_steer_rad=math.radians(max(angles_deg)),
        tyre_friction=sum(frictions) / len(frictions) / TYRE_FRICTION,
    )


def _wheel(wheel: Any) -> tuple[float, float]:
    """Friction and steering limit (degrees) of a `WheelPhysicsControl`."""
    if not isinstance(wheel, list) or len(wheel) != WHEEL_FIELDS:
        raise RpcError(f"wheel: expected {WHEEL_FIELDS} fields")
    friction, limit_deg = number(wheel[0], "tire friction"), number(wheel[2], "max steer angle")
    if friction < 0 or not 0 <= limit_deg <= 80:
        raise RpcError(f"wheel: expected a friction of at least 0 and an angle of 0..80, got {friction}, {limit_deg}")
    return friction, limit_deg


def _wheels(vehicle: Vehicle) -> list:
    model = vehicle.model
    half_base, half_track = model.wheelbase_m / 2, model.track_m / 2
    places = [(half_base, -half_track), (half_base, half_track), (-half_base, -half_track), (-half_base, half_track)]
    if model.wheels == 2:
        places = [(half_base, 0.0), (-half_base, 0.0)]
    wheels = []
    for x, y in places:
        front = x > 0
        at = compose(vehicle.pose, Pose(x, y, WHEEL_RADIUS_M))
        friction, max_steer_deg = TYRE_FRICTION * model.tyre_friction, math.degrees(model.max_steer_rad)
        position_cm = [100 * at.x, 100 * at.y, 100 * at.z]
        tyre = [friction, 0.25, max_steer_deg if front else 0.0, 100 * WHEEL_RADIUS_M]
        wheels.append([*tyre, 1500.0, 0.0 if front else 3000.0, 1000.0, 2.0, 17.0, position_cm])
    return wheels
