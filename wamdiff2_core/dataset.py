"""The conversation data set: one JSON object a line, the format WAM-Diff2 is trained from.

    {"id": "..", "image": "images/000000.jpg" | [..] | absent, "conversations": [{"from": "human", "value": ".."},
     {"from": "gpt", "value": ".."}], "datasource": "..", ...}

The last gpt turn is what is learnt; turns before the last question are its history. Image paths are relative to the
file, else to the working directory. A line may carry keys of its own; they come back as `Sample.extra`. The file is
only ever appended to, so whoever writes it can be killed at any time and go on later. Where `collect` and `train` meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

import numpy as np

from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.conversations import Conversation, ConversationError, Turn, first_file, read_objects, read_rgb
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import disk_errors_named

T = TypeVar("T")
JPEG_QUALITY = 90
KEYS = ("id", "image", "conversations", "datasource", "min_pixels", "max_pixels")


@dataclass(frozen=True)
class Sample:
    """One line of a data set.

    Attributes:
        conversation: the messages.
        images: paths of the image files beside the conversation file, in the order of the `<image>` marks;
            `read_images` knows where else they may be.
        extra: keys of the line that are not part of the format.
    """

    conversation: Conversation
    images: tuple[Path, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """Text of the last question, with one `<image>` mark for each image that no earlier question has."""
        return self.conversation.exchange.question

    @property
    def answer(self) -> str:
        """Text of the last answer."""
        return self.conversation.exchange.answer

    @property
    def history(self) -> tuple[Turn, ...]:
        """Turns between the system message and the last question."""
        return self.conversation.exchange.history


def iter_dataset(file: Path | str) -> Iterator[Sample]:
    """Every sample of a conversation file, in order.

    Raises:
        UserError: the file cannot be read, or a sample has no question, no answer, or other images than marks; the
            message names the sample. Image files are not opened.
    """
    path = Path(file)
    for number, item in enumerate(read_objects(path), 1):
        yield sample_from_json(item, path, number)


def read_dataset(file: Path | str) -> list[Sample]:
    """`iter_dataset` as a list."""
    return list(iter_dataset(file))


def sample_from_json(item: object, path: Path, number: int) -> Sample:
    """The sample of one object of a conversation file.

    Args:
        item: parsed JSON.
        path: of the file: images are beside it, messages name it.
        number: of the sample in the file, from 1; messages name it.

    Raises:
        UserError: see `iter_dataset`.
    """
    try:
        conversation = Conversation.from_json(item)
        exchange = conversation.exchange
    except ConversationError as error:
        raise UserError(f"{path}: sample {number}", "a question with its images and an answer", str(error)) from None
    if not exchange.question or not exchange.answer:
        raise UserError(f"{path}: sample {number}", "a question and an answer", "an empty one")
    marks = image_marks(conversation)
    if marks != len(conversation.images):
        raise UserError(f"{path}: sample {number}: image", f"{marks}, one for each mark", len(conversation.images))
    assert isinstance(item, Mapping)
    extra = {key: value for key, value in item.items() if key not in KEYS}
    return Sample(conversation, tuple(path.parent / name for name in conversation.images), extra)


def spread_over(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of some items, in order and equally far apart, the first one among them."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def read_images(sample: Sample, where: str) -> list[np.ndarray]:
    """Images of a sample, (H, W, 3) uint8 RGB each: beside its file, else below the working directory.

    Args:
        sample: one sample.
        where: names it in messages.

    Raises:
        UserError: one is missing or cannot be decoded.
    """
    return [
        read_picture(first_file(beside, Path(name)) or beside, f"{where}: image", "wamdiff2 data check lists them all")
        for beside, name in zip(sample.images, sample.conversation.images, strict=True)
    ]


def read_picture(file: Path, field: str, fix: str = "") -> np.ndarray:
    """(H, W, 3) uint8 RGB of an image file that a user has named.

    Args:
        file: any format that Pillow reads.
        field: what names it, for messages.
        fix: see `UserError`.

    Raises:
        UserError: there is none, or it cannot be decoded.
    """
    if first_file(file) is None:
        raise UserError(field, "an image file", f"none at {file}", fix)
    try:
        return read_rgb(file)
    except ConversationError as error:
        raise UserError(field, "a picture that can be decoded", str(error).removeprefix("image: "), fix) from None


def image_marks(conversation: Conversation) -> int:
    """`<image>` marks in the human turns; in an answer they are plain text."""
    return sum(turn.text.count(IMAGE_PLACEHOLDER) for turn in conversation.turns if turn.role == "human")


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
        self, sample_id: str, prompt: str, answer: str, images: Sequence[np.ndarray | bytes | str] = (),
        extra: Mapping[str, Any] = {},
    ) -> tuple[str, ...]:
        """Append one question and its answer.

        Args:
            sample_id: unique in the file; also names the image files.
            prompt: with one `<image>` mark for each image.
            answer: what is to be said.
            images: (H, W, 3) uint8 RGB each, stored as JPEG before the line that names them; or the bytes of a JPEG
                file; or the name of one that is there already, as an earlier call has returned it.
            extra: keys of the sample's own; a key of the format is refused.

        Returns:
            Names of the images, relative to the folder.
        """
        if clash := set(extra) & set(KEYS):
            raise ValueError(f"extra: expected keys other than {KEYS}, got {sorted(clash)}")
        if prompt.count(IMAGE_PLACEHOLDER) != len(images):
            raise ValueError(f"prompt: expected {len(images)} {IMAGE_PLACEHOLDER} marks, got {prompt!r}")
        names = [
            image if isinstance(image, str)
            else self._store(image, f"{sample_id}-{k}" if len(images) > 1 else sample_id)
            for k, image in enumerate(images)
        ]
        line: dict[str, Any] = {"id": sample_id}
        if names:
            line["image"] = names[0] if len(names) == 1 else names
        line["conversations"] = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
        line["datasource"] = self.datasource
        with disk_errors_named(self.file):
            self._out.write(json.dumps({**line, **extra}, ensure_ascii=False, separators=(",", ":")) + "\n")
        self.count += 1
        return tuple(names)

    def flush(self) -> None:
        """Hand every sample so far to the operating system."""
        with disk_errors_named(self.file):
            self._out.flush()

    def close(self) -> None:
        """Flush and close."""
        with disk_errors_named(self.file):
            self._out.close()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _store(self, image: np.ndarray | bytes, name: str) -> str:
        import simplejpeg

        relative = f"images/{name}.jpg"
        path = self.folder / relative
        path.parent.mkdir(exist_ok=True)
        jpeg = image if isinstance(image, bytes) else simplejpeg.encode_jpeg(
            np.ascontiguousarray(image), quality=JPEG_QUALITY, colorsubsampling="444"
        )
        with disk_errors_named(path):
            path.write_bytes(jpeg)
        return relative
