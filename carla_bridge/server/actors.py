"""What lives in the world: vehicles, walkers, sensors and everything without a motion of its own.

An actor owns its state and its part of a world-state record; the world owns time, collisions and who exists.
"""

from __future__ import annotations

import math
import random

import numpy as np

from carla_bridge.server import wire
from carla_bridge.server.arguments import RpcError, actor_description
from carla_bridge.server.blueprint import Blueprint
from carla_bridge.server.blueprints import LIBRARY
from carla_bridge.server.collisions import Box
from carla_bridge.server.motion import Motion, Pedals
from carla_bridge.server.poses import Pose, compose, wrap_degrees
from carla_bridge.server.scene import RenderSignal
from carla_bridge.server.vehicle_dynamics import advance
from carla_bridge.server.vehicle_model import VehicleModel
from carla_bridge.server.wire import Vector

GRAVITY_MPS2 = 9.81
SPEED_LIMIT_KMH = 50.0
WALKER_MASS_KG = 80.0
BURIED_M = 1.0  # deeper below ground than this is a client's hiding place, not a fall: it stays there
ZERO: Vector = (0.0, 0.0, 0.0)


class Actor:
    """Anything with an id.

    Attributes:
        id, type_id, blueprint: who and what it is.
        description: `ActorDescription` as the client sent it, echoed back to every client.
        attributes: attribute values by name.
        pose: in the world.
        parent, attached: the actor it is fixed to, and its pose in that actor's frame.
        velocity, acceleration: m/s and m/s^2, world axes. angular_velocity: degrees/s.
        stream_id: its sensor stream; 0 for none.
        collides: takes part in collisions now. simulated: moves by itself.
    """

    mass_kg = 0.0  # 0 stands for immovable

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        self.id, self.blueprint, self.description, self.pose = actor_id, blueprint, description, pose
        self.type_id = blueprint.id
        self.attributes = {attribute.name: attribute.default for attribute in blueprint.attributes}
        self.attributes.update({name: str(value) for name, _, value in description[2]})
        self.parent: Actor | None = None
        self.attached = Pose()
        self.velocity, self.acceleration, self.angular_velocity = ZERO, ZERO, ZERO
        self.stream_id = 0
        self.collides = blueprint.solid
        self.simulated = True
        self.gravity = True

    @property
    def foot_m(self) -> float:
        """Height of the origin above the foot of the body; only a walker's origin is not its foot but its middle."""
        return 0.0

    def box_center_z(self) -> float:
        """Height of the body's middle above the origin."""
        return self.blueprint.extent_m[2] - self.foot_m

    def box(self) -> Box:
        """Body in the world."""
        p = self.pose
        return Box(p.x, p.y, p.z + self.box_center_z(), p.yaw, *self.blueprint.extent_m)

    def bounding_box(self) -> list:
        """`BoundingBox` of the protocol, relative to the actor."""
        return [[0.0, 0.0, self.box_center_z()], list(self.blueprint.extent_m), [0.0, 0.0, 0.0], self.id]

    def detail(self) -> bytes:
        """Part of the world-state record that depends on the kind."""
        return b""

    def render_signal(self) -> RenderSignal | None:
        """What a traffic light or sign shows now; None for everything else."""
        return None

    def record(self) -> bytes:
        """World-state record."""
        return wire.actor_record(
            self.id, self.pose.as_transform(), self.velocity, self.angular_velocity, self.acceleration, self.detail()
        )

    def place(self, pose: Pose) -> None:
        """Teleport; for an attached actor the pose is relative to its parent, as in CARLA."""
        if self.parent is not None:
            self.attached = pose
            self.follow_parent()
        else:
            self.pose = pose

    def follow_parent(self) -> None:
        """Take over the parent's motion."""
        if self.parent is not None:
            self.pose = compose(self.parent.pose, self.attached)
            self.velocity, self.acceleration = self.parent.velocity, self.parent.acceleration
            self.angular_velocity = self.parent.angular_velocity

    def set_velocity(self, velocity: Vector) -> None:
        """Set the world-axes velocity; what has no motion of its own does not keep it."""

    def push(self, dx_m: float, dy_m: float, dvx_mps: float, dvy_mps: float) -> None:
        """Give way to a collision: move by (dx, dy), change velocity by (dvx, dvy)."""

    def step(self, dt_s: float, ground_z_m: float) -> None:
        """Move by itself for one tick."""

    def _settle(self, dt_s: float, ground_z_m: float) -> None:
        """Fall to the ground, or stay on it."""
        floor = ground_z_m + self.foot_m
        if not self.gravity or self.pose.z < floor - BURIED_M:
            return
        drop = min(self.velocity[2], 0.0) - GRAVITY_MPS2 * dt_s
        self.pose.z = max(floor, self.pose.z + drop * dt_s)
        self.velocity = (*self.velocity[:2], drop if self.pose.z > floor else 0.0)


