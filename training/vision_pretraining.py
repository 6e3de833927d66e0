"""A vision tower from nothing: trained on what pictures show, by a head that is thrown away.

The published models start from Qwen3-VL, whose vision tower has seen the world; a nano starts from noise, and a loss on
waypoints alone leaves it blind. Here its image tokens must tell, through one linear layer, which objects lie in their
cell of the picture, where and how far; and, through one attention pool a question, the answers of a driving QA set:
their wording as a class, a distance in metres as a number. Text weights stay as they were drawn, or as those of the
model that is gone on with; the folder that is written is the `init` of the next stage.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training import seeds
from training.checkpoints import LOG_NAME, CheckpointWriter, checkpoints, resolve_checkpoint, shorten_log, step_of
from training.config import VisionConfig, check_batch, schedule_steps
from training.data.pixels import encode_images
from training.forward import written_attention
from training.model_factory import build_model
from training.optimizer import MasterWeights, share_of_peak
from training.parallel import STATE_NAME
from training.stopping import set_on_signals
from wamdiff2_core.dataset import Sample, iter_dataset, read_images
from wamdiff2_core.errors import UserError
from wamdiff2_core.images import make_image_processor
from wamdiff2_core.model.vision import VisionEncoder
from wamdiff2_core.outputs import disk_errors_named
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import pixels_from_box

FAR_M = 100.0  # distances are learnt as log(1 + d) / log(1 + FAR_M)
OVERLAP = 0.05  # share of a cell, or of the box, that makes an object one of the cell's
RARE = 3  # wordings given less often are not classes
SHOWN_WEIGHT = 4.0  # of a cell's label that is there, against one that is not: most are not
Object = tuple[str, tuple[float, float, float, float], float]
_METRES = re.compile(r"\d+(?= m\b)")


@dataclass
class Picture:
    """What is known of a picture.

    Attributes:
        sample: a line that shows it.
        objects: (label, box (x1, y1, x2, y2) in shares of the picture, metres); None where no line says.
        answers: by question.
        unsure: as `objects`, of what cannot be told for sure: it may be named, or not.
    """

    sample: Sample
    objects: list[Object] | None = None
    answers: dict[str, str] = field(default_factory=dict)
    unsure: list[Object] = field(default_factory=list)


def read_pictures(files: Sequence[str]) -> list[Picture]:
    """Pictures of conversation files with one picture a line, in order of their first line.

    Raises:
        UserError: a file cannot be read, or tells nothing about its pictures.
    """
    found: dict[Path, Picture] = {}
    for name in files:
        for sample in iter_dataset(name):
            if len(sample.images) != 1:
                continue
            picture = found.setdefault(sample.images[0], Picture(sample))
            if "question" in sample.extra:
                picture.answers[str(sample.extra["question"])] = sample.answer
            elif "waypoints_m" in sample.extra:
                picture.objects, picture.unsure = (_objects(sample, key) for key in ("objects", "unsure_objects"))
    pictures = [picture for picture in found.values() if picture.objects is not None or picture.answers]
    if not pictures:
        raise UserError(", ".join(files) or "train", "lines with `objects` or `question`", "none",
                        "wamdiff2 collect writes them")
    return pictures


def _objects(sample: Sample, key: str) -> list[Object]:
    found = sample.extra.get(key, ())
    try:
        return [(str(o["label"]), pixels_from_box(tuple(o["bbox_2d"]), 1, 1), float(o["distance_m"])) for o in found]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{key} of {sample.conversation.id or sample.images[0]}",
                        "objects with label, bbox_2d (y_min, x_min, y_max, x_max) and distance_m", found) from None


@dataclass(frozen=True)
class Classes:
    """What the head tells apart.

    Attributes:
        labels: of objects.
        answers: wordings by question, `#` for a distance.
    """

    labels: tuple[str, ...]
    answers: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, pictures: Sequence[Picture]) -> Classes:
        """Those that pictures have, but rare wordings."""
        labels = {label for picture in pictures for label, _, _ in picture.objects or ()}
        counts: dict[str, Counter[str]] = {}
        for picture in pictures:
            for question, answer in picture.answers.items():
                counts.setdefault(question, Counter())[wording(answer)[0]] += 1
        usual = {q: tuple(sorted(a for a, n in count.items() if n >= RARE)) for q, count in sorted(counts.items())}
        return cls(tuple(sorted(labels)), {q: answers for q, answers in usual.items() if len(answers) > 1})


@dataclass(frozen=True)
class Targets:
    """What is to be told of N pictures of R x C cells.

    Attributes:
        shown: (N, R * C, labels) 0 or 1; NaN where nobody is sure.
        told: (N,) whether the objects of the picture are known.
        nearest: (N, R * C, 5) of the nearest object with its centre in the cell: centre in the cell (x, y), width and
            height (log of cells), distance; NaN without one.
        answers: (N, questions) class, -1 where it is not known.
        distances: (N, questions) the answer's distance; NaN without one.
    """

    shown: Tensor
    told: Tensor
    nearest: Tensor
    answers: Tensor
    distances: Tensor


def wording(answer: str) -> tuple[str, float]:
    """An answer with `#` for its first distance, and that distance as it is learnt; NaN without one."""
    found = _METRES.search(answer)
    return _METRES.sub("#", answer, count=1), far(float(found[0])) if found else math.nan


def far(distance_m: float) -> float:
    """A distance as it is learnt: 0 at 0 m, 1 at `FAR_M`, finer where it is near."""
    return math.log1p(distance_m) / math.log1p(FAR_M)


def targets(pictures: Sequence[Picture], classes: Classes, rows: int, columns: int) -> Targets:
    """Targets of pictures in grids of image tokens, row by row."""
    count, cells = len(pictures), rows * columns
    shown = np.zeros((count, rows, columns, len(classes.labels)), np.float32)
    nearest = np.full((count, cells, 5), np.nan, np.float32)
    answers = np.full((count, len(classes.answers)), -1, np.int64)
    distances = np.full((count, len(classes.answers)), np.nan, np.float32)
    for n, picture in enumerate(pictures):
        for label, box, _ in picture.unsure:
            if label in classes.labels:
                shown[n, _overlapped(box, rows, columns), classes.labels.index(label)] = np.nan
        for label, box, distance in sorted(picture.objects or (), key=lambda o: -o[2]):
            if label not in classes.labels:
                continue
            shown[n, _overlapped(box, rows, columns), classes.labels.index(label)] = 1
            x1, y1, x2, y2 = box
            x, y = (x1 + x2) / 2 * columns, (y1 + y2) / 2 * rows
            column, row = min(int(x), columns - 1), min(int(y), rows - 1)
            nearest[n, row * columns + column] = (
                x - column, y - row, math.log(max((x2 - x1) * columns, 1e-3)), math.log(max((y2 - y1) * rows, 1e-3)),
                far(distance),
            )
        for q, (question, known) in enumerate(classes.answers.items()):
            words, distance = wording(picture.answers.get(question, ""))
            if words in known:
                answers[n, q], distances[n, q] = known.index(words), distance
    told = np.array([picture.objects is not None for picture in pictures])
    return Targets(
        torch.from_numpy(shown.reshape(count, cells, -1)), torch.from_numpy(told),
        torch.from_numpy(nearest), torch.from_numpy(answers), torch.from_numpy(distances),
    )


def _overlapped(box: tuple[float, float, float, float], rows: int, columns: int) -> np.ndarray:
    """(R, C) whether a box takes enough of a cell, or the cell of the box."""
    x1, y1, x2, y2 = box
    left, top = np.arange(columns) / columns, np.arange(rows) / rows
    wide = np.clip(np.minimum(x2, left + 1 / columns) - np.maximum(x1, left), 0, None)
    high = np.clip(np.minimum(y2, top + 1 / rows) - np.maximum(y1, top), 0, None)
    return np.asarray(high[:, None] * wide[None] > OVERLAP * min(1 / (rows * columns), (x2 - x1) * (y2 - y1)))


class Head(nn.Module):
    """Reads image tokens and the deepstack levels beside them."""

    def __init__(self, width: int, classes: Classes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.cells = nn.Linear(width, len(classes.labels) + 5)
        self.queries = nn.Parameter(torch.randn(len(classes.answers), width) * width**-0.5)
        self.answers = nn.ModuleList(nn.Linear(width, len(known) + 1) for known in classes.answers.values())
        nn.init.constant_(self.cells.bias[: len(classes.labels)], -4.0)  # most cells show nothing

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Of image tokens (N, M, width): cells (N, M, labels + 5) and, for each question, classes and a distance
        (N, answers + 1)."""
        x = self.norm(tokens)
        weights = (x @ self.queries.T / x.shape[-1] ** 0.5).softmax(1)
        pooled = weights.transpose(1, 2) @ x
        return self.cells(x), [layer(pooled[:, q]) for q, layer in enumerate(self.answers)]


