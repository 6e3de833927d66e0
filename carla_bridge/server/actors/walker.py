"""Pedestrians: they walk where they are told, and fall when something hits them."""

from __future__ import annotations

import math

from carla_bridge.server.actors.actor import FASTEST_MPS, ZERO, Actor, at_most
from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.dynamics.collisions import Box
from carla_bridge.server.dynamics.motion import GRAVITY_MPS2
from carla_bridge.server.dynamics.terrain import Terrain
from carla_bridge.server.geometry.poses import Pose, wrap_degrees
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.wire import Vector

MASS_KG = 80.0
KNOCK_DOWN_MPS = 1.0  # what carries it along more slowly makes it give way, no more
LIFT = 0.15  # vertical part of the throw
SLIDE_FRICTION = 0.6
LIES_S = 4.0  # then it gets up, if it is invincible, as walkers are by default


class Walker(Actor):
    """A pedestrian that walks in a direction at a speed, facing where it goes.

    Attributes:
        direction, speed_mps, jump: what it is told; a jump is not performed.
        down: it was hit: it flies, slides and lies, whatever it is told, and vehicles pass over it.
    """

    mass_kg = MASS_KG

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.direction: Vector = (1.0, 0.0, 0.0)
        self.speed_mps = 0.0
        self.jump = False
        self.down = False
        self._lain_s = 0.0

    @property
    def foot_m(self) -> float:
        return self.blueprint.extent_m[1] if self.down else self.blueprint.extent_m[2]

    def box_center_z(self) -> float:
        return 0.0

    def box(self) -> Box:
        x, y, z = self.blueprint.extent_m
        p = self.pose
        return Box(p.x, p.y, p.z, p.yaw, z, y, x) if self.down else Box(p.x, p.y, p.z, p.yaw, x, y, z)

    def detail(self) -> bytes:
        return wire.walker_detail(self.direction, self.speed_mps, self.jump)

    def place(self, pose: Pose) -> None:
        super().place(pose)
        self.down = False

    def set_velocity(self, velocity: Vector) -> None:
        speed = math.hypot(velocity[0], velocity[1])
        self.speed_mps = speed
        if speed > 0:
            self.direction = (velocity[0] / speed, velocity[1] / speed, 0.0)

    @property
    def moves(self) -> bool:
        return self.simulated

    def planar_velocity(self) -> tuple[float, float, float]:
        if not self.simulated:
            return 0.0, 0.0, 0.0
        vx, vy, _ = self.velocity if self.down else self._wanted()
        return vx, vy, 0.0

    def inverse_mass(self) -> tuple[float, float]:
        return (1.0 / MASS_KG, 0.0) if self.simulated else (0.0, 0.0)

    def kick(self, dvx_mps: float, dvy_mps: float, spin_radps: float) -> None:
        blow = math.hypot(dvx_mps, dvy_mps)
        if not self.down:
            carried = (self.velocity[0] + dvx_mps) * dvx_mps + (self.velocity[1] + dvy_mps) * dvy_mps
            if carried <= KNOCK_DOWN_MPS * blow:  # as is a blow from above, which is none in the plane
                return
            self.down, self.grounded = True, False
            self.fall_mps = LIFT * blow
            # It ends up on its back, feet towards what hit it.
            self.pose.yaw = wrap_degrees(math.degrees(math.atan2(-dvy_mps, -dvx_mps)))
            self.pose.pitch, self.pose.roll = 90.0, 0.0
        self._lain_s = 0.0
        self.velocity = (self.velocity[0] + dvx_mps, self.velocity[1] + dvy_mps, self.velocity[2])

    def shift(self, dx_m: float, dy_m: float) -> None:
        self.pose.x += dx_m
        self.pose.y += dy_m

    @property
    def recovered(self) -> bool:
        """Whether it would get up now if there is room."""
        return self.down and self._lain_s > LIES_S and self.attributes.get("is_invincible", "true") == "true"

    def rise(self) -> None:
        """Get up."""
        self.pose.z += self.blueprint.extent_m[2] - self.foot_m
        self.down, self.pose.pitch = False, 0.0

    def step(self, dt_s: float, terrain: Terrain) -> None:
        if not self.simulated:
            self.velocity = ZERO
            return
        vx, vy = self._slide(dt_s) if self.down else self._walk()
        self.pose.x += vx * dt_s
        self.pose.y += vy * dt_s
        self.velocity = (vx, vy, self.fall_mps)
        self._settle(dt_s, terrain.height_m(*self.pose.location) + self.foot_m)

    def _wanted(self) -> Vector:
        """Velocity that it is told to have."""
        x, y, _ = self.direction
        return at_most((x * self.speed_mps, y * self.speed_mps, 0.0), FASTEST_MPS)

    def _walk(self) -> tuple[float, float]:
        vx, vy, _ = self._wanted()
        if math.hypot(vx, vy) > 0.05:
            self.pose.yaw = wrap_degrees(math.degrees(math.atan2(vy, vx)))
        return vx, vy

    def _slide(self, dt_s: float) -> tuple[float, float]:
        vx, vy, _ = self.velocity
        speed = math.hypot(vx, vy)
        if not self.grounded or speed == 0.0:
            self._lain_s += dt_s if self.grounded else 0.0
            return vx, vy
        left = max(0.0, speed - SLIDE_FRICTION * GRAVITY_MPS2 * dt_s) / speed
        return vx * left, vy * left
