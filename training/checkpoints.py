"""Checkpoint folders of a run: an ordinary Hugging Face folder each, with the trainer's state beside the weights.

A folder appears complete or not at all. The newest few are kept, and the one with the lowest validation loss.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.config import leaves
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import lock_or_writer, replace_file
from wamdiff2_core.outputs import writable_folder

STAGE_NAME, LOG_NAME = "stage.json", "log.jsonl"
STEP_NAME = "trainer.json"
BEST_NAME = "best.json"


def check_folder(out: Path, contents: Mapping[str, Any]) -> None:
    """Make a run's folder, or see that it is this run's.

    Args:
        out: of the run.
        contents: what decides its weights, plain JSON.

    Raises:
        UserError: it cannot be written to, or holds another run or something else.
    """
    writable_folder(out, "out")
    note = out / STAGE_NAME
    if not note.exists() and any(out.iterdir()):
        raise UserError("out", "an empty folder, or one of an earlier training", str(out), "choose another --out")
    if note.exists() and checkpoints(out):
        asked, found = leaves(contents), leaves(json.loads(note.read_text()))
        differing = [f"{key} {found.get(key)!r} (now {asked.get(key)!r})" for key in sorted({*asked, *found})
                     if found.get(key) != asked.get(key)]
        if differing:
            raise UserError("out", "an empty folder, or that of this very stage", f"{out}: {', '.join(differing)}",
                            "choose another --out")


@contextmanager
def claim_folder(out: Path, contents: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run's folder, and note in it which run it holds.

    Raises:
        UserError: another process trains into it.
    """
    lock = os.open(out, os.O_RDONLY)
    try:
        writer = lock_or_writer(lock, out)
        if writer:
            raise UserError("out", "a folder that nobody else trains into", f"{out}, where {writer} is at work",
                            "wait for its end, or choose another --out")
        replace_file(out / STAGE_NAME, json.dumps(contents, indent=1) + "\n")
        yield
    finally:
        os.close(lock)


def shorten_log(out: Path, step: int) -> None:
    """Take lines of steps behind `step`, where a run goes on, off its log, and a last one that a full disk has cut."""
    log = out / LOG_NAME
    if log.exists():
        whole = log.read_text().rpartition("\n")[0]
        lines = [line for line in whole.splitlines() if json.loads(line)["step"] <= step]
        replace_file(log, "".join(line + "\n" for line in lines))


def checkpoints(out: Path) -> list[Path]:
    """Checkpoint folders of a run, oldest first."""
    return sorted(out.glob("checkpoint-*"))


def step_of(folder: Path) -> int:
    """Optimiser steps that a checkpoint has taken."""
    return int(json.loads((folder / STEP_NAME).read_text())["step"])


def best_checkpoint(out: Path) -> Path | None:
    """The checkpoint with the lowest validation loss; None when there was no validation."""
    note = out / BEST_NAME
    if not note.is_file():
        return None
    folder = out / str(json.loads(note.read_text())["checkpoint"])
    return folder if folder.is_dir() else None


def resolve_checkpoint(name: str, field: str) -> Path:
    """The checkpoint that `name` means: a checkpoint folder, or the newest of a run; `RUN@best` is the best of a run.

    Raises:
        UserError: there is none.
    """
    run, _, which = name.partition("@")
    folder = Path(run)
    if not folder.is_dir() or which not in ("", "best"):
        got = name if folder.is_dir() else f"{name} (no such folder)"
        raise UserError(field, "a checkpoint folder, the folder of an earlier stage, or FOLDER@best", got,
                        "" if folder.is_dir() else "run the stage that makes it first")
    if which == "best":
        best = best_checkpoint(folder)
        if best is None:
            raise UserError(field, "a run with a validation loss", name, "name the folder without @best")
        return best
    newest = checkpoints(folder)
    return newest[-1] if newest else folder


class CheckpointWriter:
    """Writes the checkpoints of a run.

    Attributes:
        out: the run's folder.
    """

    def __init__(self, out: Path, keep: int) -> None:
        self.out, self._keep = out, keep

    def draft(self, step: int) -> Path:
        """An empty folder to write checkpoint `step` into."""
        folder = self.out / f".checkpoint-{step:06d}.draft"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def publish(self, draft: Path, step: int, validation_loss: float | None) -> Path:
        """Make a written draft the newest checkpoint, and drop what is no longer kept."""
        (draft / STEP_NAME).write_text(json.dumps({"step": step, "validation_loss": validation_loss}) + "\n")
        folder = self.out / f"checkpoint-{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
        if validation_loss is not None and validation_loss < self._best():
            note: dict[str, Any] = {"checkpoint": folder.name, "validation_loss": validation_loss}
            replace_file(self.out / BEST_NAME, json.dumps(note) + "\n")
        best = best_checkpoint(self.out)
        for old in checkpoints(self.out)[: -self._keep]:
            if old != best:
                shutil.rmtree(old)
        return folder

    def discard(self, draft: Path) -> None:
        """Remove a draft that could not be written."""
        shutil.rmtree(draft, ignore_errors=True)

    def _best(self) -> float:
        note = self.out / BEST_NAME
        return float(json.loads(note.read_text())["validation_loss"]) if note.is_file() else float("inf")
