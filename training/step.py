"""One training step: lay a batch out, corrupt the answers, run the model, take the loss.

Layout: [prompt | clean answer without its last block | noisy copy x K]. No noisy block looks at the last clean block,
so it is left out. The `upstream` mask lets clean tokens see noisy ones; there the whole sequence is one context and
there is one copy. For `autoregressive` the layout is [prompt | answer], causal, with shifted labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from training.data import Batch
from training.forward import HIDDEN_SCORE, hidden_states, written_attention
from training.objective import (
    LossForm,
    absorb,
    autoregressive_loss,
    block_diffusion_loss,
    mask_least_confident,
    sample_noise,
    trained_tokens,
)
from wamdiff2_core.config import MaskKind, Strict
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.masks import prefix_mask, training_mask
from wamdiff2_core.model.vision import GridTables, encode_equal

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class ObjectiveConfig(Strict):
    """What a stage optimises.

    Attributes:
        kind: `autoregressive` (label-shifted, causal) or `block_diffusion`.
        block_size: B of `block_diffusion`; the prefix is block-causal in B too.
        loss: `paper` (no 1/t) or `upstream` (CE / t over the padded answer length).
        full_share: share of blocks masked entirely.
        copies: noisy copies a sample; they share the work for the prompt.
        complementary: pairs of copies mask complementary tokens.
        own_order: every second copy masks the tokens that the model itself, seeing the block all masked, is least sure
            of (one more forward pass). It takes the place of complementary masks.
        mask: `strict`, or `upstream` to continue the authors' weights.
    """

    kind: Literal["autoregressive", "block_diffusion"] = "block_diffusion"
    block_size: int = 32
    loss: LossForm = "paper"
    full_share: float = 0.3
    copies: int = 2
    complementary: bool = True
    own_order: bool = False
    mask: MaskKind = "strict"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UserError("objective.block_size", "an integer >= 1", self.block_size, "published sizes: 4, 8, 16, 32")
        if not 0 <= self.full_share <= 1:
            raise UserError("objective.full_share", "0..1", self.full_share)
        if self.copies < 1:
            raise UserError("objective.copies", "an integer >= 1", self.copies)
        if self.own_order and self.copies < 2:
            raise UserError("objective.copies", "at least 2 with own_order", self.copies)
        if self.mask == "upstream" and self.copies > 1:
            raise UserError("objective.copies", "1 with mask 'upstream' (clean tokens see the noisy copy)", self.copies)


@dataclass(frozen=True)
class StepInputs:
    """Tensors of one step, of the same shapes every time.

    Attributes:
        ids: (N, L) with L = C + K * R.
        positions: (3, N, L).
        context_allowed: (N, C, C) bool, True = attend.
        copy_allowed: (N, R, C + R) bool, or None.
        labels: (N, K * R) tokens to name (autoregressive: (N, R)).
        counted: as `labels`, bool.
        time: as `labels`, t of each token's block.
        padded_lengths: (N,) answer tokens up to the end of the last used block.
        patches, image_slots: of `Batch`.
    """

    ids: Tensor
    positions: Tensor
    context_allowed: Tensor
    copy_allowed: Tensor | None
    labels: Tensor
    counted: Tensor
    time: Tensor
    padded_lengths: Tensor
    patches: Tensor | None
    image_slots: Tensor | None


def prepare(
    batch: Batch, objective: ObjectiveConfig, mask_token_id: int, generator: torch.Generator | None = None
) -> StepInputs:
    """Draw the noise of a batch and lay it out."""
    samples, prompt = batch.prompt_ids.shape
    answer = batch.answer_ids.shape[1]
    answer_valid = torch.ones(samples, answer, dtype=torch.bool)
    valid = torch.cat([batch.prompt_valid, answer_valid], 1)
    clean_positions = torch.cat([batch.prompt_positions, batch.answer_positions.expand(3, -1, -1)], 2)
    if objective.kind == "autoregressive":
        return StepInputs(
            ids=torch.cat([batch.prompt_ids, batch.answer_ids], 1), positions=clean_positions,
            context_allowed=prefix_mask(valid, 1), copy_allowed=None, labels=batch.answer_ids,
            counted=torch.arange(answer) < batch.answer_lengths[:, None], time=torch.ones(samples, answer),
            padded_lengths=batch.answer_lengths, patches=batch.patches, image_slots=batch.image_slots,
        )
    size, copies = objective.block_size, objective.copies
    if answer % size:
        raise UserError("data.answer_tokens", f"a multiple of the block size {size}", answer)
    noise = sample_noise(
        samples, answer, size, copies=copies, full_share=objective.full_share,
        complementary=objective.complementary and not objective.own_order, generator=generator,
    )
    noisy = absorb(batch.answer_ids, noise.masked, mask_token_id).flatten(1)
    trained = trained_tokens(batch.answer_lengths, answer, size)
    labels = batch.answer_ids[:, None].expand(-1, copies, -1).flatten(1)
    counted = (noise.masked & trained[:, None]).flatten(1)
    allowed = training_mask(prompt, answer, size, objective.mask, valid=valid)
    answer_positions = batch.answer_positions.repeat(1, copies).expand(3, -1, -1)
    if objective.mask == "upstream":
        ids = torch.cat([batch.prompt_ids, batch.answer_ids, noisy], 1)
        positions = torch.cat([clean_positions, answer_positions], 2)
        context_allowed, copy_allowed = allowed, None
    else:
        kept = prompt + answer - size
        noisy_rows = allowed[:, prompt + answer :]
        ids = torch.cat([batch.prompt_ids, batch.answer_ids[:, : answer - size], noisy], 1)
        positions = torch.cat([clean_positions[:, :, :kept], answer_positions], 2)
        context_allowed = allowed[:, :kept, :kept]
        copy_allowed = torch.cat([noisy_rows[:, :, :kept], noisy_rows[:, :, prompt + answer :]], 2)
    return StepInputs(
        ids=ids, positions=positions, context_allowed=context_allowed, copy_allowed=copy_allowed, labels=labels,
        counted=counted, time=noise.time.flatten(1), padded_lengths=trained.sum(1), patches=batch.patches,
        image_slots=batch.image_slots,
    )


def start_of_decoding(inputs: StepInputs, answer: int, mask_token_id: int) -> StepInputs:
    """The same batch with one copy in place of K, all of its `answer` tokens masked."""
    context = inputs.context_allowed.shape[-1]
    masks = torch.full_like(inputs.ids[:, :answer], mask_token_id)
    return replace(
        inputs,
        ids=torch.cat([inputs.ids[:, :context], masks], 1),
        positions=inputs.positions[:, :, : context + answer],
        labels=inputs.labels[:, :answer],
        counted=inputs.counted[:, :answer],
        time=inputs.time[:, :answer],
    )


def mask_in_own_order(
    inputs: StepInputs,
    confidence: Tensor,
    block_size: int,
    mask_token_id: int,
    generator: torch.Generator | None = None,
) -> StepInputs:
    """Mask every second copy anew, where the model is least sure.

    Args:
        inputs: of `prepare`.
        confidence: (N, R) probability of the model's best token at `start_of_decoding`.
    """
    samples, answer = confidence.shape
    context = inputs.context_allowed.shape[-1]
    ids = inputs.ids.clone()
    copies = ids[:, context:].view(samples, -1, answer)
    time, counted = (table.view(samples, -1, answer).clone() for table in (inputs.time, inputs.counted))
    labels = inputs.labels.view(samples, -1, answer)
    trained = torch.arange(answer) < inputs.padded_lengths[:, None]
    for copy in range(1, copies.shape[1], 2):
        masked = mask_least_confident(confidence, time[:, copy], block_size, generator=generator)
        copies[:, copy] = torch.where(masked, mask_token_id, labels[:, copy])
        counted[:, copy] = masked & trained
    return replace(inputs, ids=ids, counted=counted.flatten(1))


def answer_logits(
    model: Qwen3VLForConditionalGeneration,
    objective: ObjectiveConfig,
    geometry: GridTables | None,
    inputs: StepInputs,
) -> Tensor:
    """Logits that name `inputs.labels`, (N, K * R, V); shifted by one for `autoregressive`."""
    dtype = model.lm_head.weight.dtype

    def bias(allowed: Tensor) -> Tensor:
        return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, HIDDEN_SCORE)

    images: Sequence[Tensor] = ()
    if inputs.patches is not None and geometry is not None:
        images = encode_equal(model.model.visual, geometry, inputs.patches, written_attention)
    context = bias(inputs.context_allowed)[:, None]
    copies = None if inputs.copy_allowed is None else bias(inputs.copy_allowed)[:, None, None]
    hidden = hidden_states(model, inputs.ids, inputs.positions, context, copies, images, inputs.image_slots)
    shift = objective.kind == "autoregressive"
    count = inputs.labels.shape[1]
    answers = hidden[:, -count - shift : hidden.shape[1] - shift]
    return model.lm_head(answers)


def make_loss(
    model: Qwen3VLForConditionalGeneration, objective: ObjectiveConfig, geometry: GridTables | None, compiled: bool
) -> Callable[[StepInputs], Tensor]:
    """The loss of a prepared batch as a function, compiled for its one shape when asked."""

    def loss(inputs: StepInputs) -> Tensor:
        logits = answer_logits(model, objective, geometry, inputs)
        if objective.kind == "autoregressive":
            return autoregressive_loss(logits, inputs.labels, inputs.counted)
        return block_diffusion_loss(
            logits, inputs.labels, inputs.counted, inputs.time, inputs.padded_lengths, objective.loss
        )

    return _compiled(loss, compiled)


def make_confidence(
    model: Qwen3VLForConditionalGeneration, objective: ObjectiveConfig, geometry: GridTables | None, compiled: bool
) -> Callable[[StepInputs], Tensor]:
    """Probability of the model's best token at each answer position, (N, K * R), without gradients."""

    @torch.no_grad()
    def confidence(inputs: StepInputs) -> Tensor:
        return answer_logits(model, objective, geometry, inputs).float().softmax(-1).amax(-1)

    return _compiled(confidence, compiled)


def _compiled(function: Callable[[StepInputs], Tensor], wanted: bool) -> Callable[[StepInputs], Tensor]:
    compiled: Any = torch.compile(function, dynamic=False) if wanted else function
    return compiled
