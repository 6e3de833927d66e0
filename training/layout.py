"""From encoded samples to the tensors of one forward: padding, corrupted copies, and who may see whom.

Block diffusion is laid out as [prompt | clean answer | noisy copy x K]. A noisy block sees the prompt, the clean blocks
before it and itself; so the last clean block, which nobody sees, is left out. The `upstream` mask lets clean tokens see
noisy ones: there the whole sequence is one context, and there is one copy. Autoregressive stages have
[prompt | answer], causal; the label of a row is the token after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from training.data.encode import EncodedSample
from training.noise import Noise
from wamdiff2_core.config import MaskKind
from wamdiff2_core.model.masks import prefix_mask, training_mask
from wamdiff2_core.model.positions import answer_positions


@dataclass(frozen=True)
class Images:
    """Images of a batch.

    Attributes:
        pixel_values: (patches, patch_dim), image after image, sample after sample.
        grids: patches of each image in time, height and width.
        slots: (N, C) bool, columns of the context that hold image tokens.
    """

    pixel_values: Tensor
    grids: tuple[tuple[int, int, int], ...]
    slots: Tensor


@dataclass(frozen=True)
class Batch:
    """Samples padded to one shape: prompts on the left, answers with EOS on the right.

    Attributes:
        prompt_ids: (N, P) long.
        prompt_valid: (N, P) bool, False on padding.
        prompt_positions: (3, N, P) mrope positions.
        answer_ids: (N, R) long.
        answer_lengths: (N,) tokens of each answer, its first EOS included.
        answer_positions: (N, R) positions, equal on all axes.
        images: of all samples, with `slots` over the prompt; None without any.
    """

    prompt_ids: Tensor
    prompt_valid: Tensor
    prompt_positions: Tensor
    answer_ids: Tensor
    answer_lengths: Tensor
    answer_positions: Tensor
    images: Images | None = None

    def with_answers(self, ids: Tensor, lengths: Tensor) -> Batch:
        """The same prompts with other answers of (N, R') tokens."""
        start = self.answer_positions[:, :1]
        return replace(
            self, answer_ids=ids, answer_lengths=lengths, answer_positions=start + torch.arange(ids.shape[1])
        )


@dataclass(frozen=True)
class View:
    """Under which mask a model reads the layout; student and teacher may differ.

    Attributes:
        block_size: B; 1 is causal.
        mask: kind of mask.
    """

    block_size: int
    mask: MaskKind = "strict"


@dataclass(frozen=True)
class Inputs:
    """Tensors of one forward.

    Attributes:
        ids: (N, L) with L = C + K * R.
        positions: (3, N, L).
        context_allowed: (N, C, C) bool, True = attend.
        copy_allowed: (N, R, C + R) bool for each copy, or None when there is none.
        images: with `slots` over the context.
    """

    ids: Tensor
    positions: Tensor
    context_allowed: Tensor
    copy_allowed: Tensor | None
    images: Images | None

    def to(self, device: torch.device) -> Inputs:
        """The same on a device."""
        images = self.images
        if images is not None:
            images = replace(images, pixel_values=images.pixel_values.to(device), slots=images.slots.to(device))
        copies = None if self.copy_allowed is None else self.copy_allowed.to(device)
        return Inputs(
            self.ids.to(device), self.positions.to(device), self.context_allowed.to(device), copies, images
        )


def collate(
    samples: Sequence[EncodedSample], *, answer_multiple: int, prompt_multiple: int, pad_id: int, eos_id: int,
    image_id: int,
) -> Batch:
    """Pad samples to one shape.

    Args:
        samples: at least one.
        answer_multiple: R is a multiple of it: the block size.
        prompt_multiple: likewise for P; a coarse one gives few shapes, of which each is compiled once.
        pad_id, eos_id, image_id: token ids.
    """
    prompts = [sample.prompt_ids for sample in samples]
    answers = [sample.answer_ids for sample in samples]
    columns = _round_up(max(len(ids) for ids in prompts), prompt_multiple)
    rows = _round_up(max(len(ids) for ids in answers), answer_multiple)
    prompt_ids = torch.full((len(samples), columns), pad_id)
    positions = torch.zeros(3, len(samples), columns, dtype=torch.long)
    answer_ids = torch.full((len(samples), rows), eos_id)
    following = torch.empty(len(samples), rows, dtype=torch.long)
    for row, sample in enumerate(samples):
        start = columns - len(sample.prompt_ids)
        prompt_ids[row, start:] = sample.prompt_ids
        positions[:, row, start:] = sample.prompt_positions
        answer_ids[row, : len(sample.answer_ids)] = sample.answer_ids
        following[row] = answer_positions(sample.prompt_positions, rows)[0]
    lengths = torch.tensor([len(ids) for ids in prompts])
    valid = torch.arange(columns) >= columns - lengths[:, None]
    pixels = [sample.pixel_values for sample in samples if sample.pixel_values is not None]
    grids = [sample.image_grid_thw for sample in samples if sample.image_grid_thw is not None]
    images = None
    if pixels:
        pictured = torch.tensor([sample.pixel_values is not None for sample in samples])
        slots = (prompt_ids == image_id) & valid & pictured[:, None]
        images = Images(torch.cat(pixels), tuple((t, h, w) for t, h, w in torch.cat(grids).tolist()), slots)
    return Batch(
        prompt_ids, valid, positions, answer_ids, torch.tensor([len(ids) for ids in answers]), following, images
    )


def trained_tokens(answer_lengths: Tensor, answer_len: int, block_size: int) -> Tensor:
    """(N, R) bool: tokens up to the end of the last used block.

    The EOS that pads that block is learnt, so that decoding can close it in parallel; later blocks are never decoded.
    """
    return torch.arange(answer_len, device=answer_lengths.device) < padded(answer_lengths, block_size)[:, None]


def padded(answer_lengths: Tensor, block_size: int) -> Tensor:
    """(N,) answer lengths up to the end of the last used block."""
    return (answer_lengths + block_size - 1).div(block_size, rounding_mode="floor") * block_size


def absorb(ids: Tensor, masked: Tensor, mask_id: int) -> Tensor:
    """The noisy copies (N, K, R) of clean answers (N, R)."""
    return torch.where(masked, mask_id, ids[:, None])


def stack_noise(noise: Sequence[Noise]) -> Noise:
    """Masks and times of a batch, (N, K, R) each."""
    return Noise(torch.stack([one.masked for one in noise]), torch.stack([one.time for one in noise]))


def autoregressive_inputs(batch: Batch) -> Inputs:
    """[prompt | answer], causal."""
    answer_valid = torch.ones_like(batch.answer_ids, dtype=torch.bool)
    return Inputs(
        ids=torch.cat([batch.prompt_ids, batch.answer_ids], 1),
        positions=_with_answers(batch, 1),
        context_allowed=prefix_mask(torch.cat([batch.prompt_valid, answer_valid], 1), 1),
        copy_allowed=None,
        images=_over_context(batch.images, batch.answer_ids.shape[1]),
    )


def diffusion_inputs(batch: Batch, noisy: Tensor, view: View, *, kept_blocks_of: int | None = None) -> Inputs:
    """[prompt | clean answer | noisy copies] as a model with blocks of `view.block_size` reads it.

    Args:
        batch: R is a multiple of the block size.
        noisy: (N, K, R) ids of the copies.
        view: block size and mask.
        kept_blocks_of: the smallest block size that reads this layout, when several models share one.
    """
    prompt, answer = batch.prompt_ids.shape[1], batch.answer_ids.shape[1]
    copies = noisy.shape[1]
    valid = torch.cat([batch.prompt_valid, torch.ones_like(batch.answer_ids, dtype=torch.bool)], 1)
    allowed = training_mask(prompt, answer, view.block_size, view.mask, valid=valid)
    positions = _with_answers(batch, copies + 1)
    if view.mask == "upstream":
        return Inputs(
            torch.cat([batch.prompt_ids, batch.answer_ids, noisy.flatten(1)], 1), positions, allowed, None,
            _over_context(batch.images, answer * 2),
        )
    left_out = min(view.block_size, kept_blocks_of or view.block_size)
    kept = prompt + answer - left_out
    rows = allowed[:, prompt + answer :]
    return Inputs(
        ids=torch.cat([batch.prompt_ids, batch.answer_ids[:, : answer - left_out], noisy.flatten(1)], 1),
        positions=torch.cat([positions[:, :, :kept], positions[:, :, prompt + answer :]], 2),
        context_allowed=allowed[:, :kept, :kept],
        copy_allowed=torch.cat([rows[:, :, :kept], rows[:, :, prompt + answer :]], 2),
        images=_over_context(batch.images, answer - left_out),
    )


def _with_answers(batch: Batch, copies: int) -> Tensor:
    answers = batch.answer_positions.repeat(1, copies).expand(3, -1, -1)
    return torch.cat([batch.prompt_positions, answers], 2)


def _over_context(images: Images | None, columns: int) -> Images | None:
    """The same images with `slots` over `columns` more columns."""
    if images is None:
        return None
    return replace(images, slots=torch.nn.functional.pad(images.slots, (0, columns)))


def _round_up(length: int, multiple: int) -> int:
    return math.ceil(length / multiple) * multiple
