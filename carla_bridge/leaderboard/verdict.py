"""How a route ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a route ended."""

    COMPLETED = "completed"
    OFF_ROUTE = "off route"
    BLOCKED = "blocked"
    TIMEOUT = "timeout"
    PLANNER_LOST = "planner lost"
    AGENT_CRASHED = "agent crashed"
    VOID = "void"  # a scenario of the route could not be played: there is nothing to judge
    SERVER_LOST = "server lost"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Verdict:
    """The end of a route, in words."""

    outcome: Outcome
    reason: str
