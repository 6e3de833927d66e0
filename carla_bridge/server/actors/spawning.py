"""What a client can spawn: props, friction triggers and sensors, beside vehicles and walkers, and how it is made."""

from __future__ import annotations

import math
import random

import numpy as np

from carla_bridge.server.actors.actor import FASTEST_MPS, ZERO, Actor, at_most
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.dynamics.terrain import Terrain
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol.arguments import RpcError, actor_description
from carla_bridge.server.protocol.wire import Vector

TYRE_FRICTION = 3.5  # CARLA's tyre on dry asphalt: the value that a friction trigger replaces


class Prop(Actor):
    """A thing that stands where it is put; a client may give it a velocity (a rolling ball, a drifting box)."""

    def set_velocity(self, velocity: Vector) -> None:
        self.velocity = at_most(velocity, FASTEST_MPS)

    @property
    def moves(self) -> bool:
        return self.simulated and (self.velocity[0] != 0.0 or self.velocity[1] != 0.0)

    def step(self, dt_s: float, terrain: Terrain) -> None:
        if not self.simulated:
            self.velocity = ZERO
            return
        moves = self.moves
        if self.grounded and not moves:
            return
        if moves:
            self.pose.x += self.velocity[0] * dt_s
            self.pose.y += self.velocity[1] * dt_s
        self._settle(dt_s, terrain.height_m(*self.pose.location))


class FrictionTrigger(Actor):
    """A box in which tyres have another grip; nothing bumps into it.

    Attributes:
        grip: factor on the grip of the ground.
    """

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.grip = _positive_float(self.attributes.get("friction", "")) / TYRE_FRICTION
        self._extent_m = tuple(_positive_float(self.attributes.get(f"extent_{axis}", "")) / 100 for axis in "xyz")

    def holds(self, x_m: float, y_m: float, z_m: float) -> bool:
        """Whether a place lies in the box."""
        dx, dy, yaw = x_m - self.pose.x, y_m - self.pose.y, math.radians(self.pose.yaw)
        c, s = math.cos(yaw), math.sin(yaw)
        extent_x, extent_y, extent_z = self._extent_m
        inside = abs(c * dx + s * dy) <= extent_x and abs(c * dy - s * dx) <= extent_y
        return inside and abs(z_m - self.pose.z) <= extent_z


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

    def jitter(self, name: str) -> float:
        """A draw of noise around 0 whose standard deviation is a numeric attribute; 0 for a negative one."""
        return float(self.noise.normal(0.0, max(0.0, self.setting(name))))

    def setting(self, name: str) -> float:
        """A numeric attribute; 0 when it is missing or unreadable."""
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return 0.0


KINDS: tuple[tuple[str, type[Actor]], ...] = (
    ("vehicle.", Vehicle),
    ("walker.", Walker),
    ("sensor.", Sensor),
    ("static.trigger.friction", FrictionTrigger),
    ("static.", Prop),
)
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
    try:
        blueprint.check((name, value) for name, _, value in description[2])
    except ValueError as error:
        raise RpcError(f"{blueprint.id}: {error}") from error
    for name, kind in KINDS:
        if blueprint.id.startswith(name):
            actor = kind(actor_id, blueprint, description, pose)
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
