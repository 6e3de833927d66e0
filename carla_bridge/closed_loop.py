"""`wamdiff2 closed-loop`: drives routes with an agent, once or as an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from carla_bridge.agents.choice import WORDS, AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.bench2drive.wrapped import is_meant, run_wrapped
from carla_bridge.drive.drive import Drive
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.evaluation.request import Evaluation, select_routes
from carla_bridge.routes import DEMO_ROUTES
from carla_bridge.routes.route_file import RouteSpec, load_routes
from carla_bridge.server.town.town_library import TownLibrary
from wamdiff2_core.cli.predict import BACKEND_HELP
from wamdiff2_core.errors import UserError


class _Kind(NamedTuple):
    """What decides which options have a meaning."""

    passive: bool
    evaluates: bool
    over_ros: bool
    embedded: bool
    scenarios: bool


# Options that would silently do nothing: what must stand beside each, and whether it does.
EVALUATES = ("--workers or --cluster beside it", lambda kind: kind.evaluates)
HAS_HERO = ("--passive beside it", lambda kind: kind.passive)
MEANINGFUL: dict[str, tuple[str, Callable[[_Kind], bool]]] = {
    "hero": HAS_HERO,
    "tick_wait": HAS_HERO,
    "latency": ("none with --passive: the world does not wait for plans", lambda kind: not kind.passive),
    "scenarios": ("none with --passive: the world is its owner's", lambda kind: not (kind.passive and kind.scenarios)),
    "plan_wait": ("a planner that is asked over ROS", lambda kind: kind.over_ros),
    "maps": ("none with --carla: that server has its own towns", lambda kind: kind.embedded),
    "repeats": EVALUATES,
    "retries": EVALUATES,
    "overwrite": EVALUATES,
}


def default_out() -> Path:
    """A folder below `runs/`, named by the time."""
    return Path("runs") / datetime.now().strftime("drive-%Y%m%d-%H%M%S")


closed_loop = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@closed_loop.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def run_closed_loop(
    context: typer.Context,
    routes: Annotated[Path, typer.Option(help="Route file (Bench2Drive's XML form).")] = DEMO_ROUTES,
    routes_subset: Annotated[
        str | None, typer.Option(help="Ids and ranges of them, such as 1711,24206-28048.")
    ] = None,
    planner: Annotated[str, typer.Option(help="One of " + ", ".join(WORDS) + ", or a checkpoint folder.")] = "nano",
    link: Annotated[str, typer.Option(help="How a checkpoint is asked: ros or in-process.")] = "",
    latency: Annotated[str, typer.Option(help="When plans act: lockstep, measured, or milliseconds.")] = "lockstep",
    deadline_ms: Annotated[float, typer.Option(
        help="Wall-clock milliseconds that a checkpoint has for a plan; 0: as its record says. Answers then depend on "
        "the machine, in lockstep too, where only simulated time waits: no drive with a deadline can be reproduced.",
    )] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Run folder; the default is runs/drive-TIME.")] = None,
    carla: Annotated[str, typer.Option(help="HOST:PORT of a running server; none: the embedded one is started.")] = "",
    maps: Annotated[Path | None, typer.Option(help="Folder of .xodr files, for towns of the embedded server.")] = None,
    passive: Annotated[bool, typer.Option(
        "--passive", help="Drive a vehicle that is there in the world of --carla, which somebody else ticks.",
    )] = False,
    hero: Annotated[str, typer.Option(help="Role name of that vehicle.")] = "hero",
    tick_wait: Annotated[float, typer.Option(min=0.1, help="Wall-clock seconds to wait for its owner's tick.")] = 20.0,
    scenarios: Annotated[bool, typer.Option(help="Play the scenarios of the routes, or leave them out.")] = True,
    vehicles: Annotated[int, typer.Option(min=0, help="Vehicles of background traffic.")] = 0,
    walkers: Annotated[int, typer.Option(min=0, help="Walkers of background traffic, in the embedded world.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the embedded world and of a random planner, 0 or more.")] = 0,
    device: Annotated[str, typer.Option(help="Torch device of the planner.")] = "cpu",
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
    blank_camera: Annotated[bool, typer.Option(
        "--blank-camera", help="Black pictures for the planner, to see what it owes to its camera.",
    )] = False,
    plan_wait: Annotated[float, typer.Option(min=0.1, help="Wall-clock seconds to wait for a plan.")] = 5.0,
    video: Annotated[bool, typer.Option(help="Pictures for people, and without --workers a film of them.")] = True,
    workers: Annotated[int, typer.Option(
        min=0, help="Evaluate: a process a route, so many at a time, journaled in OUT; 0 drives in this process.",
    )] = 0,
    cluster: Annotated[str, typer.Option(
        help="Evaluate on the nodes of a Ray cluster, HOST:PORT of its head; --workers then limits how many at a time.",
    )] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Drives of each route, each with the next seed.")] = 1,
    retries: Annotated[int, typer.Option(min=0, help="More attempts at a drive that the infrastructure spoilt.")] = 2,
    overwrite: Annotated[bool, typer.Option(help="Begin an evaluation anew.")] = False,
    bench2drive: Annotated[bool | None, typer.Option(
        "--bench2drive/--no-bench2drive", help="Let Bench2Drive's own evaluator drive. By default where "
        "BENCH2DRIVE_ROOT is set, for checkpoints, without --carla.", show_default=False,
    )] = None,
) -> int:
    """Drive routes closed loop, and write results, report and video; arguments after -- go to ROS.

    With --workers or --cluster an evaluation is begun, or gone on with where it was killed. With BENCH2DRIVE_ROOT it is
    Bench2Drive's.
    Exit codes: 0 all routes completed; 1 some failed; 2 wrong use; 3 the server or the planner did not run.
    """
    if context.args and context.args[0] != "--ros-args":
        raise UserError("arguments", "options, or -- --ros-args with ROS arguments", " ".join(context.args))
    agent = AgentChoice.parse(planner, link, deadline_ms, backend)
    if not cluster:  # its nodes have devices of their own
        agent.check_device(device)
    given = {name for name in context.params if _was_given(context, name)}
    if is_meant(bench2drive, agent, carla, passive):
        return run_wrapped(
            agent, given, out=out, routes=routes if "routes" in given else None, routes_subset=routes_subset,
            maps=maps, workers=workers, retries=retries, seed=seed, device=device,
        )
    kind = _Kind(passive=passive, evaluates=workers > 0 or bool(cluster), over_ros=agent.link == "ros",
                 embedded=not carla, scenarios=scenarios)
    for name in sorted(given & MEANINGFUL.keys()):
        beside, holds = MEANINGFUL[name]
        if not holds(kind):
            raise UserError("--" + name.replace("_", "-"), beside, context.params[name])
    config = DriveConfig(
        routes=routes, agent=agent, out=out or default_out(),
        latency=LatencyMode("live") if passive else LatencyMode.parse(latency), carla=carla, seed=seed, device=device,
        patience=Patience(wait_s=plan_wait), video=video, maps=maps, ros_arguments=tuple(context.args),
        vehicles=vehicles, walkers=walkers, scenarios=scenarios and not passive, hero=hero if passive else "",
        tick_wait_s=tick_wait, blank_camera=blank_camera,
    )
    specs = select_routes(load_routes(routes), routes_subset)
    if not kind.evaluates:
        return _drive_once(config, specs)
    if out is None:
        raise UserError("--out", "a folder, by which an evaluation is gone on with", "none", "add --out FOLDER")
    if carla and workers > 1:
        raise UserError("--workers", "1 with --carla: a server drives one route at a time", workers)
    return _evaluate(Evaluation(config, specs, repeats, retries), workers, cluster, overwrite)


def _drive_once(config: DriveConfig, specs: tuple[RouteSpec, ...]) -> int:
    """Drive in this process, and return the exit code."""
    towns = TownLibrary(config.maps)
    for town in dict.fromkeys(spec.town for spec in specs if not config.carla):
        towns.find(town, "town in --routes")
    return int(Drive(config, specs).run().exit_code)


def _evaluate(evaluation: Evaluation, workers: int, cluster: str, overwrite: bool) -> int:
    """Drive in processes of their own, here or on the nodes of a cluster, and return the exit code."""
    from carla_bridge.evaluation.evaluator import Evaluator
    from carla_bridge.evaluation.pool import LocalPool, Pool

    pool: Pool = LocalPool(workers)
    if cluster:
        from carla_bridge.evaluation.cluster import ClusterPool

        pool = ClusterPool(cluster, evaluation, workers)
    return int(Evaluator(evaluation, pool, overwrite=overwrite).run().exit_code)


def _was_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
