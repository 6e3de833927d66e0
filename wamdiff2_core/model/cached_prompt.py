"""What the keys and values of a prompt follow from, so that the next prompt need not run its beginning again.

A token's keys and values follow from the tokens of its own and all earlier blocks, their positions, the pixels of the
images among them, and the weights. What comes after changes nothing, so two prompts that begin alike share whole
blocks up to their first difference. Images are told by their pixels, not by their tokens, which are alike in all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

ImageKey = tuple[tuple[int, int, int], bytes]  # grid and fingerprint of the pixels: equal for equal images
Placed = tuple[int, int, ImageKey]  # row and first column of an image, and what it is


@dataclass(frozen=True)
class CachedPrompt:
    """Prompts of equal length, one a row, whose keys and values lie, or will lie, in columns [0, P).

    Attributes:
        ids: (N, P) long, on the host.
        positions: (3, N, P) long rotary positions, on the host.
        block_size: B of the block-causal mask.
        images: all of them, in any order.
        weights: of `Backend.weights_state`.
    """

    ids: Tensor
    positions: Tensor
    block_size: int
    images: frozenset[Placed]
    weights: Hashable

    def shared_columns(self, other: CachedPrompt) -> int:
        """Leading columns whose keys and values are those of `other`, too: whole blocks, never all of `other`.

        The last token of `other` is left out, because somebody reads its hidden state. So a block that is short, at the
        end of either, is left out, too.
        """
        alike = len(self.ids) == len(other.ids) and self.block_size == other.block_size
        if not alike or self.weights != other.weights:
            return 0
        columns = min(self.ids.shape[1], other.ids.shape[1] - 1)
        same = (self.ids[:, :columns] == other.ids[:, :columns]).all(0)
        same &= (self.positions[..., :columns] == other.positions[..., :columns]).flatten(0, 1).all(0)
        equal = int(same.long().cumprod(0).sum())
        equal = min([equal, *(first for _, first, _ in self.images ^ other.images)])
        return equal // self.block_size * self.block_size


def placed_images(row: int, slots: Tensor, keys: Sequence[ImageKey], merge_size: int) -> list[Placed]:
    """Images of one row with their columns.

    Args:
        row: index of the row.
        slots: (slots,) long columns of its image tokens, ascending.
        keys: of its images, in order.
        merge_size: patches merged along each side.
    """
    placed, start = [], 0
    for key in keys:
        placed.append((row, int(slots[start]), key))
        frames, height, width = key[0]
        start += frames * height * width // merge_size**2
    return placed
