"""What is wrong with the input of a score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

SHOWN = 8


class ProblemKind(StrEnum):
    """Kinds of problems, as `--json` names them."""

    UNREADABLE = "unreadable file"
    SET_ASIDE = "file set aside"
    UNFINISHED = "unfinished file"
    INVALID_RECORD = "invalid record"
    DUPLICATE = "duplicate routes"
    MISSING = "missing routes"
    UNKNOWN_ROUTE = "unknown routes"
    LEFT_OUT = "routes left out"
    OTHER_ROUTE = "other routes of the same id"
    REPETITIONS = "several repetitions"
    MISMATCH = "score mismatch"
    UNVERIFIED = "score not verified"
    WORLDS = "several worlds"
    NOT_DRIVEN_OUT = "not driven to an end"
    EFFICIENCY = "efficiency"
    METRICS = "metric files"
    MAPS = "maps"


@dataclass(frozen=True)
class Problem:
    """One finding.

    Attributes:
        kind: what sort of finding.
        message: one sentence that names files and routes.
        forbids_headline: no driving score may be stated while it stands.
    """

    kind: ProblemKind
    message: str
    forbids_headline: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


def most_telling_first(problems: Iterable[Problem]) -> list[Problem]:
    """The wrong route set before what follows from it, and what forbids headlines before mere notes."""
    return sorted(problems, key=lambda problem: (problem.kind != ProblemKind.UNKNOWN_ROUTE,
                                                 not problem.forbids_headline))


def printable(text: str) -> str:
    """Text that any terminal takes: names of files and ids in them may hold anything."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def listing(items: Sequence[str]) -> str:
    """The first few of many, with the number of the rest."""
    shown = ", ".join(items[:SHOWN])
    return shown if len(items) <= SHOWN else f"{shown} and {len(items) - SHOWN} more"


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it must be."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
