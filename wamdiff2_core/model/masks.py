"""Block-causal attention masks, as booleans with True = may attend.

A prefix token sees its own and earlier blocks of B; an answer starts on a fresh block. Training lays one sample out as
[prefix | clean answer | noisy answer ...]: noisy tokens are the ones predicted, and see only what decoding will see.
Blocks count from the first real token of a row, so padding on either side changes nothing.

Surprising: a boolean mask is right for `sdpa` only. Transformers' `eager` attention adds the mask to the scores, and
takes booleans without complaint; `as_attention_mask` gives each what it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wamdiff2_core.config import MaskKind

PREFIX, CLEAN, NOISY = 0, 1, 2  # NOISY + c is the c-th noisy copy


def block_count(length: int, block_size: int) -> int:
    """Number of blocks that hold `length` tokens, the last one perhaps short."""
    return -(-length // block_size)


def block_ids(valid: Tensor, block_size: int) -> Tensor:
    """Block of each token, counted from the first real token of its row.

    Args:
        valid: (..., L) bool, False on padding.
        block_size: B >= 1.

    Returns:
        (..., L) long, 0 for the first B real tokens; -1 on padding before them.
    """
    return (valid.long().cumsum(-1) - 1).div(block_size, rounding_mode="floor")


def _with_padding(allowed: Tensor, valid: Tensor) -> Tensor:
    """Hide padding from everyone, and let a padding row see itself: a row that sees nothing gives NaN."""
    allowed = allowed & valid[..., None, :] & valid[..., :, None]
    return allowed | torch.eye(valid.shape[-1], dtype=torch.bool, device=valid.device)


def prefix_mask(valid: Tensor, block_size: int) -> Tensor:
    """Mask of the prompt alone: every token sees its own and earlier blocks.

    Args:
        valid: (..., P) bool, False on padding.
        block_size: B >= 1; 1 gives the causal mask.

    Returns:
        (..., P, P) bool, [query, key].
    """
    blocks = block_ids(valid, block_size)
    return _with_padding(blocks[..., :, None] >= blocks[..., None, :], valid)


def training_mask(
    prefix_len: int,
    answer_len: int,
    block_size: int,
    kind: MaskKind = "strict",
    *,
    num_noisy: int = 1,
    valid: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Mask of [prefix | clean answer | noisy answer x num_noisy].

    `strict`: prefix sees prefix blocks <= own; clean sees all of the prefix and clean blocks <= own; noisy sees all of
    the prefix, clean blocks < own, and its own noisy block, both ways. `upstream` is the mask the authors trained with:
    there, clean also sees noisy blocks <= own, which decoding never offers; it exists to continue their weights.

    Args:
        prefix_len: P, columns of the prefix, padding included.
        answer_len: R, columns of one answer copy, padding included.
        block_size: B >= 1.
        kind: `strict` or `upstream`.
        num_noisy: noisy copies; they do not see each other.
        valid: (N, P + R) bool over [prefix | answer], False on padding on either side of either part; None: all real.
        device: where to build the mask; defaults to that of `valid`.

    Returns:
        (L, L) bool, or (N, L, L) when `valid` is given, with L = P + (1 + num_noisy) * R; [query, key].
    """
    if valid is None:
        valid = torch.ones(prefix_len + answer_len, dtype=torch.bool, device=device)
    prefix_valid, answer_valid = valid[..., :prefix_len], valid[..., prefix_len:]
    prefix_blocks = block_ids(prefix_valid, block_size)
    first_answer_block = (prefix_valid.sum(-1, keepdim=True) + block_size - 1).div(block_size, rounding_mode="floor")
    answer_blocks = block_ids(answer_valid, block_size) + first_answer_block

    copies = 1 + num_noisy
    blocks = torch.cat([prefix_blocks] + [answer_blocks] * copies, -1)
    real = torch.cat([prefix_valid] + [answer_valid] * copies, -1)
    part = torch.cat(
        [torch.full((prefix_len,), PREFIX)] + [torch.full((answer_len,), CLEAN + copy) for copy in range(copies)]
    ).to(valid.device)

    query, key = blocks[..., :, None], blocks[..., None, :]
    query_part, key_part = part[:, None], part[None, :]
    past_or_own = query >= key  # never lets the prefix see an answer: answer blocks come after all of its blocks
    own = (query == key) & (query_part == key_part)
    noisy_sees = ((query > key) & (key_part <= CLEAN)) | own
    clean_sees = past_or_own if kind == "upstream" else past_or_own & (key_part <= CLEAN)
    return _with_padding(torch.where(query_part >= NOISY, noisy_sees, clean_sees), real)


def as_attention_mask(allowed: Tensor, dtype: torch.dtype, attn_implementation: str) -> Tensor:
    """Turn (L, L) or (N, Q, K) booleans into the (N, 1, Q, K) mask of a transformers attention implementation.

    Returns:
        Booleans for `sdpa`; for `eager`, floats of `dtype` to be added: 0, or the lowest finite number where hidden.
    """
    mask = allowed[None, None] if allowed.ndim == 2 else allowed[:, None]
    if attn_implementation == "sdpa":
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
