"""Questions answered in words: exact match, by question type, beside what a constant answer a type would reach.

The constant answer is the most frequent one of the evaluated file itself, so it is the best that a model without
pictures can do by type alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.dataset import Sample
from wamdiff2_core.tasks.drivebench import options_of, parse_drivebench
from wamdiff2_core.tasks.text import AnswerError

TYPE_KEYS = ("question_type", "question")
MOST_TYPES = 50  # question texts that still count as types


@dataclass(frozen=True)
class WordScore:
    """One answer in words.

    Attributes:
        kind: question type.
        expected, text: the data set's answer and the model's, stripped.
        correct: whether they are the same; of a choice, whether the letter is.
    """

    kind: str
    expected: str
    text: str
    correct: bool


def question_types(samples: Sequence[Sample]) -> list[str]:
    """The type of each question: a key of its sample (`TYPE_KEYS`), else its text where there are few, else one."""
    kinds: list[str] = []
    for sample in samples:
        keyed = (sample.extra.get(key) for key in TYPE_KEYS)
        text = " ".join(sample.prompt.replace(IMAGE_PLACEHOLDER, " ").split())
        kinds.append(next((value for value in keyed if isinstance(value, str)), text))
    return kinds if len(set(kinds)) <= MOST_TYPES else ["all"] * len(kinds)


def score_words(question: str, kind: str, expected: str, text: str) -> WordScore:
    """Compare an answer with the data set's."""
    expected, text = expected.strip(), text.strip()
    options = options_of(question)
    if not options:
        return WordScore(kind, expected, text, expected == text)
    try:
        correct = parse_drivebench(text, options).option == parse_drivebench(expected, options).option
    except AnswerError:
        correct = False
    return WordScore(kind, expected, text, correct)


def word_figures(scores: Sequence[WordScore]) -> dict[str, Any]:
    """Figures of answers; an empty one is wrong."""
    by_kind = defaultdict(list)
    for score in scores:
        by_kind[score.kind].append(score)
    majorities = {kind: Counter(score.expected for score in of).most_common(1)[0] for kind, of in by_kind.items()}
    return {
        "samples": len(scores),
        "empty": sum(not score.text for score in scores),
        "exact": _share(sum(score.correct for score in scores), len(scores)),
        "majority": _share(sum(count for _, count in majorities.values()), len(scores)),
        "by_type": {
            kind: {
                "samples": len(of), "exact": _share(sum(score.correct for score in of), len(of)),
                "majority": _share(majorities[kind][1], len(of)), "majority_answer": majorities[kind][0],
            }
            for kind, of in sorted(by_kind.items())
        },
    }


def word_control(right: Sequence[WordScore], wrong: Sequence[WordScore]) -> dict[str, Any]:
    """What wrong images do to the same samples."""
    changed = sum(one.text != other.text for one, other in zip(right, wrong, strict=True))
    return {
        "samples": len(right), "changed": _share(changed, len(right)),
        "exact_right": _share(sum(score.correct for score in right), len(right)),
        "exact_wrong": _share(sum(score.correct for score in wrong), len(wrong)),
    }


def _share(count: int, total: int) -> float:
    return round(count / total, 4)
