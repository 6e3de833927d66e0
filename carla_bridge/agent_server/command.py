"""`wamdiff2 agent-server`: the planner that CARLA's leaderboard agent talks to."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wamdiff2_core.cli.predict import BACKEND_HELP
from wamdiff2_core.errors import UserError
from wamdiff2_core.threads import wait_without_spinning

LOG = logging.getLogger(__name__)


def agent_server(
    checkpoint: Annotated[str, typer.Option(help="Checkpoint folder, or `random`.")],
    port: Annotated[int, typer.Option(help="TCP port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 2100,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    plan_every: Annotated[int, typer.Option(help="Ticks (of 50 ms) for which a plan is held.", min=1, max=20)] = 5,
    jpeg_quality: Annotated[int, typer.Option(help="JPEG round trip of every picture; 0: none.", min=0, max=100)] = 0,
    seed: Annotated[int, typer.Option(help="Of the random planner, or of sampling.")] = 0,
    deadline_ms: Annotated[
        float, typer.Option(help="Wall-clock milliseconds for a plan; 0: as the checkpoint's record says.")
    ] = 0.0,
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
    with_parent: Annotated[int, typer.Option(help="End when this process, the parent, ends.", hidden=True)] = 0,
) -> None:
    """Serve a planner to leaderboard agents until Ctrl-C or SIGTERM; a `ready` line tells the port."""
    from carla_bridge.agent_server.protocol import VERSION
    from carla_bridge.agent_server.server import AgentServer
    from carla_bridge.drive.run_setup import signals_as_interrupts
    from wamdiff2_core.planner import make_planner
    from wamdiff2_core.processes import end_with_parent

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if with_parent:
        end_with_parent(with_parent)
    if checkpoint != "random" and not Path(checkpoint).is_dir():
        raise UserError("--checkpoint", "a checkpoint folder, or random", checkpoint)
    options: dict[str, Any] = {"deadline_ms": deadline_ms} if deadline_ms else {}
    with signals_as_interrupts():
        planner = make_planner(checkpoint, device=device, seed=seed, backend=backend, **options)
        planner.warm_up()
        server = AgentServer(planner, str(checkpoint), port=port, every_ticks=plan_every, jpeg_quality=jpeg_quality)
        print(f"ready 127.0.0.1:{server.port} planner protocol {VERSION}", flush=True)
        try:
            server.serve()
        except KeyboardInterrupt:
            LOG.info("stopped")
        finally:
            server.close()


def main() -> int:
    """Entry of `python -m carla_bridge.agent_server.command`: the same command with the same exit codes."""
    from wamdiff2_core.cli.main import run_alone

    wait_without_spinning()  # the simulator and the evaluator want the same processor
    return run_alone(agent_server, "carla_bridge.agent_server.command")


if __name__ == "__main__":
    sys.exit(main())
