"""Grounding: average precision at an overlap of 0.5 and recall, by label.

Matching and precision follow COCO: within an image, boxes of a label take, surest first, the free object that they
overlap most; precision is interpolated at 101 levels of recall; the mean runs over labels that have objects. An answer
that cannot be read has found nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.decode.generator import Generation
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import Detection, box_scores, parse_grounding
from wamdiff2_core.tasks.text import AnswerError

OVERLAP = 0.5
RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class BoxScore:
    """One grounding answer.

    Attributes:
        text: the answer.
        expected: the objects.
        found: the boxes; None when the answer could not be read.
        sureness: of each box, in [0, 1].
    """

    text: str
    expected: tuple[Detection, ...]
    found: tuple[Detection, ...] | None
    sureness: tuple[float, ...] = ()


def score_boxes(expected: str, generation: Generation, chat: ChatCodec) -> BoxScore:
    """Read an answer, its boxes scored by how surely their numbers were decoded.

    Raises:
        UserError: the data set's own answer cannot be read.
    """
    try:
        objects = parse_grounding(expected).detections
    except AnswerError as error:
        raise UserError("data", "grounding answers in the published form", str(error)) from None
    try:
        answer = parse_grounding(generation.text)
    except AnswerError:
        return BoxScore(generation.text, objects, None)
    assert generation.trace is not None
    sureness = box_scores(answer, chat.token_spans(generation.token_ids), generation.trace.confidence)
    return BoxScore(generation.text, objects, answer.detections, sureness)


def overlap(one: Detection, other: Detection) -> float:
    """Intersection over union of two boxes; 0 when both are empty."""
    (y0, x0, y1, x1), (v0, u0, v1, u1) = one.box, other.box
    shared = max(0, min(y1, v1) - max(y0, v0)) * max(0, min(x1, u1) - max(x0, u0))
    union = (y1 - y0) * (x1 - x0) + (v1 - v0) * (u1 - u0) - shared
    return shared / union if union else 0.0


def matches(found: Sequence[Detection], objects: Sequence[Detection]) -> list[bool]:
    """Whether each box, in the given order, takes an object that no box before it took."""
    free, hits = list(objects), []
    for box in found:
        best = max(free, key=lambda item: overlap(box, item), default=None)
        hit = best is not None and overlap(box, best) >= OVERLAP
        if hit:
            free.remove(best)
        hits.append(hit)
    return hits


def average_precision(sureness: np.ndarray, hits: np.ndarray, objects: int) -> float:
    """Area under the interpolated precision of boxes with these scores; equal scores keep their order."""
    if not len(hits):
        return 0.0
    caught = np.cumsum(hits[np.argsort(-sureness, kind="stable")])
    precision = caught / np.arange(1, len(caught) + 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return float(envelope[np.searchsorted(caught / objects, RECALLS, side="left")].mean())


def box_figures(scores: Sequence[BoxScore]) -> dict[str, Any]:
    """Figures of answers; `map_50_unscored` takes all boxes as equally sure."""
    by_label = {label: _of_label(scores, label) for label in _labels(scores)}
    known = [figures for figures in by_label.values() if figures["objects"]]
    objects, caught = (sum(figures[key] for figures in known) for key in ("objects", "caught"))
    result: dict[str, Any] = {
        "samples": len(scores), "unreadable": sum(score.found is None for score in scores), "objects": objects,
    }
    if known:
        result |= {
            "map_50": round(float(np.mean([figures["ap_50"] for figures in known])), 4),
            "map_50_unscored": round(float(np.mean([figures["ap_50_unscored"] for figures in known])), 4),
            "recall_50": round(caught / objects, 4),
        }
    return result | {"by_label": by_label}


def box_control(right: Sequence[BoxScore], wrong: Sequence[BoxScore]) -> dict[str, Any]:
    """What wrong images do to the same samples."""
    changed = np.mean([one.text != other.text for one, other in zip(right, wrong, strict=True)])
    result: dict[str, Any] = {"samples": len(right), "changed": round(float(changed), 4)}
    for name, scores in (("right", right), ("wrong", wrong)):
        figures = box_figures(scores)
        result |= {f"{key}_{name}": figures[key] for key in ("map_50", "recall_50") if key in figures}
    return result


def _labels(scores: Sequence[BoxScore]) -> list[str]:
    return sorted({box.label for score in scores for box in (*score.expected, *(score.found or ()))})


def _of_label(scores: Sequence[BoxScore], label: str) -> dict[str, Any]:
    sureness: list[float] = []
    hits: list[bool] = []
    plain: list[bool] = []
    objects = 0
    for score in scores:
        wanted = [box for box in score.expected if box.label == label]
        found = [(sure, box) for sure, box in zip(score.sureness, score.found or (), strict=True) if box.label == label]
        objects += len(wanted)
        plain += matches([box for _, box in found], wanted)
        found.sort(key=lambda pair: -pair[0])
        sureness += [sure for sure, _ in found]
        hits += matches([box for _, box in found], wanted)
    figures: dict[str, Any] = {"objects": objects, "boxes": len(hits), "caught": sum(hits)}
    if objects:
        scored = average_precision(np.array(sureness), np.array(hits), objects)
        unscored = average_precision(np.ones(len(plain)), np.array(plain), objects)
        figures |= {"recall_50": round(sum(hits) / objects, 4), "ap_50": round(scored, 4),
                    "ap_50_unscored": round(unscored, 4)}
    return figures
