"""Errors that a user can act on, and the exit codes they end a command with.

A `UserError` is printed as one line without a traceback: it names the field, what was expected, what came, and how
to mend it. Everything else is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every `wamdiff2` command."""

    DONE = 0
    FAILED_ITEMS = 1  # the command ran to its end, but a sample, a route or a check failed
    WRONG_USE = 2
    INFRASTRUCTURE = 3  # server lost, disk full, port taken


class UserError(ValueError):
    """Something the user gave is wrong."""

    exit_code = ExitCode.WRONG_USE

    def __init__(self, field: str, expected: str, got: object, fix: str = "") -> None:
        """Build the message ``field: expected X, got Y; fix``.

        Args:
            field: name of the option, file or key at fault.
            expected: what is allowed there.
            got: what was found; strings are shown as they are, an empty one as `nothing`, all else by `repr`.
            fix: what to do about it, in the imperative.
        """
        self.field, self.expected, self.got, self.fix = field, expected, got, fix
        shown = (got or "nothing") if isinstance(got, str) else repr(got)
        super().__init__(f"{field}: expected {expected}, got {shown}" + (f"; {fix}" if fix else ""))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, object, str]]:
        """Pickled by its parts: an exception is otherwise made anew from its message."""
        return type(self), (self.field, self.expected, self.got, self.fix)


def require(ok: bool, field: str, expected: str, got: object, fix: str = "") -> None:
    """Raise the `UserError` of these parts unless `ok`."""
    if not ok:
        raise UserError(field, expected, got, fix)


class InfrastructureError(RuntimeError):
    """A server, port, disk or process that a command depends on failed."""

    exit_code = ExitCode.INFRASTRUCTURE


def did_you_mean(word: str, known: Iterable[str], *, or_list: bool = True) -> str:
    """Return ``did you mean 'x'?`` for the closest known word, or the list of known words.

    Args:
        word: what was found.
        known: the words that there are.
        or_list: whether they are listed where none is close; without it the text is empty then.
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(known) if or_list else ""


def unknown_name(field: str, name: object, known: Iterable[str], *, or_else: str = "") -> UserError:
    """The error of a name that is none of the few known ones: lists them once, and suggests the closest.

    Args:
        field: as in `UserError`.
        name: what was found.
        known: the names that there are. Where they are too many for one line, describe them in a `UserError` of your
            own, with `did_you_mean` for its fix.
        or_else: what is allowed beside them.
    """
    known = list(known)
    expected = "one of " + ", ".join(known) + (f", or {or_else}" if or_else else "")
    fix = did_you_mean(str(name), known, or_list=False)
    return UserError(field, expected, name, fix)
