"""Vehicles: cars, trucks and bikes that answer to pedals, stand on slopes, and are pushed about by collisions."""

from __future__ import annotations

import math

from carla_bridge.server.actors.actor import FASTEST_MPS, ZERO, Actor
from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.dynamics.ackermann import DEFAULT_GAINS, AckermannTarget, pedals_for
from carla_bridge.server.dynamics.motion import Motion, Pedals
from carla_bridge.server.dynamics.terrain import Terrain
from carla_bridge.server.dynamics.vehicle_dynamics import advance
from carla_bridge.server.dynamics.vehicle_model import VehicleModel
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.wire import Vector

SUSPENSION_LAG_S = 0.15  # the body follows the slope of the ground by this time constant
SETTLED_DEG = 1e-4
TWIST_MPS = 0.05  # a sideways velocity from a client that is no more than this is rounding
FASTEST_SPIN_DEGPS = 1800.0  # what a client may set


class Vehicle(Actor):
    """A vehicle.

    Attributes:
        model: its parameters.
        pedals, manual_gear, gear: what its driver does.
        ackermann, ackermann_gains: the other way to drive it; while there is a target, it sets the pedals.
        light_flags: `VehicleLightState` bits.
        speed_limit_kmh: that it is under.
        light: id and state of the traffic light that it meets.
        constant_velocity: held velocity in the vehicle's own axes, of which only the forward part is held.
        motion: its state.
    """

    def __init__(self, actor_id: int, blueprint: Blueprint, description: list, pose: Pose) -> None:
        super().__init__(actor_id, blueprint, description, pose)
        self.model = blueprint.model or VehicleModel()
        self.pedals, self.manual_gear, self.gear = Pedals(), False, 0
        self.ackermann: AckermannTarget | None = None
        self.ackermann_gains: tuple[float, ...] = DEFAULT_GAINS
        self.light_flags = 0
        self.speed_limit_kmh = 50.0
        self.light: tuple[int, wire.TrafficLightState] | None = None
        self.constant_velocity: Vector | None = None
        self.motion = Motion()
        self._slope_rad = 0.0
        self._before: tuple[Vector, float, float, float] = (ZERO, 0.0, 0.0, 0.0)  # velocity, pitch, roll, yaw rate
        self._motion_from_pose()

    @property
    def mass_kg(self) -> float:  # type: ignore[override]
        """Mass in kilograms."""
        return self.model.mass_kg

    def control(self) -> list:
        """`VehicleControl` of the protocol."""
        p = self.pedals
        return [p.throttle, p.steer, p.brake, p.hand_brake, p.reverse, self.manual_gear, self.gear]

    def detail(self) -> bytes:
        return wire.vehicle_detail(self.control(), self.speed_limit_kmh, self.light)

    def place(self, pose: Pose) -> None:
        """Teleport: velocities stay, as in CARLA; wheels, motor and brakes start at rest, whatever was done before."""
        super().place(pose)
        self._slope_rad = 0.0
        self.motion.steer_rad = self.motion.drive_mps2 = self.motion.brake_mps2 = 0.0
        self._motion_from_pose()

    def set_velocity(self, velocity: Vector) -> None:
        motion = self.motion
        c, s = math.cos(motion.yaw_rad), math.sin(motion.yaw_rad)
        vx, vy, vz = (max(-FASTEST_MPS, min(FASTEST_MPS, v)) for v in velocity)
        motion.speed_mps = c * vx + s * vy
        slip = c * vy - s * vx - motion.yaw_rate_radps * self.model.wheelbase_m / 2
        motion.sliding = abs(slip) > TWIST_MPS
        motion.slip_mps = slip if motion.sliding else 0.0
        self.fall_mps = min(vz, 0.0)
        self.velocity = (vx, vy, vz)

    def set_yaw_rate(self, degps: float) -> None:
        """Set the yaw rate, clockwise positive; the tyres soon have their way with it."""
        wanted = math.radians(max(-FASTEST_SPIN_DEGPS, min(FASTEST_SPIN_DEGPS, degps)))
        self.motion.kick(self.model, 0.0, 0.0, wanted - self.motion.yaw_rate_radps)

    @property
    def moves(self) -> bool:
        return self.simulated

    def planar_velocity(self) -> tuple[float, float, float]:
        if not self.simulated:
            return 0.0, 0.0, 0.0
        if self._held_mps is not None:
            yaw = self.motion.yaw_rad
            return self._held_mps * math.cos(yaw), self._held_mps * math.sin(yaw), self.motion.yaw_rate_radps
        vx, vy = self.motion.velocity_mps(self.model.wheelbase_m)
        return vx, vy, self.motion.yaw_rate_radps

    @property
    def _held_mps(self) -> float | None:
        """Speed that is held whatever the pedals say."""
        if self.constant_velocity is None:
            return None
        return max(-FASTEST_MPS, min(FASTEST_MPS, self.constant_velocity[0]))

    def inverse_mass(self) -> tuple[float, float]:
        if not self.simulated or self.constant_velocity is not None:
            return 0.0, 0.0
        inverse = 1.0 / self.model.mass_kg
        return inverse, inverse / self.model.gyration_m2

    def kick(self, dvx_mps: float, dvy_mps: float, spin_radps: float) -> None:
        motion = self.motion
        motion.kick(self.model, dvx_mps, dvy_mps, spin_radps)
        motion.speed_mps = max(-FASTEST_MPS, min(FASTEST_MPS, motion.speed_mps))
        motion.slip_mps = max(-FASTEST_MPS, min(FASTEST_MPS, motion.slip_mps))

    def shift(self, dx_m: float, dy_m: float) -> None:
        self.motion.x_m += dx_m
        self.motion.y_m += dy_m
        self.pose.x, self.pose.y = self.motion.x_m, self.motion.y_m

    def begin_tick(self) -> None:
        self._before = (self.velocity, self.pose.pitch, self.pose.roll, self.motion.yaw_rate_radps)

    def step(self, dt_s: float, terrain: Terrain) -> None:
        motion, pose = self.motion, self.pose
        if not self.simulated:
            motion.speed_mps = motion.slip_mps = motion.yaw_rate_radps = 0.0
            motion.sliding = False
            return
        if self.ackermann is not None:
            self.pedals = pedals_for(self.ackermann, motion, self.model, self.pedals, dt_s)
        surface = terrain.surface(motion.x_m, motion.y_m, pose.z, self._slope_rad)
        advance(motion, self.pedals, self.model, dt_s, self._held_mps, surface)
        if not math.isfinite(motion.x_m + motion.y_m + motion.yaw_rad + motion.speed_mps + motion.yaw_rate_radps):
            self.motion = motion = Motion()  # stand where the last sound step ended
            self._motion_from_pose()
        if not self.manual_gear:
            self.gear = 0 if abs(motion.speed_mps) < 0.01 else (-1 if motion.speed_mps < 0 else 1)
        pose.x, pose.y, pose.yaw = motion.x_m, motion.y_m, math.degrees(motion.yaw_rad)
        self._stand(dt_s, terrain)

    def end_tick(self, dt_s: float) -> None:
        if not self.simulated:
            self.velocity, self.acceleration, self.angular_velocity = ZERO, ZERO, ZERO
            self.yaw_acceleration_radps2 = 0.0
            return
        motion, (before, pitch, roll, rate) = self.motion, self._before
        c, s = math.cos(motion.yaw_rad), math.sin(motion.yaw_rad)
        sideways = motion.sideways_mps(self.model.wheelbase_m)
        forward, up = motion.speed_mps, self.fall_mps
        if self.grounded and self.pose.pitch:  # the suspension smooths the edges of the ground
            pitch_rad = math.radians(self.pose.pitch)
            forward, up = forward * math.cos(pitch_rad), forward * math.sin(pitch_rad)
        vx, vy = forward * c - sideways * s, forward * s + sideways * c
        self.velocity = (vx, vy, up)
        self.acceleration = ((vx - before[0]) / dt_s, (vy - before[1]) / dt_s, (up - before[2]) / dt_s)
        # Unreal's rotator turns against the axes in pitch and roll, so these two change sign.
        rolling, pitching = (roll - self.pose.roll) / dt_s, (pitch - self.pose.pitch) / dt_s
        self.angular_velocity = (rolling, pitching, math.degrees(motion.yaw_rate_radps))
        self.yaw_acceleration_radps2 = (motion.yaw_rate_radps - rate) / dt_s

    def _motion_from_pose(self) -> None:
        self.motion.x_m, self.motion.y_m = self.pose.x, self.pose.y
        # CARLA's own spawn points have angles of 360 degrees.
        self.motion.yaw_rad = math.remainder(math.radians(self.pose.yaw), math.tau)
        self.pose.pitch, self.pose.roll = math.remainder(self.pose.pitch, 360.0), math.remainder(self.pose.roll, 360.0)

    def _stand(self, dt_s: float, terrain: Terrain) -> None:
        """Follow the ground: height at once, pitch and roll as the suspension lets it."""
        pose, motion = self.pose, self.motion
        floor, pitch, roll = terrain.stand(
            motion.x_m, motion.y_m, pose.z, motion.yaw_rad, self.model.wheelbase_m / 2, self.model.track_m / 2
        )
        self._settle(dt_s, floor)
        if not self.grounded:
            self._slope_rad = 0.0
            return
        self._slope_rad = pitch
        pitch, roll = math.degrees(pitch), math.degrees(roll)
        if pose.pitch != pitch or pose.roll != roll:
            gain = -math.expm1(-dt_s / SUSPENSION_LAG_S)
            pose.pitch = pitch if abs(pitch - pose.pitch) < SETTLED_DEG else pose.pitch + gain * (pitch - pose.pitch)
            pose.roll = roll if abs(roll - pose.roll) < SETTLED_DEG else pose.roll + gain * (roll - pose.roll)
