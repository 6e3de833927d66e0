"""The samples of each optimiser step, the same for any number of ranks and worker processes.

Slot k of step s is a position of the mixture, whoever reads it. A sample that is dropped for its length is replaced by
the next one of a side sequence of that very slot, drawn from the same source, so a step is always full and its
replacement depends on nothing but the seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from training.data.encode import EncodedSample, SampleEncoder
from training.data.mixture import Mixture
from wamdiff2_core.errors import UserError

_ATTEMPTS = 100
_PREFETCH = 4  # samples that each worker is ahead


class StepLoader:
    """Iterates over optimiser steps without end; each is the list of this rank's samples.

    Attributes:
        over_long: samples of this rank's slots that were replaced or shortened so far, by the names of `OVER_LONG`.
    """

    def __init__(
        self,
        mixture: Mixture,
        encoder: SampleEncoder,
        global_batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        start_step: int = 0,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            mixture: what is drawn from.
            encoder: goes to the workers by pickle or fork.
            global_batch: samples of a step, over all ranks.
            seed: of the order.
            rank, world: this rank has slots `rank::world` of every step.
            workers: processes that read ahead; 0 reads in this one.
            start_step: the first step to give; a run that stopped after step n goes on with n.

        Raises:
            UserError: the batch cannot be divided among the ranks.
        """
        if global_batch < 1 or global_batch % world:
            raise UserError("global_batch", f"a multiple of the {world} ranks", global_batch)
        if not 0 <= rank < world:
            raise UserError("rank", f"below {world}", rank)
        self._slots = _Slots(mixture, encoder, global_batch, seed)
        self._rank, self._world, self._workers, self._start = rank, world, workers, start_step
        self._global_batch = global_batch
        self.over_long: Counter[str] = Counter()

    def __iter__(self) -> Iterator[list[EncodedSample]]:
        share = self._global_batch // self._world
        workers: dict[str, Any] = {"prefetch_factor": _PREFETCH} if self._workers else {}
        loader = DataLoader(
            self._slots, batch_size=None, sampler=_Positions(self._rank, self._world, self._start * share),
            num_workers=self._workers, collate_fn=_unchanged, worker_init_fn=_quiet_tokenizer, **workers,
        )
        step: list[EncodedSample] = []
        for drawn in loader:
            if isinstance(drawn, UserError):
                raise drawn
            sample, over_long = drawn
            self.over_long += over_long
            step.append(sample)
            if len(step) == share:
                yield step
                step = []


class _Positions:
    """Slots of a rank, numbered over the whole run, without end."""

    def __init__(self, rank: int, world: int, start: int) -> None:
        self._rank, self._world, self._start = rank, world, start

    def __iter__(self) -> Iterator[int]:
        position = self._start * self._world + self._rank
        while True:
            yield position
            position += self._world


class _Slots(Dataset[Any]):
    """What stands in a slot of the run; errors come back as values, for a worker cannot raise them whole."""

    def __init__(self, mixture: Mixture, encoder: SampleEncoder, global_batch: int, seed: int) -> None:
        self._mixture, self._encoder, self._global_batch, self._seed = mixture, encoder, global_batch, seed

    def __getitem__(self, slot: int) -> tuple[EncodedSample, Counter[str]] | UserError:
        step, place = divmod(slot, self._global_batch)
        # Sources take turns evenly, so slots a fixed number apart may all be of one source: ranks get them shuffled.
        order = np.random.Generator(np.random.Philox(_number(self._seed, "slots", step)))
        position = step * self._global_batch + int(order.permutation(self._global_batch)[place])
        before = self._encoder.over_long
        try:
            for attempt in range(_ATTEMPTS):
                seed = self._seed if attempt == 0 else _number(self._seed, "instead", attempt)
                source, sample = self._mixture.row(position, seed)
                encoded = self._encoder.encode(sample, source)
                if encoded is not None:
                    return encoded, self._encoder.over_long - before
        except UserError as error:
            return error
        reasons = ", ".join(sorted(name.removeprefix("dropped_") for name in self._encoder.over_long - before))
        return UserError(f"source {source}", "samples within the limits", f"{_ATTEMPTS} over {reasons} in a row",
                         "raise the limits, or shorten what is too long")


def _number(seed: int, purpose: str, count: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}/{count}".encode(), digest_size=8).digest(), "little")


def _unchanged(drawn: Any) -> Any:
    return drawn


def _quiet_tokenizer(_: int) -> None:
    """Threads of a tokenizer inside forked workers would only compete, and it says so once a process."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
