"""Two runs side by side: the routes that both have drives of, pair by pair, and what may be said about the rest.

Repeats of a route are averaged first: they are not independent of each other, and a pair is a route. The mean
difference has a 95 % interval of the paired bootstrap, which draws routes anew; successes that changed have the exact
two-sided binomial test of McNemar's pairs. Both say how far the difference may come from which routes these are, not
from how runs of one route scatter; that is what repeats are for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from carla_bridge.report.run import Entry, Run
from carla_bridge.score.checks import score_bounds
from carla_bridge.score.figures import Bounds

CONFIDENCE = 0.95
RESAMPLES, SEED = 10_000, 0  # of the bootstrap: the same runs give the same interval
SAME_SCORE = 0.005


@dataclass(frozen=True)
class Side:
    """A route in one run, over its repeats.

    Attributes:
        entry: its first drive with a record.
        score: mean driving score.
        bounds: mean of the least and greatest scores; they differ for drives that a program ended.
        success: share of its drives that are successes, 0..1.
        drives: how many have a record.
    """

    entry: Entry
    score: float
    bounds: Bounds
    success: float
    drives: int


@dataclass(frozen=True)
class Pair:
    """A route that both runs have drives of."""

    route_id: str
    first: Side
    second: Side

    @property
    def difference(self) -> float:
        """Driving score, the first run's minus the second's."""
        return self.first.score - self.second.score

    @property
    def way(self) -> str:
        """`better` or `worse` by its score, or `same`."""
        return way(self.difference)

    @property
    def turn(self) -> str:
        """`gained` or `lost` as a success in most drives, or empty."""
        was, now = self.second.success > 0.5, self.first.success > 0.5
        return "gained" if now and not was else "lost" if was and not now else ""


@dataclass(frozen=True)
class Comparison:
    """A run against another.

    Attributes:
        first, second: the runs; of the first it is said what has become better or worse.
        pairs: in the order of the first run.
        first_alone, second_alone: routes of either run without a partner.
        warnings: what makes the runs hard to compare.
    """

    first: Run
    second: Run
    pairs: tuple[Pair, ...]
    first_alone: tuple[Side, ...] = ()
    second_alone: tuple[Side, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def only_second(self) -> list[str]:
        """Ids of the routes that only the second run was asked for."""
        return _not_asked(self.second_alone, self.first)

    @property
    def only_first(self) -> list[str]:
        """Ids of the routes that only the first run was asked for."""
        return _not_asked(self.first_alone, self.second)

    @property
    def half_judged(self) -> list[str]:
        """Ids of the routes that both were asked for, and one has no verdict of."""
        alone = [side.entry.route_id for side in (*self.first_alone, *self.second_alone)]
        strangers = {*self.only_second, *self.only_first}
        return [route_id for route_id in alone if route_id not in strangers]

    @property
    def routes(self) -> int:
        """How many routes either run has a verdict of."""
        return len(self.pairs) + len(self.second_alone) + len(self.first_alone)

    @property
    def paired(self) -> tuple[Run, Run]:
        """Both runs over the routes of the pairs alone."""
        ids = {pair.route_id for pair in self.pairs}
        return self.first.only(ids), self.second.only(ids)

    @property
    def mean_difference(self) -> float:
        """Mean difference of the driving scores of the pairs, at least one."""
        return fmean(pair.difference for pair in self.pairs)

    @property
    def way(self) -> str:
        """Of the mean difference, as of a pair."""
        return way(self.mean_difference)

    @property
    def interval(self) -> Bounds | None:
        """Confidence interval of the mean difference; None with fewer than two pairs."""
        return bootstrap([pair.difference for pair in self.pairs])

    @property
    def success_difference(self) -> tuple[float, Bounds | None]:
        """Mean difference of the success rates of the pairs, in percent, and its confidence interval."""
        differences = [100.0 * (pair.first.success - pair.second.success) for pair in self.pairs]
        return fmean(differences), bootstrap(differences)

    def in_words(self) -> list[str]:
        """Both figures of both runs over the pairs, one line each, with their differences and intervals."""
        score = fmean(pair.first.score for pair in self.pairs), fmean(pair.second.score for pair in self.pairs)
        rate = tuple(100.0 * fmean(getattr(pair, side).success for pair in self.pairs) for side in ("first", "second"))
        lines = []
        for name, (first, second), (difference, interval) in (
            ("driving score", score, (self.mean_difference, self.interval)),
            ("success rate, %", rate, self.success_difference),
        ):
            span = "" if interval is None else f" (95 % interval {interval[0]:+.2f} to {interval[1]:+.2f})"
            share = f", {100.0 * first / second:.1f} % of it" if second else ""
            lines.append(f"{name}: {first:.2f} against {second:.2f}: {difference:+.2f}{span}{share}, "
                         f"{len(self.pairs)} routes in both")
        return lines

    @property
    def bounds(self) -> Bounds:
        """The mean difference over all routes of either run: one without a partner may have scored 0 to 100 there."""
        low = [pair.first.bounds[0] - pair.second.bounds[1] for pair in self.pairs]
        high = [pair.first.bounds[1] - pair.second.bounds[0] for pair in self.pairs]
        for side in self.first_alone:
            low.append(side.bounds[0] - 100.0)
            high.append(side.bounds[1])
        for side in self.second_alone:
            low.append(-side.bounds[1])
            high.append(100.0 - side.bounds[0])
        return fmean(low), fmean(high)

    @property
    def gained(self) -> list[Pair]:
        """Routes that have become successes."""
        return [pair for pair in self.pairs if pair.turn == "gained"]

    @property
    def lost(self) -> list[Pair]:
        """Routes that are no successes any more."""
        return [pair for pair in self.pairs if pair.turn == "lost"]

    @property
    def better(self) -> int:
        """Pairs with a higher score."""
        return sum(pair.way == "better" for pair in self.pairs)

    @property
    def worse(self) -> int:
        """Pairs with a lower score."""
        return sum(pair.way == "worse" for pair in self.pairs)

    @property
    def chance(self) -> float:
        """Probability of at least so uneven a split of gained and lost routes if either were as likely."""
        gained, count = len(self.gained), len(self.gained) + len(self.lost)
        fewer = min(gained, count - gained)
        return min(1.0, 2 * sum(math.comb(count, k) for k in range(fewer + 1)) / 2**count)


def bootstrap(differences: Sequence[float]) -> Bounds | None:
    """Percentile interval of the mean over resampled differences; None with fewer than two."""
    count = len(differences)
    if count < 2:
        return None
    drawn = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    low, high = np.quantile(np.asarray(differences)[drawn].mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def way(difference: float) -> str:
    """`better` or `worse` for a difference of driving scores that shows, else `same`."""
    return "same" if abs(difference) <= SAME_SCORE else "better" if difference > 0 else "worse"


def compare(first: Run, second: Run) -> Comparison:
    """Pair the routes of two runs; a difference is the first run's minus the second's."""
    ones, others = _sides(first), _sides(second)
    pairs = tuple(Pair(key, side, others[key]) for key, side in ones.items() if key in others)
    return Comparison(
        first, second, pairs,
        first_alone=tuple(side for key, side in ones.items() if key not in others),
        second_alone=tuple(side for key, side in others.items() if key not in ones),
        warnings=tuple(_warnings(first, second, pairs)),
    )


def same_run(first: Run, second: Run) -> str:
    """That a run is compared with itself, in words; empty when it is not."""
    if first.folder.resolve() == second.folder.resolve():
        return "Both are the same run folder: no difference can show."
    if first.results is not None and first.results == second.results:
        return "Both folders hold the same drives, one is a copy: no difference can show."
    return ""


def _not_asked(alone: Sequence[Side], run: Run) -> list[str]:
    asked = {entry.route_id for entry in run.entries}
    return [side.entry.route_id for side in alone if side.entry.route_id not in asked]


def _sides(run: Run) -> dict[str, Side]:
    drives: dict[str, list[Entry]] = defaultdict(list)
    for entry in run.entries:
        if entry.record is not None:
            drives[entry.route_id].append(entry)
    return {key: _side(entries) for key, entries in drives.items()}


def _side(entries: list[Entry]) -> Side:
    records = [entry.record for entry in entries if entry.record is not None]
    bounds = [score_bounds(record) for record in records]
    return Side(
        entries[0], fmean(record.score_composed for record in records),
        (fmean(low for low, _ in bounds), fmean(high for _, high in bounds)),
        fmean(record.success for record in records), len(records),
    )


def _warnings(first: Run, second: Run, pairs: tuple[Pair, ...]) -> list[str]:
    found = [same] if (same := same_run(first, second)) else []
    if first.world != second.world:
        found.append(f"The worlds differ: {first.world} against {second.world}.")
    strange = [
        pair.route_id for pair in pairs
        if pair.first.entry.town != pair.second.entry.town
        or (pair.first.entry.scenario and pair.second.entry.scenario
            and pair.first.entry.scenario != pair.second.entry.scenario)
        or _far_apart(pair.first.entry, pair.second.entry)
    ]
    if strange:
        found.append(f"Not the same route under the same id (town, scenario or length differ): {', '.join(strange)}.")
    one, two = first.results, second.results
    if one is not None and two is not None:
        for name, words in (("latency_mode", "latency mode"), ("deadline_ms", "deadline"), ("seed", "seed"),
                            ("server", "server"), ("vehicles", "number of background vehicles"),
                            ("walkers", "number of walkers"), ("scenarios", "playing of scenarios"),
                            ("blank_camera", "blanking of the camera")):
            if getattr(one, name) != getattr(two, name):
                found.append(f"The {words} differs: {getattr(one, name)} against {getattr(two, name)}.")
    return found


def _far_apart(one: Entry, two: Entry) -> bool:
    lengths = [entry.record.route_length_m for entry in (one, two) if entry.record and entry.record.route_length_m]
    return len(lengths) == 2 and abs(lengths[0] - lengths[1]) > max(5.0, 0.05 * max(lengths))
