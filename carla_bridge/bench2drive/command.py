"""`wamdiff2 bench2drive-evaluator`: Bench2Drive's own evaluator over many routes, journaled, and its results scored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wamdiff2_core.errors import ExitCode, UserError

PYTHON38 = Path(".venv38") / "bin" / "python"
PYTHON_VARIABLE, API_VARIABLE = "BENCH2DRIVE_PYTHON", "CARLA_API"


def bench2drive_evaluator(
    out: Annotated[Path, typer.Option(help="Folder of the run; the same folder goes on with it.")],
    root: Annotated[Path | None, typer.Option(envvar="BENCH2DRIVE_ROOT", help="Bench2Drive's checkout.")] = None,
    agent_config: Annotated[
        str, typer.Option(help="Checkpoint folder, or HOST:PORT of a `wamdiff2 agent-server`.")
    ] = "checkpoints/wamdiff2-nano",
    routes: Annotated[
        Path | None, typer.Option(help="Route file.", show_default="bench2drive220.xml of the checkout")
    ] = None,
    routes_subset: Annotated[str | None, typer.Option(help="Ids and ranges, such as 1711,24206-28048.")] = None,
    towns: Annotated[str, typer.Option(help="Only routes in these towns, such as Town01,Town02.")] = "",
    carla_root: Annotated[
        Path | None, typer.Option(envvar="CARLA_ROOT", help="Folder of CarlaUE4.sh.", show_default="the embedded world")
    ] = None,
    carla_api: Annotated[
        Path | None, typer.Option(
            envvar=API_VARIABLE, help="Folder with CARLA's `agents`.", show_default="CARLA_ROOT/PythonAPI/carla",
        )
    ] = None,
    maps: Annotated[Path | None, typer.Option(help="OpenDRIVE files for the embedded world.")] = None,
    python: Annotated[
        Path, typer.Option(envvar=PYTHON_VARIABLE, help="Python 3.8 with the evaluator's requirements.")
    ] = PYTHON38,
    device: Annotated[str, typer.Option(help="Torch device of planners that agents start.")] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Evaluators at a time, each with its own CARLA.")] = 1,
    retries: Annotated[int, typer.Option(min=0, help="More attempts at a route that a program has spoilt.")] = 2,
    stall_s: Annotated[float, typer.Option(min=60.0, help="Give an evaluator up that is silent for so long.")] = 600.0,
    gpu_rank: Annotated[int, typer.Option(min=0, help="GPU of CARLA.")] = 0,
    traffic_seed: Annotated[int, typer.Option(min=0, help="Seed of CARLA's traffic manager.")] = 0,
) -> int:
    """Run Bench2Drive's unmodified evaluator with our agent, one process a route, and score what it wrote.

    Exit codes: 0 all routes have a result; 1 some have none, or scores are withheld; 2 wrong use.
    """
    from carla_bridge.bench2drive.attempt import EvaluatorOptions
    from carla_bridge.bench2drive.checkout import EMBEDDED_ROOT, Checkout
    from carla_bridge.bench2drive.evaluator import AGENT, ROUTES_NAME, Bench2DriveRun, RunConfig, outcome_table
    from carla_bridge.evaluation.request import select_routes
    from carla_bridge.routes.route_file import load_routes
    from carla_bridge.score.bench2drive import score_files
    from carla_bridge.score.sources import SHARDS
    from carla_bridge.score.table import print_score

    if root is None:
        raise UserError("BENCH2DRIVE_ROOT", "Bench2Drive's checkout", "nothing", "set it, or give --root")
    home = carla_root or EMBEDDED_ROOT
    checkout = Checkout(
        root.resolve(), home.resolve(), python.absolute(), (carla_api or home / "PythonAPI" / "carla").resolve(),
        maps.resolve() if maps is not None else None,
    )
    version = checkout.check()
    file = routes or root / "leaderboard" / "data" / "bench2drive220.xml"
    specs = select_routes(load_routes(file), routes_subset)
    if towns:
        wanted = towns.replace(" ", "").split(",")
        unknown = set(wanted) - {spec.town for spec in specs}
        if unknown:
            raise UserError("--towns", "towns of the routes", ", ".join(sorted(unknown)))
        specs = tuple(spec for spec in specs if spec.town in wanted)
    config, planner = _agent(agent_config)
    options = EvaluatorOptions(checkout, file, config, device, gpu_rank, traffic_seed, stall_s)
    run = RunConfig(
        options, tuple((spec.id, spec.town) for spec in specs), out.resolve(), workers, retries, planner,
        version,
    )
    last = Bench2DriveRun(run).drive()
    console = Console(highlight=False)
    console.print(outcome_table(run, last))
    if not any(item["kept"] for item in last):
        console.print("no route has a result; see the logs in", out / "attempts")
        return int(ExitCode.FAILED_ITEMS)
    score = score_files([run.out / SHARDS], str(run.out / ROUTES_NAME), metrics=run.out / AGENT)
    print_score(score, console)
    return int(ExitCode.DONE if len(last) == len(specs) and score.headline else ExitCode.FAILED_ITEMS)


def _agent(config: str) -> tuple[str, str]:
    """The agent's configuration with a path that holds everywhere, and a name that tells its weights apart."""
    if re.fullmatch(r"[\w.-]+:\d+", config):
        return config, config
    folder = Path(config).resolve()
    if "+" in str(folder):
        raise UserError("--agent-config", "a path without a +, which the evaluator uses itself", str(folder))
    if config == "random":
        return config, config
    if not folder.is_dir():
        raise UserError("--agent-config", "a checkpoint folder, or HOST:PORT", config)
    from wamdiff2_core.model.checkpoint import checkpoint_hash

    return str(folder), f"{folder.name} {checkpoint_hash(folder)}"
