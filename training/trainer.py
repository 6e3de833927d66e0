"""The training loop of one stage: data order, optimiser, schedule, checkpoints, log.

Everything random is a function of the seed and the step number, so a stage that is stopped and resumed takes the very
same steps. Weights are computed with in bf16, for processors with bf16 matrix units, and kept in fp32 by the optimiser.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.data import TrainingSet
from training.optimizer import MasterWeights, learning_rate
from training.stage import StageConfig, stage_record
from training.step import (
    StepInputs,
    make_confidence,
    make_loss,
    mask_in_own_order,
    prepare,
    start_of_decoding,
)
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file
from wamdiff2_core.model.vision import GridTables
from wamdiff2_core.outputs import disk_errors_named, writable_folder

if TYPE_CHECKING:
    from rich.progress import Progress

STATE_NAME = "trainer.safetensors"
STEP_NAME = "trainer.json"
STAGE_NAME = "stage.json"
LOG_NAME = "log.jsonl"


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


class Trainer:
    """Runs one stage.

    Attributes:
        step: optimiser steps taken.
    """

    def __init__(self, config: StageConfig) -> None:
        """Build or load the model, encode the data, and pick up the newest checkpoint in `config.out`.

        Raises:
            UserError: see `check_stage`.
        """
        from wamdiff2_core.chat import ChatCodec
        from wamdiff2_core.images import make_image_processor

        check_stage(config)
        torch.set_num_threads(config.run.threads)
        self.config, self.out = config, Path(config.out)
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
        geometry = None if grid is None else GridTables.of(self.model.model.visual, grid)
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
        try:
            with disk_errors_named(folder):
                draft.mkdir()
                save_checkpoint(self.model, self.tokenizer, self.record, draft)
                state = {name: tensor.contiguous() for name, tensor in self.weights.state().items()}
                save_file(state, draft / STATE_NAME)
                (draft / STEP_NAME).write_text(json.dumps({"step": self.step}) + "\n")
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
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
            replace_file(log, "".join(line + "\n" for line in lines))

    def _log(self, line: dict[str, Any]) -> None:
        path = self.out / LOG_NAME
        with disk_errors_named(path), path.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop.set()


def check_stage(config: StageConfig) -> None:
    """Check files and folders of a stage, which takes no time; `config.out` is made.

    A folder with checkpoints may be gone on with at another length or pace, not with other contents.

    Raises:
        UserError: a data file or the initial checkpoint is missing, or `config.out` cannot be written to, holds
            another stage or something else.
    """
    for key in ("train", "validation"):
        name = getattr(config.data, key)
        if name is not None and not Path(name).is_file():
            found = "a folder" if Path(name).is_dir() else "no such file"
            raise UserError(f"data.{key}", "a conversation file", f"{name} ({found})",
                            f"give another one with --data.{key}")
    if config.init is not None and not Path(config.init).is_dir():
        raise UserError("init", "a checkpoint folder, or the folder of an earlier stage", str(config.init))
    out = writable_folder(Path(config.out), "out")
    note = out / STAGE_NAME
    if not note.exists() and any(out.iterdir()):
        raise UserError("out", "an empty folder, or one of an earlier training", str(out), "choose another --out")
    if note.exists() and checkpoints(out):
        asked, found = _contents(config), json.loads(note.read_text())
        differing = [key for key in asked if found.get(key) != asked[key]]
        if differing:
            raise UserError("out", f"an empty folder, or this stage ({', '.join(differing)} differ)", str(out),
                            "choose another --out, or remove the folder")


def _claim(out: Path, config: StageConfig) -> None:
    """Note in `out` which stage it holds."""
    replace_file(out / STAGE_NAME, json.dumps(_contents(config), indent=1) + "\n")


def _contents(config: StageConfig) -> dict[str, Any]:
    """What decides the weights, as plain JSON."""
    return {key: value for key, value in json.loads(json.dumps(asdict(config))).items() if key not in ("out", "run")}


def checkpoints(out: Path) -> list[Path]:
    """Checkpoint folders of a stage, oldest first."""
    return sorted(out.glob("checkpoint-*"))


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


