"""Weather, street lights, and queries about the town's objects."""

from __future__ import annotations

from carla_bridge.server.arguments import RpcError, numbers, vector
from carla_bridge.server.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
WEATHER_FIELDS = 14
ROAD_LABEL = 1


@METHODS.returns_value
def get_weather_parameters(world: World) -> list[float]:
    """The weather last set."""
    return world.weather


@METHODS.returns_nothing
def set_weather_parameters(world: World, weather: list) -> None:
    """Set the weather that cameras see from now on."""
    world.weather = numbers(weather, WEATHER_FIELDS, "weather")


@METHODS.returns_value
def get_imui_gravity(world: World) -> float:
    """Gravity in m/s^2."""
    return 9.81


@METHODS.returns_nothing
def set_imui_gravity(world: World, gravity: float) -> None:
    """Accepted, without effect."""


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


@METHODS.returns_value
def get_environment_objects(world: World, label: int) -> list:
    """Objects of the town that can be switched on and off: none."""
    return []


@METHODS.returns_nothing
def enable_environment_objects(world: World, ids: list, enabled: bool) -> None:
    """There are none."""


@METHODS.returns_value
def get_all_level_BBs(world: World, label: int) -> list:  # noqa: N802 - the protocol's name
    """Bounding boxes of labelled objects: not kept."""
    return []


@METHODS.returns_value
def get_names_of_all_objects(world: World) -> list:
    """Names of the town's objects: not kept."""
    return []


@METHODS.returns_value
def cast_ray(world: World, start: list, end: list) -> list:
    """What a ray meets: not computed."""
    vector(start, "start"), vector(end, "end")
    return []


@METHODS.returns_value
def project_point(world: World, location: list, direction: list, distance: float) -> list:
    """The point on the ground below; the world is flat."""
    x, y, _ = vector(location, "location")
    return [True, [[x, y, 0.0], ROAD_LABEL]]


@METHODS.returns_nothing
def draw_debug_shape(world: World, shape: list) -> None:
    """Accepted, not drawn."""


@METHODS.returns_value
def start_recorder(world: World, name: str, additional_data: bool = False) -> str:
    """The protocol's recorder does not exist here."""
    raise RpcError("the embedded world has no recorder")


@METHODS.returns_nothing
def stop_recorder(world: World) -> None:
    """Nothing is recorded."""


@METHODS.returns_nothing
def console_command(world: World, command: str) -> None:
    """Accepted, without effect."""
