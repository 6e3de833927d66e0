"""DriveBench and DriveLM: a question about named camera views, answered in words or by an option letter.

The question is the data set's own, unchanged (paper appendix A.4). Questions with a choice carry their options
themselves, as "... following options: A. Going ahead. B. Turn left.".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.tasks.text import AnswerError, parse_text, user_text

VIEWS = ("CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT", "CAM_BACK", "CAM_BACK_LEFT", "CAM_BACK_RIGHT")

_OPTION = re.compile(r"(?<!\S)\(?([A-Z])[.):]+\s+(?=\S)")
_CHOICE = re.compile(r"\(?([A-Z])(?:\)?[.:]?$|(?:\)|\)?[.:])\s+\S)")


@dataclass(frozen=True)
class DriveBenchRequest:
    """A question about views.

    Attributes:
        question: of the data set, unchanged.
        views: identifier of each image: one of `VIEWS`, or all six in that order.
    """

    question: str
    views: tuple[str, ...] = VIEWS

    def __post_init__(self) -> None:
        for view in self.views:
            if view not in VIEWS:
                raise UserError("views", "camera views of nuScenes", view, did_you_mean(view, VIEWS))
        if len(self.views) != 1 and self.views != VIEWS:
            raise UserError("views", "one view, or all six in the order " + ", ".join(VIEWS), ", ".join(self.views))


@dataclass(frozen=True)
class DriveBenchAnswer:
    """An answer.

    Attributes:
        text: the words; of a choice, what stands with the letter, often nothing but the letter.
        option: letter of the chosen option, or None for an answer in words.
    """

    text: str
    option: str | None = None


def drivebench_prompt(request: DriveBenchRequest) -> str:
    """The user message: each view's identifier before its image, then the question.

    Raises:
        UserError: the question is empty, or contains an image mark.
    """
    views = " ".join(f"[{view}] <image>" for view in request.views)
    return f"{views}\n{user_text('question', request.question)}"


def options_of(question: str) -> dict[str, str]:
    """Options that a question offers, by letter; empty when it does not offer at least A and B.

    The last run of A, B, ... in the question counts, so a letter in its wording does no harm.
    """
    runs: list[list[re.Match[str]]] = []
    for match in _OPTION.finditer(question):
        if match[1] == "A":
            runs.append([match])
        elif runs and ord(match[1]) == ord(runs[-1][-1][1]) + 1:
            runs[-1].append(match)
    offered = next((run for run in reversed(runs) if len(run) > 1), [])
    ends = [match.start() for match in offered[1:]] + [len(question)]
    return {match[1]: question[match.end() : end].strip() for match, end in zip(offered, ends, strict=bool(offered))}


def parse_drivebench(text: str, options: Collection[str] = ()) -> DriveBenchAnswer:
    """Read an answer.

    A choice is a letter alone ("B", "B.", "(B)"), or a letter set off from words ("B. Turn left").

    Args:
        text: the model's answer.
        options: letters that the question offers (`options_of`); without them any letter may be the answer.

    Raises:
        AnswerError: it is empty, or options are offered and it begins with none of them.
    """
    stripped = parse_text(text).text
    match = _CHOICE.match(stripped)
    option = match[1] if match else None
    if options and option not in options:
        raise AnswerError(text, len(text) - len(text.lstrip()), f"expected one of {', '.join(sorted(options))}")
    return DriveBenchAnswer(stripped, option)


def format_drivebench(answer: DriveBenchAnswer) -> str:
    """Answer text: the words, which for a choice are as the data set has them.

    Raises:
        ValueError: the text is empty, or does not say the option.
    """
    text = answer.text.strip()
    if not text or parse_drivebench(text).option != answer.option:
        raise ValueError(f"text: expected words that say option {answer.option}, got {answer.text!r}")
    return text
