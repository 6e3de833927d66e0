"""The conversation data set: one JSON object a line, the format WAM-Diff2 is trained from.

    {"id": "..", "image": "images/000000.jpg" | [..] | absent, "conversations": [{"from": "human", "value": ".."},
     {"from": "gpt", "value": ".."}], "datasource": "..", ...}

Image paths are relative to the file. A line may carry keys of its own; they come back as `Sample.extra`. The file is
only ever appended to, so whoever writes it can be killed at any time and go on later. Where `collect` and `train` meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np

from wamdiff2_core.errors import UserError
from wamdiff2_core.prompts import IMAGE_PLACEHOLDER

JPEG_QUALITY = 90
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
KEYS = ("id", "image", "conversations", "datasource")


@dataclass(frozen=True)
class Turn:
    """One message; `role` is `user`, `assistant` or `system`."""

    role: str
    text: str


@dataclass(frozen=True)
class Sample:
    """One conversation.

    Attributes:
        id: name of the sample, unique in its file.
        turns: the messages in order; `<image>` marks in them stand for `images`, in order.
        images: paths of the image files.
        datasource: name of the set it came from.
        extra: every other key of the line.
    """

    id: str
    turns: tuple[Turn, ...]
    images: tuple[Path, ...] = ()
    datasource: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """Text of the first user message."""
        return next(turn.text for turn in self.turns if turn.role == "user")

    @property
    def answer(self) -> str:
        """Text of the first assistant message, or an empty string when there is none."""
        return next((turn.text for turn in self.turns if turn.role == "assistant"), "")


def read_dataset(file: Path | str) -> list[Sample]:
    """Every sample of a `.jsonl` file, or of a `.json` file that holds a list.

    Raises:
        UserError: no such file, malformed JSON, or a sample without a usable conversation; the message names the line.
    """
    return list(iter_dataset(file))


def iter_dataset(file: Path | str) -> Iterator[Sample]:
    """`read_dataset`, one sample at a time."""
    path = Path(file)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise UserError("dataset", "a .jsonl or .json file", f"{path} ({got})", "give the file itself")
    if path.suffix == ".json":
        try:
            items = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"dataset {path}", "valid JSON", str(error)) from None
        if not isinstance(items, list):
            raise UserError(f"dataset {path}", "a list of samples", type(items).__name__)
        for index, item in enumerate(items):
            yield parse_sample(item, path.parent, f"{path} item {index}", default_id=str(index))
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except ValueError as error:
                raise UserError(f"dataset {path} line {number}", "one JSON object", str(error)) from None
            yield parse_sample(item, path.parent, f"{path} line {number}", default_id=str(number - 1))


def parse_sample(item: Any, folder: Path, source: str, default_id: str = "") -> Sample:
    """One sample from its JSON object.

    Args:
        item: the object.
        folder: image paths are relative to it.
        source: where the object came from, for messages.
        default_id: used when the object has no id.
    """
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{source}: conversations", "a list with at least one message", turns)
    parsed = []
    for turn in turns:
        role = turn.get("from") if isinstance(turn, dict) else None
        if role not in ROLES or not isinstance(turn.get("value"), str):
            raise UserError(f"{source}: conversations", "messages {from: human|gpt|system, value: text}", turn)
        parsed.append(Turn(ROLES[role], turn["value"]))
    if all(turn.role != "user" for turn in parsed):
        raise UserError(f"{source}: conversations", "a message from human", [turn["from"] for turn in turns])
    named = item.get("image") or []
    names = [named] if isinstance(named, str) else list(named)
    return Sample(
        id=str(item.get("id", default_id)),
        turns=tuple(parsed),
        images=tuple(folder / name for name in names),
        datasource=str(item.get("datasource", "")),
        extra={key: value for key, value in item.items() if key not in KEYS},
    )


class DatasetWriter:
    """Appends samples to `folder/name`, with their images in `folder/images`.

    Opening an existing file goes on behind its last whole line: a torn last line, left by a kill, is cut off.

    Attributes:
        count: whole samples in the file.
    """

    def __init__(self, folder: Path | str, name: str = "samples.jsonl", datasource: str = "wamdiff2-embedded") -> None:
        self.folder, self.datasource = Path(folder), datasource
        self.file = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        if self.file.exists():
            content = self.file.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            self.count = whole.count(b"\n")
            if len(whole) != len(content):
                with self.file.open("r+b") as torn:
                    torn.truncate(len(whole))
        self._out: TextIO = self.file.open("a", encoding="utf-8")

    def add(
        self, sample_id: str, prompt: str, answer: str, images: Sequence[np.ndarray] = (), extra: Mapping[str, Any] = {}
    ) -> None:
        """Append one question and its answer.

        Args:
            sample_id: unique in the file; also names the image files.
            prompt: with as many `<image>` marks as images, or with marks and no image for a set that has none.
            answer: what is to be said.
            images: (H, W, 3) uint8 RGB each; stored as JPEG before the line that names them.
            extra: keys of the sample's own; a key of the format is refused.
        """
        if clash := set(extra) & set(KEYS):
            raise ValueError(f"extra: expected keys other than {KEYS}, got {sorted(clash)}")
        if images and prompt.count(IMAGE_PLACEHOLDER) != len(images):
            raise ValueError(f"prompt: expected {len(images)} {IMAGE_PLACEHOLDER} marks, got {prompt!r}")
        names = [self._store(image, f"{sample_id}-{k}" if len(images) > 1 else sample_id) for k, image in enumerate(images)]
        line: dict[str, Any] = {"id": sample_id}
        if names:
            line["image"] = names[0] if len(names) == 1 else names
        line["conversations"] = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
        line["datasource"] = self.datasource
        self._out.write(json.dumps({**line, **extra}, ensure_ascii=False, separators=(",", ":")) + "\n")
        self.count += 1

    def flush(self) -> None:
        """Hand every sample so far to the operating system."""
        self._out.flush()

    def close(self) -> None:
        """Flush and close."""
        self._out.close()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _store(self, rgb: np.ndarray, name: str) -> str:
        import simplejpeg

        relative = f"images/{name}.jpg"
        path = self.folder / relative
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), quality=JPEG_QUALITY, colorsubsampling="444"))
        return relative


def last_sample(file: Path | str) -> Sample | None:
    """The last whole sample of a `.jsonl` file; None when there is no file or nothing in it."""
    path = Path(file)
    if not path.is_file():
        return None
    lines = path.read_bytes()
    whole = lines[: lines.rfind(b"\n") + 1].rstrip(b"\n")
    if not whole:
        return None
    return parse_sample(json.loads(whole[whole.rfind(b"\n") + 1 :]), path.parent, str(path))
