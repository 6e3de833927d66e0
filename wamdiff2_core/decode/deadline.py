"""A batch's time budget: whether the steps that the strategy wants still fit, and how many a block gets when not.

Time is wall clock and includes everything since the request began, so the same request may be decoded otherwise on a
busier machine. Every block that may still come keeps room for one step; so an answer is always whole, and late by more
than one step only when prefill and one step a block do not fit at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.schedule import schedule

Clock = Callable[[], int]
CLOCK: Clock = time.perf_counter_ns
# How many steps a block of the dynamic strategy takes is not known before; fewer than these are not hoped for.
DYNAMIC_STEPS = 4


@dataclass(frozen=True)
class Pace:
    """How a finished batch went, for the first guesses of the next one.

    Attributes:
        step_ns: median step; 0 when there was none.
        joint_ns: median step that also commits the block before it; 0 when there was none.
        blocks: blocks it took.
    """

    step_ns: int = 0
    joint_ns: int = 0
    blocks: int = 0


class Budget:
    """The time of one batch. `allow` is called before each step, `finish` after the last."""

    def __init__(self, config: DecodeConfig, blocks: int, began_ns: int, clock: Clock, last: Pace | None) -> None:
        """Start when the prompt has been run.

        Args:
            config: decoding, with a deadline.
            blocks: that an answer may have.
            began_ns: when the request began, on `clock`.
            clock: monotonic nanoseconds.
            last: pace of the last batch of this size; None when there was none.
        """
        self._counts = schedule(config.block_size, config.denoising_steps)
        self._dynamic = config.strategy == "low_confidence_dynamic"
        self._blocks, self._clock, self._last = blocks, clock, last or Pace(blocks=blocks)
        self._until_ns = began_ns + round(config.deadline_ms * 1e6)
        self._took: dict[bool, list[int]] = {False: [], True: []}
        self._running: tuple[int, bool] | None = None
        self._block = 0

    def allow(self, block: int, step: int, open_: int) -> int | None:
        """Steps that the block may still take, this one included; None when the strategy need not be hurried.

        Args:
            block: its index.
            step: steps that it has taken.
            open_: masks left in it, in the row that has most.
        """
        now_ns = self._end_step()
        joint = step == 0 and block > 0
        self._running, self._block = (now_ns, joint), block
        plain_ns, joint_ns = self._guess_ns()
        left_ns = self._until_ns - now_ns
        wanted = self._wanted(step, open_)
        first_ns = joint_ns if joint else plain_ns
        own_ns = first_ns + (wanted - 1) * plain_ns
        later_ns, least_ns = 0, 0
        for later in range(block + 1, self._blocks):
            steps = self._wanted(0, sum(self._counts)) if later < self._last.blocks else 1
            later_ns += joint_ns + (steps - 1) * plain_ns
            least_ns += joint_ns
        if own_ns + later_ns <= left_ns and left_ns > 0:
            return None
        if left_ns <= 0:
            return 1
        share_ns = min(left_ns * own_ns // (own_ns + later_ns), left_ns - least_ns)
        return max(1, min(wanted, 1 + (share_ns - first_ns) // plain_ns))

    def finish(self) -> tuple[Pace, float]:
        """How the batch went, and by how many milliseconds it was late, 0 when it was not."""
        late_ns = max(0, self._end_step() - self._until_ns)
        step_ns, joint_ns = (round(median(self._took[joint])) if self._took[joint] else 0 for joint in (False, True))
        return Pace(step_ns or self._last.step_ns, joint_ns or self._last.joint_ns, self._block + 1), late_ns / 1e6

    def _end_step(self) -> int:
        now_ns = self._clock()
        if self._running is not None:
            began_ns, joint = self._running
            self._took[joint].append(now_ns - began_ns)
            self._running = None
        return now_ns

    def _guess_ns(self) -> tuple[int, int]:
        """A plain step and a joint one: the slowest of this batch, else the median of the last, else what is known of
        the other kind; a joint step runs twice the tokens. 0 when nothing is known."""
        plain_ns = max(self._took[False], default=self._last.step_ns)
        joint_ns = max(self._took[True], default=self._last.joint_ns)
        return plain_ns or joint_ns, joint_ns or 2 * plain_ns

    def _wanted(self, step: int, open_: int) -> int:
        """Steps that a block should have from here on."""
        left = self._counts[step:]
        if self._dynamic:
            return min(len(left), open_, DYNAMIC_STEPS)
        return _steps_for(left, open_)


def _steps_for(counts: Sequence[int], open_: int) -> int:
    """How many of these steps fix so many tokens."""
    steps = 0
    while open_ > 0:
        open_ -= counts[steps]
        steps += 1
    return steps
