"""`wamdiff2 node`: the planner node without a ROS installation or launch file; `wamdiff2 bench node` measures it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

node = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@node.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_node(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint folder, or 'random'.")] = "",
) -> None:
    """Run the planner node until Ctrl-C; what follows --ros-args goes to ROS, such as --ros-args -r __ns:=/ego."""
    from wamdiff2_ros.planner_node import run
    from wamdiff2_ros.shutdown import end_process

    arguments = ["wamdiff2", *context.args]
    if checkpoint:
        arguments += ["--ros-args", "-p", f"planner:={json.dumps(checkpoint)}"]  # ROS reads the value as YAML
    end_process(run(arguments, options=["--checkpoint"]))


def bench_node(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Checkpoint folder (checkpoints/wamdiff2-nano), or 'random'.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Images a second.")] = 10.0,
    frames: Annotated[int, typer.Option(min=1, help="Images to measure, after the first plan.")] = 200,
    image: Annotated[Path | None, typer.Option(help="Picture of the rig's size; without one it is made up.")] = None,
    deadline_ms: Annotated[float, typer.Option(min=0, max=60_000, help="Of a plan; 0: as the record says.")] = 0.0,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="Threads of torch in the node.")] = None,
    device: Annotated[str, typer.Option(help="Torch device of the node, or auto.")] = "cpu",
    backend: Annotated[str, typer.Option(help="What runs the model: auto (by device), or the name of one.")] = "auto",
    log: Annotated[Path, typer.Option(help="The node's output.")] = Path("runs/bench-node.log"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """The planner node as a process: from an image's stamp to its plan, start to first plan, and dropped images."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from wamdiff2_core.bench.command import DEFAULT_CHECKPOINT
    from wamdiff2_core.bench.machine import Machine
    from wamdiff2_core.bench.report import deliver, report
    from wamdiff2_core.bench.subjects import observation
    from wamdiff2_core.cli.predict import checked_device
    from wamdiff2_core.errors import UserError
    from wamdiff2_core.model.checkpoint import read_model_config
    from wamdiff2_core.outputs import writable_file
    from wamdiff2_core.planner import RANDOM
    from wamdiff2_core.serving_record import ServingRecord
    from wamdiff2_ros.bench import measure_node, node_command

    if not 0 < rate < math.inf:
        raise UserError("rate", "a finite number of images a second > 0", rate)
    device = checked_device(device, backend)
    planner = checkpoint or str(DEFAULT_CHECKPOINT)
    record = None
    if planner != RANDOM:
        read_model_config(Path(planner))
        record = ServingRecord.load(Path(planner))
        planner = str(Path(planner).resolve())
    for name, file in (("json", json_file), ("log", log)):
        if file is not None:
            writable_file(file, name)
    if json_file is not None and json_file.resolve() == log.resolve():
        raise UserError("json", "another file than --log", str(json_file))
    namespace = f"wamdiff2_bench_{os.getpid()}"
    command = node_command(planner, namespace, device=device, backend=backend, threads=threads, deadline_ms=deadline_ms)
    columns = TextColumn("bench node"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("bench node", total=frames)
        figures = measure_node(
            command, namespace, observation(record.rig if record is not None else (), image), rate, frames, log,
            lambda done: progress.update(task, completed=done),
        )
    here = Machine.of(torch.device("cpu"))
    machine = replace(here, device=device, threads=threads or here.threads)
    result = report(
        checkpoint or str(DEFAULT_CHECKPOINT), figures.rows, machine, {}, rate_hz=rate, deadline_ms=deadline_ms,
        inputs=figures.inputs, seconds=figures.seconds, peak_memory_gib=figures.peak_memory_gib,
    )
    deliver(f"{result['subject']}: planner node, {frames} images at {rate:g} Hz", result, json_file)
    told = ", ".join(f"{number} {name}" for name, number in figures.inputs.items())
    Console(soft_wrap=True, highlight=False, markup=False).print(f"images: {told}; {figures.seconds:.1f} s")
