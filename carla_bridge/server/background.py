"""How much background traffic the embedded server takes."""

from __future__ import annotations

from wamdiff2_core.errors import UserError

MOST_BACKGROUND = 500  # vehicles, and walkers


def check_background(vehicles: int, walkers: int) -> None:
    """Raise `UserError` for more background traffic than the server takes, or less than none."""
    for option, count in (("--vehicles", vehicles), ("--walkers", walkers)):
        if not 0 <= count <= MOST_BACKGROUND:
            raise UserError(option, f"0..{MOST_BACKGROUND}", count)
