"""The training loop of every stage: data order, schedule, optimiser steps, validation, checkpoints, log.

Everything random is a function of seed, step and sample (`seeds`), and the loss of a step is a sum with weights that
carry the step's own totals (`losses`). So a run that is stopped and resumed takes the very same steps, and so does one
on another number of processes or micro-batches, up to the order of sums.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training import seeds
from training.checkpoints import LOG_NAME, CheckpointWriter, checkpoints, shorten_log, step_of
from training.config import StageConfig
from training.data.encode import OVER_LONG
from training.losses import Totals
from training.optimizer import share_of_peak
from training.stages.stage import Prepared, Slots
from training.stopping import set_on_signals
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import disk_errors_named

if TYPE_CHECKING:
    from rich.progress import Progress

    from training.assembly import Assembly
    from training.data.encode import EncodedSample


class Trainer:
    """Runs one stage.

    Attributes:
        step: optimiser steps taken.
        steps: of the whole schedule.
        end: the step at which this run ends: the last one, or `run.stop_at`.
    """

    def __init__(self, config: StageConfig, assembly: Assembly) -> None:
        """Take the parts of a stage, and pick up the newest checkpoint in `config.out`."""
        self.config, self._parts = config, assembly
        self._accelerator = assembly.accelerator
        self.out = Path(config.out)
        self.steps = assembly.steps
        self.end = min(config.run.stop_at or self.steps, self.steps)
        self._writer = CheckpointWriter(self.out, config.run.keep)
        self._stop = threading.Event()
        self._validation_loss: float | None = None
        self.step = 0
        self._resume()

    def train(self, progress: Progress | None = None) -> dict[str, Any]:
        """Take the remaining steps.

        A SIGTERM or SIGINT ends the loop of all processes after the running step, with a checkpoint.

        Returns:
            the last line of the log.
        """
        run = self.config.run
        task = None if progress is None else progress.add_task(self.out.name, total=self.end, completed=self.step)
        line: dict[str, Any] = {"step": self.step}
        since, sums, taken, over_long = time.monotonic(), Sums(), 0, Counter[str]()
        with set_on_signals(self._stop):
            for prepared, left in self._prepared():
                over_long += left
                totals, stopping = self._agree(prepared)
                norm = self._take(prepared, totals, sums)
                if norm is not None and not math.isfinite(norm):
                    raise UserError("loss", "a finite gradient", f"{norm} in step {self.step + 1}",
                                    f"lower the learning rate; {self.out} keeps its last checkpoint")
                self.step, taken = self.step + 1, taken + 1
                last = self.step == self.end or stopping
                validates = bool(self._parts.validation) and (self.step % run.validate_every == 0 or last)
                self._validation_loss = None
                if self.step % run.log_every == 0 or validates or last:
                    seconds = time.monotonic() - since
                    line = {
                        "step": self.step, "samples": self.step * run.global_batch, **sums.means(self._accelerator),
                        "lr": self._rate(self.step - 1), **({} if norm is None else {"grad_norm": round(norm, 4)}),
                        "samples_per_s": round(taken * run.global_batch / seconds, 2), "memory_gib": memory_gib(),
                        **self._over_all(over_long),
                    }
                    sums, taken, over_long = Sums(), 0, Counter()
                    if validates:
                        self._validation_loss = self.validation_loss()
                        line["validation_loss"] = round(self._validation_loss, 5)
                    since = time.monotonic()
                    self._log(line)
                    if progress is not None and task is not None:
                        text = (f"{self.out.name} loss {line['loss']:.4f} {line['samples_per_s']:.1f} samples/s "
                                f"{line['memory_gib']:.1f} GiB")
                        progress.update(task, completed=self.step, description=text)
                if self.step % run.checkpoint_every == 0 or last:
                    self.save()
                if last:
                    break
        return line

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean loss on the validation set, with the same noise every time."""
        size, samples = self.config.run.micro_batch, self._parts.validation
        rank, world = self._accelerator.process_index, self._accelerator.num_processes
        stage = self._parts.plain_stage
        chunks = [tuple(range(i, min(i + size, len(samples)))) for i in range(0, len(samples), size)]
        rounds = -(-len(chunks) // world)
        # all processes take as many forwards, as shards are gathered by all together; some count for nothing
        own = [chunks[index % len(chunks)] for index in range(rank, rounds * world, world)]
        prepared = [
            stage.prepare([samples[slot] for slot in slots], Slots(seeds.VALIDATION, -1, slots)) for slots in own
        ]
        counted = len(chunks[rank::world])
        totals, _ = self._agree(prepared[:counted])
        losses = [float(stage.loss(part, totals)[0]) for part in prepared]
        return float(self._reduce(torch.tensor([sum(losses[:counted])], dtype=torch.float64)))

    def save(self) -> Path:
        """Write a checkpoint folder, complete or not at all."""
        accelerator = self._accelerator
        draft = self.out / f".checkpoint-{self.step:06d}.draft"
        try:
            with disk_errors_named(self.out / f"checkpoint-{self.step:06d}"):
                if accelerator.is_main_process:
                    draft = self._writer.draft(self.step)
                accelerator.wait_for_everyone()
                self._parts.parallel.save_state(draft)
                weights = self._parts.parallel.weights()
                if accelerator.is_main_process:
                    self._parts.save_model(draft, weights)
                accelerator.wait_for_everyone()
        except OSError:
            if accelerator.is_main_process:
                self._writer.discard(draft)
            raise
        folder = self.out / f"checkpoint-{self.step:06d}"
        if accelerator.is_main_process:
            folder = self._writer.publish(draft, self.step, self._validation_loss)
        accelerator.wait_for_everyone()
        return folder

    def _take(self, prepared: list[Prepared], totals: Totals, sums: Sums) -> float | None:
        """One optimiser step over this process's micro-batches; returns the gradient norm, None where not known."""
        stage, parallel = self._parts.stage, self._parts.parallel
        parallel.begin_step(share_of_peak(self.step, self.config.optimizer, self.steps))
        for index, part in enumerate(prepared):
            loss, figures = stage.loss(part, totals)
            parallel.backward(loss, last=index + 1 == len(prepared))
            sums.add(loss, figures)
        sums.tokens += totals.tokens
        sums.steps += 1
        return parallel.step()

    def _prepared(self) -> Iterator[tuple[list[Prepared], Counter[str]]]:
        """Micro-batches of the remaining steps, and how many samples of each were over a limit.

        The next step's are made while the current one is computed.
        """
        loader = self._parts.loader(self.step)
        steps = iter(loader)

        def make(step: int) -> tuple[list[Prepared], Counter[str]]:
            before = Counter(loader.over_long)
            samples = next(steps)
            return self._micro_batches(samples, step), loader.over_long - before

        if self._parts.prepares_with_model:
            yield from map(make, range(self.step, self.end))
            return
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(make, self.step)
            for step in range(self.step, self.end):
                prepared = coming.result()
                if step + 1 < self.end:
                    coming = pool.submit(make, step + 1)
                yield prepared

    def _micro_batches(self, samples: Sequence[EncodedSample], step: int) -> list[Prepared]:
        """This process's share of a step, samples of like length together."""
        run, rank, world = self.config.run, self._accelerator.process_index, self._accelerator.num_processes
        slots = range(rank, run.global_batch, world)
        order = sorted(range(len(samples)), key=lambda i: (len(samples[i].prompt_ids), len(samples[i].answer_ids)))
        parts = [order[first : first + run.micro_batch] for first in range(0, len(order), run.micro_batch)]
        return [
            self._parts.stage.prepare(
                [samples[i] for i in part], Slots(run.seed, step, tuple(slots[i] for i in part))
            )
            for part in parts
        ]

    def _agree(self, prepared: Sequence[Prepared]) -> tuple[Totals, bool]:
        """Totals of the step, and whether any process was told to stop."""
        own = [part.totals for part in prepared]
        sums = torch.tensor(
            [sum(t.samples for t in own), sum(t.tokens for t in own), float(self._stop.is_set())], dtype=torch.float64
        )
        samples, tokens, stop = self._reduce(sums).tolist()
        return Totals(samples, tokens), stop > 0

    def _over_all(self, over_long: Counter[str]) -> dict[str, int]:
        """Counts over all processes, those that are not 0."""
        sums = self._reduce(torch.tensor([float(over_long[name]) for name in OVER_LONG])).tolist()
        return {name: int(count) for name, count in zip(OVER_LONG, sums, strict=True) if count}

    def _reduce(self, sums: Tensor) -> Tensor:
        if self._accelerator.num_processes == 1:
            return sums
        moved = sums.to(self._accelerator.device)
        torch.distributed.all_reduce(moved)
        return moved.cpu()

    def _rate(self, step: int) -> float:
        return float(f"{self.config.optimizer.lr * share_of_peak(step, self.config.optimizer, self.steps):.4g}")

    def _resume(self) -> None:
        found = checkpoints(self.out)
        if not found:
            return
        self.step = step_of(found[-1])
        self._parts.parallel.load_state(found[-1])
        if self._accelerator.is_main_process:
            shorten_log(self.out, self.step)

    def _log(self, line: dict[str, Any]) -> None:
        if self._accelerator.is_main_process:
            path = self.out / LOG_NAME
            with disk_errors_named(path), path.open("a") as log:
                log.write(json.dumps(line) + "\n")
        figures = {key: value for key, value in line.items() if key != "step"}
        self._accelerator.log(figures, step=self.step)


class Sums:
    """What is logged, summed over micro-batches and steps."""

    def __init__(self) -> None:
        self.loss: Tensor | None = None
        self.figures: dict[str, Tensor] = {}
        self.tokens, self.steps = 0.0, 0

    def add(self, loss: Tensor, figures: dict[str, Tensor]) -> None:
        """Add one micro-batch; nothing waits for the device."""
        loss = loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        for name, value in figures.items():
            self.figures[name] = self.figures.get(name, 0.0) + value

    def means(self, accelerator: Any) -> dict[str, float]:
        """Mean loss a step, and the other figures a token, over all processes."""
        assert self.loss is not None
        names = list(self.figures)
        stacked = torch.stack([self.loss.float(), *(self.figures[name].float() for name in names)])
        if accelerator.num_processes > 1:
            torch.distributed.all_reduce(stacked)
        loss, *rest = stacked.tolist()
        sums = dict(zip(names, rest, strict=True))
        tokens = max(sums.pop("known", self.tokens), 1.0)  # distillation counts what its teacher knows
        return {"loss": round(loss / self.steps, 6), **{name: round(v / tokens, 5) for name, v in sums.items()}}


def memory_gib() -> float:
    """Peak memory of this process: of the device where there is one, else resident."""
    import resource

    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
