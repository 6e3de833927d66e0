"""From paths on a command line to records, each with the file it came from.

Bench2Drive's merge tool writes `merged.json` among the shards it reads. A merged file whose every record stands in the
shards too is set aside; one that says anything else stays, and its records count as duplicates or as further routes.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carla_bridge.leaderboard.results import EntryStatus, LeaderboardResults, ResultsFileError, RouteRecord
from carla_bridge.score.problems import Problem, ProblemKind, counted
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import JOURNAL_NAME

SHARDS = "shards"  # where a run of `bench2drive-evaluator` keeps its results


@dataclass(frozen=True)
class FoundRecord:
    """A record, and the name of its file."""

    record: RouteRecord
    file: str


@dataclass(frozen=True)
class Sources:
    """What the files hold.

    Attributes:
        records: of all files that count, in their order.
        problems: with files, and with records that cannot be read.
    """

    records: tuple[FoundRecord, ...]
    problems: tuple[Problem, ...]


def read_sources(paths: Sequence[str | Path]) -> Sources:
    """Read result files.

    Args:
        paths: files, folders (what `result_files` finds there) and patterns with `*`, `?` or `[`.

    Raises:
        UserError: a path that is not there, a folder without a JSON file, a pattern that matches none.
    """
    problems: list[Problem] = []
    found: list[tuple[str, LeaderboardResults]] = []
    files = expand(paths)
    names = _names(files)
    for path in files:
        try:
            found.append((names[path], LeaderboardResults.load(path)))
        except ResultsFileError as error:
            kind = ProblemKind.UNREADABLE if error.records_lost else ProblemKind.SET_ASIDE
            problems.append(Problem(kind, f"{names[path]} {error}", error.records_lost))
        except OSError as error:
            text = f"{names[path]} cannot be read ({error.strerror})"
            problems.append(Problem(ProblemKind.UNREADABLE, text, forbids_headline=True))
    found = _without_copies(found, problems)
    for name, results in found:
        problems += _file_problems(name, results)
    records = tuple(FoundRecord(record, name) for name, results in found for record in results.records)
    return Sources(records, tuple(problems))


def result_files(folder: Path) -> list[Path]:
    """The result files of a folder: its `*.json`, not those further down; of an evaluation of ours its
    `leaderboard*.json`, and of a run of `bench2drive-evaluator` those in its `shards`."""
    if not (folder / JOURNAL_NAME).is_file():
        return sorted(folder.glob("*.json"))
    if (folder / SHARDS).is_dir():
        return sorted((folder / SHARDS).glob("*.json"))
    return sorted(folder.glob("leaderboard*.json")) or sorted(folder.glob("*.json"))


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Files behind paths, each once, in order.

    Raises:
        UserError: as `read_sources`.
    """
    files: dict[Path, Path] = {}
    for given in map(str, paths):
        path = Path(given)
        if path.is_dir():
            matches = result_files(path)
            if not matches:
                deeper = len(list(path.rglob("*.json")))
                fix = f"{counted(deeper, 'file')} further down: name the folder that holds the result files"
                raise UserError("PATHS", "a folder with *.json result files", given, fix if deeper else "")
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(Path(match) for match in glob.glob(given, recursive=True))
            if not matches:
                raise UserError("PATHS", "files, folders or patterns that exist", given)
        for match in matches:
            if match.is_file():
                files.setdefault(match.resolve(), match)
            elif not match.is_dir():
                raise UserError("PATHS", "ordinary files", str(match))
    return list(files.values())


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """Names to call the files by: the shortest end of the path that tells them apart."""
    names: dict[Path, str] = {}
    for path in files:
        same = [other for other in files if other.name == path.name]
        names[path] = path.name if len(same) == 1 else str(path)
    return names


def _without_copies(
    found: list[tuple[str, LeaderboardResults]], problems: list[Problem]
) -> list[tuple[str, LeaderboardResults]]:
    """Files without the merged ones that repeat the shards; says which were left out."""
    shards = {_same(record) for _, results in found if not results.merged for record in results.records}
    kept = []
    for name, results in found:
        repeats = results.merged and bool(results.records) and not results.faults
        if repeats and all(_same(record) in shards for record in results.records):
            text = (f"{name} is a merged file of {counted(len(results.records), 'record')} that the other files hold "
                    "too: set aside")
            problems.append(Problem(ProblemKind.SET_ASIDE, text, forbids_headline=False))
        else:
            kept.append((name, results))
    return kept


def _same(record: RouteRecord) -> RouteRecord:
    """What makes two records the same: all but the position in the file, which merging takes away."""
    return replace(record, index=None)


def same_record(one: RouteRecord, other: RouteRecord) -> bool:
    """Whether two records are of the very same drive."""
    return _same(one) == _same(other)


def _file_problems(name: str, results: LeaderboardResults) -> list[Problem]:
    problems = []
    for fault in results.faults:
        route = f"route {fault.route_id}" if fault.route_id else f"number {fault.position + 1}"
        text = f"{name}, record of {route}: {fault.reason}; it counts as missing"
        problems.append(Problem(ProblemKind.INVALID_RECORD, text, forbids_headline=True))
    if results.progress is not None and results.progress[0] < results.progress[1]:
        done, total = results.progress
        status = results.entry_status or "none"
        text = f"{name} is unfinished: {done} of {counted(total, 'route')} done, status {status}"
        problems.append(Problem(ProblemKind.UNFINISHED, text, forbids_headline=False))
    elif results.entry_status not in ("", EntryStatus.FINISHED):
        text = f"{name} has the status {results.entry_status}"
        problems.append(Problem(ProblemKind.UNFINISHED, text, forbids_headline=False))
    if not results.records and not results.faults:
        problems.append(Problem(ProblemKind.SET_ASIDE, f"{name} holds no record yet", forbids_headline=False))
    return problems
