"""What can be seen and what hides it, as boxes: actors, the heads of traffic lights, stop signs, buildings.

Read through the `carla` library, which knows what of an actor never changes once it has been asked for; its place comes
from the snapshot of the tick. Places are in the map frame, REP-103.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import carla
import numpy as np

from carla_bridge.client.surroundings import LISTED, StopSign, Surroundings, TrafficLight
from wamdiff2_core.frames import flip_y, xy_from_carla
from wamdiff2_core.types import Pose2D

REACH_M = 90.0  # of the camera; the smallest thing that can be told in the picture is nearer
SIGN_HEIGHT_M, SIGN_HALF_M = 2.3, (0.06, 0.42, 0.42)
HEDGE_M = 1.6  # vegetation lower than this is a hedge, and solid; boxes of trees say little of what they hide
_PROPS = {"cone": "traffic cone", "warning": "warning sign", "barrier": "barrier"}
_VEHICLES = {"truck": "truck", "bus": "bus", "motorcycle": "motorcycle", "bicycle": "bicycle"}


@dataclass(frozen=True)
class Boxes:
    """Boxes in the map frame.

    Attributes:
        centre_m: (N, 3).
        axes: (N, 3, 3); rows are the directions of a box's own axes.
        half_m: (N, 3) half sizes along them.
    """

    centre_m: np.ndarray
    axes: np.ndarray
    half_m: np.ndarray

    def __len__(self) -> int:
        return len(self.centre_m)

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, Any, Any]]) -> Boxes:
        """From (centre, axes, half sizes) of each."""
        if not rows:
            return cls(np.zeros((0, 3)), np.zeros((0, 3, 3)), np.zeros((0, 3)))
        return cls(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))

    def take(self, index: np.ndarray) -> Boxes:
        """Some of them."""
        return Boxes(self.centre_m[index], self.axes[index], self.half_m[index])

    @classmethod
    def join(cls, parts: Sequence[Boxes]) -> Boxes:
        """All of several."""
        names = ("centre_m", "axes", "half_m")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @cached_property
    def corners_m(self) -> np.ndarray:
        """(N, 8, 3)."""
        signs = np.array([(x, y, z) for x in (1, -1) for y in (1, -1) for z in (1, -1)], dtype=np.float64)
        return self.centre_m[:, None] + np.einsum("kj,nj,njc->nkc", signs, self.half_m, self.axes)


@dataclass(frozen=True)
class Thing:
    """What a box is.

    Attributes:
        id: of its actor; heads of a light share theirs.
        label: `car`, `truck`, `bus`, `motorcycle`, `bicycle`, `pedestrian`, `traffic light`, `stop sign`,
            `traffic cone`, `warning sign`, `barrier` or `obstacle`.
        state: of a traffic light, what it shows.
        faces_rad: direction in which its face looks, map frame; None where all sides count.
    """

    id: int
    label: str
    state: str = ""
    faces_rad: float | None = None


class BoxReader:
    """Reads the boxes of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._known: dict[int, tuple[str, np.ndarray, np.ndarray]] = {}  # label, box's centre and half sizes
        self._others: set[int] = set()
        self._heads: dict[int, list[tuple[Any, Any, Any]]] = {}
        self._scenery: Boxes | None = None

    @property
    def scenery(self) -> Boxes:
        """Buildings, walls and hedges."""
        if self._scenery is None:
            kinds = carla.CityObjectLabel
            boxes = [box for kind in (kinds.Buildings, kinds.Walls) for box in self._world.get_level_bbs(kind)]
            boxes += [box for box in self._world.get_level_bbs(kinds.Vegetation) if 2 * box.extent.z < HEDGE_M]
            self._scenery = Boxes.of([_row(box) for box in boxes])
        return self._scenery

    def read(self, snapshot: Any, around: Surroundings, near_m: np.ndarray) -> tuple[list[Thing], Boxes]:
        """Everything that may be seen from some places.

        Args:
            snapshot: of the tick.
            around: of the same tick, for lights and signs.
            near_m: (K, 2) places, map frame.
        """
        places = {item.id: item for item in snapshot}
        self._learn(places.keys())
        things, rows = [], []
        for actor_id, (label, middle, half) in self._known.items():
            item = places.get(actor_id)
            if item is None:
                continue
            transform = item.get_transform()
            here = xy_from_carla(transform.location.x, transform.location.y)
            if not _near(here, near_m):
                continue
            things.append(Thing(actor_id, label))
            matrix = np.array(transform.get_matrix())
            rows.append((flip_y(matrix[:3, :3] @ middle + matrix[:3, 3]), flip_y(matrix[:3, :3].T), half))
        for light in around.lights:
            if _near(light.area_m, near_m):
                for row in self._heads_of(light):
                    things.append(Thing(light.id, "traffic light", light.state.value, _towards(light.stop_lines[0].pose)
                                        if light.stop_lines else None))
                    rows.append(row)
        for sign in around.stop_signs:
            if _near(np.array([sign.pose.x_m, sign.pose.y_m]), near_m):
                things.append(Thing(sign.id, "stop sign", "", _sign_faces(sign)))
                rows.append(_sign_row(sign))
        return things, Boxes.of(rows)

    def _learn(self, ids: Iterable[int]) -> None:
        ids = set(ids)
        for gone in self._known.keys() - ids:
            del self._known[gone]
        new = ids - self._known.keys() - self._others
        if not new:
            return
        for actor in self._world.get_actors(sorted(new)):
            label = _label(actor)
            if label:
                box = actor.bounding_box
                self._known[actor.id] = label, _vector(box.location), _vector(box.extent)
            else:
                self._others.add(actor.id)

    def _heads_of(self, light: TrafficLight) -> list[tuple[Any, Any, Any]]:
        if light.id not in self._heads:
            actor = self._world.get_actor(light.id)
            self._heads[light.id] = [_row(box) for box in actor.get_light_boxes()]
        return self._heads[light.id]


