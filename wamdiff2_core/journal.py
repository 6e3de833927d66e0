"""Append-only journals: work that can be killed at any moment and goes on where it stood.

A journal is a file of JSON lines. The first line is the request that it answers, every further line one finished item.
A torn last line, left by a kill, is cut off when the journal is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import disk_errors_named

JOURNAL_NAME = "journal.jsonl"  # in the folder of a run that goes on
BEGIN_ANEW = "choose another place for it, or begin anew with --overwrite"
LOCK_WAIT_S = 10.0  # orphaned workers of a killed run need a moment to notice


def read_journal(
    path: Path, begin_anew: str = BEGIN_ANEW
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Request and finished items of a journal; (None, []) when it has not even a whole first line.

    Args:
        path: the file.
        begin_anew: how the user of this command gets a journal that has nothing in it, in the imperative.

    Raises:
        UserError: a whole line is damaged, which no kill does; the message names it.
    """
    content = path.read_bytes() if path.exists() else b""
    lines = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}: line {number}", "JSON", f"a damaged line ({error})",
                            f"restore the file, or {begin_anew}") from None
    return (lines[0], lines[1:]) if lines else (None, [])


def check_same_request(
    path: Path, found: Mapping[str, Any] | None, wanted: Mapping[str, Any], begin_anew: str = BEGIN_ANEW
) -> None:
    """Refuse a journal that was begun for another request.

    Args:
        path: of the journal.
        found: its request; None without one.
        wanted: the request that it must be of.
        begin_anew: see `read_journal`.

    Raises:
        UserError: names each key that differs.
    """
    if found is None or found == wanted:
        return
    differing = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    raise UserError(
        str(path),
        "the journal of this request",
        ", ".join(f"{key} {found.get(key)!r} (now {wanted.get(key)!r})" for key in differing),
        f"give the request of before to go on with it, or {begin_anew}",
    )


class Journal:
    """One process's journal, locked while it is open.

    Attributes:
        items: what was finished before, oldest first.
    """

    def __init__(
        self, path: Path, request: Mapping[str, Any], *, overwrite: bool = False, durable: bool = False,
        begin_anew: str = BEGIN_ANEW,
    ) -> None:
        """Open `path` for `request`, creating it when needed.

        Args:
            path: the file.
            request: JSON values only; it is compared with the one found.
            overwrite: begin anew.
            durable: bring every item to the disk before going on, for few items that took long to make.
            begin_anew: see `read_journal`.

        Raises:
            UserError: another process writes it, or it belongs to another request and `overwrite` is false.
        """
        self.path, self._durable = path, durable
        self._file = path.open("a+b")
        try:
            self._lock()
            if overwrite:
                self._file.truncate(0)
            found, self.items = read_journal(path, begin_anew)
            if not self.items:  # nothing to lose: the run before ended while it was loading
                self._file.truncate(0)
                found = None
            check_same_request(path, found, request, begin_anew)
            self._file.seek(0)
            content = self._file.read()
            self._file.truncate(content.rfind(b"\n") + 1)
            if found is None:
                self.append(request)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        writer = lock_or_writer(self._file.fileno(), self.path)
        if writer:
            raise UserError(str(self.path), "a journal of our own", f"one that {writer} is writing",
                            "wait for its end, or choose another place")

    def append(self, item: Mapping[str, Any]) -> None:
        """Add one finished item; it survives a kill of this process from here on."""
        with disk_errors_named(self.path):
            self._file.write(json.dumps(item, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the lock; the file stays."""
        with disk_errors_named(self.path):
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_or_writer(descriptor: int, path: Path) -> str:
    """Lock an open file or folder for this process; who holds it, in words, when it is not free within some seconds."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
        except BlockingIOError:
            if time.monotonic() > deadline:
                pid = _writer_of(path)
                return "another process" if pid is None else f"process {pid}"
            time.sleep(0.1)


def _writer_of(path: Path) -> int | None:
    """Process that holds the lock on a file or folder, by the kernel's table; None where that cannot be told."""
    try:
        found = path.stat()
        table = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    for _, kind, _, _, pid, place, *_ in (row for row in table if len(row) > 6):
        # A file system may show another device here than to `stat`: so the process must have the very file open.
        if kind == "FLOCK" and place.rpartition(":")[2] == str(found.st_ino):
            with suppress(OSError):  # it has ended, or is somebody else's
                if any(os.path.samestat(found, os.stat(entry)) for entry in os.scandir(f"/proc/{pid}/fd")):
                    return int(pid)
    return None


class FolderLock:
    """Mutual exclusion between processes that finish the same file, held on its folder; leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY)

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def replace_file(path: Path, text: str) -> None:
    """Write a whole file or nothing: a reader sees the old content or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    try:
        with disk_errors_named(partial), partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
