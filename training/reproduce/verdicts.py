"""Which of the paper's orderings and statements our figures agree with, seed by seed.

A seed agrees where its own figures have the paper's order. All seeds on one side are a verdict; else it is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from training.reproduce.tables import Metric, Table

SATURATED = 1.05  # of the distance with most steps
SATURATES_AT = (8, 16)

Values = Mapping[str, Mapping[str, Sequence[float | None]]]  # row -> metric -> figure of each seed


def orderings(table: Table, values: Values) -> list[dict[str, Any]]:
    """A verdict for each pair of rows that the paper has different figures of."""
    found = []
    for metric in table.metrics:
        rows = [row for row in table.rows if metric.key in row.paper]
        for one, other in combinations(rows, 2):
            theirs = one.paper[metric.key] - other.paper[metric.key]
            if not theirs:
                continue
            better, worse = (one, other) if (theirs < 0) == metric.paper_lower else (other, one)
            sides = _sides(values[better.label][metric.key], values[worse.label][metric.key], metric)
            found.append({
                "figure": metric.title, "paper": metric.paper, "better": better.label, "worse": worse.label,
                **_verdict(sides),
            })
    return found


def statements(table: Table, values: Values) -> list[dict[str, Any]]:
    """Verdicts on what the paper says in words."""
    if table.name == "horizon":
        return [{"statement": "the gain of B32 over AR is larger at the last waypoint than at the first",
                 **_verdict(_growth(values))}]
    if table.name == "steps":
        at = [_saturation(values, seed) for seed in range(_seeds(values))]
        sides = [None if steps is None else SATURATES_AT[0] <= steps <= SATURATES_AT[1] for steps in at]
        return [{"statement": f"with {SATURATES_AT[0]} to {SATURATES_AT[1]} steps a block, and not with fewer, the "
                              f"distance is within {SATURATED - 1:.0%} of that with most",
                 "saturates_at": at, **_verdict(sides)}]
    return []


def _sides(better: Sequence[float | None], worse: Sequence[float | None], metric: Metric) -> list[bool | None]:
    """For each seed whether it has the paper's order; None where there is none."""
    return [
        None if one is None or other is None or one == other else (one < other) == metric.lower
        for one, other in zip(better, worse, strict=True)
    ]


def _verdict(sides: Sequence[bool | None]) -> dict[str, Any]:
    agreeing = sum(side is True for side in sides)
    opposed = sum(side is False for side in sides)
    verdict = {len(sides): "agrees"}.get(agreeing, "disagrees" if opposed == len(sides) else "open")
    return {"agreeing": agreeing, "seeds": len(sides), "verdict": verdict}


def _growth(values: Values) -> list[bool | None]:
    sides: list[bool | None] = []
    waypoints = [key for key in values["AR"] if key.startswith("waypoint_")]
    for seed in range(_seeds(values)):
        gains = []
        for key in (waypoints[0], waypoints[-1]) if waypoints else ():
            before, after = values["AR"][key][seed], values["B32"][key][seed]
            gains.append(None if before is None or after is None else before - after)
        usable = len(gains) == 2 and None not in gains and gains[0] != gains[1]
        sides.append(gains[1] > gains[0] if usable else None)  # type: ignore[operator]
    return sides


def _saturation(values: Values, seed: int) -> int | None:
    distances = {int(label): figures["l2_all_m"][seed] for label, figures in values.items()}
    known = {steps: distance for steps, distance in distances.items() if distance is not None}
    if not known:
        return None
    limit = SATURATED * known[max(known)]
    return min(steps for steps in known if all(known[more] <= limit for more in known if more >= steps))


def _seeds(values: Values) -> int:
    return len(next(iter(next(iter(values.values())).values())))
