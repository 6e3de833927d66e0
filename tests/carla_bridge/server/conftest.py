"""A world without sockets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from carla_bridge.server.geometry.scene import StaticBox
from carla_bridge.server.protocol.streams import StreamHub
from carla_bridge.server.world import World


class RecordingHub(StreamHub):
    """Keeps what would be sent; `listened` are the streams that someone reads."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 2001)
        self.sent: list[tuple[int, bytes]] = []
        self.listened: set[int] = set()

    def listening(self, stream_id: int) -> bool:
        return stream_id in self.listened

    def send(self, stream_id: int, payload: bytes) -> None:
        self.sent.append((stream_id, payload))

    def take(self, stream_id: int) -> list[bytes]:
        """Payloads of one stream so far; forgets them."""
        taken = [payload for sid, payload in self.sent if sid == stream_id]
        self.sent = [item for item in self.sent if item[0] != stream_id]
        return taken


class CountingRenderer:
    """Flat pictures, and how often one was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list]] = []
        self.scenes: list[tuple] = []

    def render(self, camera: Any, actors: Any = (), *scene: Any) -> np.ndarray:
        self.calls.append((camera, list(actors)))
        self.scenes.append(scene)
        return np.full((camera.height, camera.width, 4), 7, np.uint8)


def flat_town(boxes: tuple[StaticBox, ...] = (), name: str = "Flat") -> Any:
    """A town without roads."""
    text = "<OpenDRIVE><header><geoReference>+lat_0=10.0 +lon_0=20.0</geoReference></header></OpenDRIVE>"
    return SimpleNamespace(name=name, opendrive=text, spawn_points=[], static_boxes=boxes, signals=())


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Builds a world over a recording hub; `world.renderer` counts pictures."""

    def make(boxes: tuple[StaticBox, ...] = (), seed: int = 0, **options: Any) -> World:
        renderer = CountingRenderer()
        world = World(
            flat_town(boxes),
            RecordingHub(),
            load_town=lambda name: flat_town(name=name),
            parse_town=lambda name, text: flat_town(name=name),
            make_renderer=lambda town, go_on: renderer,
            seed=seed,
            **options,
        )
        world.renderer = renderer  # type: ignore[attr-defined]
        return world

    return make
