"""Open-loop evaluation: decode a conversation file with the serving code, and measure the answers of each task.

A file may mix planning, questions and grounding; each sample's own question says which it is. With images, every
sample is decoded once more with the images of another sample of its task: equal figures mean that the images are not
used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.data.slices import ABSENT, slice_of
from training.measures.boxes import box_control, box_figures, score_boxes
from training.measures.planning import plan_control, plan_figures, score_plan
from training.measures.questions import question_types, score_words, word_control, word_figures
from wamdiff2_core.chat import ChatCodec, ChatRequest, ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.dataset import Sample, read_dataset, read_images
from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.tasks.recognise import AskedTask, asked_task

if TYPE_CHECKING:
    from wamdiff2_core.decode.generator import Generation
    from wamdiff2_core.model.checkpoint import Checkpoint

DEFAULT_SLICES = ("command", "situation")
SHOWN = ("strategy", "block_size", "denoising_steps", "confidence_threshold", "grammar")
TASKS: tuple[AskedTask, ...] = ("planning", "questions", "grounding")


@dataclass(frozen=True)
class Scorer:
    """How the answers of one task are measured.

    Attributes:
        score: samples and their answers -> a score each.
        figures: scores -> figures.
        control: scores with the right and with wrong images, of the same samples -> figures.
    """

    score: Callable[[Sequence[Sample], Sequence[Generation]], list[Any]]
    figures: Callable[[Sequence[Any]], dict[str, Any]]
    control: Callable[[Sequence[Any], Sequence[Any]], dict[str, Any]]


def decode_samples(
    checkpoint: Checkpoint, task: AskedTask, samples: Sequence[Sample], decode: DecodeConfig, *,
    shown: Sequence[Sample] | None = None, batch_size: int = 32, trace: bool = False,
) -> list[Generation]:
    """Answers of samples of one task, under the grammar that serving has for it.

    A deadline is not kept, as it is of one answer alone; that it binds plans to their grammar is.

    Args:
        checkpoint: weights with tokenizer.
        task: of all samples.
        samples: their prompts, system messages and histories are asked.
        decode: decoding of the checkpoint's kind.
        shown: for each sample the one whose images are shown; None shows its own.
        batch_size: samples decoded together; it does not change answers.
        trace: also tell how sure the model was of each token.

    Raises:
        UserError: an image cannot be read, a sample asks for image limits that the checkpoint's policy does not allow,
            or the tokenizer has no grammar.
    """
    from wamdiff2_core.decode.generator import Generator
    from wamdiff2_core.decode.grammar import task_decoding

    generator = Generator(checkpoint)
    decode, language = task_decoding(task, checkpoint.chat, checkpoint.record, decode)
    decode = replace(decode, deadline_ms=0.0)
    pairs = list(zip(samples, samples if shown is None else shown, strict=True))
    answers: list[Generation] = []
    for first in range(0, len(pairs), batch_size):
        requests = [_request(checkpoint.chat, *pair) for pair in pairs[first : first + batch_size]]
        answers += generator.generate(requests, decode, trace=trace, grammars=[language] * len(requests))
    return answers


def _request(chat: ChatCodec, sample: Sample, shown: Sample) -> ModelInputs:
    images = tuple(read_images(shown, f"sample {shown.conversation.id!r}"))
    codec = chat.with_pixel_limits(shown.conversation.min_pixels, shown.conversation.max_pixels)
    return codec.encode(ChatRequest(sample.prompt, images, sample.conversation.system, sample.history))


def wrong_images(samples: Sequence[Sample]) -> list[Sample | None]:
    """For each sample another one, half the set further on, that has as many images and other ones.

    None for a sample without images, and where all others show the same.
    """
    result: list[Sample | None] = []
    half = max(1, len(samples) // 2)
    for row, sample in enumerate(samples):
        others = (samples[(row + half + step) % len(samples)] for step in range(len(samples)))
        fitting = (
            other for other in others if len(other.images) == len(sample.images) and other.images != sample.images
        )
        result.append(next(fitting, None) if sample.images else None)
    return result


def evaluate_samples(
    checkpoint: Checkpoint, samples: Sequence[Sample], decode: DecodeConfig, *, by: Sequence[str] = DEFAULT_SLICES,
    control: bool = True, batch_size: int = 32,
) -> dict[str, Any]:
    """Figures by task, each of all its samples and of its slices.

    Raises:
        UserError: the checkpoint does not do a task of the samples, or their own answers are not of its form.
    """
    result: dict[str, Any] = {}
    for task in TASKS:
        chosen = [sample for sample in samples if asked_task(sample.prompt) == task]
        if not chosen:
            continue
        scorer, trace = _scorer(checkpoint, task), task == "grounding"

        def scores_with(
            wanted: Sequence[Sample], shown: Sequence[Sample], task: AskedTask = task, scorer: Scorer = scorer,
            trace: bool = trace,
        ) -> list[Any]:
            return scorer.score(wanted, decode_samples(
                checkpoint, task, wanted, decode, shown=shown, batch_size=batch_size, trace=trace
            ))

        right = scores_with(chosen, chosen)
        others = wrong_images(chosen) if control else [None] * len(chosen)
        with_other = [(row, other) for row, other in enumerate(others) if other is not None]
        scores = scores_with([chosen[row] for row, _ in with_other], [other for _, other in with_other])
        wrong = {row: score for (row, _), score in zip(with_other, scores, strict=True)}
        result[task] = _sliced(chosen, right, wrong, scorer, by)
    return result


def _sliced(
    samples: Sequence[Sample], right: Sequence[Any], wrong: Mapping[int, Any], scorer: Scorer, by: Sequence[str]
) -> dict[str, Any]:
    def figures(rows: Sequence[int]) -> dict[str, Any]:
        of = scorer.figures([right[row] for row in rows])
        both = [row for row in rows if row in wrong]
        if both:
            of["wrong_images"] = scorer.control([right[row] for row in both], [wrong[row] for row in both])
        return of

    result: dict[str, Any] = {"all": figures(range(len(samples)))}
    for key in by:
        rows = defaultdict(list)
        for row, sample in enumerate(samples):
            rows[slice_of(sample.extra, key)].append(row)
        if len(rows) > 1:
            result.setdefault("by", {})[key] = {name: figures(rows[name]) for name in sorted(rows)}
    return result


def _scorer(checkpoint: Checkpoint, task: AskedTask) -> Scorer:
    if task == "planning":
        planning = checkpoint.record.planning if checkpoint.record is not None else None
        if planning is None:
            raise UserError("checkpoint", "one whose serving record has a planning task, as the data asks for plans",
                            "none")
        return Scorer(
            lambda samples, answers: [
                score_plan(sample.answer, answer, planning) for sample, answer in zip(samples, answers, strict=True)
            ],
            plan_figures, plan_control,
        )
    if task == "grounding":
        return Scorer(
            lambda samples, answers: [
                score_boxes(sample.answer, answer, checkpoint.chat)
                for sample, answer in zip(samples, answers, strict=True)
            ],
            box_figures, box_control,
        )
    return Scorer(
        lambda samples, answers: [
            score_words(sample.prompt, kind, sample.answer, answer.text)
            for sample, kind, answer in zip(samples, question_types(samples), answers, strict=True)
        ],
        word_figures, word_control,
    )


def evaluate_checkpoint(
    folder: Path, data: Path, *, limit: int = 0, decode: Mapping[str, Any] = {}, by: Sequence[str] = (),
    control: bool = True, batch_size: int = 32, device: str = "cpu", dtype: str | None = None, backend: str = "auto",
) -> dict[str, Any]:
    """Open-loop figures of a checkpoint on a conversation file.

    Args:
        folder: checkpoint.
        data: conversation file.
        limit: first samples only; 0 for all.
        decode: fields of `DecodeConfig` instead of the record's.
        by: keys to split results by, see `slice_of`; none takes `DEFAULT_SLICES`.
        control: with images, decode once more with wrong images.
        batch_size: samples decoded together.
        device, dtype, backend: see `load_checkpoint`.

    Raises:
        UserError: no such file or key, the checkpoint does not do what is asked, or decoding contradicts its record.
    """
    from wamdiff2_core.model.checkpoint import load_checkpoint

    samples = read_dataset(data)
    samples = samples[:limit] if limit else samples
    if not samples:
        raise UserError("data", "at least one sample", f"{data}, which has none")
    for key in by:
        if all(slice_of(sample.extra, key) == ABSENT for sample in samples):
            known = sorted({name for sample in samples for name in sample.extra})
            raise UserError("by", "a key of the samples", key, did_you_mean(key, known))
    checkpoint = load_checkpoint(folder, device=device, dtype=dtype, backend=backend)
    base = checkpoint.record.decode if checkpoint.record is not None else DecodeConfig()
    chosen = replace(base, **decode)
    return {
        "checkpoint": checkpoint.hash,
        "decode": {name: getattr(chosen, name) for name in SHOWN},
        **evaluate_samples(
            checkpoint, samples, chosen, by=by or DEFAULT_SLICES, control=control, batch_size=batch_size
        ),
    }
