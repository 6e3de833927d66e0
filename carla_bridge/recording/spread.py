"""What repeats of an evaluation say about a figure: its mean, how single repeats scatter, and how sure the mean is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from wamdiff2_core.config import Strict


@dataclass(frozen=True)
class Spread(Strict):
    """A figure over the repeats of an evaluation.

    Attributes:
        mean, least, most: over the repeats.
        deviation: standard deviation of a single repeat, from the sample; None with one repeat.
        repeats: how many there were.
        interval: 95 % confidence interval of the mean, by Student's t over the repeats, so that it may leave the
            figure's range; None with one repeat.
        missing: drives of all repeats without a verdict: the repeats are then of unequal routes.
    """

    mean: float
    least: float
    most: float
    deviation: float | None
    repeats: int
    interval: tuple[float, float] | None = None
    missing: int = 0

    @classmethod
    def of(cls, values: Sequence[float], missing: int = 0) -> Spread:
        """The spread of at least one value, of repeats in which `missing` drives have no verdict."""
        mean, count = statistics.fmean(values), len(values)
        if count == 1:
            return cls(mean, mean, mean, None, 1, None, missing)
        from scipy.special import stdtrit  # slow to import

        deviation = statistics.stdev(values)
        half = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
        return cls(mean, min(values), max(values), deviation, count, (mean - half, mean + half), missing)

    def in_words(self, unit: str = "") -> str:
        """Mean, deviation and interval, and what they are of."""
        missing = f"{self.missing} {'drive' if self.missing == 1 else 'drives'} missing" if self.missing else ""
        if self.deviation is None or self.interval is None:
            return f"{self.mean:.2f}{unit}" + (f" ({missing})" if missing else "")
        low, high = self.interval
        words = [f"95 % interval of the mean {low:.2f} to {high:.2f}", f"{self.repeats} repeats", missing]
        return f"{self.mean:.2f} ± {self.deviation:.2f}{unit} ({', '.join(filter(None, words))})"