class Vehicle(Actor):
    """A car, truck or bike that answers to pedals."""

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.model = blueprint.model or VehicleModel()
        self.mass_kg = self.model.mass_kg
        self.pedals, self.manual_gear, self.gear = Pedals(), False, 0
        self.light_flags = 0
        self.constant_velocity: Vector | None = None  # in the vehicle's frame
        self.motion = Motion()
        self._motion_from_pose()

    def _motion_from_pose(self) -> None:
        self.motion.x_m, self.motion.y_m = self.pose.x, self.pose.y
        self.motion.yaw_rad = math.radians(self.pose.yaw)

    def control(self) -> list:
        """`VehicleControl` of the protocol."""
        p = self.pedals
        return [p.throttle, p.steer, p.brake, p.hand_brake, p.reverse, self.manual_gear, self.gear]

    def detail(self) -> bytes:
        return wire.vehicle_detail(self.control(), SPEED_LIMIT_KMH)

    def place(self, pose: Pose) -> None:
        super().place(pose)
        self._motion_from_pose()

    def set_velocity(self, velocity: Vector) -> None:
        heading = self.motion.yaw_rad
        self.motion.speed_mps = math.cos(heading) * velocity[0] + math.sin(heading) * velocity[1]
        self.velocity = velocity

    def push(self, dx_m: float, dy_m: float, dvx_mps: float, dvy_mps: float) -> None:
        self.motion.x_m += dx_m
        self.motion.y_m += dy_m
        heading = self.motion.yaw_rad
        self.motion.speed_mps += math.cos(heading) * dvx_mps + math.sin(heading) * dvy_mps
        self._pose_from_motion()

    def _pose_from_motion(self) -> None:
        m = self.motion
        self.pose.x, self.pose.y, self.pose.yaw = m.x_m, m.y_m, math.degrees(m.yaw_rad)

    def step(self, dt_s: float, ground_z_m: float) -> None:
        if not self.simulated:
            self.motion.speed_mps, self.velocity, self.acceleration, self.angular_velocity = 0.0, ZERO, ZERO, ZERO
            return
        hold = self.constant_velocity[0] if self.constant_velocity is not None else None
        advance(self.motion, self.pedals, self.model, dt_s, hold)
        if not self.manual_gear:
            self.gear = 0 if abs(self.motion.speed_mps) < 0.01 else (-1 if self.motion.speed_mps < 0 else 1)
        self._pose_from_motion()
        self._settle(dt_s, ground_z_m)

    def finish_step(self, dt_s: float, velocity_before: Vector) -> None:
        """Publish the velocity and acceleration of the tick, once collisions have had their say."""
        if not self.simulated:
            return
        vx, vy = self.motion.velocity_mps(self.model.wheelbase_m)
        self.velocity = (vx, vy, self.velocity[2])
        self.acceleration = ((vx - velocity_before[0]) / dt_s, (vy - velocity_before[1]) / dt_s, 0.0)
        self.angular_velocity = (0.0, 0.0, math.degrees(self.motion.yaw_rate_radps))


