"""What scenarios act through: actors that are spawned, driven and taken away again, and traffic lights.

Commands of a tick are collected and leave as one batch. The same calls work on CARLA and on the embedded server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import carla
import numpy as np

from carla_bridge.client.surroundings import LightState
from carla_bridge.client.vehicle_control import PedalMap, to_pedals
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Spot
from wamdiff2_core.frames import pose_to_carla, xy_to_carla
from wamdiff2_core.types import Pose2D, VehicleCommand

if TYPE_CHECKING:
    from carla_bridge.client.client import Simulation
    from carla_bridge.client.surroundings import Surroundings

LOG = logging.getLogger(__name__)
LIFTS_M = (0.1, 0.3, 0.6, 1.0)  # CARLA refuses to spawn what touches the ground
HELD_LIGHT_S = 10_000.0
CLOSE_S = 5.0
CARLA_LIGHTS = {
    LightState.RED: carla.TrafficLightState.Red,
    LightState.YELLOW: carla.TrafficLightState.Yellow,
    LightState.GREEN: carla.TrafficLightState.Green,
}
ORDINARY_CAR = {"base_type": "car", "special_type": ""}


@dataclass
class _Vehicle:
    """What is known of a vehicle that was spawned."""

    handle: Any
    pedals: PedalMap
    wheelbase_m: float


@dataclass
class _HeldLight:
    """A light whose state a scenario decides, and its own times."""

    handle: Any
    state: LightState
    times_s: tuple[float, float, float]
    told: bool = False


@dataclass
class Stage:
    """One route's stage. What waits for the server raises InfrastructureError when the server is lost.

    Attributes:
        simulation: the world.
        rng: source of every random choice.
    """

    simulation: Simulation
    rng: np.random.Generator
    _actors: dict[int, Any] = field(default_factory=dict)
    _vehicles: dict[int, _Vehicle] = field(default_factory=dict)
    _held: dict[int, _HeldLight] = field(default_factory=dict)
    _batch: list[Any] = field(default_factory=list)
    _kinds: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)

    def pick(self, pattern: str = "vehicle.*", **attributes: str) -> str:
        """Id of a blueprint, drawn from all that match a pattern and have these attribute values.

        Raises:
            ScenarioError: the server has none.
        """
        key = (pattern, *sorted(attributes.items()))
        if key not in self._kinds:
            self._kinds[key] = sorted(
                blueprint.id for blueprint in self._library().filter(pattern)
                if all(
                    blueprint.has_attribute(name) and _text(blueprint.get_attribute(name)) == value
                    for name, value in attributes.items()
                )
            )
        found = self._kinds[key]
        if not found:
            raise ScenarioError(f"the server has no {pattern} with {attributes}")
        return found[int(self.rng.integers(len(found)))]

    def car(self) -> str:
        """Id of an ordinary car's blueprint."""
        return self.pick("vehicle.*", **ORDINARY_CAR)

    def spawn(self, kind: str, spot: Spot, *, role: str = "scenario", speed_mps: float = 0.0) -> int:
        """Put an actor somewhere; its id.

        Raises:
            ScenarioError: no such blueprint, or the place is taken.
        """
        actor_id = self.try_spawn(kind, spot, role=role, speed_mps=speed_mps)
        if actor_id is None:
            raise ScenarioError(f"no room for a {kind} at ({spot.pose.x_m:.1f}, {spot.pose.y_m:.1f}) of the map frame")
        return actor_id

    def server_drives(self, kind: str) -> bool:
        """Whether the server can drive vehicles of a blueprint by itself, as the embedded one can."""
        return bool(self._library().find(kind).has_attribute("driver"))

    def try_spawn(
        self, kind: str, spot: Spot, *, role: str = "scenario", speed_mps: float = 0.0, by_server: bool = False
    ) -> int | None:
        """As `spawn`; None when the place is taken. `by_server` lets the server drive the vehicle if it can."""
        world, call, library = self.simulation.world, self.simulation.call, self._library()
        try:
            blueprint = library.find(kind)
        except (IndexError, RuntimeError):
            raise ScenarioError(f"the server has no {kind}") from None
        if blueprint.has_attribute("role_name"):
            blueprint.set_attribute("role_name", role)
        if by_server and blueprint.has_attribute("driver"):
            blueprint.set_attribute("driver", "server")
        if blueprint.has_attribute("color"):
            colors = list(blueprint.get_attribute("color").recommended_values)
            if colors:
                blueprint.set_attribute("color", colors[int(self.rng.integers(len(colors)))])
        for lift_m in LIFTS_M:
            place = _transform(spot, lift_m)
            handle = call(lambda place=place: world.try_spawn_actor(blueprint, place), f"spawning a {kind}")
            if handle is not None:
                break
        else:
            return None
        self._actors[handle.id] = handle
        if kind.startswith("vehicle."):
            physics = call(handle.get_physics_control, "vehicle.get_physics_control")
            steering = max(wheel.max_steer_angle for wheel in physics.wheels)
            half_m = handle.bounding_box.extent.x
            self._vehicles[handle.id] = _Vehicle(handle, PedalMap(math.radians(steering)), 1.2 * half_m)
            if speed_mps:
                velocity = _along(spot.pose.yaw_rad, speed_mps)
                self._batch.append(carla.command.ApplyTargetVelocity(handle.id, velocity))
            elif not by_server:
                self.park(handle.id)
        elif kind.startswith("static."):
            handle.set_simulate_physics(False)
        return int(handle.id)

    def half_length_m(self, actor_id: int) -> float:
        """Half the length of an actor that was spawned."""
        return float(self._actors[actor_id].bounding_box.extent.x)

    def wheelbase_m(self, actor_id: int) -> float:
        """Estimate of a vehicle's wheelbase, from its length."""
        return self._vehicles[actor_id].wheelbase_m

    def drive(self, actor_id: int, command: VehicleCommand) -> None:
        """Set a vehicle's controls for the next tick."""
        pedals = to_pedals(command, self._vehicles[actor_id].pedals)
        control = carla.VehicleControl(throttle=pedals.throttle, steer=pedals.steer, brake=pedals.brake)
        self._batch.append(carla.command.ApplyVehicleControl(actor_id, control))

    def park(self, actor_id: int) -> None:
        """Set a vehicle's hand brake."""
        control = carla.VehicleControl(brake=1.0, hand_brake=True)
        self._batch.append(carla.command.ApplyVehicleControl(actor_id, control))

    def walk(self, actor_id: int, yaw_rad: float, speed_mps: float) -> None:
        """Let a walker go in a direction of the map frame."""
        control = carla.WalkerControl(_along(yaw_rad, 1.0), speed_mps, False)
        self._batch.append(carla.command.ApplyWalkerControl(actor_id, control))

    def lamps(self, actor_id: int, *names: str) -> None:
        """Switch a vehicle's lamps on, by the names of `carla.VehicleLightState`."""
        state = 0
        for name in names:
            state |= int(getattr(carla.VehicleLightState, name))
        self._batch.append(carla.command.SetVehicleLightState(actor_id, carla.VehicleLightState(state)))

    def open_door(self, actor_id: int, door: str) -> None:
        """Open a vehicle's door, by the names of `carla.VehicleDoor`."""
        self._actors[actor_id].open_door(getattr(carla.VehicleDoor, door))

    def place_ego(self, pose: Pose2D) -> None:
        """Put the ego vehicle somewhere else, standing."""
        self.simulation.place_ego(pose)

    def owns(self, actor_id: int) -> bool:
        """Whether an actor was spawned here and not yet taken away."""
        return actor_id in self._actors

    def remove(self, actor_ids: Iterable[int]) -> None:
        """Take actors away."""
        for actor_id in actor_ids:
            if self._actors.pop(actor_id, None) is not None:
                self._vehicles.pop(actor_id, None)
                self._batch.append(carla.command.DestroyActor(actor_id))

    def remove_background(self, actor_ids: Iterable[int]) -> None:
        """Take away background vehicles that stand where a scenario happens."""
        self._batch += [carla.command.DestroyActor(actor_id) for actor_id in actor_ids]

    def hold_lights(self, states: dict[int, LightState]) -> None:
        """Let lights show a state until `release_lights`; lights not named go on as before."""
        for light_id, state in states.items():
            held = self._held.get(light_id)
            if held is None:
                handle = self.simulation.call(
                    lambda light_id=light_id: self.simulation.world.get_actor(light_id), "world.get_actor"
                )
                times = handle.get_green_time(), handle.get_yellow_time(), handle.get_red_time()
                held = self._held[light_id] = _HeldLight(handle, state, times)
                handle.set_green_time(HELD_LIGHT_S)
                handle.set_yellow_time(HELD_LIGHT_S)
                handle.set_red_time(HELD_LIGHT_S)
            held.told = held.told and held.state is state
            held.state = state

    def release_lights(self) -> None:
        """Give all lights their own times back."""
        for held in self._held.values():
            green_s, yellow_s, red_s = held.times_s
            held.handle.set_green_time(green_s)
            held.handle.set_yellow_time(yellow_s)
            held.handle.set_red_time(red_s)
        self._held.clear()

    def flush(self, around: Surroundings) -> None:
        """Send the commands of this tick."""
        shown = {light.id: light.state for light in around.lights}
        for light_id, held in self._held.items():
            if not held.told or shown.get(light_id) is not held.state:
                held.handle.set_state(CARLA_LIGHTS[held.state])
                held.told = True
        for response in self._send():
            if response.error:
                LOG.debug("command for actor %s: %s", response.actor_id, response.error)

    def close(self) -> None:
        """Take everything away; never raises, and never waits for a server that another call has lost."""
        if self.simulation.lost:
            return
        try:
            self.release_lights()
            self.remove(list(self._actors))
            # The library sends a batch without giving up the interpreter: nobody else could end the wait.
            self.simulation.limit_calls(CLOSE_S)
            self._send()
        except RuntimeError as error:
            LOG.warning("scenario actors were not all taken away: %s", error)
        finally:
            self.simulation.limit_calls()

    def _send(self) -> list[Any]:
        """Send what was collected, as one batch; the answers."""
        batch, self._batch = self._batch, []
        if not batch:
            return []
        return self.simulation.call(lambda: self.simulation.client.apply_batch_sync(batch, False), "client.apply_batch")

    def _library(self) -> Any:
        return self.simulation.call(self.simulation.world.get_blueprint_library, "world.get_blueprint_library")


def _text(attribute: Any) -> str:
    """Value of a blueprint's attribute as the library would take it."""
    kind = attribute.type
    if kind == carla.ActorAttributeType.Bool:
        return "true" if attribute.as_bool() else "false"
    if kind == carla.ActorAttributeType.Int:
        return str(attribute.as_int())
    return str(attribute.as_str()) if kind == carla.ActorAttributeType.String else ""


def _transform(spot: Spot, lift_m: float) -> carla.Transform:
    x, y, yaw_deg = pose_to_carla(spot.pose)
    return carla.Transform(carla.Location(x, y, spot.z_m + lift_m), carla.Rotation(yaw=yaw_deg))


def _along(yaw_rad: float, length: float) -> carla.Vector3D:
    """A level vector in a direction of the map frame."""
    return carla.Vector3D(*xy_to_carla(length * math.cos(yaw_rad), length * math.sin(yaw_rad)), 0.0)
