"""The training loop of one stage: data order, optimiser, schedule, checkpoints, log.

Everything random is a function of the seed and the step number, so a stage that is stopped and resumed takes the very
same steps. Weights are computed with in bf16 and kept in fp32 by the optimiser; at the nano's size that is 1.3 times
as fast as fp32 on a CPU with bf16 matrix units.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from training.data import TrainingSet
from training.forward import VisionGeometry
from training.model_factory import NanoShape
from training.step import (
    ObjectiveConfig,
    StepInputs,
    make_confidence,
    make_loss,
    mask_in_own_order,
    prepare,
    start_of_decoding,
)
from wamdiff2_core.config import Strict
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord

if TYPE_CHECKING:
    from rich.progress import Progress

STATE_NAME = "trainer.safetensors"
STEP_NAME = "trainer.json"
STAGE_NAME = "stage.json"
LOG_NAME = "log.jsonl"


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
class OptimizerConfig(Strict):
    """AdamW with linear warm-up and cosine decay.

    Attributes:
        lr: peak learning rate.
        min_lr_share: last learning rate as a share of the peak.
        warmup_steps: linear rise from 0.
        weight_decay: on matrices; norms, biases and embeddings of positions have none.
        betas: of Adam.
        clip_norm: gradient norm limit.
    """

    lr: float = 2e-3
    min_lr_share: float = 0.05
    warmup_steps: int = 100
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0


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
        compiled: compile the step (about a minute, then 1.25 times as fast).
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


def learning_rate(step: int, optimizer: OptimizerConfig, steps: int) -> float:
    """Rate of step 0..steps-1."""
    rise = min(1.0, (step + 1) / max(1, optimizer.warmup_steps))
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))
    return optimizer.lr * rise * (optimizer.min_lr_share + (1 - optimizer.min_lr_share) * fall)


def batch_rows(step: int, size: int, batch: int, seed: int) -> torch.Tensor:
    """Rows of a step: a new permutation of the set each epoch, running over its end into the next one."""
    first = step * batch
    rows = []
    for epoch in range(first // size, (first + batch - 1) // size + 1):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(_mix(seed, epoch)))
        begin, end = first - epoch * size, first + batch - epoch * size
        rows.append(order[max(0, begin) : min(size, end)])
    return torch.cat(rows)


def noise_generator(step: int, seed: int) -> torch.Generator:
    """Generator of a step's noise."""
    return torch.Generator().manual_seed(_mix(seed, step, 1))


