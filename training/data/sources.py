"""A conversation file of any size, by sample number: only where each sample lies is held, never the samples.

The place of every sample, its first byte and its length, is found once and kept in a small file beside the data (or in
a cache folder), named after the data file's size, date and ends; a changed file gets a new one. A pickled index opens
the file anew in the process that receives it.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from training.data.slices import is_among
from wamdiff2_core.config import Strict
from wamdiff2_core.conversations import parse_json
from wamdiff2_core.dataset import Sample, sample_from_json
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import cache_folder

_WINDOW = 64 << 20  # bytes of a file looked at together
_CHUNK = 1 << 20
_LARGEST_SAMPLE = 256 << 20  # characters; a list whose sample does not end by then is taken as broken
_ENDS = 64 << 10  # bytes at the head and the tail that go into the fingerprint
_BLANK = b" \t\r"
_JSON_SPACE = " \t\r\n"


@dataclass(frozen=True)
class SourceConfig(Strict):
    """A conversation file in a mixture.

    Attributes:
        name: of the source in tables, logs and overrides.
        file: conversation file, relative to the working directory.
        weight: share of the draws, relative to the other sources; 0 leaves it out.
        limit: use the first samples only; 0 for all.
        where: slices by key, as `slice_of` names them, such as {situation: [red, green]}; samples that are, by every
            key, in one of its slices are used. All are without it.
    """

    name: str
    file: str
    weight: float = 1.0
    limit: int = 0
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise UserError("weight", "a finite number >= 0", self.weight)
        if self.limit < 0:
            raise UserError("limit", "an integer >= 0 (0 = all)", self.limit)


class ConversationIndex:
    """Random access to the samples of a `.jsonl` file or of a JSON list.

    Attributes:
        file: the conversation file.
        fault: where a list that is not valid JSON breaks; only with `up_to_fault`.
    """

    def __init__(
        self, file: Path | str, cache: Path | str | None = None, limit: int = 0,
        where: Mapping[str, Sequence[str]] | None = None, up_to_fault: bool = False,
    ) -> None:
        """Find every sample, or read where they were found before.

        Args:
            file: conversation file.
            cache: folder of the places; beside the file when None, or in the user's cache where that is not writable.
            limit: the first samples only; 0 for all.
            where: only samples in these slices, see `SourceConfig`; every line is read once for it.
            up_to_fault: a list that is not valid JSON is not refused; it has the samples before its `fault`.

        Raises:
            UserError: no such file, or a list that is not valid JSON. A broken line of a `.jsonl` file is told only
                when it is read.
        """
        self.file = Path(file)
        self._cache, self._limit = (None if cache is None else Path(cache)), limit
        self._where = {key: tuple(names) for key, names in (where or {}).items()}
        self._up_to_fault = up_to_fault
        self.fault: UserError | None = None
        self._open()

    def __len__(self) -> int:
        return len(self._spans)

    def raw(self, index: int) -> bytes:
        """Bytes of a sample as they stand in the file.

        Raises:
            IndexError: there is no such sample; negative numbers count from the end.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.file}: expected a sample number below {len(self)}, got {index}")
        return self._read(self._spans[index])

    def object(self, index: int) -> Any:
        """Parsed JSON of a sample.

        Raises:
            UserError: it is not UTF-8 or not JSON; the message names file and sample.
        """
        return self._parsed(self.raw(index), index % len(self) + 1)

    def _read(self, span: np.ndarray) -> bytes:
        start, length = (int(value) for value in span)
        return os.pread(self._file.fileno(), length, start)

    def _parsed(self, raw: bytes, number: int) -> Any:
        where = f"{self.file}: sample {number}"
        try:
            return parse_json(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(where, "UTF-8 text", f"byte {raw[error.start]:#x} at offset {error.start}") from None
        except json.JSONDecodeError as error:
            raise UserError(where, "valid JSON", f"{error.msg} at character {error.pos}") from None

    def __getitem__(self, index: int) -> Sample:
        """A sample, checked as `iter_dataset` does; its images are not opened.

        Raises:
            UserError: it cannot be used; the message names file and sample.
            IndexError: there is no such sample.
        """
        return sample_from_json(self.object(index), self.file, index % len(self) + 1)

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "fault": self.fault, "_cache": self._cache, "_limit": self._limit,
                "_where": self._where, "_up_to_fault": self._up_to_fault}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        self._file.close()

    def _open(self) -> None:
        if not self.file.is_file():
            got = "a folder" if self.file.is_dir() else "no such file"
            raise UserError(str(self.file), "a JSON or JSONL file", got)
        try:
            self._file = self.file.open("rb")
        except OSError as error:
            raise UserError(str(self.file), "a readable file", error.strerror or str(error)) from None
        spans = self._stored_spans()
        self._spans = spans[: self._limit] if self._limit else spans

    def _stored_spans(self) -> np.ndarray:
        name, stem = self._cache_name()
        folders = [self._cache] if self._cache is not None else [self.file.parent, cache_folder()]
        for folder in folders:
            with contextlib.suppress(OSError, ValueError, EOFError):
                stored = np.load(folder / name, mmap_mode="r", allow_pickle=False)
                if stored.dtype == np.int64 and stored.ndim == 2 and stored.shape[1] == 2:
                    return stored
        if self.file.suffix == ".jsonl":
            spans, self.fault = line_spans(self.file), None
        else:
            spans, self.fault = list_spans(self.file)
        if self.fault is not None and not self._up_to_fault:
            raise self.fault
        if self._where:
            spans = spans[np.array([self._is_among(span, number) for number, span in enumerate(spans, 1)], bool)]
        if self.fault is not None:
            return spans  # others refuse the file, and look for no fault where places are kept
        for folder in folders:
            if _store(folder, name, stem, spans):
                break
        return spans

    def _is_among(self, span: np.ndarray, number: int) -> bool:
        line = self._parsed(self._read(span), number)
        return isinstance(line, Mapping) and is_among(line, self._where)

    def _cache_name(self) -> tuple[str, str]:
        """Name of the file of places, and the part that all versions of this data file share, in the same slices."""
        state = os.fstat(self._file.fileno())
        digest = hashlib.blake2b(f"{state.st_size} {state.st_mtime_ns} ".encode(), digest_size=8)
        digest.update(os.pread(self._file.fileno(), _ENDS, 0))
        digest.update(os.pread(self._file.fileno(), _ENDS, max(0, state.st_size - _ENDS)))
        subject = os.fsencode(self.file.resolve())
        if self._where:
            subject += b"\0" + json.dumps(self._where, sort_keys=True).encode()
        stem = f".{self.file.name}.{hashlib.blake2b(subject, digest_size=4).hexdigest()}."
        return f"{stem}{digest.hexdigest()}.index.npy", stem


