"""Weather, street lights and gravity."""

from __future__ import annotations

from carla_bridge.server.protocol.arguments import RpcError, number, numbers
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World
from carla_bridge.weather_fields import WEATHER_FIELDS

METHODS = MethodTable()
GRAVITY_MPS2 = 9.81


@METHODS.returns_value
def get_weather_parameters(world: World) -> list[float]:
    """The weather last set."""
    return world.weather


@METHODS.returns_nothing
def set_weather_parameters(world: World, weather: list) -> None:
    """Set the weather that cameras see from now on."""
    world.weather = numbers(weather, len(WEATHER_FIELDS), "weather")


@METHODS.returns_value
def get_imui_gravity(world: World) -> float:
    """Gravity in m/s^2."""
    return GRAVITY_MPS2


@METHODS.returns_nothing
def set_imui_gravity(world: World, gravity: float) -> None:
    """Gravity is fixed: another value is refused."""
    if abs(number(gravity, "gravity") - GRAVITY_MPS2) > 0.01:
        raise RpcError(f"set_imui_gravity: gravity of the embedded world is {GRAVITY_MPS2} m/s^2")


@METHODS.returns_nothing
def update_day_night_cycle(world: World, client_id: int, active: bool) -> None:
    """Street lights do not follow the sun here."""


@METHODS.returns_value
def query_lights_state(world: World, client_id: int) -> list:
    """Street lights that a client may switch: none."""
    return []


@METHODS.returns_nothing
def update_lights_state(world: World, client_id: int, lights: list, discard: bool = False) -> None:
    """There are no street lights to switch."""
