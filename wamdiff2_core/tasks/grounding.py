"""Grounding: a description -> the boxes of all objects that match it, as a JSON list.

    [{"bbox_2d": [y_min, x_min, y_max, x_max], "label": "car"}, ...]

Numbers are integers on a grid of 1000 x 1000 over the image, y first (paper appendix A.4). The text carries no scores;
`box_scores` takes them from how the answer was decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from wamdiff2_core.config import GroundingTask
from wamdiff2_core.tasks.text import AnswerError, user_text

GRID = 1000
PROMPT = (
    "<image>\nLocate every object that matches the description {opening}{description}{closing} in the image. "
    "Report bbox coordinates in JSON format."
)
QUOTES = {"doubled": ("‘‘", "’’"), "curly": ("“", "”"), "straight": ('"', '"')}  # noqa: RUF001 - the published marks

Span = tuple[int, int]

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"(?:0|[1-9][0-9]{0,3})(?![0-9])")
_OBJECT = re.compile(r'\{[ \t\r\n]*"bbox_2d"')
_STRINGS = json.JSONDecoder()


@dataclass(frozen=True)
class GroundingRequest:
    """What to look for, in words; its image is one picture."""

    description: str


@dataclass(frozen=True)
class Detection:
    """One box.

    Attributes:
        box: (y_min, x_min, y_max, x_max), integers from 0 to 1000 on the grid, down and to the right.
        label: what it is.
    """

    box: tuple[int, int, int, int]
    label: str

    def __post_init__(self) -> None:
        y_min, x_min, y_max, x_max = self.box
        if not (0 <= y_min <= y_max <= GRID and 0 <= x_min <= x_max <= GRID):
            raise ValueError(f"box: expected y_min <= y_max and x_min <= x_max within 0..{GRID}, got {self.box}")
        if not self.label.strip():
            raise ValueError(f"label: expected some text, got {self.label!r}")
        self.label.encode()  # half a surrogate pair has no UTF-8


@dataclass(frozen=True)
class Grounding:
    """An answer.

    Attributes:
        detections: in the order of the text.
        number_spans: of each detection, where its four numbers stand in the text: (start, end) each.
        fault: why the text is not a whole valid answer; None when it is. Only the lenient reading gives answers with
            a fault.
    """

    detections: tuple[Detection, ...]
    number_spans: tuple[tuple[Span, ...], ...] = field(default=(), compare=False)
    fault: AnswerError | None = field(default=None, compare=False)


def grounding_prompt(request: GroundingRequest, task: GroundingTask = GroundingTask()) -> str:
    """The user message.

    Raises:
        UserError: the description is empty, or contains an image mark.
    """
    opening, closing = QUOTES[task.quotes]
    return PROMPT.format(opening=opening, description=user_text("description", request.description), closing=closing)


def box_from_pixels(
    x_min_px: float, y_min_px: float, x_max_px: float, y_max_px: float, width_px: int, height_px: int
) -> tuple[int, int, int, int]:
    """A pixel box on the grid, cut at the image's edges, each side rounded to the nearest line (halves to even).

    Args:
        x_min_px, y_min_px, x_max_px, y_max_px: edges in pixels; 0 is the left or upper edge of the first pixel.
        width_px, height_px: of the image.

    Returns:
        (y_min, x_min, y_max, x_max), see `Detection.box`.
    """
    y_min, y_max = (round(GRID * min(max(edge / height_px, 0.0), 1.0)) for edge in (y_min_px, y_max_px))
    x_min, x_max = (round(GRID * min(max(edge / width_px, 0.0), 1.0)) for edge in (x_min_px, x_max_px))
    return y_min, x_min, y_max, x_max


def pixels_from_box(
    box: tuple[int, int, int, int], width_px: int, height_px: int
) -> tuple[float, float, float, float]:
    """Edges (x_min, y_min, x_max, y_max) in pixels of a box on the grid; the inverse of `box_from_pixels`."""
    y_min, x_min, y_max, x_max = box
    return (
        x_min / GRID * width_px, y_min / GRID * height_px, x_max / GRID * width_px, y_max / GRID * height_px,
    )


def format_grounding(grounding: Grounding) -> str:
    """Answer text: one line of JSON."""
    return json.dumps(
        [{"bbox_2d": list(found.box), "label": found.label} for found in grounding.detections], ensure_ascii=False
    )


def parse_grounding(text: str, *, lenient: bool = False) -> Grounding:
    """Read an answer: the list and nothing else, keys in the published order, JSON's white space anywhere.

    Args:
        text: the model's answer.
        lenient: keep every whole object, wherever it stands, of a text that is cut off or otherwise damaged; the
            result's `fault` then says what is wrong with the text.

    Raises:
        AnswerError: anything else, named with its position; never when lenient.
    """
    reader = _Reader(text)
    try:
        found = reader.whole_list()
    except AnswerError as error:
        if not lenient:
            raise
        found = reader.whole_objects()
        return Grounding(tuple(box for box, _ in found), tuple(spans for _, spans in found), error)
    return Grounding(tuple(box for box, _ in found), tuple(spans for _, spans in found))


def box_scores(
    grounding: Grounding, token_spans: Sequence[Span], confidence: Sequence[float]
) -> tuple[float, ...]:
    """Score of each detection, in [0, 1]: the mean probability with which the tokens of its numbers were fixed.

    Args:
        grounding: read from an answer's text.
        token_spans: where each token of the answer stands in that text (`ChatCodec.token_spans`).
        confidence: of each of these tokens (`DecodeTrace.confidence`); more may follow.

    Raises:
        ValueError: a number has no token: text and tokens are not of the same answer.
    """
    scores = []
    for spans in grounding.number_spans:
        tokens = {
            index
            for index, (start, end) in enumerate(token_spans)
            for first, last in spans
            if start < last and first < end
        }
        if not tokens:
            raise ValueError(f"token_spans: expected tokens at characters {spans[0][0]} to {spans[-1][1]}, got none")
        scores.append(sum(confidence[index] for index in tokens) / len(tokens))
    return tuple(scores)


class _Reader:
    """Reads the answer's grammar from left to right; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole_list(self) -> list[tuple[Detection, tuple[Span, ...]]]:
        self.expect("[")
        found: list[tuple[Detection, tuple[Span, ...]]] = []
        if not self.take("]"):
            found.append(self.one_object())
            while self.take(","):
                found.append(self.one_object())
            self.expect("]", "',' or ']'")
        self.skip()
        if self.at != len(self.text):
            raise self.error("expected the end after the list")
        return found

    def whole_objects(self) -> list[tuple[Detection, tuple[Span, ...]]]:
        found: list[tuple[Detection, tuple[Span, ...]]] = []
        self.at = 0
        while match := _OBJECT.search(self.text, self.at):
            self.at = match.start()
            try:
                found.append(self.one_object())
            except AnswerError:
                self.at = match.end()
        return found

    def one_object(self) -> tuple[Detection, tuple[Span, ...]]:
        self.expect("{")
        self.expect('"bbox_2d"')
        self.expect(":")
        self.expect("[")
        self.skip()
        start = self.at
        numbers, spans = [], []
        for index in range(4):
            if index:
                self.expect(",")
            number, span = self.integer(index)
            numbers.append(number)
            spans.append(span)
        self.expect("]", "']' after 4 integers")
        y_min, x_min, y_max, x_max = numbers
        if y_min > y_max or x_min > x_max:
            self.at = start
            raise self.error("expected y_min, x_min, y_max, x_max, each minimum at most its maximum,")
        self.expect(",", "',' and a label")
        self.expect('"label"')
        self.expect(":")
        label = self.string()
        self.expect("}")
        return Detection((y_min, x_min, y_max, x_max), label), tuple(spans)

    def integer(self, index: int) -> tuple[int, Span]:
        self.skip()
        match = _INTEGER.match(self.text, self.at)
        if match is None or int(match[0]) > GRID:
            raise self.error(f"expected integer {index + 1} of 4, from 0 to {GRID},")
        self.at = match.end()
        return int(match[0]), match.span()

    def string(self) -> str:
        self.skip()
        start = self.at
        if not self.text.startswith('"', start):
            raise self.error("expected a label in double quotes")
        try:
            value, self.at = _STRINGS.raw_decode(self.text, start)
            value.encode()  # an escape may spell half a surrogate pair
        except json.JSONDecodeError as error:
            self.at = error.pos
            raise self.error("expected a whole JSON string") from None
        except UnicodeEncodeError:
            self.at = start
            raise self.error("expected a label of whole characters") from None
        if not value.strip():
            self.at = start
            raise self.error("expected a label that is not empty")
        return str(value)

    def take(self, word: str) -> bool:
        self.skip()
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def expect(self, word: str, wanted: str = "") -> None:
        if not self.take(word):
            raise self.error(f"expected {wanted or repr(word)}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def error(self, problem: str) -> AnswerError:
        return AnswerError(self.text, self.at, problem)