class VisionPretraining:
    """Trains the vision tower of a fresh model, or of an earlier one, on the CPU; processes share each step's pictures.

    Attributes:
        pictures: that are learnt from.
        classes: what the head tells apart.
        step: optimiser steps taken.
        steps: of the schedule.
        end: the step at which this run ends: the last one, or `run.stop_at`.
    """

    def __init__(self, config: VisionConfig, accelerator: Any) -> None:
        """Read the files and draw the weights, or pick up the newest checkpoint in `config.out`.

        Raises:
            UserError: the files tell nothing, or the batch cannot be divided among the processes.
        """
        from training.tokenizer import build_tokenizer

        self.config, self.out, self._accelerator = config, Path(config.out), accelerator
        check_batch(config.run, accelerator.num_processes)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        self.pictures = read_pictures(config.train)
        self._validation = read_pictures(config.validation) if config.validation else []
        self.classes = Classes.of(self.pictures)
        self.tokenizer = build_tokenizer(config.shape.vocab_size)
        self.model = build_model(config.shape, self.tokenizer, config.run.seed)
        if config.init is not None:
            from wamdiff2_core.model.checkpoint import load_checkpoint

            earlier = load_checkpoint(resolve_checkpoint(config.init, "init"), dtype=torch.float32).model
            try:
                self.model.load_state_dict(earlier.state_dict())
            except RuntimeError as error:
                differs = str(error).splitlines()[1].strip().rstrip(".")  # the first line names the class only
                raise UserError("init", "a model of this `shape`", f"{config.init}: {differs}",
                                "set shape.* as it was built") from error
        visual = self.model.model.visual
        self._processor = make_image_processor(config.images, self.model.config.vision_config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.run.seed)
            self.head = Head(config.shape.text_width * (1 + len(config.shape.deepstack_layers)), self.classes)
        self._encoder = VisionEncoder(visual, written_attention)
        dtype = torch.bfloat16 if config.run.precision == "bf16" else torch.float32
        parts = nn.ModuleDict({"visual": visual, "head": self.head})
        self._master = MasterWeights(parts, config.optimizer, dtype)
        self._writer = CheckpointWriter(self.out, config.run.keep)
        self.steps = schedule_steps(config.run, len(self.pictures))
        self.end = min(config.run.stop_at or self.steps, self.steps)
        self._stop = threading.Event()
        self.step, self._epoch, self._order = 0, -1, torch.empty(0)
        if found := checkpoints(self.out):
            from safetensors.torch import load_file

            self.step = step_of(found[-1])
            self._master.load_state(load_file(found[-1] / STATE_NAME))
            if accelerator.is_main_process:
                shorten_log(self.out, self.step)

    def train(self) -> Iterator[dict[str, float]]:
        """Take the remaining steps; gives every line that is logged.

        A SIGTERM or SIGINT ends the loop of all processes after the running step, with a checkpoint.

        Raises:
            OSError: the disk is full or fails; it names the file.
        """
        with set_on_signals(self._stop):
            yield from self._steps()

    def _steps(self) -> Iterator[dict[str, float]]:
        run, rank, world = self.config.run, self._accelerator.process_index, self._accelerator.num_processes
        since, taken, sums = time.monotonic(), 0, Counter[str]()
        for step in range(self.step, self.end):
            stopping = self._stopping()
            chosen = self._chosen(step)
            losses = self.losses([self.pictures[i] for i in chosen[rank::world]])
            total = torch.stack(list(losses.values())).sum() / world
            total.backward()  # type: ignore[no-untyped-call]
            self._master.accumulate()
            if world > 1:
                self._master.sum_over_processes()
            self._master.set_rates(share_of_peak(step, self.config.optimizer, self.steps))
            self._master.step()
            self.step, taken = step + 1, taken + 1
            sums.update({name: float(loss.detach()) for name, loss in losses.items()})
            last = self.step == self.end or stopping
            if self.step % run.log_every == 0 or last:
                line = {"step": self.step, "samples": self.step * run.global_batch,
                        **{name: round(value / taken, 5) for name, value in sums.items()},
                        "samples_per_s": round(taken * run.global_batch / (time.monotonic() - since), 1)}
                if self._validation and (self.step % run.validate_every == 0 or last):
                    line.update(self.validate())
                if rank == 0:
                    path = self.out / LOG_NAME
                    with disk_errors_named(path), path.open("a") as log:
                        log.write(json.dumps(line) + "\n")
                yield line
                since, taken, sums = time.monotonic(), 0, Counter()
            if rank == 0 and (self.step % run.checkpoint_every == 0 or last):
                self.save()
            if last:
                break

    def _stopping(self) -> bool:
        """Whether any process was told to stop."""
        stop = torch.tensor(float(self._stop.is_set()))
        if self._accelerator.num_processes > 1:
            torch.distributed.all_reduce(stop)
        return bool(stop > 0)

    def losses(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Mean losses of pictures: `objects`, `places`, `answers`, `distances`."""
        cells, answers, wanted = self._told(pictures)
        labels = len(self.classes.labels)
        known = wanted.told
        shown, sure = cells[known][..., :labels], ~wanted.shown[known].isnan()
        objects = functional.binary_cross_entropy_with_logits(
            shown[sure], wanted.shown[known][sure], reduction="sum", pos_weight=torch.tensor(SHOWN_WEIGHT),
        ) / max(1, int(known.sum()))
        there = ~wanted.nearest[..., 0].isnan()
        places = functional.smooth_l1_loss(cells[there][:, labels:], wanted.nearest[there], beta=0.1)
        entropies = [
            functional.cross_entropy(logits[asked, :-1], wanted.answers[asked, q])
            for q, logits in enumerate(answers) if (asked := wanted.answers[:, q] >= 0).any()
        ]
        said = torch.stack([logits[:, -1] for logits in answers], 1) if answers else wanted.distances
        measured = ~wanted.distances.isnan()
        zero = cells.sum() * 0
        return {
            "objects": objects, "places": places if there.any() else zero,
            "answers": torch.stack(entropies).mean() if entropies else zero,
            "distances": functional.smooth_l1_loss(said[measured], wanted.distances[measured], beta=0.1)
            if measured.any() else zero,
        }

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Share of right wordings by question, and recall and precision of the cells' labels at 1/2."""
        right, asked, hits, shown, said = Counter[str](), Counter[str](), 0, 0, 0
        labels = len(self.classes.labels)
        for first in range(0, len(self._validation), 64):
            cells, answers, wanted = self._told(self._validation[first : first + 64])
            for q, question in enumerate(self.classes.answers):
                known = wanted.answers[:, q] >= 0
                right[question] += int((answers[q][:, :-1].argmax(-1) == wanted.answers[:, q])[known].sum())
                asked[question] += int(known.sum())
            truth = wanted.shown[wanted.told]
            guess, truth = (cells[wanted.told][..., :labels] > 0) & ~truth.isnan(), truth > 0
            hits, shown, said = hits + int((guess & truth).sum()), shown + int(truth.sum()), said + int(guess.sum())
        return {
            "recall": round(hits / max(1, shown), 4), "precision": round(hits / max(1, said), 4),
            **{f"right_{question}": round(right[question] / n, 4) for question, n in asked.items() if n},
        }

    def save(self) -> Path:
        """Write a checkpoint folder, complete or not at all: the model with its text weights as they were, and the
        trainer's state."""
        from safetensors.torch import save_file

        from wamdiff2_core.model.checkpoint import save_checkpoint

        record = ServingRecord(
            label_alignment="shifted", block_sizes=(1,), images=self.config.images,
            mask_token_id=int(self.tokenizer.mask_token_id), eos_token_id=int(self.tokenizer.eos_token_id),
            notes="vision tower alone: text weights are as they were",
        )
        draft = self._writer.draft(self.step)
        try:
            with disk_errors_named(self.out / f"checkpoint-{self.step:06d}"):
                state = {name: tensor.contiguous().cpu() for name, tensor in self._master.state().items()}
                save_file(state, draft / STATE_NAME)
                save_checkpoint(self.model, self.tokenizer, record, draft)
        except OSError:
            self._writer.discard(draft)
            raise
        return self._writer.publish(draft, self.step, None)

    def _told(self, pictures: Sequence[Picture]) -> tuple[Tensor, list[Tensor], Targets]:
        pixels, grids = encode_images(
            [rgb for picture in pictures for rgb in read_images(picture.sample, str(picture.sample.images[0].parent))],
            self.config.images, self._processor,
        )
        if len(grids.unique(dim=0)) > 1:
            raise UserError("images", "pictures of one size", "several", "set images.size_px")
        merge = self.model.config.vision_config.spatial_merge_size
        rows, columns = (int(side) // merge for side in grids[0, 1:])
        dtype = self.model.model.visual.patch_embed.proj.weight.dtype
        tokens, levels = self._encoder(pixels.to(dtype), grids)
        seen = torch.cat([tokens, *levels], -1).unflatten(0, (len(pictures), -1))
        cells, answers = self.head(seen)
        return cells.float(), [logits.float() for logits in answers], targets(pictures, self.classes, rows, columns)

    def _chosen(self, step: int) -> list[int]:
        """Pictures of a step: passes over all of them, each in an order of its own, which is kept while it lasts."""
        size, count = self.config.run.global_batch, len(self.pictures)
        chosen: list[int] = []
        position = step * size
        while len(chosen) < size:
            epoch, place = divmod(position + len(chosen), count)
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = torch.randperm(count, generator=seeds.generator(self.config.run.seed, epoch))
            chosen += self._order[place : place + size - len(chosen)].tolist()
        return chosen
