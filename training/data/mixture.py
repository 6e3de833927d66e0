"""Several conversation files as one endless sequence, in which any position can be computed on its own.

Sources take turns by weight, evenly: after any number of draws each has had its share, to within a few. Within a
source every pass is a permutation of its own, computed sample by sample from a key, so nothing is held or replayed:
a run goes on, and is divided among ranks, by position alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from training.data.sources import ConversationIndex, SourceConfig
from training.yaml_file import read_mapping
from wamdiff2_core.config import Strict, parse
from wamdiff2_core.dataset import Sample
from wamdiff2_core.errors import UserError, did_you_mean

NAMED_MIXTURES = Path(__file__).parents[1] / "configs" / "mixtures"
_ROUNDS = 6


@dataclass(frozen=True)
class MixtureConfig(Strict):
    """What is mixed.

    Attributes:
        sources: the files with their weights.
    """

    sources: tuple[SourceConfig, ...]

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise UserError("sources", "a name for each source", f"the names {', '.join(names)}")

    @classmethod
    def load(cls, config: Path | str) -> MixtureConfig:
        """Read a YAML file, or a named mixture of `training/configs/mixtures`.

        Raises:
            UserError: no such file or name, or a field is wrong.
        """
        file = Path(config)
        if not file.suffix:
            file = NAMED_MIXTURES / f"{config}.yaml"
            if not file.exists():
                known = sorted(path.stem for path in NAMED_MIXTURES.glob("*.yaml"))
                raise UserError("mixture", "a YAML file or a named mixture", str(config),
                                did_you_mean(str(config), known))
        data = read_mapping(file, "a mapping with sources")
        return parse(cls, data, str(file))

    def with_weights(self, weights: Mapping[str, float]) -> MixtureConfig:
        """The same sources, some with other weights.

        Raises:
            UserError: there is no source of that name, or the weight is negative.
        """
        names = [source.name for source in self.sources]
        for name in weights:
            if name not in names:
                raise UserError("weight", "the name of a source", name, did_you_mean(name, names))
        changed = (replace(source, weight=weights.get(source.name, source.weight)) for source in self.sources)
        return replace(self, sources=tuple(changed))


class Mixture:
    """Sources with weights, drawn in a fixed order.

    Attributes:
        sources: those with a weight above 0.
        indices: their files, in the same order.
        shares: their shares of the draws; exact, they sum to 1.
    """

    def __init__(self, sources: Sequence[SourceConfig], cache: Path | str | None = None) -> None:
        """Open the files.

        Args:
            sources: with unique names; those of weight 0 are not opened.
            cache: see `ConversationIndex`.

        Raises:
            UserError: nothing is left, or a file has no samples or cannot be opened.
        """
        self.sources = tuple(source for source in sources if source.weight > 0)
        if not self.sources:
            raise UserError("sources", "at least one with a weight above 0", [source.name for source in sources])
        self.indices = tuple(
            ConversationIndex(source.file, cache, source.limit, source.where) for source in self.sources
        )
        for source, index in zip(self.sources, self.indices, strict=True):
            if len(index) == 0:
                slices = "; ".join(f"{key} {' or '.join(names)}" for key, names in source.where.items())
                got, mend = "an empty file", "fill it"
                if slices:
                    got, mend = f"none with {slices}", "name slices that it has"
                raise UserError(f"{source.name}: {source.file}", "at least one sample", got,
                                f"{mend}, or set the weight of {source.name} to 0")
        exact = [Fraction(str(source.weight)) for source in self.sources]
        self.shares = tuple(weight / sum(exact) for weight in exact)
        common = math.lcm(*(share.denominator for share in self.shares))
        self._turns = [int(share * common) for share in self.shares]
        self._names = {source.name: number for number, source in enumerate(self.sources)}

    def __len__(self) -> int:
        """Samples of all sources together."""
        return sum(map(len, self.indices))

    def row(self, position: int, seed: int) -> tuple[str, Sample]:
        """The source and the sample at a position of the run.

        Args:
            position: from 0, without end.
            seed: of the permutations; the order of sources does not depend on it.

        Raises:
            UserError: that sample cannot be used; the message names file and sample.
        """
        source, index = self.draw(position, seed)
        return self.sources[source].name, self.indices[source][index]

    def draw(self, position: int, seed: int) -> tuple[int, int]:
        """Number of the source and number of the sample in it, at a position of the run."""
        source, count = self.turn(position)
        size = len(self.indices[source])
        epoch, rank = divmod(count, size)
        return source, permuted(rank, size, _key(seed, self.sources[source].name, epoch))

    def turn(self, position: int) -> tuple[int, int]:
        """Whose turn it is at a position, and how many turns that source had before.

        One source after the other takes its share of the positions that the ones before it left, evenly spaced.
        """
        left = sum(self._turns)
        for source, turns in enumerate(self._turns):
            before, after = (_had(place, turns, left) for place in (position, position + 1))
            if after > before:
                return source, before
            position -= before
            left -= turns
        raise AssertionError("the last source takes all that is left")


def _had(position: int, turns: int, total: int) -> int:
    """Turns before `position` of a source that has `turns` of every `total`."""
    return (position * turns + total // 2) // total if turns < total else position


@lru_cache(maxsize=1024)
def _key(seed: int, name: str, epoch: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{epoch}/{name}".encode(), digest_size=32).digest()


def permuted(index: int, size: int, key: bytes) -> int:
    """Where a permutation of `range(size)` puts an index.

    A Feistel network over the next power of four; results beyond the size go through it again until they fall inside,
    which keeps it a permutation.

    Args:
        index: in [0, size).
        size: at least 1.
        key: 32 bytes; another key is another permutation.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    words = _round_words(key)
    value = index
    while True:
        left, right = value >> half, value & mask
        for word in words:
            left, right = right, left ^ (_mix(right + word) & mask)
        value = left << half | right
        if value < size:
            return value


@lru_cache(maxsize=1024)
def _round_words(key: bytes) -> tuple[int, ...]:
    material = hashlib.blake2b(key, digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(material[8 * k : 8 * k + 8], "little") for k in range(_ROUNDS))


def _mix(value: int) -> int:
    """SplitMix64's finaliser: every bit of the 64 depends on every bit of the value."""
    value &= 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31
