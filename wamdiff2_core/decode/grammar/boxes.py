"""The best box at every place: four numbers with a <= c and b <= d, exactly, without a state for each pair of numbers.

Once it is known where the four numbers stand, the first and third no longer depend on the second and fourth. So the
best pair is found for every place and every length of its numbers, then the best two pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_OF_LENGTH = (0, 10, 100, 1000, 1001)  # numbers of n + 1 digits are from [n] to below [n + 1]
LENGTHS = range(4)  # digits of a number, less one
NEVER = -torch.inf


@dataclass(frozen=True)
class BestBoxes:
    """Best boxes of each row, starting column and total length.

    Attributes:
        scores: (N, W, longest + 1) sums of log-probabilities, -inf where there is no box.
        lengths: (N, W, longest + 1) which lengths of the four numbers that takes, a number from 0 to 255.
        numbers: (N, W, 4, 4, 4, 2) best first and second number of a pair, by the lengths of the first, of the number
            between them and of the second.
    """

    scores: Tensor
    lengths: Tensor
    numbers: Tensor


def best_boxes(digits: Tensor, separators: Tensor, separator_length: int) -> BestBoxes:
    """Search every starting column.

    Args:
        digits: (N, W, 10) log-probabilities of the digits.
        separators: (N, W) log-probability of a whole separator that starts there.
        separator_length: its tokens.
    """
    rows, width, _ = digits.shape
    gap, longest = separator_length, 16 + 3 * separator_length
    values = _number_scores(digits)
    tops = [value.max(-1) for value in values]
    pairs = digits.new_full((rows, width, 4, 4, 4), NEVER)
    numbers = torch.zeros(rows, width, 4, 4, 4, 2, dtype=torch.long, device=digits.device)
    for first in LENGTHS:
        below, below_at = values[first].cummax(-1)
        for between in LENGTHS:
            for second in range(first, 4):
                shift = first + 1 + gap + between + 1 + gap
                kept = max(width - shift, 0)
                place = pairs[:, :kept, first, between, second], numbers[:, :kept, first, between, second]
                if first == second:
                    both, at = (below[:, :kept] + values[second][:, shift:]).max(-1)
                    low, high = below_at[:, :kept].gather(-1, at[..., None])[..., 0], at
                else:
                    both = tops[first].values[:, :kept] + tops[second].values[:, shift:]
                    low, high = tops[first].indices[:, :kept], tops[second].indices[:, shift:]
                place[0].copy_(both)
                place[1][..., 0].copy_(low + FIRST_OF_LENGTH[first])
                place[1][..., 1].copy_(high + FIRST_OF_LENGTH[second])

    scores = digits.new_full((rows, width, longest + 1), NEVER)
    lengths = torch.zeros(rows, width, longest + 1, dtype=torch.long, device=digits.device)
    whole = digits.new_full((rows, width, 4, 4, 4, 4), NEVER)
    pad = torch.nn.functional.pad
    spaces = pad(separators, (0, longest), value=NEVER)
    later = pad(pairs, (0, 0, 0, 0, 0, 0, 0, longest), value=NEVER)
    for a in LENGTHS:
        for b in LENGTHS:
            second_at = a + 1 + gap
            third_at = second_at + b + 1 + gap
            fixed = spaces[:, a + 1 :][:, :width] + spaces[:, second_at + b + 1 :][:, :width]
            for c in LENGTHS:
                all_spaces = fixed + spaces[:, third_at + c + 1 :][:, :width]
                y, x = pairs[:, :, a, b, c], later[:, second_at:, b, c][:, :width]
                whole[:, :, a, b, c] = (y + all_spaces)[..., None] + x
    flat = whole.flatten(2)
    for total, members in _by_total(digits.device):
        best, at = flat[:, :, members].max(-1)
        scores[:, :, total + 3 * gap], lengths[:, :, total + 3 * gap] = best, members[at]
    return BestBoxes(scores, lengths, numbers)


def spell_box(boxes: BestBoxes, row: int, column: int, length: int, separator: Sequence[int]) -> list[int]:
    """What the best box of one row, column and length is made of: digits, and `separator` between numbers.

    Args:
        boxes: searched before.
        row, column, length: of the box.
        separator: what to write between numbers; as many as its tokens.
    """
    lengths = int(boxes.lengths[row, column, length])
    a, b, c, d = lengths // 64, lengths // 16 % 4, lengths // 4 % 4, lengths % 4
    low_y, high_y = boxes.numbers[row, column, a, b, c].tolist()
    low_x, high_x = boxes.numbers[row, column + a + 1 + len(separator), b, c, d].tolist()
    spelled = [[int(digit) for digit in str(number)] for number in (low_y, low_x, high_y, high_x)]
    return [*spelled[0], *separator, *spelled[1], *separator, *spelled[2], *separator, *spelled[3]]


def _number_scores(digits: Tensor) -> list[Tensor]:
    """For every length of a number: (N, W, numbers of that length) scores; -inf where it does not fit."""
    later = torch.nn.functional.pad(digits, (0, 0, 0, 3), value=NEVER)
    width = digits.shape[1]
    second, third, fourth = (later[:, shift : shift + width] for shift in (1, 2, 3))
    two = (digits[..., 1:, None] + second[..., None, :]).flatten(-2)
    three = (two[..., None] + third[..., None, :]).flatten(-2)
    thousand = digits[..., 1] + second[..., 0] + third[..., 0] + fourth[..., 0]
    return [digits, two, three, thousand[..., None]]


def _by_total(device: torch.device) -> list[tuple[int, Tensor]]:
    """Combinations of four lengths by the digits they make together."""
    combinations = torch.arange(256, device=device)
    totals = 4 + combinations // 64 + combinations // 16 % 4 + combinations // 4 % 4 + combinations % 4
    return [(total, (totals == total).nonzero()[:, 0]) for total in range(4, 17)]