class Walker(Actor):
    """A pedestrian that walks in a direction at a speed, facing where it goes."""

    mass_kg = WALKER_MASS_KG

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.direction: Vector = (1.0, 0.0, 0.0)
        self.speed_mps = 0.0
        self.jump = False

    @property
    def foot_m(self) -> float:
        return self.blueprint.extent_m[2]

    def detail(self) -> bytes:
        return wire.walker_detail(self.direction, self.speed_mps, self.jump)

    def set_velocity(self, velocity: Vector) -> None:
        speed = math.hypot(velocity[0], velocity[1])
        self.speed_mps = speed
        if speed > 0:
            self.direction = (velocity[0] / speed, velocity[1] / speed, 0.0)

    def push(self, dx_m: float, dy_m: float, dvx_mps: float, dvy_mps: float) -> None:
        self.pose.x += dx_m
        self.pose.y += dy_m

    def step(self, dt_s: float, ground_z_m: float) -> None:
        if not self.simulated:
            self.velocity = ZERO
            return
        vx, vy = self.direction[0] * self.speed_mps, self.direction[1] * self.speed_mps
        self.pose.x += vx * dt_s
        self.pose.y += vy * dt_s
        if math.hypot(vx, vy) > 0.05:
            self.pose.yaw = wrap_degrees(math.degrees(math.atan2(vy, vx)))
        self.velocity = (vx, vy, self.velocity[2])
        self._settle(dt_s, ground_z_m)


class Prop(Actor):
    """A thing that stands where it is put; a client may give it a velocity (a rolling ball, a drifting box)."""

    def set_velocity(self, velocity: Vector) -> None:
        self.velocity = velocity

    def step(self, dt_s: float, ground_z_m: float) -> None:
        self.pose.x += self.velocity[0] * dt_s
        self.pose.y += self.velocity[1] * dt_s
        self._settle(dt_s, ground_z_m)


class Sensor(Actor):
    """A sensor with a clock and a noise generator of its own."""

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.period_s = _positive_float(self.attributes.get("sensor_tick", "0"))
        self._due_s = -math.inf
        seed = self.attributes.get("noise_seed", "0")
        self.noise = np.random.default_rng(abs(int(seed)) if seed.lstrip("-").isdigit() else 0)

    def due(self, time_s: float) -> bool:
        """True when a measurement falls on `time_s`; the caller then must take it.

        The first call is always due; from then on once per `sensor_tick`, without drift. After a pause longer than a
        period the rhythm starts anew.
        """
        if self.period_s <= 0:
            return True
        if time_s < self._due_s - 1e-6:
            return False
        late = time_s - self._due_s
        self._due_s = (self._due_s if late < self.period_s else time_s) + self.period_s
        return True

    def restart_clock(self) -> None:
        """Make the next tick due, as at the start of a new subscription."""
        self._due_s = -math.inf

    def setting(self, name: str) -> float:
        """A numeric attribute; 0 when it is missing or unreadable."""
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return 0.0


SPECTATOR = Blueprint("spectator")
_CLIENT_SIDE = "sensor.other.lane_invasion"  # the client computes it from the map, so it has no stream


def has_stream(blueprint: Blueprint) -> bool:
    """Whether the server measures for this blueprint."""
    return blueprint.id.startswith("sensor.") and blueprint.id != _CLIENT_SIDE


def make_actor(actor_id: int, description: list, pose: Pose, chooser: random.Random) -> Actor:
    """Build the actor that an `ActorDescription` asks for.

    Raises:
        RpcError: unknown blueprint, one that cannot be spawned here, or a malformed description.
    """
    description = actor_description(description)
    blueprint = LIBRARY.get(description[1])
    if blueprint is None:
        raise RpcError(f"unknown blueprint {description[1]!r}: the embedded world does not have it")
    if blueprint.missing:
        raise RpcError(f"{blueprint.id}: {blueprint.missing}")
    for name, kind in (("vehicle.", Vehicle), ("walker.", Walker), ("sensor.", Sensor), ("static.", Prop)):
        if blueprint.id.startswith(name):
            actor: Actor = kind(actor_id, blueprint, description, pose)
            break
    else:
        raise RpcError(f"blueprint {blueprint.id} cannot be spawned")
    if isinstance(actor, Vehicle) and not any(item[0] == "color" for item in description[2]):
        actor.attributes["color"] = chooser.choice(blueprint_colors(blueprint))
    return actor


def blueprint_colors(blueprint: Blueprint) -> tuple[str, ...]:
    """Recommended colours of a vehicle."""
    return next(a.recommended for a in blueprint.attributes if a.name == "color")


def _positive_float(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0
