"""Slices of a data set, by keys that its lines carry beside the format's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ABSENT, PRESENT = "none", "present"  # slices of what is neither a string nor a bool


def slice_of(keys: Mapping[str, Any], key: str) -> str:
    """The slice of a sample by a key of its line; `a.b` is key b of the mapping a.

    A string or a bool is the slice's name; of other values counts whether they are there.
    """
    value: Any = keys
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return ABSENT
    return str(value) if isinstance(value, (str, bool)) else PRESENT


def is_among(keys: Mapping[str, Any], where: Mapping[str, Sequence[str]]) -> bool:
    """Whether a sample is, by every key, in one of the slices named for it."""
    return all(slice_of(keys, key) in names for key, names in where.items())
