"""`wamdiff2 server`: the embedded world on a port."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError


def server(
    port: Annotated[int, typer.Option(help="RPC port; sensor streams use the next one.")] = 2000,
    town: Annotated[str, typer.Option(help="Name of a shipped town, or path of an OpenDRIVE file.")] = "Wamtown01",
    seed: Annotated[int, typer.Option(help="Seed of the world's random choices.")] = 0,
    host: Annotated[str, typer.Option(help="IPv4 address to bind; 127.0.0.1 keeps it on this machine.")] = "127.0.0.1",
) -> None:
    """Serve the embedded world to CARLA 0.9.16 clients until Ctrl-C or SIGTERM."""
    from carla_bridge.server.app import EmbeddedServer, ServerConfig
    from carla_bridge.server.world import laying_out

    config = ServerConfig(port=port, host=host, town=town, seed=seed)
    EmbeddedServer(config).run(lambda: announce(config))
    if laying_out():
        # The map library aborts a process that ends while one of its calls is running: go without an orderly end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.DONE)


def announce(config: object) -> None:
    """Print the one line that tells a waiting parent that both ports accept connections."""
    from rich.console import Console

    from carla_bridge.server.app import ServerConfig
    from carla_bridge.server.wire import PROTOCOL_VERSION

    assert isinstance(config, ServerConfig)
    Console(soft_wrap=True, highlight=False).print(
        f"ready {config.host}:{config.port} streams {config.port + 1} town {config.town}"
        f" CARLA protocol {PROTOCOL_VERSION}"
    )


def main() -> None:
    """Entry of `python -m carla_bridge.server`: the same command with the same exit codes."""
    app = typer.Typer(add_completion=False)
    app.command()(server)
    try:
        app(standalone_mode=False)
    except (UserError, InfrastructureError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_code))
