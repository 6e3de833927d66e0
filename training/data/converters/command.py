"""`wamdiff2 data convert NAME SRC OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from training.data.converters import coco as coco_set
from training.data.converters import drivelm as drivelm_set
from training.data.converters import lingoqa as lingoqa_set
from training.data.converters import navsim as navsim_set
from training.data.converters import simlingo as simlingo_set
from training.data.converters.common import Writer
from wamdiff2_core.errors import ExitCode

convert = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_Src = Annotated[Path, typer.Argument(help="Where the data set lies, as it was unpacked.")]
_Out = Annotated[Path, typer.Argument(help="Conversation file to write, .jsonl; images are named relative to it.")]
_Limit = Annotated[int, typer.Option(min=0, help="Samples at most; 0 for all.")]


@convert.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Published data sets to conversation files; images stay where they are.

    Exit codes: 0 all written; 1 written, but something in the data is broken; 2 wrong use.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@convert.command()
def navsim(
    src: _Src,
    out: _Out,
    split: Annotated[str, typer.Option(help="Folder of logs and images.")] = "trainval",
    scene_filter: Annotated[
        Path | None, typer.Option(help="NAVSIM's scene filter file, such as navtrain.yaml; all windows without one.")
    ] = None,
    prompt: Annotated[
        Literal["upstream", "paper"], typer.Option(help="Front camera and the authors' data sample, or the paper's.")
    ] = "upstream",
    limit: _Limit = 0,
) -> int:
    """NAVSIM planning: navsim_logs and sensor_blobs."""
    scenes = navsim_set.SceneFilter() if scene_filter is None else navsim_set.SceneFilter.load(scene_filter)
    with Writer(out, "navsim", limit) as writer:
        navsim_set.convert(src, writer, split, scenes, "navsim_upstream" if prompt == "upstream" else "navsim_paper")
    return _account(writer)


@convert.command()
def drivelm(
    src: _Src,
    out: _Out,
    views: Annotated[
        Literal["auto", "six", "front"],
        typer.Option(help="Cameras: all six, the front one, or the one that all tags of a question name, else six."),
    ] = "auto",
    limit: _Limit = 0,
) -> int:
    """DriveLM-nuScenes questions: v1_1_train_nus.json and nuscenes/samples."""
    with Writer(out, "drivelm", limit) as writer:
        drivelm_set.convert(src, writer, views)
    return _account(writer)


@convert.command()
def lingoqa(src: _Src, out: _Out, limit: _Limit = 0) -> int:
    """LingoQA questions: train.parquet of scenery and action, each with its images."""
    with Writer(out, "lingoqa", limit) as writer:
        lingoqa_set.convert(src, writer)
    return _account(writer)


@convert.command()
def coco(
    src: _Src,
    out: _Out,
    split: Annotated[str, typer.Option(help="train2017 or val2017.")] = "train2017",
    per: Annotated[
        Literal["image", "category"], typer.Option(help="A sample asks for all categories of an image, or for one.")
    ] = "image",
    limit: _Limit = 0,
) -> int:
    """COCO grounding: annotations/instances_SPLIT.json and SPLIT."""
    with Writer(out, "coco", limit) as writer:
        coco_set.convert(src, writer, split, per)
    return _account(writer)


@convert.command()
def simlingo(
    src: _Src,
    out: _Out,
    failed_routes: Annotated[bool, typer.Option("--failed-routes", help="Keep routes that the expert failed.")] = False,
    limit: _Limit = 0,
) -> int:
    """SimLingo's Bench2Drive planning: measurements, rgb and results of each route."""
    with Writer(out, "simlingo", limit) as writer:
        simlingo_set.convert(src, writer, failed_routes)
    return _account(writer)


def _account(writer: Writer) -> int:
    """Tell what was written and what was not; problems make the exit code 1."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{writer.count:,} samples in {escape(str(writer.out))}")
    for reason, count in writer.left_out.most_common():
        console.print(f"left out: {count:,} {escape(reason)}")
    for kind, count in writer.problems.most_common():
        console.print(f"[bold red]problem:[/] {count:,} {escape(kind)}")
    for example in writer.examples:
        console.print(f"  {escape(example)}")
    return int(ExitCode.FAILED_ITEMS if writer.problems else ExitCode.DONE)
