"""`scene.jsonl` of a route: other actors and traffic lights around the ego vehicle, for its report.

A line a moment, of simulated time only, so that two equal drives give equal bytes. Only what is new is written: an
actor's or light's kind and size on the line where it first comes near, a pose when it has changed, an id once the actor
is far or gone. `read_scene` puts the moments together again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from wamdiff2_core.frames import transform_points
from wamdiff2_core.types import Pose2D

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import Actor, Surroundings

SCENE_NAME = "scene.jsonl"
NEAR_M = 70.0
SAME_M, SAME_RAD = 0.02, 0.005  # what has changed by less is where it was


@dataclass(frozen=True)
class Body:
    """What does not change about an actor: its id, kind and box.

    Attributes:
        id: the server's.
        type_id: such as `vehicle.tesla.model3`.
        half_m: half length and half width of its box.
        centre_m: centre of the box in the actor's own frame.
    """

    id: int
    type_id: str
    half_m: tuple[float, float]
    centre_m: tuple[float, float]

    @property
    def outline_m(self) -> np.ndarray:
        """(4, 2) corners in the actor's own frame, counter-clockwise from the front left."""
        x, y = self.half_m
        return np.array(self.centre_m) + np.array([[x, y], [-x, y], [-x, -y], [x, -y]])

    def corners_m(self, pose: Pose2D) -> np.ndarray:
        """(4, 2) corners at a pose, map frame, in the order of `outline_m`."""
        return transform_points(pose, self.outline_m)


@dataclass(frozen=True)
class Lamp:
    """A traffic light: its id, and (x_m, y_m, yaw_rad, lane_width_m) of each lane's stop line, map frame."""

    id: int
    stop_lines: tuple[tuple[float, float, float, float], ...]

    def ends_m(self) -> list[np.ndarray]:
        """(2, 2) left and right end of each stop line, map frame."""
        return [
            transform_points(Pose2D(x_m, y_m, yaw_rad), np.array([[0.0, width_m / 2], [0.0, -width_m / 2]]))
            for x_m, y_m, yaw_rad, width_m in self.stop_lines
        ]


@dataclass(frozen=True)
class SceneMoment:
    """The scene at one moment.

    Attributes:
        t_s: simulated time since the route began.
        ego: pose of the ego vehicle, map frame.
        poses: poses of the actors near it, by id.
        lights: what lights near it show, by id: `red`, `yellow`, `green`, `off` or `unknown`.
    """

    t_s: float
    ego: Pose2D
    poses: dict[int, Pose2D]
    lights: dict[int, str]


@dataclass
class Scene:
    """All moments of a route; bodies and lamps by id. `ego` is None when nothing was written."""

    ego: Body | None = None
    bodies: dict[int, Body] = field(default_factory=dict)
    lamps: dict[int, Lamp] = field(default_factory=dict)
    moments: list[SceneMoment] = field(default_factory=list)


class SceneWriter:
    """Writes the moments of one route into an open file."""

    def __init__(self, file: TextIO) -> None:
        """Write to `file`, which stays the caller's to close."""
        self._file = file
        self._known: set[int] = set()
        self._poses: dict[int, tuple[float, float, float]] = {}
        self._states: dict[int, str] = {}

    def write(self, t_ns: int, around: Surroundings) -> None:
        """Add a moment.

        Args:
            t_ns: simulated time since the route began.
            around: the surroundings then.
        """
        ego = around.ego
        line: dict[str, Any] = {"t_ms": t_ns // 1_000_000, "ego": _pose(ego)}
        if ego.id not in self._known:
            self._known.add(ego.id)
            line["ego_body"] = _body(ego)
        near = {actor.id: actor for actor in around.actors if _distance_m(ego, actor.pose) < NEAR_M}
        moved = {}
        for key, actor in near.items():
            if key not in self._known:
                self._known.add(key)
                line.setdefault("bodies", []).append(_body(actor))
            pose = _pose(actor)
            if key not in self._poses or _differs(pose, self._poses[key]):
                self._poses[key] = moved[key] = pose
        if moved:
            line["poses"] = [[key, *pose] for key, pose in moved.items()]
        gone = sorted(self._poses.keys() - near.keys())
        for key in gone:
            del self._poses[key]
        if gone:
            line["gone"] = gone
        self._lights(around, line)
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _lights(self, around: Surroundings, line: dict[str, Any]) -> None:
        for light in around.lights:
            places = [line.pose for line in light.stop_lines] or [light.pose]
            if min(_distance_m(around.ego, place) for place in places) > NEAR_M:
                continue
            if light.id not in self._states:
                stop_lines = [[*_rounded(stop.pose), round(stop.lane_width_m, 2)] for stop in light.stop_lines]
                line.setdefault("lamps", []).append([light.id, stop_lines])
            if self._states.get(light.id) != light.state.value:
                self._states[light.id] = light.state.value
                line.setdefault("lights", []).append([light.id, light.state.value])


def read_scene(route_folder: Path) -> Scene:
    """The scene of a route; an empty one where none was written. A line that was cut off ends it."""
    scene, path = Scene(), route_folder / SCENE_NAME
    poses: dict[int, Pose2D] = {}
    lights: dict[int, str] = {}
    for line in _lines(path):
        if "ego_body" in line:
            scene.ego = _body_of(line["ego_body"])
        scene.bodies |= {item[0]: _body_of(item) for item in line.get("bodies", ())}
        scene.lamps |= {key: Lamp(key, tuple(tuple(stop) for stop in stops)) for key, stops in line.get("lamps", ())}
        poses |= {key: Pose2D(*pose) for key, *pose in line.get("poses", ())}
        for key in line.get("gone", ()):
            poses.pop(key, None)
        lights |= dict(line.get("lights", ()))
        scene.moments.append(SceneMoment(line["t_ms"] / 1000, Pose2D(*line["ego"]), dict(poses), dict(lights)))
    return scene


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open() as file:
        for text in file:
            if not text.endswith("\n"):
                return
            yield json.loads(text)


def _distance_m(ego: Actor, pose: Pose2D) -> float:
    return float(np.hypot(pose.x_m - ego.pose.x_m, pose.y_m - ego.pose.y_m))


def _differs(one: Sequence[float], other: Sequence[float]) -> bool:
    return abs(one[0] - other[0]) > SAME_M or abs(one[1] - other[1]) > SAME_M or abs(one[2] - other[2]) > SAME_RAD


def _pose(actor: Actor) -> tuple[float, float, float]:
    return _rounded(actor.pose)


def _rounded(pose: Pose2D) -> tuple[float, float, float]:
    return round(float(pose.x_m), 2), round(float(pose.y_m), 2), round(float(pose.yaw_rad), 3)


def _body(actor: Actor) -> list[Any]:
    centre = [round(float(value), 3) for value in actor.box_centre_m]
    return [actor.id, actor.type_id, [round(value, 3) for value in actor.extent_m[:2]], centre]


def _body_of(item: Sequence[Any]) -> Body:
    key, type_id, half, centre = item
    return Body(key, type_id, (half[0], half[1]), (centre[0], centre[1]))
