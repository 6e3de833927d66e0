"""`wamdiff2 score`: figures from result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from carla_bridge.score.bench2drive import score_files
from carla_bridge.score.route_sets import DEFAULT_SET
from carla_bridge.score.table import print_score
from wamdiff2_core.errors import ExitCode

score = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@score.callback(invoke_without_command=True)
def scores(context: typer.Context) -> None:
    """Scores from result files; no server is needed."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@score.command()
def bench2drive(
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Result files, folders or patterns.")],
    routes: Annotated[
        str, typer.Option(help="Expected routes: a route file, or a shipped set: bench2drive220, bench2drive-0.0.4, "
                          "dev10, embedded-20, embedded-40.")
    ] = DEFAULT_SET,
    routes_subset: Annotated[
        str | None, typer.Option(help="Expect these of them only: ids, and ranges in the order of a route file.")
    ] = None,
    maps: Annotated[
        Path | None, typer.Option(help="Folder with TownXX.xodr: junction rule of traffic signs; needs a route file.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Folder of the agent's SAVE_PATH with metric_info.json files: comfort.")
    ] = None,
    repetition: Annotated[int | None, typer.Option(min=0, help="Score this repetition only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> int:
    """Driving score, success rate, abilities, efficiency and comfort of leaderboard result files.

    Exit codes: 0 figures stated; 1 problems forbid a headline, bounds are given; 2 wrong use, or no record at all.
    """
    result = score_files(paths, routes, subset=routes_subset, maps=maps, metrics=metrics, repetition=repetition)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2, allow_nan=False))
    else:
        print_score(result, Console(highlight=False))
    return int(ExitCode.DONE if result.headline else ExitCode.FAILED_ITEMS)
