"""Which task a question sets, read from the published wording at its end."""

from __future__ import annotations

import re
from typing import Literal

AskedTask = Literal["planning", "grounding", "questions"]

MOST_WAYPOINTS = 10**9  # more than any answer has; Python does not read numbers of any length
_WAYPOINTS = re.compile(r"with ([0-9]+) new waypoints\.?$")
_BOXES = "Report bbox coordinates in JSON format."


def asked_waypoints(question: str) -> int | None:
    """How many waypoints a question asks for, at most `MOST_WAYPOINTS`; None when it asks for something else."""
    found = _WAYPOINTS.search(question.strip())
    if found is None:
        return None
    digits = found.group(1).lstrip("0") or "0"
    return int(digits) if len(digits) < len(str(MOST_WAYPOINTS)) else MOST_WAYPOINTS


def asked_task(question: str) -> AskedTask:
    """The task; `questions` is everything that is answered in words."""
    if asked_waypoints(question) is not None:
        return "planning"
    return "grounding" if question.strip().endswith(_BOXES) else "questions"
