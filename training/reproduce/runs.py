"""Trains the stages of a table with the one trainer; a finished stage is not trained again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from training.assembly import assemble, check_stage, claim, make_accelerator
from training.checkpoints import checkpoints, step_of
from training.config import StageConfig
from training.reproduce.recipes import Recipe, Workshop
from training.trainer import Trainer

if TYPE_CHECKING:
    from rich.progress import Progress


class StoppedError(Exception):
    """A signal ended a stage before its last step; its checkpoint is written."""


def is_finished(folder: Path, steps: int) -> bool:
    """Whether a stage's newest checkpoint is that of its last step."""
    found = checkpoints(folder)
    return bool(found) and step_of(found[-1]) >= steps


def train_stages(
    workshop: Workshop, recipes: Sequence[Recipe], seeds: Sequence[int], progress: Progress | None = None
) -> None:
    """Train what is not finished, seed by seed.

    Raises:
        UserError: a file is missing, or a folder holds a stage of other settings.
        StoppedError: see there.
    """
    for seed in seeds:
        for recipe in recipes:
            config = workshop.configure(recipe, seed)
            check_stage(config)
            if not is_finished(Path(config.out), config.run.steps):
                _train(config, progress)


def _train(config: StageConfig, progress: Progress | None) -> None:
    import torch

    with claim(config):
        accelerator = make_accelerator(config)
        trainer = Trainer(config, assemble(config, accelerator))
        trainer.train(progress)
    accelerator.free_memory()
    if config.run.compiled:
        torch.compiler.reset()  # compiled code of a stage is of no use to the next
    if trainer.step < trainer.steps:
        raise StoppedError(f"{config.out} stopped at step {trainer.step} of {trainer.steps}")
