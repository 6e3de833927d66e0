"""`wamdiff2 train`: run one stage of training from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wamdiff2_core.errors import UserError

if TYPE_CHECKING:
    from training.stage import StageConfig

train = typer.Typer(add_completion=False)


@train.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_stage(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML file of the stage, such as training/configs/nano_b32.yaml.")],
) -> None:
    """Train one stage; `--section.key value` overrides the file.

    A stage that was stopped goes on from its newest checkpoint.
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

    from training.trainer import Trainer, check_stage

    stage = load_stage(config, context.args)
    check_stage(stage)
    console = Console(stderr=True)
    console.print(stage)
    trainer = Trainer(stage)
    console.print(
        f"{len(trainer.train_set)} samples ({trainer.train_set.dropped} too long), "
        f"prompt {trainer.train_set.prompt_ids.shape[1]} tokens, "
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters, step {trainer.step} of {stage.run.steps}"
    )
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )
    with Progress(*columns, console=console) as progress:
        line = trainer.train(progress)
    console.print(" ".join(f"{key} {value}" for key, value in line.items()))


def load_stage(file: Path, overrides: list[str] | None = None) -> StageConfig:
    """Read a stage from YAML.

    Args:
        file: keys as in `stage.StageConfig`; `record` may name a YAML file beside it, shared by stages.
        overrides: `["--run.steps", "100", "--out=runs/x"]`; values are read as YAML.

    Raises:
        UserError: no such file, not a mapping, an unknown key or a bad value.
    """
    import yaml
    from omegaconf import OmegaConf

    from training.stage import StageConfig
    from wamdiff2_core.config import parse

    if not file.is_file():
        raise UserError("CONFIG", "a YAML file", f"{file} ({'a folder' if file.is_dir() else 'no such file'})")
    try:
        tree = OmegaConf.load(file)
        if not OmegaConf.is_dict(tree):
            raise UserError(str(file), "a mapping of sections", "a list")
        if isinstance(tree.get("record"), str):
            record = file.parent / tree.record
            if not record.is_file():
                raise UserError(f"{file}: record", "a mapping, or the name of a YAML file beside it", tree.record)
            tree.record = OmegaConf.load(record)
        data: Any = OmegaConf.to_container(
            OmegaConf.merge(tree, OmegaConf.from_dotlist(_dotlist(overrides or []))), resolve=True
        )
    except yaml.YAMLError as error:
        raise UserError(str(file), "valid YAML", str(error).replace("\n", " ")) from None
    return parse(StageConfig, data, str(file))


def _dotlist(arguments: list[str]) -> list[str]:
    pairs = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            raise UserError("override", "--section.key value", argument)
        key, found, value = argument[2:].partition("=")
        if not found:
            value = next(rest, "")
            if not value:
                raise UserError(argument, "a value after it", "nothing")
        pairs.append(f"{key}={value}")
    return pairs


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder that plans.")],
    data: Annotated[Path, typer.Argument(help="Conversation file with the expert's answers.")],
    limit: Annotated[int, typer.Option(min=0, help="First samples only; 0 for all.")] = 0,
    threshold: Annotated[float | None, typer.Option(help="Confidence threshold instead of the record's.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Open-loop evaluation: distance of planned waypoints from the expert's, as JSON.

    With images, every sample is decoded once more with the image of another sample; equal figures mean that the images
    are not used.
    """
    import json

    import torch

    from training.evaluate import evaluate_checkpoint

    torch.set_num_threads(threads)
    typer.echo(json.dumps(evaluate_checkpoint(checkpoint, data, limit=limit, threshold=threshold), indent=1))
