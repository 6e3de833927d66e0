"""What stands in the town, and what rays meet: environment objects, boxes by label, ray casts."""

from __future__ import annotations

import math

import numpy as np

from carla_bridge.server.geometry.labels import SCENERY, Label
from carla_bridge.server.geometry.scene import StaticBox
from carla_bridge.server.protocol.arguments import RpcError, number, vector, whole
from carla_bridge.server.protocol.rpc import MethodTable
from carla_bridge.server.sensors.ray_scene import RayScene
from carla_bridge.server.world import World

METHODS = MethodTable()
LONGEST_RAY_M = 10_000.0


def _scenery(world: World, label: int) -> list[tuple[int, StaticBox]]:
    """Boxes of the town with a label, with their numbers, which start at 1."""
    wanted = whole(label, "label", 255)
    boxes = enumerate(world.town.static_boxes, start=1)
    return [(n, box) for n, box in boxes if wanted in (Label.ANY, SCENERY[box.kind])]


def _bounding_box(box: StaticBox, *, at_origin: bool = False) -> list:
    location = [0.0, 0.0, 0.0] if at_origin else [box.x, box.y, box.z]
    yaw = 0.0 if at_origin else box.yaw
    return [location, [box.extent_x, box.extent_y, box.extent_z], [0.0, yaw, 0.0], 0]


def _name(number_: int, box: StaticBox) -> str:
    return f"{box.kind.value}_{number_}"


@METHODS.returns_value
def get_environment_objects(world: World, label: int) -> list:
    """`EnvironmentObject` of every piece of scenery with a label; its box is relative to its transform."""
    return [
        [[[b.x, b.y, b.z], [0.0, b.yaw, 0.0]], _bounding_box(b, at_origin=True), n, _name(n, b), int(SCENERY[b.kind])]
        for n, b in _scenery(world, label)
    ]


@METHODS.returns_nothing
def enable_environment_objects(world: World, ids: list, enabled: bool) -> None:
    """Scenery is always there: switching it off is refused."""
    if ids and not enabled:
        raise RpcError("enable_environment_objects: scenery of the embedded world cannot be switched off")


@METHODS.returns_value
def get_all_level_BBs(world: World, label: int) -> list:  # noqa: N802 - the protocol's name
    """Boxes of scenery with a label, in the world."""
    return [_bounding_box(box) for _, box in _scenery(world, label)]


@METHODS.returns_value
def get_names_of_all_objects(world: World) -> list[str]:
    """Names of all scenery."""
    return [_name(n, box) for n, box in _scenery(world, Label.ANY)]


@METHODS.returns_value
def cast_ray(world: World, start: list, end: list) -> list:
    """`LabelledPoint` of everything between two places, nearest first."""
    a, b = np.array(vector(start, "start")), np.array(vector(end, "end"))
    length_m = float(np.linalg.norm(b - a))
    return _meet(world.ray_scene(), a, b - a, length_m)


@METHODS.returns_value
def project_point(world: World, location: list, direction: list, distance: float) -> list:
    """The first thing in a direction, within a distance, as an optional `LabelledPoint`."""
    a, d = np.array(vector(location, "location")), np.array(vector(direction, "direction"))
    met = _meet(world.ray_scene(), a, d, number(distance, "distance"))
    return [True, met[0]] if met else [False, [[0.0, 0.0, 0.0], int(Label.NONE)]]


def _meet(scene: RayScene, start: np.ndarray, direction: np.ndarray, length_m: float) -> list:
    norm = float(np.linalg.norm(direction))
    if norm < 1e-9 or not 0 < length_m < math.inf:
        return []
    unit = direction / norm
    met = scene.along(start, unit, min(length_m, LONGEST_RAY_M))
    return [[(start + unit * distance).tolist(), int(scene.label(target))] for distance, target in met]
