"""What all converters share: the file they write, and the account of what did not get into it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from wamdiff2_core.conversations import first_file, lone_surrogate, parse_json
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import disk_errors_named, writable_file

EXAMPLES = 5


class Writer:
    """Writes a `.jsonl` conversation file that appears when it is whole.

    Attributes:
        count: samples written.
        left_out: items left out by rule, by reason.
        problems: items left out because something is wrong with them, by kind.
        examples: the first few problems of each kind, in words.
    """

    def __init__(self, out: Path, datasource: str, limit: int = 0) -> None:
        """Open the file.

        Args:
            out: must end in `.jsonl`; what is there is replaced at the end.
            datasource: of every sample.
            limit: samples at most; 0 for all.

        Raises:
            UserError: another suffix, or a place that cannot be written to.
        """
        if out.suffix != ".jsonl":
            raise UserError("OUT", "a file that ends in .jsonl", str(out))
        self.out, self.datasource, self._limit = writable_file(out, "OUT"), datasource, limit
        self._partial = out.with_name(out.name + ".partial")
        self._folder = out.resolve().parent
        self.count = 0
        self.left_out: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.examples: list[str] = []

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return 0 < self._limit <= self.count

    def add(
        self, sample_id: str, images: Sequence[Path], prompt: str, answer: str, extra: Mapping[str, Any] = {}
    ) -> None:
        """Write one sample; one whose images are missing, or that cannot be written in UTF-8, is a problem instead.

        Args:
            sample_id: unique in the data set.
            images: image files, in the order of the prompt's marks; named relative to the written file.
            prompt, answer: the question and what is to be learnt.
            extra: keys of the sample's own.
        """
        for image in images:
            if first_file(image) is None:
                self.problem("missing image", f"{sample_id}: {image}")
                return
        names = [os.path.relpath(image.resolve(), self._folder) for image in images]
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
        line = {"id": sample_id, **({"image": names} if names else {}), "conversations": turns,
                "datasource": self.datasource, **extra}
        if half := lone_surrogate(line):
            self.problem("no UTF-8", f"{sample_id}: {half}, half of a surrogate pair")
            return
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        with disk_errors_named(self._partial):
            self._file.write(text + "\n")
        self.count += 1

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count items that a rule leaves out."""
        self.left_out[reason] += count

    def problem(self, kind: str, what: str) -> None:
        """Count an item that cannot be used, and keep the first few in words."""
        self.problems[kind] += 1
        if self.problems[kind] <= EXAMPLES:
            # What is wrong may be its text; it is printed.
            self.examples.append(f"{kind}: {what}".encode("utf-8", "backslashreplace").decode())

    def __enter__(self) -> Writer:
        with disk_errors_named(self._partial):
            self._file = self._partial.open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)
            return
        with disk_errors_named(self._partial):
            self._file.close()
            self._partial.replace(self.out)


def existing(path: Path, what: str, fix: str = "") -> Path:
    """The path, which must be there.

    Raises:
        UserError: it is not; `what` says what was expected.
    """
    if not path.exists():
        raise UserError("SRC", what, f"nothing at {path}", fix)
    return path


def read_json(file: Path, what: str) -> Any:
    """Content of a JSON file.

    Raises:
        UserError: there is none, or it is not JSON.
    """
    existing(file, what)
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(str(file), "valid JSON", str(error)) from None
