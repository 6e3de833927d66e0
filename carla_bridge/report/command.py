"""`wamdiff2 report`: the pages of a run folder, made again or compared with another run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carla_bridge.report import write_report
from wamdiff2_core.errors import ExitCode

report = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@report.command()
def write(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a drive or an evaluation.")],
    compare: Annotated[Path | None, typer.Option(help="Another run folder: write a comparison as well.")] = None,
    video: Annotated[bool, typer.Option(help="Make films where the run has pictures; takes minutes.")] = False,
) -> int:
    """Write the report of a run into its folder; no server is needed.

    Exit codes: 0 done; 2 wrong use; 3 the disk is full.
    """
    comparison = None
    if compare is not None:  # before anything is written
        from carla_bridge.report.compare import same_run
        from carla_bridge.report.compare_page import load_comparison, write_comparison

        comparison = load_comparison(run, compare)
        if same := same_run(comparison.first, comparison.second):
            typer.echo(f"note: {same}", err=True)
    typer.echo(write_report(run, video=video))
    if video and not any(run.rglob("*.mp4")):
        typer.echo("note: no film, as the run has no pictures: it was driven with --no-video", err=True)
    if comparison is not None:
        typer.echo(write_comparison(comparison))
        for line in comparison.in_words():
            typer.echo(line)
    return int(ExitCode.DONE)
