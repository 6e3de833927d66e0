"""Phase 1: autoregressive fine-tuning, the parent that block adaptation starts from (paper section 3.1).

Logits at a row name the token after it; the loss is the mean cross-entropy of answer tokens, EOS included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import autoregressive_inputs
from training.losses import Totals, token_weights
from training.stages.stage import Prepared, Scored, Slots, TokenIds, collate_for


class Autoregressive:
    """See `stages.stage.Stage`."""

    def __init__(self, model: AnswerModel, ids: TokenIds, answer_multiple: int = 1) -> None:
        """`answer_multiple` pads answers, for few shapes."""
        self.model, self._ids, self._multiple = model, ids, answer_multiple

    def prepare(self, samples: Sequence[EncodedSample], slots: Slots) -> Prepared:
        """See `Stage.prepare`; there is nothing to draw."""
        batch = collate_for(samples, self._ids, self._multiple)
        counted = torch.arange(batch.answer_ids.shape[1]) < batch.answer_lengths[:, None]
        return Prepared(
            batch, autoregressive_inputs(batch), batch.answer_ids, counted, None, batch.answer_lengths,
            first_row=batch.prompt_ids.shape[1] - 1,
        )

    def loss(self, prepared: Prepared, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Stage.loss`."""
        scored = Scored.of(self.model, prepared)
        entropy = scored.entropy(self.model)
        weights = token_weights(prepared.counted, None, prepared.lengths, "paper", totals)
        return scored.total(entropy, weights), {}