def line_spans(file: Path) -> np.ndarray:
    """(N, 2) int64: first byte and length of every line that is not blank."""
    size = file.stat().st_size
    if size == 0:
        return np.zeros((0, 2), np.int64)
    content = np.memmap(file, np.uint8, "r")
    breaks = [
        np.flatnonzero(content[start : start + _WINDOW] == ord("\n")) + start for start in range(0, size, _WINDOW)
    ]
    ends = np.concatenate([*breaks, [size]]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    if content[:3].tobytes() == codecs.BOM_UTF8:
        starts[0] = 3
    spans = np.stack([starts, ends - starts], axis=1)
    spans = spans[spans[:, 1] > 0]
    suspects = np.flatnonzero(np.isin(content[spans[:, 0]], np.frombuffer(_BLANK, np.uint8)))
    blank = [row for row in suspects if not content[spans[row, 0] : spans[row].sum()].tobytes().strip(_BLANK)]
    return np.delete(spans, blank, axis=0)


def list_spans(file: Path) -> tuple[np.ndarray, UserError | None]:
    """(N, 2) int64: first byte and length of every element of a JSON list, read piece by piece.

    Returns:
        The elements, and None; or those before the first place that is not UTF-8, not JSON, or not a list, and an error
        that names the place.
    """
    spans: list[tuple[int, int]] = []
    fault = None
    with file.open("rb") as stream:
        try:
            for span in _ListScanner(stream, str(file)).elements():
                spans.append(span)
        except UserError as error:
            fault = error
    return np.array(spans, np.int64).reshape(-1, 2), fault


class _ListScanner:
    """Finds the elements of a JSON list in a stream; holds one element and a chunk at a time."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._fault: UserError | None = None  # what stands behind the text
        self._text, self._at, self._ended = "", 0, False
        head = stream.read(3)
        self._byte = 3 if head == codecs.BOM_UTF8 else 0  # of the text at `_at`
        self._read = 0  # bytes given to the decoder so far
        self._text = self._decode(b"" if self._byte else head)

    def elements(self) -> Iterator[tuple[int, int]]:
        if self._next() != "[":
            got = f"{self._next()!r} at its start" if self._next() else "an empty file"
            raise UserError(self._name, "a JSON list of samples", got, "JSON lines need the suffix .jsonl")
        self._advance(self._at + 1)
        number = 0
        while self._next() != "]":
            if number:
                self._expect(",", number)
            self._next()
            start = self._byte
            self._advance(self._element_end(number + 1))
            yield start, self._byte - start
            number += 1
            if self._next() not in (",", "]"):
                self._expect(",", number)
        self._advance(self._at + 1)
        if self._next():
            raise UserError(self._name, "nothing after the list", f"{self._next()!r} at byte {self._byte}")

    def _expect(self, character: str, number: int) -> None:
        got = self._next()
        if got != character:
            raise UserError(self._name, f"{character!r} or ']' after sample {number}",
                            f"{got!r} at byte {self._byte}" if got else "the end of the file")
        self._advance(self._at + 1)

    def _element_end(self, number: int) -> int:
        """Position in the text behind the element that begins here."""
        decoder = json.JSONDecoder(parse_int=str)  # an integer of any length costs its sample only
        chunk = _CHUNK
        while True:
            try:
                _, end = decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:
                    return end
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - 16
                if self._ended or not cut or len(self._text) - self._at > _LARGEST_SAMPLE:
                    raise UserError(f"{self._name}: sample {number}", "valid JSON",
                                    f"{error.msg}, {error.pos - self._at} characters after byte {self._byte}") from None
            except RecursionError:
                raise UserError(f"{self._name}: sample {number}", "valid JSON",
                                f"Nested too deep at byte {self._byte}") from None
            self._more(chunk)
            chunk *= 2

    def _next(self) -> str:
        """The next character that is not white space, now at `_at`; empty at the end."""
        while True:
            at = self._at
            while at < len(self._text) and self._text[at] in _JSON_SPACE:
                at += 1
            self._advance(at)
            if at < len(self._text):
                return self._text[at]
            if self._ended:
                return ""
            self._more(_CHUNK)

    def _advance(self, at: int) -> None:
        self._byte += len(self._text[self._at : at].encode())
        self._at = at

    def _more(self, size: int) -> None:
        if self._fault is not None:
            raise self._fault
        data = self._stream.read(size)
        self._ended = not data
        self._text, self._at = self._text[self._at :] + self._decode(data, final=self._ended), 0

    def _decode(self, data: bytes, final: bool = False) -> str:
        try:
            text = self._utf8.decode(data, final)
        except UnicodeDecodeError as error:
            offset = self._read + len(data) - len(error.object) + error.start
            got = f"byte {error.object[error.start]:#x} at offset {offset}"
            self._fault = UserError(self._name, "UTF-8 text", got)
            text = error.object[: error.start].decode()
        self._read += len(data)
        return text


def _store(folder: Path, name: str, stem: str, spans: np.ndarray) -> bool:
    """Keep the places for the next time; False where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder, prefix=stem, suffix=".partial")
        try:
            with os.fdopen(handle, "wb") as out:
                np.save(out, spans)
            os.replace(partial, folder / name)
        except BaseException:
            os.unlink(partial)
            raise
        for old in folder.glob(f"{glob.escape(stem)}*.index.npy"):
            if old.name != name:
                old.unlink(missing_ok=True)
    except OSError:
        return False
    return True
