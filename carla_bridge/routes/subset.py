"""Routes chosen by the leaderboard's words: `--routes-subset` of every command that has it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wamdiff2_core.errors import UserError

OPTION = "--routes-subset"


def chosen_ids(ids: Sequence[str], subset: str | None, *, in_file_order: bool = True) -> list[str]:
    """The ids that a subset names, in their own order.

    Args:
        ids: all there are.
        subset: ids and ranges of them, such as `1711,24206-28048`; None for all.
        in_file_order: whether `ids` are in the order of a route file, by which a range is meant; ranges are refused
            when they are not.

    Raises:
        UserError: not of that form, or no such route.
    """
    if subset is None:
        return list(ids)
    if not subset.strip():  # a variable of a script that was never set
        raise UserError(OPTION, "ids of routes", "an empty text", "leave the option out to have all routes")
    chosen: set[int] = set()
    for word in subset.replace(" ", "").split(","):
        first, last = (word, word) if word in ids else _range(word)
        for route_id in (first, last):
            if route_id not in ids:
                raise UserError(OPTION, "ids of routes in the file", route_id, f"it has {_some(ids)}")
        if first != last and not in_file_order:
            raise UserError(OPTION, "single ids, as a shipped set has no order", word,
                            "name the route file in --routes for a range")
        if ids.index(first) > ids.index(last):
            raise UserError(OPTION, "a range in the file's order", word)
        chosen.update(range(ids.index(first), ids.index(last) + 1))
    return [route_id for index, route_id in enumerate(ids) if index in chosen]


def _range(word: str) -> tuple[str, str]:
    match = re.fullmatch(r"([^-]+)-([^-]+)", word)
    return (match[1], match[2]) if match else (word, word)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids) if len(ids) <= 6 else ", ".join(ids[:5]) + f" and {len(ids) - 5} more"
