"""`wamdiff2 train`: run one stage of training from a YAML file; `wamdiff2 evaluate`: open-loop figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wamdiff2_core.cli.predict import BACKEND_HELP, DEVICE_HELP, DTYPES, checked_device
from wamdiff2_core.errors import ExitCode, unknown_name
from wamdiff2_core.threads import set_threads

if TYPE_CHECKING:
    from rich.console import Console

train = typer.Typer(add_completion=False)


@train.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_stage(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file of the stage, such as training/configs/nano/b32.yaml.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and train nothing.")] = False,
) -> None:
    """Train one stage; `--section.key value` overrides the file.

    A stage that was stopped (exit code 1) goes on from its newest checkpoint. On several accelerators:
    `accelerate launch --config_file training/configs/accelerate/FILE.yaml -m training CONFIG`.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from training.config_file import load_stage

    stage, translated = load_stage(config, context.args)  # a wrong one is told before PyTorch is there, seconds later

    from training.assembly import assemble, check_stage, claim, make_accelerator
    from training.checkpoints import STAGE_NAME
    from training.plan import plan_lines
    from training.trainer import Trainer

    console = Console(stderr=True)
    if dry_run:
        for line in [*(translated.lines() if translated else []), *plan_lines(stage)]:
            typer.echo(line)
        return
    check_stage(stage)
    accelerator = make_accelerator(stage)
    main = accelerator.is_main_process
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )
    with claim(stage) if main else nullcontext():
        for line in translated.lines() if translated and main else []:
            console.print(line)
        parts = assemble(stage, accelerator)
        trainer = Trainer(stage, parts)
        if main:
            console.print(f"{stage.stage} into {stage.out}, whose {STAGE_NAME} has the configuration: "
                          f"{len(parts.mixture):,} samples, step {trainer.step} of {trainer.steps}")
            console.print(parts.parallel.describe())
            if parts.validation_over_long:
                counts = ", ".join(f"{name} {count:,}" for name, count in sorted(parts.validation_over_long.items()))
                console.print(f"validation: {len(parts.validation):,} samples, over a limit: {counts}")
        with Progress(*columns, console=console, disable=not main) as progress:
            line = trainer.train(progress)
        if main and len(line) == 1:
            console.print(f"this stage has ended before, at step {trainer.step}")
        elif main:
            console.print(" ".join(f"{key} {value}" for key, value in line.items()))
    accelerator.end_training()
    _end_if_stopped(console if main else None, trainer.step, trainer.end)


pretrain_vision = typer.Typer(add_completion=False)


@pretrain_vision.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_pretraining(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file, such as training/configs/nano/vision.yaml.")],
) -> None:
    """Train the vision tower of a fresh model on what pictures show; `--section.key value` overrides the file.

    The folder it writes is the `init` of a model's first stage. Stopped (exit code 1), it goes on from its newest
    checkpoint.
    """
    from accelerate import Accelerator
    from rich.console import Console

    from training.checkpoints import check_folder, claim_folder
    from training.config import contents
    from training.config_file import load_vision
    from training.vision_pretraining import VisionPretraining

    stage = load_vision(config, context.args)
    check_folder(Path(stage.out), contents(stage))
    console = Console(stderr=True)
    accelerator = Accelerator(cpu=True)
    main = accelerator.is_main_process
    with claim_folder(Path(stage.out), contents(stage)) if main else nullcontext():
        training = VisionPretraining(stage, accelerator)
        if main:
            answers = sum(len(known) for known in training.classes.answers.values())
            console.print(f"{len(training.pictures):,} pictures, {len(training.classes.labels)} labels, {answers} "
                          f"answers to {len(training.classes.answers)} questions, step {training.step} of "
                          f"{training.steps}")
        for line in training.train():
            if main:
                console.print(" ".join(f"{key} {value}" for key, value in line.items()))
    _end_if_stopped(console if main else None, training.step, training.end)


def _end_if_stopped(console: Console | None, step: int, end: int) -> None:
    """End a run that a signal has stopped with exit code 1; the main process, which has a console, says so."""
    if step < end:
        if console is not None:
            console.print(f"stopped at step {step} of {end}; the same command goes on")
        raise typer.Exit(ExitCode.FAILED_ITEMS)


def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint folder, or the folder of a training; RUN@best.")],
    data: Annotated[Path, typer.Argument(help="Conversation file with the right answers; tasks may be mixed.")],
    by: Annotated[list[str] | None, typer.Option(
        help="Key of the samples to split results by, such as light.state; may be given again. "
             "Without it: command and situation.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=0, help="First samples only; 0 for all.")] = 0,
    strategy: Annotated[str | None, typer.Option(help="Decoding strategy instead of the record's.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Block size instead of the record's.")] = None,
    denoising_steps: Annotated[int | None, typer.Option(help="Step budget of a block instead of the record's.")] = None,
    confidence_threshold: Annotated[
        float | None, typer.Option(help="Of low_confidence_dynamic, instead of the record's.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(help="off, or task: only answers that planning or grounding can read.")
    ] = None,
    control: Annotated[bool, typer.Option(help="Decode once more with the images of other samples.")] = True,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples decoded together.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
) -> None:
    """Open-loop evaluation of plans, answers in words and boxes, as JSON.

    With images, every sample is decoded once more with the images of another sample; equal figures mean that the images
    are not used.
    """
    import json

    from training.checkpoints import resolve_checkpoint
    from training.evaluate import evaluate_checkpoint

    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    set_threads(threads)
    given = {"strategy": strategy, "block_size": block_size, "denoising_steps": denoising_steps,
             "confidence_threshold": confidence_threshold, "grammar": grammar}
    decode = {name: value for name, value in given.items() if value is not None}
    result = evaluate_checkpoint(
        resolve_checkpoint(checkpoint, "CHECKPOINT"), data, limit=limit, decode=decode, by=by or (), control=control,
        batch_size=batch_size, device=checked_device(device, backend), dtype=None if dtype == "auto" else dtype,
        backend=backend,
    )
    typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
