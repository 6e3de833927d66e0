"""Connection, episode, map, settings and time."""

from __future__ import annotations

from carla_bridge.server.protocol.arguments import RpcError, flag, number, optional, text, whole
from carla_bridge.server.protocol.rpc import Later, MethodTable
from carla_bridge.server.stage import Stage
from carla_bridge.server.world import Settings, World
from wamdiff2_core.errors import UserError

METHODS = MethodTable()
SETTINGS_FIELDS = 11
GENERATED_MAP = "OpenDriveMap"
SHORTEST_DELTA_S, LONGEST_DELTA_S = 1e-4, 1.0
LARGEST_PORT = 65535
_KEPT_SETTINGS = (flag, number, whole, number, flag, number, number, flag)  # only read by clients


@METHODS.returns_value
def version(world: World) -> str:
    """Protocol version; a client warns when it differs from its own."""
    return world.dialect.version


@METHODS.returns_value
def get_episode_info(world: World) -> list:
    """Episode id, and the token of the world-state stream."""
    return [world.episode_id, [world.hub.token(world.state_stream)]]


@METHODS.returns_value
def get_sensor_token(world: World, stream_id: int) -> list:
    """Where to subscribe to a stream."""
    stream = whole(stream_id, "stream id")
    if not world.hub.known(stream):
        raise RpcError(f"no stream {stream}")
    return [world.hub.token(stream)]


@METHODS.returns_value
def get_map_info(world: World) -> list:
    """Map name and recommended spawn points."""
    return [f"Carla/Maps/{world.town.name}", world.stage.spawn_transforms]


@METHODS.returns_value
def get_map_data(world: World) -> str:
    """The OpenDRIVE text."""
    return world.town.opendrive


@METHODS.returns_value
def get_available_maps(world: World) -> list[str]:
    """Towns that `load_world` can load by name."""
    names = {*world.town_names(), world.town.name}
    return [f"/Game/Carla/Maps/{name}" for name in sorted(names)]


@METHODS.returns_value
def get_required_files(world: World, folder: str = "", download: bool = True) -> list:
    """Files a client should cache: none."""
    return []


@METHODS.returns_value
def request_file(world: World, name: str) -> bytes:
    """Content of a required file; there are none."""
    return b""


@METHODS.returns_value
def get_navigation_mesh(world: World) -> bytes:
    """Pedestrian navigation mesh; there is none."""
    return b""


@METHODS.returns_nothing
def load_new_episode(world: World, name: str, reset_settings: bool = True, map_layers: int = 0) -> Later | None:
    """Start afresh in a town; no name, or the current town's own, reloads it."""
    wanted, reset = text(name, "map name").rsplit("/", 1)[-1], bool(reset_settings)
    if wanted == GENERATED_MAP and world.generated is not None:
        world.start_episode(world.generated, reset)
    elif wanted in ("", world.town.name):
        world.start_episode(world.stage, reset)
    else:

        def load() -> Stage:
            try:
                return world.stage_of(wanted)
            except UserError as error:
                raise RpcError(f"map not found: {error}") from error

        return Later(load, lambda stage: world.start_episode(stage, reset))
    return None


@METHODS.returns_nothing
def copy_opendrive_to_file(world: World, opendrive: str, parameters: list | None = None) -> Later:
    """Take an OpenDRIVE text; the client then loads the episode `OpenDriveMap`."""
    content = text(opendrive, "opendrive")

    def parse() -> Stage:
        try:
            return world.stage_of_text(GENERATED_MAP, content)
        except UserError as error:
            raise RpcError(str(error)) from error

    def keep(stage: Stage) -> None:
        world.generated = stage

    return Later(parse, keep)


@METHODS.returns_nothing
def load_map_layer(world: World, layers: int) -> None:
    """Map layers do not exist here."""


@METHODS.returns_nothing
def unload_map_layer(world: World, layers: int) -> None:
    """Map layers do not exist here."""


@METHODS.returns_value
def get_episode_settings(world: World) -> list:
    """Current settings."""
    return world.settings.as_wire()


@METHODS.returns_value
def set_episode_settings(world: World, settings: list) -> int:
    """Change settings; returns the current frame."""
    if not isinstance(settings, list) or len(settings) != SETTINGS_FIELDS:
        raise RpcError(f"settings: expected {SETTINGS_FIELDS} fields")
    delta = optional(settings[2], "fixed_delta_seconds")
    if delta is not None:
        delta = number(delta, "fixed_delta_seconds")
        if delta != 0 and not SHORTEST_DELTA_S <= delta <= LONGEST_DELTA_S:
            limits = f"{SHORTEST_DELTA_S:g}..{LONGEST_DELTA_S:g}"
            raise RpcError(f"fixed_delta_seconds: expected 0 (variable) or {limits}, got {delta:g}")
    rest = [read(value, "settings") for read, value in zip(_KEPT_SETTINGS, settings[3:], strict=True)]
    world.settings = Settings(bool(settings[0]), bool(settings[1]), delta or None, rest)
    return world.frame


@METHODS.returns_value
def tick_cue(world: World) -> int | Later:
    """Advance one tick; returns its frame number. While the cameras' town is still being laid out, it waits."""
    layout = world.awaited_layout()
    return world.step(world.delta_s) if layout is None else Later(layout, lambda _: tick_cue(world))


@METHODS.returns_value
def is_traffic_manager_running(world: World, port: int) -> bool:
    """Whether a client registered a TrafficManager on this port."""
    return whole(port, "port") in world.traffic_managers


@METHODS.returns_value
def get_traffic_manager_running(world: World, port: int) -> list:
    """Address of a registered TrafficManager."""
    return world.traffic_managers.get(whole(port, "port"), ["", 0])


@METHODS.returns_value
def add_traffic_manager_running(world: World, address: list) -> bool:
    """Register a TrafficManager that runs inside a client."""
    if not isinstance(address, list) or len(address) != 2:
        raise RpcError("address: expected [host, port]")
    world.traffic_managers[whole(address[1], "port", LARGEST_PORT)] = [text(address[0], "host"), address[1]]
    return True


@METHODS.returns_value
def destroy_traffic_manager(world: World, port: int) -> bool:
    """Forget a TrafficManager."""
    return world.traffic_managers.pop(whole(port, "port"), None) is not None