def _mix(*parts: int) -> int:
    mixed = 0x9E3779B9
    for part in parts:
        mixed = (mixed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return mixed


class MasterWeights:
    """fp32 copies of the parameters under AdamW, written back to the model's own dtype after every step."""

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, dtype: torch.dtype) -> None:
        self.config = config
        self.names = [name for name, _ in model.named_parameters()]
        self.master = [parameter.detach().float().clone() for parameter in model.parameters()]
        self.parameters = list(model.parameters())
        for parameter in self.parameters:  # not model.to(): it would round the rotary frequencies, which are buffers
            parameter.data = parameter.data.to(dtype)
        decayed = [w for name, w in zip(self.names, self.master, strict=True) if w.ndim >= 2 and "embed" not in name]
        others = [w for name, w in zip(self.names, self.master, strict=True) if w.ndim < 2 or "embed" in name]
        self.adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.lr, betas=config.betas, fused=True,
        )

    def step(self, lr: float) -> float:
        """Apply the gradients of the model's parameters and clear them; returns the gradient norm before clipping."""
        for group in self.adam.param_groups:
            group["lr"] = lr
        for weight, parameter in zip(self.master, self.parameters, strict=True):
            weight.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.master, self.config.clip_norm)
        self.adam.step()
        self.write_back()
        return float(norm)

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the fp32 weights into the model."""
        torch._foreach_copy_(self.parameters, self.master)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything a resumed stage needs, as flat tensors."""
        tensors = {}
        for name, weight in zip(self.names, self.master, strict=True):
            tensors[f"weight.{name}"] = weight
            for key, value in self.adam.state[weight].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore `state()`."""
        for name, weight in zip(self.names, self.master, strict=True):
            weight.copy_(tensors[f"weight.{name}"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
            if keys:
                self.adam.state[weight] = {key: tensors[f"{key}.{name}"].clone() for key in keys}
        self.write_back()


class Trainer:
    """Runs one stage.

    Attributes:
        step: optimiser steps taken.
    """

    def __init__(self, config: StageConfig) -> None:
        """Build or load the model, encode the data, and pick up the newest checkpoint in `config.out`.

        Raises:
            UserError: `config.out` holds another stage.
        """
        from wamdiff2_core.chat import ChatCodec
        from wamdiff2_core.images import make_image_processor

        torch.set_num_threads(config.run.threads)
        self.config, self.out = config, Path(config.out)
        self.out.mkdir(parents=True, exist_ok=True)
        _claim(self.out, config)
        self.model, self.tokenizer = _model_and_tokenizer(config)
        self.record = stage_record(config, self.tokenizer)
        processor = make_image_processor(self.record.images, self.model.config.vision_config)
        codec = ChatCodec(
            self.tokenizer, processor, self.record.images, self.model.config.image_token_id, self.record.eos_token_id
        )
        self.train_set = TrainingSet.read(
            config.data.train, codec, self.model, answer_tokens=config.data.answer_tokens,
            prompt_tokens=config.data.prompt_tokens, limit=config.data.train_samples,
        )
        self.validation_set = None
        if config.data.validation is not None:
            self.validation_set = TrainingSet.read(
                config.data.validation, codec, self.model, answer_tokens=config.data.answer_tokens,
                prompt_tokens=self.train_set.prompt_ids.shape[1], limit=config.data.validation_samples,
            )
        grid = self.train_set.grid_thw
        geometry = None if grid is None else VisionGeometry.of(self.model, grid)
        self.model.train()
        self.weights = MasterWeights(self.model, config.optimizer, getattr(torch, config.run.dtype))
        self.loss = make_loss(self.model, config.objective, geometry, config.run.compiled)
        self._confidence = make_confidence(self.model, config.objective, geometry, config.run.compiled)
        self._plain_loss = make_loss(self.model, config.objective, geometry, False)
        self.step, self._end = 0, config.run.stop_at or config.run.steps
        self._stop = threading.Event()
        self._resume()

    def train(self, progress: Progress | None = None) -> dict[str, Any]:
        """Take the remaining steps.

        A SIGTERM or SIGINT ends the loop after the running step, with a checkpoint.

        Returns:
            the last line of the log.
        """
        run, end = self.config.run, self._end
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        task = None if progress is None else progress.add_task(self.out.name, total=end, completed=self.step)
        line: dict[str, Any] = {"step": self.step}
        losses: list[float] = []
        since = time.monotonic()
        try:
            for inputs in self._inputs():
                if self.config.objective.own_order:
                    inputs = self._in_own_order(inputs)
                value = self.loss(inputs)
                value.backward()
                rate = learning_rate(self.step, self.config.optimizer, run.steps)
                norm = self.weights.step(rate)
                losses.append(float(value.detach()))
                self.step += 1
                last = self.step == end or self._stop.is_set()
                if self.step % run.log_every == 0 or last:
                    now = time.monotonic()
                    line = {
                        "step": self.step, "samples": self.step * run.batch_size,
                        "loss": round(sum(losses) / len(losses), 4), "lr": round(rate, 7), "grad_norm": round(norm, 3),
                        "samples_per_s": round(len(losses) * run.batch_size / (now - since), 1),
                    }
                    losses, since = [], now
                    if self.validation_set is not None and (self.step % run.validate_every == 0 or last):
                        line["validation_loss"] = round(self.validation_loss(), 4)
                        since = time.monotonic()
                    self._log(line)
                    if progress is not None and task is not None:
                        text = f"{self.out.name} loss {line['loss']:.3f} {line['samples_per_s']:.0f} samples/s"
                        progress.update(task, completed=self.step, description=text)
                if self.step % run.checkpoint_every == 0 or last:
                    self.save()
                if self._stop.is_set():
                    break
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return line

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean loss on the validation set, with the same noise every time."""
        assert self.validation_set is not None
        size, total, count = self.config.run.batch_size, 0.0, 0
        for first in range(0, len(self.validation_set), size):
            rows = torch.arange(first, min(first + size, len(self.validation_set)))
            inputs = prepare(
                self.validation_set.batch(rows), self.config.objective, self.record.mask_token_id,
                noise_generator(first, seed=-1),
            )
            total += float(self._plain_loss(inputs)) * len(rows)
            count += len(rows)
        return total / count

    def save(self) -> Path:
        """Write a checkpoint folder, complete or not at all, and drop the oldest."""
        from safetensors.torch import save_file

        from wamdiff2_core.model.checkpoint import save_checkpoint

        folder = self.out / f"checkpoint-{self.step:06d}"
        draft = self.out / f".{folder.name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_checkpoint(self.model, self.tokenizer, self.record, draft)
        save_file({name: tensor.contiguous() for name, tensor in self.weights.state().items()}, draft / STATE_NAME)
        (draft / STEP_NAME).write_text(json.dumps({"step": self.step}) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
        for old in checkpoints(self.out)[: -self.config.run.keep]:
            shutil.rmtree(old)
        return folder

    def _inputs(self) -> Iterator[StepInputs]:
        """Prepared batches of the remaining steps; the next one is made while the current one is computed."""
        run = self.config.run

        def make(step: int) -> StepInputs:
            rows = batch_rows(step, len(self.train_set), run.batch_size, run.seed)
            generator = noise_generator(step, run.seed)
            return prepare(self.train_set.batch(rows), self.config.objective, self.record.mask_token_id, generator)

        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(make, self.step)
            for step in range(self.step, self._end):
                inputs = coming.result()
                if step + 1 < self._end:
                    coming = pool.submit(make, step + 1)
                yield inputs

    def _in_own_order(self, inputs: StepInputs) -> StepInputs:
        mask = self.record.mask_token_id
        confidence = self._confidence(start_of_decoding(inputs, self.config.data.answer_tokens, mask))
        generator = torch.Generator().manual_seed(_mix(self.config.run.seed, self.step, 2))
        return mask_in_own_order(inputs, confidence, self.config.objective.block_size, mask, generator)

    def _resume(self) -> None:
        found = checkpoints(self.out)
        if not found:
            return
        from safetensors.torch import load_file

        self.step = int(json.loads((found[-1] / STEP_NAME).read_text())["step"])
        self.weights.load_state(load_file(found[-1] / STATE_NAME))
        log = self.out / LOG_NAME
        if log.exists():
            lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= self.step]
            log.write_text("".join(line + "\n" for line in lines))

    def _log(self, line: dict[str, Any]) -> None:
        with (self.out / LOG_NAME).open("a") as log:
            log.write(json.dumps(line) + "\n")

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop.set()


