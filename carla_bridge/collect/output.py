"""The folder of a set: pictures, three conversation files, and a journal of the episodes that are in it.

The files are only ever appended to. An episode counts once its line stands in the journal; the line says how long the
files were then, and whatever a kill has left behind it is cut off when the set is gone on with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from carla_bridge.collect.episode import Driven
from carla_bridge.collect.records import FILES, PLANNING
from wamdiff2_core.dataset import DatasetWriter
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import Journal, check_same_request, read_journal
from wamdiff2_core.outputs import disk_errors_named

BEGIN_ANEW = "choose another --out"
SETTINGS_FILE, JOURNAL_FILE, DATASOURCE = "collect.json", "episodes.jsonl", "wamdiff2-embedded"


class SetFolder:
    """A set that is being written; a context manager.

    Attributes:
        samples: planning samples that it holds.
        episodes: that are in it, from the first on.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any], most: int) -> None:
        """Begin a set, or go on with one.

        Args:
            folder: exists.
            request: what the content depends on; a set of another request is refused.
            most: planning samples that the set may hold. An episode that was cut short for an earlier, smaller limit is
                taken out, to be driven again.

        Raises:
            UserError: the folder holds something else, or is being written by another process.
        """
        self.folder = folder
        journal = folder / JOURNAL_FILE
        if not journal.exists() and any(entry.suffix != ".log" for entry in folder.iterdir()):
            raise UserError("--out", "an empty folder, or one begun by this command", str(folder),
                            "choose another folder")
        found, _ = read_journal(journal, BEGIN_ANEW)
        try:
            check_same_request(journal, found, request)
        except UserError as error:
            raise UserError("--out", "an empty folder, or one begun with the same arguments, code and maps", error.got,
                            "choose another folder, or give the earlier arguments to the code of then") from None
        self._journal = Journal(journal, request, durable=True, begin_anew=BEGIN_ANEW)
        done = list({item["episode"]: item for item in self._journal.items}.values())
        if done and done[-1]["cut"] and sum(item["samples"] for item in done) < most:
            done.pop()
        for name in FILES:
            _cut(folder / name, done[-1]["sizes"][name] if done else 0)
        self._writers = {name: DatasetWriter(folder, name, DATASOURCE) for name in FILES}
        self.samples = self._writers[PLANNING].count
        self.episodes, self._most = len(done), most
        text = json.dumps({"request": dict(request)}, indent=1)
        with disk_errors_named(folder / SETTINGS_FILE):
            (folder / SETTINGS_FILE).write_text(text + "\n")

    @property
    def full(self) -> bool:
        """Whether it holds as many samples as it may."""
        return self.samples >= self._most

    def add(self, driven: Driven) -> None:
        """Append an episode, the next in order; what is more than the set may hold is left out.

        Raises:
            ValueError: it is not the next one.
        """
        if driven.index != self.episodes:
            raise ValueError(f"episode: expected {self.episodes}, got {driven.index}")
        tags: Counter[str] = Counter()
        kept = driven.records[: max(0, self._most - self.samples)]
        for record in kept:
            image: tuple[bytes | str, ...] = () if record.jpeg is None else (record.jpeg,)
            for line in record.lines:
                name = self._writers[line.file].add(line.id, line.prompt, line.answer, image, line.extra)
                image = name
                if line.file == PLANNING:
                    tags[line.extra["situation"]] += 1
            self.samples += 1
        for writer in self._writers.values():
            writer.flush()
        sizes = {name: (self.folder / name).stat().st_size for name in FILES}
        self._journal.append({
            "episode": driven.index, "samples": sum(tags.values()), "simulated_s": driven.simulated_s,
            "note": driven.note, "cut": len(kept) < len(driven.records), "situations": dict(sorted(tags.items())),
            "sizes": sizes,
        })
        self.episodes += 1

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._journal.close()

    def __enter__(self) -> SetFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut(file: Path, size: int) -> None:
    """Leave the first bytes of a file only."""
    if file.exists():
        with file.open("r+b") as out:
            out.truncate(size)
