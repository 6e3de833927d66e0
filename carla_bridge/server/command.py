"""`wamdiff2 server`: the embedded world on a port."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import ExitCode, UserError

if TYPE_CHECKING:
    from carla_bridge.server.app import ServerConfig


def server(
    port: Annotated[int, typer.Option(help="RPC port; sensor streams use the next one.")] = 2000,
    town: Annotated[
        str | None, typer.Option(help="Town to start in: a shipped one, or one of --maps.", show_default="Wamtown01")
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="OpenDRIVE file to start in, instead of --town.")
    ] = None,
    maps: Annotated[
        Path | None, typer.Option(help="Folder of .xodr files; clients load them by name, such as Town01.")
    ] = None,
    with_parent: Annotated[int, typer.Option(help="End when this process, the parent, ends.", hidden=True)] = 0,
    dialect: Annotated[
        str, typer.Option("--client-version", help="CARLA version of the clients: 0.9.15 or 0.9.16.")
    ] = "0.9.16",
    seed: Annotated[int, typer.Option(help="Seed of the world's random choices.")] = 0,
    vehicles: Annotated[int, typer.Option(help="Vehicles that the server puts into each episode and drives.")] = 0,
    walkers: Annotated[int, typer.Option(help="Walkers that the server puts into each episode and moves.")] = 0,
    host: Annotated[str, typer.Option(help="IPv4 address to bind; 127.0.0.1 keeps it on this machine.")] = "127.0.0.1",
) -> None:
    """Serve the embedded world to CARLA clients until Ctrl-C or SIGTERM."""
    from carla_bridge.server.app import EmbeddedServer, ServerConfig
    from carla_bridge.server.protocol.worker import working
    from carla_bridge.server.town.town_library import DEFAULT_TOWN
    from wamdiff2_core.processes import end_with_parent

    if town is not None and map_file is not None:
        raise UserError("--map", "either --map or --town", f"--map {map_file} --town {town}")
    if with_parent:
        end_with_parent(with_parent)
    config = ServerConfig(port, host, town or DEFAULT_TOWN, map_file, maps, seed, dialect, vehicles, walkers)
    EmbeddedServer(config).run(lambda: announce(config))
    if working():
        # The map library aborts a process that ends while one of its calls is running: go without an orderly end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.DONE)


def announce(config: ServerConfig) -> None:
    """Print the one line that tells a waiting parent that both ports accept connections."""
    from rich.console import Console

    Console(soft_wrap=True, highlight=False).print(
        f"ready {config.host}:{config.port} streams {config.port + 1} town {config.first_town}"
        f" CARLA protocol {config.dialect}"
    )


def main() -> None:
    """Entry of `python -m carla_bridge.server`: the same command with the same exit codes."""
    sys.exit(run_alone(server, "carla_bridge.server"))
