"""The server as a whole: two ports, one event loop, and the clock of asynchronous mode."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from carla_bridge.server.background import check_background
from carla_bridge.server.handlers import all_methods
from carla_bridge.server.protocol.dialect import DEFAULT_VERSION, dialect_of
from carla_bridge.server.protocol.doorkeeper import Doorkeeper
from carla_bridge.server.protocol.rpc import RpcConnection
from carla_bridge.server.protocol.streams import StreamHub
from carla_bridge.server.protocol.worker import Worker
from carla_bridge.server.rendering.town_renderers import MakeRenderer, RendererLike, TownLike
from carla_bridge.server.town.town_library import DEFAULT_TOWN, TownLibrary
from carla_bridge.server.town.town_shelf import TownShelf
from carla_bridge.server.traffic.traffic import Background
from carla_bridge.server.world import World, place_signals
from wamdiff2_core.errors import InfrastructureError, UserError

LOG = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True)
class ServerConfig:
    """How to serve.

    Attributes:
        port: of the RPC; streams use the next one.
        host: IPv4 address to bind.
        town: name of the first town.
        map_file: OpenDRIVE file of the first town instead.
        maps_folder: where further towns are found by name, as `NAME.xodr`.
        seed: of the world's random choices.
        dialect: CARLA version of the clients.
        vehicles, walkers: how many the server itself puts into each episode and drives.

    Raises:
        UserError: an address, version, file or folder that cannot be, or no town of that name.
    """

    port: int = 2000
    host: str = "127.0.0.1"
    town: str = DEFAULT_TOWN
    map_file: Path | None = None
    maps_folder: Path | None = None
    seed: int = 0
    dialect: str = DEFAULT_VERSION
    vehicles: int = 0
    walkers: int = 0

    def __post_init__(self) -> None:
        dialect_of(self.dialect)
        self.towns.find(self.first_town, "--town")
        if not 1 <= self.port <= 65534:
            raise UserError("--port", "1..65534 (streams use the next one)", self.port)
        check_background(self.vehicles, self.walkers)
        if self.seed < 0:
            raise UserError("--seed", "0 or more", self.seed)
        try:
            ipaddress.IPv4Address(self.host)
        except ValueError as error:
            raise UserError("--host", "an IPv4 address", self.host, "127.0.0.1 for this machine only") from error

    @property
    def towns(self) -> TownLibrary:
        """All towns that can be loaded by name."""
        return TownLibrary(self.maps_folder, self.map_file)

    @property
    def first_town(self) -> str:
        """Name of the town to start in."""
        return self.town if self.map_file is None else self.map_file.stem


class EmbeddedServer:
    """The server, to be run in this thread or, in tests, in one of its own.

    A `carla.Client` must not live in the same process: some of its calls keep the interpreter lock while they wait for
    the server, which then cannot answer.

    Args:
        config: how to serve.
        make_town, make_renderer: replace the town and the renderer, for tests.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        make_town: Callable[[str], TownLike] | None = None,
        make_renderer: MakeRenderer | None = None,
    ) -> None:
        self.config = config
        self._make_town, self._make_renderer = make_town or self._load_town, make_renderer or _load_renderer
        self._shelf = TownShelf()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.world: World | None = None

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`, SIGTERM or SIGINT.

        Args:
            on_ready: called once both ports accept connections.

        Raises:
            InfrastructureError: a port is taken.
            UserError: no such town.
        """
        # While another thread lays out a town, each system call hands it the interpreter for one switch interval.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        asyncio.run(self._serve(on_ready))

    def stop(self) -> None:
        """End `run`; may be called from any thread."""
        if self._loop is not None and self._stopped is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stopped.set)

    def __enter__(self) -> EmbeddedServer:
        ready, failure = threading.Event(), []

        def work() -> None:
            try:
                self.run(ready.set)
            except Exception as error:
                failure.append(error)
                ready.set()

        self._thread = threading.Thread(target=work, name="embedded-server", daemon=True)
        self._thread.start()
        ready.wait()
        if failure:
            raise failure[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _load_town(self, name: str) -> TownLike:
        path = self.config.towns.find(name)
        try:
            return self._shelf.load(path)
        except UserError as error:
            if path == self.config.map_file:
                raise UserError("--map", error.expected, f"{path}: {error.got}") from error
            raise

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        config = self.config
        with contextlib.ExitStack() as sockets:
            # Both ports first: a taken one is told at once, not after the town is laid out.
            rpc_socket, stream_socket = (sockets.enter_context(_bind(config.host, config.port + i)) for i in (0, 1))
            hub, traffic = StreamHub(config.host, config.port + 1), Background(config.vehicles, config.walkers)
            self.world = world = World(
                self._make_town(config.first_town),
                hub,
                load_town=self._make_town,
                parse_town=_parse_town,
                make_renderer=self._make_renderer,
                make_signals=place_signals,
                make_traffic=traffic.make,
                prepare_traffic=traffic.prepare,
                town_names=config.towns.names,
                seed=config.seed,
                dialect=dialect_of(config.dialect),
            )
            table, callers, worker = all_methods(), Doorkeeper(), Worker("loading")
            with _port_errors(config.host, config.port):
                rpc = await self._loop.create_server(
                    lambda: RpcConnection(table, world, callers, worker), sock=rpc_socket
                )
                streams = await self._loop.create_server(hub.protocol, sock=stream_socket)
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.add_signal_handler(number, self._stopped.set)
            clock = asyncio.create_task(_free_running(world))
            try:
                on_ready()
                await self._stopped.wait()
            finally:
                clock.cancel()
                rpc.close()
                streams.close()
                callers.close()
                hub.close()


def _bind(host: str, port: int) -> socket.socket:
    with _port_errors(host, port):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError:
            bound.close()
            raise
        return bound


@contextlib.contextmanager
def _port_errors(host: str, port: int) -> Iterator[None]:
    """Say what to do about a port that cannot be had."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRNOTAVAIL:
            fix = "--host must be an address of this machine: 127.0.0.1, or 0.0.0.0 for all it has"
        else:
            fix = "stop what uses it, or choose another --port (the server needs that port and the next one)"
        raise InfrastructureError(f"cannot listen on {host}:{port}: {reason}; {fix}") from error


async def _free_running(world: World) -> None:
    """Tick in wall-clock time while the world is asynchronous."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + world.delta_s, loop.time())
        await asyncio.sleep(due - loop.time())
        if not world.settings.synchronous:
            try:
                layout = world.awaited_layout()
                if layout is not None:
                    await asyncio.wait({asyncio.wrap_future(layout)})
                world.step(world.delta_s)
            except Exception:  # one bad tick must not stop time
                LOG.exception("tick %d failed", world.frame)


def _parse_town(name: str, opendrive: str) -> TownLike:
    from carla_bridge.server.town.town import Town

    return Town.from_opendrive(name, opendrive)


def _load_renderer(town: TownLike, go_on: Callable[[], None]) -> RendererLike:
    from carla_bridge.server.rendering.renderer import Renderer

    return Renderer(town, go_on)
