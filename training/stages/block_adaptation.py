"""Stage I: progressive block adaptation, AR -> 4 -> 8 -> 16 -> 32 (paper section 3.2, equation 3).

Each size starts from the weights of the one before. Labels of the autoregressive parent are shifted by one, labels
here are not: a masked row names its own token. Nothing is converted: a row of an autoregressive model already knows
what stands before it, and its first steps learn to name the token in place of the one after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training import seeds
from training.config import DiffusionConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import Batch, View, absorb, diffusion_inputs, padded, stack_noise, trained_tokens
from training.losses import Totals, token_weights
from training.noise import Noise, draw_noise, least_confident
from training.stages.stage import Prepared, Scored, Slots, TokenIds, collate_for


class BlockAdaptation:
    """See `stages.stage.Stage`."""

    def __init__(self, model: AnswerModel, ids: TokenIds, config: DiffusionConfig) -> None:
        """Take the student and how its answers are corrupted."""
        self.model, self._ids, self._config = model, ids, config

    def prepare(self, samples: Sequence[EncodedSample], slots: Slots) -> Prepared:
        """See `Stage.prepare`."""
        config = self._config
        batch = collate_for(samples, self._ids, config.block_size)
        noise = draw_batch(batch, config, slots)
        if config.own_order:
            noise = self._in_own_order(batch, noise, slots)
        return corrupted(batch, noise, config, self._ids.mask)

    def loss(self, prepared: Prepared, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Stage.loss`."""
        scored = Scored.of(self.model, prepared)
        entropy = scored.entropy(self.model)
        weights = token_weights(prepared.counted, prepared.time, prepared.lengths, self._config.loss, totals)
        plain = scored.total(entropy.detach(), prepared.counted.float())
        return scored.total(entropy, weights), {"cross_entropy": plain}

    @torch.no_grad()
    def _in_own_order(self, batch: Batch, noise: Noise, slots: Slots) -> Noise:
        """Every second copy masked where the model, seeing a block all masked, is least sure."""
        size, mask = self._config.block_size, self._ids.mask
        start = torch.full_like(batch.answer_ids, mask)[:, None]
        prepared = corrupted(batch, Noise(start == mask, torch.ones(start.shape)), self._config, mask)
        scored = Scored.of(self.model, prepared)

        def sureness(logits: Tensor, where: slice) -> tuple[Tensor]:
            return (logits.float().softmax(-1).amax(-1),)

        confidence = torch.zeros(batch.answer_ids.shape)
        confidence[scored.tokens] = self.model(scored.inputs, scored.rows, sureness)[0].float().cpu()
        masked = noise.masked.clone()
        for row, slot in enumerate(slots.slots):
            generator = seeds.generator(slots.seed, slots.step, slot, seeds.NOISE, 1)
            for copy in range(1, masked.shape[1], 2):
                masked[row, copy] = least_confident(
                    confidence[row], noise.time[row, copy], size, generator=generator
                )
        return Noise(masked, noise.time)


def draw_batch(batch: Batch, config: DiffusionConfig, slots: Slots) -> Noise:
    """Masks of a batch, (N, K, R), each sample's from its own slot."""
    answer = batch.answer_ids.shape[1]
    drawn = []
    for slot, length in zip(slots.slots, padded(batch.answer_lengths, config.block_size).tolist(), strict=True):
        noise = draw_noise(
            length, config.block_size, copies=config.copies, full_share=config.full_share,
            complementary=config.complementary and not config.own_order,
            generator=seeds.generator(slots.seed, slots.step, slot, seeds.NOISE),
        )
        pad = answer - length  # columns of other samples' longer answers: masked, and never counted
        drawn.append(Noise(
            torch.nn.functional.pad(noise.masked, (0, pad), value=True),
            torch.nn.functional.pad(noise.time, (0, pad), value=1.0),
        ))
    return stack_noise(drawn)


def corrupted(
    batch: Batch, noise: Noise, config: DiffusionConfig, mask_id: int, kept_blocks_of: int | None = None
) -> Prepared:
    """A batch with its noisy copies, as the student reads it."""
    size, answer = config.block_size, batch.answer_ids.shape[1]
    copies = noise.masked.shape[1]
    view = View(size, config.mask)
    inputs = diffusion_inputs(batch, absorb(batch.answer_ids, noise.masked, mask_id), view,
                              kept_blocks_of=kept_blocks_of)
    trained = trained_tokens(batch.answer_lengths, answer, size)
    return Prepared(
        batch, inputs, batch.answer_ids[:, None].expand(-1, copies, -1).flatten(1),
        (noise.masked & trained[:, None]).flatten(1), noise.time.flatten(1),
        padded(batch.answer_lengths, size) * copies, first_row=inputs.ids.shape[1] - copies * answer,
    )
