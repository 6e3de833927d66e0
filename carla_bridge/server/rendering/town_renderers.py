"""Renderers of towns: laid out in the background, and the last few used are kept.

Laying out a town takes seconds, and a client gives a request no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from carla_bridge.server.geometry.scene import RenderActor, RenderCamera, RenderSignal, StaticBox
from carla_bridge.server.protocol.worker import Worker
from carla_bridge.server.rendering.buffer_pictures import Buffers
from carla_bridge.server.weather import CLEAR_NOON, Weather

if TYPE_CHECKING:
    from carla_bridge.server.town.road_signals import SignalSpec

KEPT_RENDERERS = 3

class LayoutEndedError(Exception):
    """The town that is laid out is no longer the present one."""


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

    def buffers(
        self, camera: RenderCamera, actors: Sequence[RenderActor] = (), signals: Sequence[RenderSignal] = ()
    ) -> Buffers:
        """Depth and labels."""


MakeRenderer = Callable[[TownLike, Callable[[], None]], RendererLike]


class TownRenderers:
    """The renderer of the present town, and those of the last few, for a quick way back.

    Args:
        make_renderer: builds the renderer of a town; it calls its second argument now and then, which ends the layout
            of a town that has been left meanwhile.
    """

    def __init__(self, make_renderer: MakeRenderer) -> None:
        self._make_renderer = make_renderer
        self._worker = Worker("layout")
        self._known: dict[tuple[str, str], _Layout] = {}  # by last use; scenery depends on the name, too
        self._present: _Layout | None = None

    def enter(self, town: TownLike) -> None:
        """Make a town the present one; its renderer is built in the background where it is not at hand, or failed."""
        key = town.name, town.opendrive
        known = self._known.pop(key, None)
        if known is None or known.failed:
            known = _Layout(self._worker, self._make_renderer, town)
        for other, layout in list(self._known.items()):
            if not layout.renderer.done():
                layout.cancel()
                del self._known[other]
        self._present = self._known[key] = known
        self._known = dict(list(self._known.items())[-KEPT_RENDERERS:])

    def current(self) -> RendererLike:
        """Renderer of the present town; waits for it."""
        return self.layout.result()

    @property
    def layout(self) -> Future[RendererLike]:
        """Renderer of the present town, once it is there."""
        assert self._present is not None
        return self._present.renderer


class _Layout:
    """A renderer that is built, or is to be."""

    def __init__(self, worker: Worker, make_renderer: MakeRenderer, town: TownLike) -> None:
        self._wanted = True
        self.renderer: Future[RendererLike] = worker.submit(lambda: make_renderer(town, self._go_on))

    @property
    def failed(self) -> bool:
        """Whether there will never be a renderer."""
        return self.renderer.done() and (self.renderer.cancelled() or self.renderer.exception() is not None)

    def cancel(self) -> None:
        """Have it ended, or not begun."""
        self._wanted = False
        self.renderer.cancel()

    def _go_on(self) -> None:
        """For the thread that builds it."""
        if not self._wanted:
            raise LayoutEndedError
