"""Traffic lights: states, times, groups and boxes. Lights outlive every client: none can destroy them."""

from __future__ import annotations

from carla_bridge.server.actors.signals import SignalControl, TrafficLight
from carla_bridge.server.protocol.arguments import RpcError, number, whole
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.world import World

METHODS = MethodTable()


def _light(world: World, actor_id: int) -> TrafficLight:
    actor = world.actor_or_tombstone(actor_id)
    if not isinstance(actor, TrafficLight):
        raise RpcError(f"actor {actor_id} is no traffic light")
    return actor


def _seconds(value: float, name: str) -> float:
    seconds = number(value, name)
    if seconds < 0:
        raise RpcError(f"{name}: expected seconds, not negative, got {seconds}")
    return seconds


@METHODS.returns_nothing
def set_traffic_light_state(world: World, actor_id: int, state: int) -> None:
    """Show a state until the cycle switches this light the next time."""
    light, value = _light(world, actor_id), whole(state, "state")
    if value not in list(TrafficLightState):
        raise RpcError(f"state: expected 0..{max(TrafficLightState)}, got {value}")
    light.state = TrafficLightState(value)


@METHODS.returns_nothing
def set_traffic_light_green_time(world: World, actor_id: int, seconds: float) -> None:
    """Set how long the light's phase stays green."""
    _light(world, actor_id).phase.green_s = _seconds(seconds, "green time")


@METHODS.returns_nothing
def set_traffic_light_yellow_time(world: World, actor_id: int, seconds: float) -> None:
    """Set how long the light's phase stays yellow."""
    _light(world, actor_id).phase.yellow_s = _seconds(seconds, "yellow time")


@METHODS.returns_nothing
def set_traffic_light_red_time(world: World, actor_id: int, seconds: float) -> None:
    """Set how long all lights of the junction stay red after the light's phase."""
    _light(world, actor_id).phase.red_s = _seconds(seconds, "red time")


@METHODS.returns_nothing
def freeze_traffic_light(world: World, actor_id: int, frozen: bool) -> None:
    """Hold or release the clock of the light's junction."""
    light = _light(world, actor_id)
    if light.cycle is not None:
        light.cycle.frozen = bool(frozen)


@METHODS.returns_nothing
def freeze_all_traffic_lights(world: World, frozen: bool) -> None:
    """Hold or release all clocks."""
    if world.signals is not None:
        world.signals.freeze(bool(frozen))


@METHODS.returns_nothing
def reset_traffic_light_group(world: World, actor_id: int) -> None:
    """Start the light's junction again as the episode did."""
    light = _light(world, actor_id)
    if light.cycle is not None:
        light.cycle.reset()


@METHODS.returns_nothing
def reset_all_traffic_lights(world: World) -> None:
    """Start all junctions again as the episode did."""
    if world.signals is not None:
        world.signals.reset()


@METHODS.returns_value
def get_group_traffic_lights(world: World, actor_id: int) -> list[int]:
    """Ids of all lights of the same junction, its own among them."""
    return [light.id for light in SignalControl.group(_light(world, actor_id))]


@METHODS.returns_value
def get_light_boxes(world: World, actor_id: int) -> list:
    """Boxes of the heads of a traffic light, in the world."""
    return _light(world, actor_id).lamp_boxes()
