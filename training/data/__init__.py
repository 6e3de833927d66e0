"""What a model learns from: conversation files, mixed, drawn in a fixed order, and encoded as serving does.

    sources.py     one file, any size, by sample number
    mixture.py     several files with weights; which sample stands at which position of the run
    encode.py      a sample as token ids, positions and patches
    loader.py      the samples of each optimiser step, for any number of ranks and workers
    check.py  show.py  command.py  converters/         `wamdiff2 data`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.data.legacy import Batch, TrainingSet, image_grid, image_patches

__all__ = ["Batch", "TrainingSet", "image_grid", "image_patches"]


def __getattr__(name: str) -> Any:
    """Names of `legacy`, found when asked for: `wamdiff2 data` itself needs no torch to be listed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from training.data import legacy

    return getattr(legacy, name)
