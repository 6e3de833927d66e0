"""Pairing of every camera image with the samples of other topics that were taken at its time.

Order of arrival says nothing: topics travel separately, so a sample may come after the image it belongs to. An image
waits for its partners until a newer image comes.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Synchronizer:
    """Holds the newest image and recent partner samples, and hands out complete sets.

    With a tolerance of 0 only equal stamps pair, which makes the outcome independent of timing (lockstep). Otherwise
    the nearest sample within the tolerance is taken, of those that have arrived when the set becomes complete.
    """

    def __init__(self, partners: tuple[str, ...], tolerance_ns: int, depth: int = 50) -> None:
        """Pair images with one sample of each of `partners`, keeping `depth` samples of each."""
        self.tolerance_ns = tolerance_ns
        self.unpaired = 0  # images that a newer one replaced while they waited
        self._samples: dict[str, deque[tuple[int, Any]]] = {name: deque(maxlen=depth) for name in partners}
        self._waiting: tuple[int, Any] | None = None
        self._newest_image_ns: int | None = None

    def add_image(self, stamp_ns: int, image: Any) -> tuple[Any, dict[str, Any]] | None:
        """Take an image; return `(image, partners)` when its set is complete.

        An image that goes back in time means that the source started again: everything older is forgotten.
        """
        if self._newest_image_ns is not None and stamp_ns < self._newest_image_ns:
            latest_ns = stamp_ns + self.tolerance_ns
            for name, samples in self._samples.items():
                self._samples[name] = deque((s for s in samples if s[0] <= latest_ns), samples.maxlen)
            self._waiting = None
        if self._waiting is not None:
            self.unpaired += 1
        self._newest_image_ns = stamp_ns
        self._waiting = (stamp_ns, image)
        return self._complete()

    def add(self, partner: str, stamp_ns: int, sample: Any) -> tuple[Any, dict[str, Any]] | None:
        """Take a sample of another topic; return `(image, partners)` when it completes the waiting image's set."""
        self._samples[partner].append((stamp_ns, sample))
        return self._complete()

    def missing(self) -> list[str]:
        """Partners that the waiting image still lacks."""
        if self._waiting is None:
            return []
        return [name for name in self._samples if self._nearest(name, self._waiting[0]) is None]

    def _nearest(self, partner: str, stamp_ns: int) -> tuple[int, Any] | None:
        nearest = min(self._samples[partner], key=lambda sample: abs(sample[0] - stamp_ns), default=None)
        return nearest if nearest is not None and abs(nearest[0] - stamp_ns) <= self.tolerance_ns else None

    def _complete(self) -> tuple[Any, dict[str, Any]] | None:
        if self._waiting is None:
            return None
        stamp_ns, image = self._waiting
        found = {name: self._nearest(name, stamp_ns) for name in self._samples}
        if any(sample is None for sample in found.values()):
            return None
        self._waiting = None
        return image, {name: sample[1] for name, sample in found.items() if sample is not None}
