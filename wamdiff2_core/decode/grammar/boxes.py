"""The best box at every place: four numbers with a <= c and b <= d, exactly, without a state for each pair of numbers.

Once it is known where the four numbers stand, the first and third no longer depend on the second and fourth. So the
best pair is found for every place and every length of its numbers, then the best two pairs. Of two numbers, the one
with fewer digits is smaller; of two with as many, the digits decide from the left, and behind the first that differ
all are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
NEVER = np.float32(-np.inf)
LENGTHS = range(4)  # digits of a number, less one
_HIGHEST = 1000
# (100, 4) lengths of the four numbers, by the digits they make together; no other lengths can be in order
_SHAPES = np.array(sorted(
    ((a, b, c, d) for a in LENGTHS for b in LENGTHS for c in LENGTHS[a:] for d in LENGTHS[b:]), key=sum
))
_DIGITS = _SHAPES.sum(1) + 4
_TOTALS, _STARTS = np.unique(_DIGITS, return_index=True)


@dataclass(frozen=True)
class BestBoxes:
    """Best boxes of each row, starting column and total length.

    Attributes:
        digits: (N, W, 10) log-probabilities of the digits.
        scores: (N, W, longest + 1) sums of log-probabilities, -inf where there is no box.
        shapes: (N, W, 100) the same for each way to divide a box into numbers.
        separator_length: tokens between two numbers.
    """

    digits: Scores
    scores: Scores
    shapes: Scores
    separator_length: int

    def spell(
        self, row: int, column: int, length: int, digits: Sequence[int], separator: Sequence[int]
    ) -> list[int]:
        """Tokens of the best box of one row, column and length, by those of the ten digits and of a separator."""
        own = np.flatnonzero(length - 3 * self.separator_length == _DIGITS)
        sizes = _SHAPES[own[self.shapes[row, column, own].argmax()]] + 1
        starts = column + np.cumsum([0, *(sizes[:3] + self.separator_length)])
        y, x, y_end, x_end = (
            _numbers(self.digits[row, start : start + size]) for start, size in zip(starts, sizes, strict=True)
        )
        (low_y, high_y), (low_x, high_x) = _in_order(y, y_end), _in_order(x, x_end)
        first, *others = ([digits[int(digit)] for digit in str(number)] for number in (low_y, low_x, high_y, high_x))
        return first + [token for number in others for token in (*separator, *number)]


def best_boxes(digits: Scores, separators: Scores, separator_length: int) -> BestBoxes:
    """Search every starting column.

    Args:
        digits: (N, W, 10) log-probabilities of the digits.
        separators: (N, W) log-probability of a whole separator that starts there.
        separator_length: its tokens.
    """
    rows, width, _ = digits.shape
    gap, longest = separator_length, 16 + 3 * separator_length
    pairs = _best_pairs(_later(digits, longest), width, gap)
    spaces, pairs_later = _later(separators, longest), _later(pairs, longest)
    a, b, c, d = _SHAPES.T
    columns = np.arange(width)[:, None]
    second = columns + a + 1 + gap
    third = second + b + 1 + gap
    shapes = pairs[:, :, a, b, c] + pairs_later[:, second, b, c, d]
    shapes += spaces[:, columns + a + 1] + spaces[:, second + b + 1] + spaces[:, third + c + 1]
    scores = np.full((rows, width, longest + 1), NEVER)
    scores[..., _TOTALS + 3 * gap] = np.maximum.reduceat(shapes, _STARTS, axis=-1)
    return BestBoxes(digits, scores, shapes, gap)


def _best_pairs(digits: Scores, width: int, gap: int) -> Scores:
    """(N, W, 4, 4, 4) best first and second number of a pair, by the lengths of first, number between, and second."""
    top, lead = digits.max(-1), digits[..., 1:].max(-1)
    zero = _later(digits[..., 0], 3)
    thousand = digits[..., 1] + zero[:, 1:-2] + zero[:, 2:-1] + zero[:, 3:]
    two = lead + _later(top, 1)[:, 1:]
    three = two + _later(top, 2)[:, 2:]
    free = top, two, three, thousand
    best = np.full((len(digits), width, 4, 4, 4), NEVER)
    ordered: dict[int, tuple[Scores, Scores, Scores]] = {}
    for between in LENGTHS:
        for first in LENGTHS:
            shift = first + between + 2 + 2 * gap
            for second in LENGTHS[first + 1 :]:
                best[:, :, first, between, second] = free[first][:, :width] + _shifted(free[second], shift, width)
            if first == 3:
                best[:, :, 3, between, 3] = thousand[:, :width] + _shifted(thousand, shift, width)
                continue
            if shift not in ordered:
                ordered[shift] = _in_order_of_length(digits, top, shift)
            best[:, :, first, between, first] = ordered[shift][first][:, :width]
    return best


def _in_order_of_length(digits: Scores, top: Scores, shift: int) -> tuple[Scores, Scores, Scores]:
    """(N, W) best two numbers of one, two and three digits, the second `shift` columns behind and not smaller."""
    low, high = digits, _shifted(digits, shift, digits.shape[1])
    same = low + high
    less = np.maximum.accumulate(low[..., :9], -1)
    less += high[..., 1:]  # by the digit of the second number, from 1
    both = top + _shifted(top, shift, top.shape[1])
    equal, smaller = same.max(-1), less.max(-1)
    lead_equal = same[..., 1:].max(-1)
    lead_smaller = (np.maximum.accumulate(low[..., 1:9], -1) + high[..., 2:]).max(-1)
    one = np.maximum(equal, smaller)
    two = np.maximum(lead_smaller + _later(both, 1)[:, 1:], lead_equal + _later(one, 1)[:, 1:])
    rest = np.maximum(smaller + _later(both, 1)[:, 1:], equal + _later(one, 1)[:, 1:])
    free = _later(both, 2)
    three = np.maximum(lead_smaller + free[:, 1:-1] + free[:, 2:], lead_equal + _later(rest, 1)[:, 1:])
    return one, two, three


def _later(values: Scores, columns: int) -> Scores:
    """With so many columns behind the last, where nothing can stand."""
    return np.concatenate([values, np.full((len(values), columns, *values.shape[2:]), NEVER)], 1)


def _shifted(values: Scores, shift: int, width: int) -> Scores:
    """`width` columns from column `shift` on; nothing can stand behind the last."""
    kept: Scores = values[:, shift : shift + width]
    return kept if kept.shape[1] == width else _later(kept, width - kept.shape[1])


def _numbers(digits: Scores) -> Scores:
    """Score of every number with as many digits as there are columns, at its own place."""
    scores: Scores = digits[0]
    for following in digits[1:]:
        scores = (scores[:, None] + following).ravel()
    lowest = 10 ** (len(digits) - 1)
    if lowest > 1:
        scores[:lowest] = NEVER
    scores[_HIGHEST + 1 :] = NEVER
    return scores


def _in_order(low: Scores, high: Scores) -> tuple[int, int]:
    """The best two numbers of which the first is not greater, by their `_numbers`."""
    if len(low) < len(high):
        return int(low.argmax()), int(high.argmax())
    second = int((np.maximum.accumulate(low) + high).argmax())
    return int(low[: second + 1].argmax()), second
