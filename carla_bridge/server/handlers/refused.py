"""What the embedded world does not have: each such method answers with an error that says so by name.

Without these the client would only learn that a function was not found.
"""

from __future__ import annotations

from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()

_NO_VALUE = {  # methods whose client stub expects a value
    "start_recorder show_recorder_file_info show_recorder_collisions show_recorder_actors_blocked"
    " replay_file": "the embedded world has no recorder; wamdiff2 closed-loop records what it drives",
    "get_actor_component_names get_actor_component_world_transform get_actor_component_relative_transform"
    " get_actor_bone_names get_actor_bone_world_transforms get_actor_bone_relative_transforms"
    " get_vehicle_bone_world_transforms get_actor_socket_names get_actor_socket_world_transforms"
    " get_actor_socket_relative_transforms get_bones_transform": "bodies in the embedded world are boxes without parts",
    "get_gbuffer_token": "the embedded world's renderer has no G-buffer",
}
_NOTHING = {
    "set_bones_transform blend_pose get_pose_from_animation": "walkers in the embedded world have no skeleton",
    "enable_gbuffers": "the embedded world's renderer has no G-buffer",
    "apply_color_texture_to_objects apply_float_color_texture_to_objects": "the embedded world has no textures",
    "enable_carsim use_carsim_road enable_chrono_physics": "the embedded world has one vehicle model only",
    "enable_sensor_for_ros": "the embedded server publishes no ROS topics; wamdiff2 closed-loop bridges to ROS",
    "send": "the embedded world has no V2X",
}


def _refuse(name: str, reason: str) -> None:
    def method(world: World, *arguments: object) -> None:
        raise RpcError(f"{name}: {reason}")

    method.__name__, method.__doc__ = name, f"Refused: {reason}."
    (METHODS.returns_value if name in _VALUE_NAMES else METHODS.returns_nothing)(method)


_VALUE_NAMES = {name for names in _NO_VALUE for name in names.split()}
for _names, _reason in (_NO_VALUE | _NOTHING).items():
    for _name in _names.split():
        _refuse(_name, _reason)
