"""`python -m training.export RUN OUT`: a checkpoint to hand on, in one dtype, with the logs of its stages."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from training.checkpoints import LOG_NAME, resolve_checkpoint
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.outputs import disk_errors_named

LOGS = "training_log"
DTYPES = ("bfloat16", "float16", "float32")


def export(run: str, out: Path, dtype: str = "bfloat16", logs: tuple[str, ...] = ()) -> Path:
    """Write a checkpoint's weights in one dtype, with tokenizer, processor and serving record.

    Args:
        run: checkpoint folder, or folder of a training (`RUN@best` for its best).
        out: folder; its weights and logs are replaced, other files such as a card stay.
        dtype: one of `DTYPES`.
        logs: folders of trainings whose logs are copied, in the order of the stages.

    Raises:
        UserError: no such checkpoint or log, or the dtype is not one of those.
    """
    import torch

    from wamdiff2_core.model.checkpoint import load_checkpoint, save_checkpoint

    if dtype not in DTYPES:
        raise unknown_name("--dtype", dtype, DTYPES)
    found = [Path(folder) / LOG_NAME for folder in logs]
    for path in found:
        if not path.is_file():
            raise UserError("--log", f"the folder of a training, with {LOG_NAME}", str(path.parent))
    loaded = load_checkpoint(resolve_checkpoint(run, "RUN"), dtype=getattr(torch, dtype))
    out.mkdir(parents=True, exist_ok=True)
    with disk_errors_named(out), tempfile.TemporaryDirectory(dir=out) as draft:
        save_checkpoint(loaded.model, loaded.tokenizer, loaded.record, Path(draft))
        for file in Path(draft).iterdir():
            file.replace(out / file.name)
        shutil.rmtree(out / LOGS, ignore_errors=True)
        for number, path in enumerate(found, 1):
            (out / LOGS).mkdir(exist_ok=True)
            shutil.copyfile(path, out / LOGS / f"{number}_{path.parent.name}.jsonl")
    return out


def main(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Checkpoint folder, or the folder of a training.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dtype: Annotated[str, typer.Option(help="Of the weights: " + ", ".join(DTYPES) + ".")] = "bfloat16",
    log: Annotated[list[str] | None, typer.Option(help="Folder of a stage whose log goes along; again for more.",
                                                  show_default=False)] = None,
) -> None:
    """Write a checkpoint to hand on."""
    typer.echo(export(run, out, dtype, tuple(log or ())))


if __name__ == "__main__":
    import sys

    from wamdiff2_core.cli.main import run_alone

    sys.exit(run_alone(main, "training.export"))
