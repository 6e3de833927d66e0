"""Renderers of towns: laid out in the background, and the last few used are kept.

Laying out a town takes seconds, and a client gives a request no more than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from carla_bridge.server.geometry.scene import RenderActor, RenderCamera, RenderSignal, StaticBox
from carla_bridge.server.weather import CLEAR_NOON, Weather

if TYPE_CHECKING:
    from carla_bridge.server.town.road_signals import SignalSpec

KEPT_RENDERERS = 3
LAYOUT_THREAD = "town-layout"


class TownLike(Protocol):
    """What the world needs of a town."""

    @property
    def name(self) -> str:
        """Last part of the map name."""

    @property
    def opendrive(self) -> str:
        """OpenDRIVE text."""

    @property
    def spawn_points(self) -> Sequence[Any]:
        """Objects like `carla.Transform`."""

    @property
    def static_boxes(self) -> Sequence[StaticBox]:
        """Scenery that can be hit."""

    @property
    def signals(self) -> Sequence[SignalSpec]:
        """Traffic lights and signs."""


class RendererLike(Protocol):
    """What the world needs of a renderer."""

    def render(
        self,
        camera: RenderCamera,
        actors: Sequence[RenderActor] = (),
        signals: Sequence[RenderSignal] = (),
        weather: Weather = CLEAR_NOON,
        time_s: float = 0.0,
    ) -> Any:
        """(height, width, 4) uint8 BGRA."""


class TownRenderers:
    """The renderer of the present town, and those of the last few, for a quick way back.

    Args:
        make_renderer: builds the renderer of a town.
    """

    def __init__(self, make_renderer: Callable[[TownLike], RendererLike]) -> None:
        self._make_renderer = make_renderer
        self._known: dict[tuple[str, str], Future[RendererLike]] = {}  # by last use; scenery depends on the name, too
        self._current: Future[RendererLike] | None = None

    def enter(self, town: TownLike) -> None:
        """Make a town the present one; its renderer is built in the background where it is not at hand, or failed."""
        key = town.name, town.opendrive
        known = self._known.pop(key, None)
        if known is None or (known.done() and known.exception() is not None):
            known = _in_background(lambda: self._make_renderer(town))
        self._current = self._known[key] = known
        self._known = dict(list(self._known.items())[-KEPT_RENDERERS:])

    def current(self) -> RendererLike:
        """Renderer of the present town; waits for it."""
        assert self._current is not None
        return self._current.result()


def laying_out() -> bool:
    """Whether a town is being laid out in the background."""
    return any(thread.name == LAYOUT_THREAD for thread in threading.enumerate())


def _in_background(make: Callable[[], RendererLike]) -> Future[RendererLike]:
    """Run `make` in a thread that does not hold up the end of the program."""
    future: Future[RendererLike] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, name=LAYOUT_THREAD, daemon=True).start()
    return future