def _label(actor: Any) -> str:
    kind = actor.type_id
    if not kind.startswith(LISTED):
        return ""
    if kind.startswith("vehicle."):
        return _VEHICLES.get(actor.attributes.get("base_type", ""), "car")
    if kind.startswith("walker."):
        return "pedestrian"
    box = actor.bounding_box.extent
    if 2 * box.z < 0.15:  # litter, which is driven over
        return ""
    return next((label for word, label in _PROPS.items() if word in kind), "obstacle")


def _vector(v: Any) -> np.ndarray:
    return np.array([v.x, v.y, v.z])


def _row(box: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre, axes and half sizes of a `carla.BoundingBox` of the world."""
    matrix = np.array(carla.Transform(box.location, box.rotation).get_matrix())[:3, :3]
    return flip_y(_vector(box.location)), flip_y(matrix.T), _vector(box.extent)


def _near(place_m: np.ndarray, near_m: np.ndarray) -> bool:
    return bool((np.hypot(near_m[:, 0] - place_m[0], near_m[:, 1] - place_m[1]) < REACH_M).any())


def _towards(line: Pose2D) -> float:
    """Where a head looks: against the traffic that it stops."""
    return line.yaw_rad + math.pi


def _sign_faces(sign: StopSign) -> float:
    """Where a sign's plate looks: its actor's x axis is to the right of the traffic that it stops."""
    return sign.pose.yaw_rad - math.pi / 2


def _sign_row(sign: StopSign) -> tuple[Any, Any, Any]:
    faces = _sign_faces(sign)
    ahead, left = np.array([math.cos(faces), math.sin(faces), 0.0]), np.array([-math.sin(faces), math.cos(faces), 0.0])
    centre = np.array([sign.pose.x_m, sign.pose.y_m, sign.z_m + SIGN_HEIGHT_M]) + 0.25 * ahead
    return centre, np.stack([ahead, left, [0.0, 0.0, 1.0]]), SIGN_HALF_M