def _claim(out: Path, config: StageConfig) -> None:
    """Note in `out` which stage it holds; it may be resumed at another length or pace, not with other contents."""
    free = ("out", "run")
    asked = {key: value for key, value in json.loads(json.dumps(asdict(config))).items() if key not in free}
    note = out / STAGE_NAME
    if note.exists():
        found = json.loads(note.read_text())
        differing = [key for key in asked if found.get(key) != asked[key]]
        if differing and checkpoints(out):
            raise UserError("out", f"an empty folder, or this stage ({', '.join(differing)} differ)", str(out),
                            "choose another --out, or remove the folder")
    note.write_text(json.dumps(asked, indent=1) + "\n")


def checkpoints(out: Path) -> list[Path]:
    """Checkpoint folders of a stage, oldest first."""
    return sorted(out.glob("checkpoint-*"))


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


def _model_and_tokenizer(config: StageConfig) -> tuple[Any, Any]:
    from training.model_factory import build_model
    from training.tokenizer import build_tokenizer

    if config.init is None:
        tokenizer = build_tokenizer(config.shape.vocab_size)
        return build_model(config.shape, tokenizer, config.run.seed), tokenizer
    from wamdiff2_core.model.checkpoint import load_checkpoint

    folder = Path(config.init)
    newest = checkpoints(folder)
    loaded = load_checkpoint(newest[-1] if newest else folder, dtype=torch.float32)
    if loaded.tokenizer.mask_token_id is None:
        raise UserError("init", "a tokenizer with a mask token", str(folder))
    return loaded.model, loaded.tokenizer


