"""Driving efficiency: how fast the vehicle was, compared with the traffic around it, in per cent.

As coded upstream (`efficiency_smoothness_benchmark.py`, Bench2Drive 0.0.4): per route the mean of the minimum-speed
entries, without those above 1000 %; routes without entries do not count; the mean of the rest. A fast vehicle in jammed
traffic therefore drops out of its own mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from carla_bridge.leaderboard.results import InfractionKind, RouteRecord

LIMIT_PCT = 1000.0
# as upstream searches it: of a number with an exponent it finds the exponent
_PERCENTAGE = re.compile(r"\b(\d+\.?\d*)%")


@dataclass(frozen=True)
class RouteEfficiency:
    """Efficiency of one route.

    Attributes:
        mean_pct: per cent, at most 1000; None when no entry counts.
        values: entries with a percentage.
        dropped: those of them above the limit.
        unreadable: entries without one, on which upstream's tool ends.
    """

    mean_pct: float | None
    values: int
    dropped: int
    unreadable: int


def route_efficiency(record: RouteRecord) -> RouteEfficiency:
    """Efficiency of one record."""
    entries = record.entries(InfractionKind.MIN_SPEED)
    values = [float(match[1]) for entry in entries if (match := _PERCENTAGE.search(entry.text))]
    kept = [value for value in values if value <= LIMIT_PCT]
    mean = sum(kept) / len(kept) if kept else None
    return RouteEfficiency(mean, len(values), len(values) - len(kept), len(entries) - len(values))


def mean_bounds(certain: Sequence[float], unsure: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """Least and greatest mean there can be when some values are not known.

    Args:
        certain: values that count as they are.
        unsure: for each further value what it may be; None among them: it may not count at all.

    Returns:
        Both bounds; (0, 1000) when it is possible that nothing counts.
    """
    if not certain and all(None in options for options in unsure):
        return 0.0, LIMIT_PCT
    return _extreme_mean(certain, unsure, 1.0), -_extreme_mean([-v for v in certain], unsure, -1.0)


def _extreme_mean(certain: Sequence[float], unsure: Sequence[Sequence[float | None]], sign: float) -> float:
    """Least mean of values times `sign`: what may be absent joins in as long as it lowers the mean."""
    total, count = sum(certain), len(certain)
    optional = []
    for options in unsure:
        least = min(sign * value for value in options if value is not None)
        if None in options:
            optional.append(least)
        else:
            total, count = total + least, count + 1
    for value in sorted(optional):
        if count == 0 or value * count < total:
            total, count = total + value, count + 1
    return total / count
