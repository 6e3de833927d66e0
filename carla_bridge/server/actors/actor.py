"""What every inhabitant of the world has: an id, a pose, a body, a record in the world state."""

from __future__ import annotations

import math
from collections.abc import Sequence

from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.dynamics.collisions import Box
from carla_bridge.server.dynamics.motion import GRAVITY_MPS2
from carla_bridge.server.dynamics.terrain import Terrain
from carla_bridge.server.geometry.poses import Pose, compose
from carla_bridge.server.geometry.scene import RenderSignal
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.wire import Vector

BURIED_M = 1.0  # deeper below ground than this is a client's hiding place, not a fall: it stays there
STICK_M = 0.05  # ground that falls away by less, and what slope there is, is followed without a hop
FASTEST_MPS = 150.0  # what a client may set
ZERO: Vector = (0.0, 0.0, 0.0)


def at_most(velocity: Vector, mps: float) -> Vector:
    """A velocity with its level part cut to a speed."""
    speed = math.hypot(velocity[0], velocity[1])
    share = min(1.0, mps / speed) if speed > 0.0 else 1.0
    return velocity[0] * share, velocity[1] * share, velocity[2]


class Actor:
    """Anything with an id.

    Attributes:
        id, type_id, blueprint: who and what it is.
        description: `ActorDescription` as the client sent it, echoed back to every client.
        attributes: attribute values by name.
        pose: in the world.
        parent, attached: the actor it is fixed to, and its pose in that actor's frame.
        velocity, acceleration: m/s and m/s^2, world axes.
        angular_velocity: degrees/s about the axes of the level vehicle, x, y, z. yaw_acceleration_radps2: about z.
        stream_id: its sensor stream; 0 for none.
        collides: takes part in collisions now. simulated: moves by itself. gravity: falls.
        grounded: stands on the ground. fall_mps: vertical speed in the air, upwards positive.
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
        self.yaw_acceleration_radps2 = 0.0
        self.stream_id = 0
        self.collides = blueprint.solid
        self.simulated = True
        self.gravity = True
        self.grounded = False
        self.fall_mps = 0.0

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

    def render_signals(self) -> Sequence[RenderSignal]:
        """The poles of a traffic light or sign with what they show now; none for everything else."""
        return ()

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
            self.grounded, self.fall_mps = False, 0.0

    def follow_parent(self) -> None:
        """Take over the parent's motion."""
        if self.parent is not None:
            self.pose = compose(self.parent.pose, self.attached)
            self.velocity, self.acceleration = self.parent.velocity, self.parent.acceleration
            self.angular_velocity = self.parent.angular_velocity

    def let_go(self) -> None:
        """Lose the parent, and stay where it was last."""
        self.parent = None
        self.velocity, self.acceleration, self.angular_velocity = ZERO, ZERO, ZERO
        self.place(self.pose)

    def set_velocity(self, velocity: Vector) -> None:
        """Set the world-axes velocity; what has no motion of its own does not keep it."""

    @property
    def moves(self) -> bool:
        """Whether it may run into others in this tick."""
        return False

    def planar_velocity(self) -> tuple[float, float, float]:
        """Velocity in the plane in m/s, and clockwise yaw rate in rad/s."""
        return self.velocity[0], self.velocity[1], 0.0

    def inverse_mass(self) -> tuple[float, float]:
        """1/mass and 1/(moment of inertia about the vertical); zeros for what a collision cannot move."""
        return 0.0, 0.0

    def kick(self, dvx_mps: float, dvy_mps: float, spin_radps: float) -> None:
        """Change the velocity at once, as a collision does."""

    def shift(self, dx_m: float, dy_m: float) -> None:
        """Give way: move without gaining speed."""

    def begin_tick(self) -> None:
        """Before anybody moves."""

    def step(self, dt_s: float, terrain: Terrain) -> None:
        """Move by itself, for a tick or a part of one."""

    def end_tick(self, dt_s: float) -> None:
        """Once everybody has moved and collisions have had their say."""

    def _settle(self, dt_s: float, floor_m: float) -> None:
        """Stay on the ground, or fall to it.

        Args:
            dt_s: seconds.
            floor_m: height of the origin when the actor stands.
        """
        height = self.pose.z - floor_m
        if not self.gravity or height < -BURIED_M:
            self.grounded, self.fall_mps = False, 0.0
            return
        speed = math.hypot(self.velocity[0], self.velocity[1])
        if self.grounded and height <= STICK_M + speed * dt_s:
            self.pose.z = floor_m
            return
        self.fall_mps = self.fall_mps - GRAVITY_MPS2 * dt_s
        self.pose.z += self.fall_mps * dt_s
        self.grounded = self.pose.z <= floor_m
        if self.grounded:
            self.pose.z, self.fall_mps = floor_m, 0.0
