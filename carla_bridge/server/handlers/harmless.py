"""Requests that change nothing here and are harmlessly accepted: debug drawing, a recorder that never runs."""

from __future__ import annotations

from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()


@METHODS.returns_nothing
def draw_debug_shape(world: World, shape: list) -> None:
    """Accepted, not drawn."""


@METHODS.returns_nothing
def clear_debug_shape(world: World) -> None:
    """There is nothing to clear."""


@METHODS.returns_nothing
def clear_debug_string(world: World) -> None:
    """There is nothing to clear."""


@METHODS.returns_nothing
def stop_recorder(world: World) -> None:
    """Nothing is recorded."""


@METHODS.returns_nothing
def stop_replayer(world: World, keep_actors: bool = False) -> None:
    """Nothing is replayed."""


@METHODS.returns_nothing
def set_replayer_time_factor(world: World, factor: float) -> None:
    """Nothing is replayed."""


@METHODS.returns_nothing
def set_replayer_ignore_hero(world: World, ignore: bool) -> None:
    """Nothing is replayed."""


@METHODS.returns_nothing
def set_replayer_ignore_spectator(world: World, ignore: bool) -> None:
    """Nothing is replayed."""


@METHODS.returns_value
def console_command(world: World, command: str) -> bool:
    """Unreal's console is not there: no command is recognised."""
    return False


@METHODS.returns_nothing
def set_annotations_traverse_translucency(world: World, enabled: bool) -> None:
    """Nothing here is translucent."""


@METHODS.returns_value
def is_sensor_enabled_for_ros(world: World, stream_id: int) -> bool:
    """The server publishes no ROS topics."""
    return False


@METHODS.returns_nothing
def disable_sensor_for_ros(world: World, stream_id: int) -> None:
    """The server publishes no ROS topics."""


@METHODS.returns_value
def are_gbuffers_enabled(world: World, actor_id: int) -> bool:
    """The renderer has none."""
    return False


@METHODS.returns_nothing
def set_ignored_vehicles(world: World, actor_id: int, ids: list) -> None:
    """Every sensor sees every vehicle but its carrier."""
    world.actor_or_tombstone(actor_id)


@METHODS.returns_nothing
def restore_physx_physics(world: World, actor_id: int) -> None:
    """There is one vehicle model only, and it is on."""
    world.actor_or_tombstone(actor_id)
