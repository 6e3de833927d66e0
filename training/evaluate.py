"""Open-loop evaluation: decode a validation file with the serving code, and measure waypoints against the expert's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.tasks.text import AnswerError

if TYPE_CHECKING:
    from wamdiff2_core.decode.generator import Generation
    from wamdiff2_core.model.checkpoint import Checkpoint


@dataclass(frozen=True)
class Answered:
    """One decoded sample.

    Attributes:
        l2_m: (T,) distance of each waypoint to the expert's, or None when the answer could not be read.
        group: what results are also split by, for example the command.
        forwards: forwards of the language model, prefill included.
        tokens: answer tokens up to and including EOS.
    """

    l2_m: np.ndarray | None
    group: str
    forwards: int
    tokens: int


def decode_set(
    checkpoint: Checkpoint, samples: Sequence[Sample], decode: DecodeConfig, task: PlanningTask, *,
    image_shift: int = 0, batch_size: int = 32,
) -> list[Answered]:
    """Decode every sample.

    Args:
        checkpoint: weights with tokenizer.
        samples: with images or without.
        decode: decoding of the checkpoint's kind.
        task: how answers are read.
        image_shift: give each sample the image of the sample this many rows on (the shuffled-image control).
        batch_size: samples decoded together; it does not change answers.
    """
    from wamdiff2_core.decode.generator import Generator

    generator = Generator(checkpoint)
    answered = []
    for first in range(0, len(samples), batch_size):
        chosen = samples[first : first + batch_size]
        requests = []
        for offset, sample in enumerate(chosen):
            pictured = samples[(first + offset + image_shift) % len(samples)]
            images = tuple(read_rgb(path) for path in pictured.images)
            request = ChatRequest(sample.prompt, images, sample.conversation.system, sample.history)
            requests.append(checkpoint.chat.encode(request))
        for sample, generation in zip(chosen, generator.generate(requests, decode), strict=True):
            answered.append(_measure(sample, generation, task))
    return answered


def _measure(sample: Sample, generation: Generation, task: PlanningTask) -> Answered:
    try:
        planned = parse_waypoints(generation.text, task).xy_m
        expert = parse_waypoints(sample.answer, task).xy_m
        l2_m = np.linalg.norm(planned - expert, axis=1)
    except AnswerError:
        l2_m = None
    group = str(sample.extra.get("command", "all"))
    return Answered(l2_m, group, generation.stats.forwards, generation.stats.tokens)


def summary(answered: Sequence[Answered]) -> dict[str, Any]:
    """Figures of a decoded set; L2 is the mean over an answer's waypoints, in metres, over answers that can be read."""
    read = [answer.l2_m for answer in answered if answer.l2_m is not None]
    if not read:
        return {"samples": len(answered), "unreadable": len(answered)}
    means = np.array([l2_m.mean() for l2_m in read])
    return {
        "samples": len(answered),
        "unreadable": len(answered) - len(read),
        "l2_mean_m": round(float(means.mean()), 3),
        "l2_median_m": round(float(np.median(means)), 3),
        "l2_p95_m": round(float(np.percentile(means, 95)), 3),
        "l2_p99_m": round(float(np.percentile(means, 99)), 3),
        "l2_max_m": round(float(means.max()), 3),
        "l2_by_waypoint_m": [round(float(value), 3) for value in np.stack(read).mean(0)],
        "forwards": round(float(np.mean([answer.forwards for answer in answered])), 1),
        "tokens_per_forward": round(sum(a.tokens for a in answered) / sum(a.forwards for a in answered), 2),
    }


def evaluate_checkpoint(
    folder: Path, data: Path, *, limit: int = 0, threshold: float | None = None, control: bool = True
) -> dict[str, Any]:
    """Open-loop figures of a checkpoint on a conversation file.

    Args:
        folder: checkpoint with a serving record that plans.
        data: conversation file.
        limit: first samples only; 0 for all.
        threshold: confidence threshold instead of the record's.
        control: with images, decode once more with wrong images; equal figures mean that the images are not used.

    Raises:
        UserError: the checkpoint does not plan.
    """
    from dataclasses import replace

    from wamdiff2_core.errors import UserError
    from wamdiff2_core.model.checkpoint import load_checkpoint

    samples = read_dataset(data)
    checkpoint = load_checkpoint(folder)
    if checkpoint.record is None or checkpoint.record.planning is None:
        raise UserError(str(folder), "a checkpoint whose serving record has a planning task", "none")
    decode, task = checkpoint.record.decode, checkpoint.record.planning
    if threshold is not None:
        decode = replace(decode, confidence_threshold=threshold)
    samples = samples[:limit] if limit else samples
    answered = decode_set(checkpoint, samples, decode, task)
    result: dict[str, Any] = {"checkpoint": checkpoint.hash, "block_size": decode.block_size,
                              "threshold": decode.confidence_threshold, "all": summary(answered)}
    groups = sorted({answer.group for answer in answered})
    if len(groups) > 1:
        result["by_command"] = {group: summary([a for a in answered if a.group == group]) for group in groups}
    if control and any(sample.images for sample in samples):
        shifted = decode_set(checkpoint, samples, decode, task, image_shift=max(1, len(samples) // 2))
        result["wrong_images"] = summary(shifted)
    return result
