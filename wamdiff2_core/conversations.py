"""Conversation files: the `{image, conversations}` JSON of upstream's evaluation and training sets.

A file is a JSON list, or JSON lines when its name ends in `.jsonl`. Faults of the file are `UserError`; faults of one
sample are `ConversationError`, so that a caller can skip the sample and go on.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import UserError

ROLES = ("system", "human", "gpt")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class ConversationError(ValueError):
    """One sample cannot be used; the message says why.

    Attributes:
        kind: of the fault, as `wamdiff2 data check` counts it.
    """

    kind = "bad_sample"


class UnknownRoleError(ConversationError):
    """A turn has a role that is none of `ROLES`."""

    kind = "unknown_role"


class BadIdError(ConversationError):
    """An id is neither text nor an integer."""

    kind = "bad_id"


class LoneSurrogateError(ConversationError):
    """Some text has half of a surrogate pair: JSON can spell it, but it has no UTF-8 and no tokens."""

    kind = "lone_surrogate"


@dataclass(frozen=True)
class Turn:
    """One message; `role` is one of `ROLES`."""

    role: str
    text: str


@dataclass(frozen=True)
class Exchange:
    """A conversation as a model is trained on it: only the last answer is learnt, all before it is the prompt.

    Attributes:
        history: human and gpt turns before the last question, in order.
        question, answer: the last two turns.
        system: text of the system turns, or None.
    """

    history: tuple[Turn, ...]
    question: str
    answer: str
    system: str | None = None


@dataclass(frozen=True)
class Conversation:
    """One sample.

    Attributes:
        turns: messages in order.
        images: image paths as written in the file, in the order of the placeholders.
        id: identifier given by the file, or None.
        datasource: name of the data set, or None.
        min_pixels, max_pixels: area limits that this sample asks for, or None.
    """

    turns: tuple[Turn, ...]
    images: tuple[str, ...] = ()
    id: str | int | None = None
    datasource: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None

    @classmethod
    def from_json(cls, data: object) -> Conversation:
        """Read one object of a conversation file; keys it does not know are ignored.

        Raises:
            ConversationError: it has not the documented shape.
        """
        if not isinstance(data, Mapping):
            raise ConversationError(f"expected an object, got {type(data).__name__}")
        if half := lone_surrogate(data):
            raise LoneSurrogateError(f"expected text that has UTF-8, got {half}, half of a surrogate pair")
        turns = data.get("conversations")
        if not isinstance(turns, list) or not turns:
            raise ConversationError("conversations: expected a list of at least one turn")
        return cls(
            turns=tuple(_turn(index, turn) for index, turn in enumerate(turns)),
            images=image_paths(data.get("image")),
            id=_id(data.get("id")),
            datasource=_datasource(data.get("datasource")),
            min_pixels=_pixels(data, "min_pixels"),
            max_pixels=_pixels(data, "max_pixels"),
        )

    @property
    def system(self) -> str | None:
        """Text of the system turns before the first human turn, or None."""
        texts = [turn.text for turn in self.turns[: self._first_human()] if turn.role == "system"]
        return "\n".join(texts) if texts else None

    @property
    def question(self) -> str:
        """Text of the first human turn.

        Raises:
            ConversationError: there is none, or an answer stands before it.
        """
        first = self._first_human()
        if any(turn.role == "gpt" for turn in self.turns[:first]):
            raise ConversationError("conversations: expected the first human turn before any gpt turn")
        return self.turns[first].text

    @property
    def answer(self) -> str | None:
        """Text of the first gpt turn, or None."""
        return next((turn.text for turn in self.turns if turn.role == "gpt"), None)

    @property
    def exchange(self) -> Exchange:
        """The last question and answer, and what was said before.

        Raises:
            ConversationError: it does not end with a question and its answer, an answer stands before the first
                question, or a system turn after it.
        """
        first = self._first_human()
        if any(turn.role == "gpt" for turn in self.turns[:first]):
            raise ConversationError("conversations: expected the first human turn before any gpt turn")
        spoken = self.turns[first:]
        if any(turn.role == "system" for turn in spoken):
            raise ConversationError("conversations: expected system turns before the first human turn only")
        if [turn.role for turn in spoken[-2:]] != ["human", "gpt"]:
            raise ConversationError("conversations: expected a human turn and its gpt answer at the end")
        return Exchange(spoken[:-2], spoken[-2].text, spoken[-1].text, self.system)

    def _first_human(self) -> int:
        for index, turn in enumerate(self.turns):
            if turn.role == "human":
                return index
        raise ConversationError("conversations: expected a human turn, got none")


def _turn(index: int, data: object) -> Turn:
    if not isinstance(data, Mapping) or not isinstance(data.get("value"), str):
        raise ConversationError(f"conversations[{index}]: expected {{from, value}} with a text value")
    if data.get("from") not in ROLES:
        raise UnknownRoleError(
            f"conversations[{index}].from: expected one of {', '.join(ROLES)}, got {data.get('from')!r}"
        )
    return Turn(data["from"], data["value"])


def _id(value: Any) -> str | int | None:
    if value is not None and (not isinstance(value, (str, int)) or isinstance(value, bool)):
        raise BadIdError(f"id: expected text or an integer, got {type(value).__name__}")
    return value


def _datasource(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConversationError(f"datasource: expected text, got {type(value).__name__}")
    return value


def _pixels(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConversationError(f"{key}: expected an integer >= 1, got {value!r}")
    return value


def image_paths(value: object) -> tuple[str, ...]:
    """Paths of an `image` field: absent, one path, or a list of paths."""
    paths = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ConversationError(f"image: expected a path or a list of paths, got {value!r}")
    return tuple(paths)


def lone_surrogate(data: object) -> str:
    """The first half of a surrogate pair in any text of some JSON, escaped; empty where there is none."""
    left = [data]
    while left:  # a loop, for what is nested too deep for another call
        value = left.pop()
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                return f"\\u{ord(value[error.start]):04x}"
        elif isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            left += value
    return ""


def parse_json(text: str, **hooks: Any) -> Any:
    """`json.loads` with one error for all that it cannot read.

    Args:
        text: JSON.
        hooks: of `json.loads`.

    Raises:
        json.JSONDecodeError: it is not JSON, is nested deeper than the stack holds, or has an integer of more digits
            than Python converts.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise json.JSONDecodeError("Nested too deep", text, 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        digits = sys.get_int_max_str_digits()
        found = re.search(f"[0-9]{{{digits + 1}}}", text)
        place = found.start() if found else 0
        raise json.JSONDecodeError(f"Integer of more than {digits} digits", text, place) from None


def read_objects(path: Path) -> list[object]:
    """All samples of a conversation file, unchecked one by one.

    Raises:
        UserError: no such file, a folder, not UTF-8, malformed JSON, half of a surrogate pair, or not a list.
    """
    field = str(path)
    if path.is_dir():
        raise UserError(field, "a JSON or JSONL file", "a folder")
    if not path.exists():
        raise UserError(field, "a JSON or JSONL file", "no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(field, "UTF-8 text", f"byte {error.object[error.start]:#x} at offset {error.start}") from None
    except OSError as error:
        raise UserError(field, "a readable file", error.strerror or str(error)) from None
    if path.suffix == ".jsonl":
        return [_loads(line, field, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    data = _loads(text, field, 1)
    if not isinstance(data, list):
        raise UserError(field, "a JSON list of samples", type(data).__name__, "JSON lines need the suffix .jsonl")
    return data


def _loads(text: str, field: str, first_line: int) -> object:
    try:
        data = parse_json(text)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {first_line + error.lineno - 1}, column {error.colno}"
        raise UserError(field, "valid JSON", where) from None
    # Whoever reads all samples at once also writes them out again, as UTF-8.
    if _ESCAPED_SURROGATE.search(text):
        for number, item in enumerate(data if isinstance(data, list) else [data]):
            if half := lone_surrogate(item):
                where = f"sample {number + 1}" if isinstance(data, list) else f"line {first_line}"
                raise UserError(field, "text that has UTF-8", f"{half}, half of a surrogate pair, in {where}")
    return data


def resolve_image(path: str, beside: Path) -> Path:
    """Absolute paths as they are; relative ones beside the conversation file, else below the working directory.

    Raises:
        ConversationError: there is no such file.
    """
    found = first_file(beside / path, Path(path))
    if found is None:
        raise ConversationError(f"image: expected an image file, got none at {path!r}")
    return found


def first_file(*places: Path) -> Path | None:
    """The first of some places where there is a file; one that cannot be looked at has none."""
    for place in places:
        with contextlib.suppress(OSError):  # a path that is too long, a folder that may not be entered
            if place.is_file():
                return place
    return None


def read_rgb(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an image file; transparency is laid on white, as Qwen's loader does.

    Raises:
        ConversationError: the file cannot be decoded.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                rgba = image.convert("RGBA")
                white = Image.new("RGBA", rgba.size, "white")
                return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # each decoder has its own, such as AVIF's RuntimeError
        raise ConversationError(f"image: cannot decode {path.name!r}: {error}") from None
