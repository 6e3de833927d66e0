"""When each token of an answer was fixed, and how sure the model was: enough to rebuild every state of the decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DecodeTrace:
    """How one answer came about; both tuples run over the tokens of its decoded blocks, the first of `raw_ids`.

    Before step s of a block, exactly its tokens with `fixed_at < s` were known, and the others masked; all earlier
    blocks were known, later ones did not exist.

    Attributes:
        fixed_at: step, within the token's block, at which it was fixed. Autoregressive: index of the token.
        confidence: probability with which it was fixed, under the distribution it was chosen from.
    """

    fixed_at: tuple[int, ...]
    confidence: tuple[float, ...]


class TraceRecorder:
    """Collects the traces of a batch on the model's device; nothing is read back before the end."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        """Make room.

        Args:
            rows: answers of the batch.
            columns: answer tokens of each.
            device: of the decode.
        """
        self._fixed_at = torch.zeros(rows, columns, dtype=torch.int32, device=device)
        self._confidence = torch.zeros(rows, columns, device=device)

    def fix(self, first: int, step: int, fixed: Tensor, confidence: Tensor) -> None:
        """Note that tokens were fixed.

        Args:
            first: answer column of the first token below.
            step: which they were fixed at.
            fixed: (N, B) bool.
            confidence: (N, B) probabilities; those of other tokens are not looked at.
        """
        columns = slice(first, first + fixed.shape[1])
        self._fixed_at[:, columns].masked_fill_(fixed, step)
        known = self._confidence[:, columns]
        self._confidence[:, columns] = torch.where(fixed, confidence, known)

    def copy(self) -> TraceRecorder:
        """What it holds now, for good."""
        rows, columns = self._fixed_at.shape
        other = TraceRecorder(rows, columns, self._fixed_at.device)
        other._fixed_at.copy_(self._fixed_at)
        other._confidence.copy_(self._confidence)
        return other

    def clear(self) -> None:
        """Forget all, to be used again."""
        self._fixed_at.zero_()
        self._confidence.zero_()

    def fix_at(self, columns: Tensor, step: Tensor, fixed: Tensor, confidence: Tensor) -> None:
        """`fix`, for the inside of a graph: where and when is read on the device.

        Args:
            columns: (B,) long, answer columns of the block.
            step: () integer.
            fixed: (N, B) bool.
            confidence: (N, B) probabilities.
        """
        for kept, new in ((self._fixed_at, step.to(self._fixed_at.dtype)), (self._confidence, confidence)):
            kept.index_copy_(1, columns, torch.where(fixed, new, kept.index_select(1, columns)))

    def traces(self, lengths: Sequence[int]) -> list[DecodeTrace]:
        """One trace an answer.

        Args:
            lengths: tokens in the decoded blocks of each.
        """
        return [
            DecodeTrace(tuple(steps[:length]), tuple(sure[:length]))
            for steps, sure, length in zip(
                self._fixed_at.tolist(), self._confidence.tolist(), lengths, strict=True
            )
        ]
