"""A training stage as one tree of configuration, and the serving record that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.model_factory import NanoShape
from training.optimizer import OptimizerConfig
from training.step import ObjectiveConfig
from wamdiff2_core.config import Strict
from wamdiff2_core.serving_record import ServingRecord


@dataclass(frozen=True)
class DataConfig(Strict):
    """What a stage learns from.

    Attributes:
        train: conversation file.
        validation: conversation file for the validation loss, or None.
        answer_tokens: columns of an answer; longer answers are dropped.
        prompt_tokens: columns of a prompt at least.
        train_samples: use the first samples only; 0 for all.
        validation_samples: samples of the validation loss.
    """

    train: str
    validation: str | None = None
    answer_tokens: int = 64
    prompt_tokens: int = 0
    train_samples: int = 0
    validation_samples: int = 256


@dataclass(frozen=True)
class RunConfig(Strict):
    """How a stage runs.

    Attributes:
        steps: optimiser steps of the schedule.
        stop_at: end at this step of the schedule, or 0 to run all of it.
        batch_size: samples a step.
        seed: of data order and noise.
        dtype: of the computation; the optimiser keeps fp32.
        threads: CPU threads of PyTorch.
        compiled: compile the step: slow to start, then faster.
        log_every, validate_every, checkpoint_every: in steps.
        keep: checkpoints kept; the last ones.
    """

    steps: int = 1000
    stop_at: int = 0
    batch_size: int = 32
    seed: int = 0
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int = 1
    compiled: bool = True
    log_every: int = 20
    validate_every: int = 500
    checkpoint_every: int = 500
    keep: int = 2


@dataclass(frozen=True)
class StageConfig(Strict):
    """One training stage.

    Attributes:
        out: folder of checkpoints and log.
        init: checkpoint folder to start from, or None for a fresh model and tokenizer. An autoregressive checkpoint
            starts a block stage as it is: the first steps unlearn the shift of labels.
        shape: of a fresh model.
        record: what serving is told; label alignment, block sizes, mask and token ids are filled in by the stage.
    """

    out: str
    data: DataConfig
    init: str | None = None
    shape: NanoShape = field(default_factory=NanoShape)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    record: ServingRecord = field(default_factory=ServingRecord)


def stage_record(config: StageConfig, tokenizer: Any) -> ServingRecord:
    """The configured record with what the stage itself decides."""
    objective = config.objective
    autoregressive = objective.kind == "autoregressive"
    size = 1 if autoregressive else objective.block_size
    decode = replace(
        config.record.decode, block_size=size, denoising_steps=size,
        strategy="autoregressive" if autoregressive else config.record.decode.strategy,
    )
    return replace(
        config.record, label_alignment="shifted" if autoregressive else "aligned", block_sizes=(size,),
        mask_kind=objective.mask, mask_token_id=int(tokenizer.mask_token_id), eos_token_id=int(tokenizer.eos_token_id),
        decode=decode,
    )
