"""Training objectives as pure functions: label-shifted next-token loss, and block diffusion with an absorbing mask.

Block diffusion (paper section 3.2): every block of an answer gets a time t, each of its tokens is replaced by the mask
token with probability t, and the model names the masked tokens in place (no label shift). Two published forms of the
loss exist and both are here under their names: `paper` has no 1/t, `upstream` is what the authors' code does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LossForm = Literal["paper", "upstream"]
MIN_TIME = 1e-3  # the authors' floor of u; keeps 1/t finite


@dataclass(frozen=True)
class Noise:
    """Masks of one training batch.

    Attributes:
        masked: (N, K, R) bool, tokens replaced by the mask token in each of the K copies.
        time: (N, K, R) float, t of each token's block.
    """

    masked: Tensor
    time: Tensor


def block_times(samples: int, blocks: int, generator: torch.Generator | None = None) -> Tensor:
    """(samples, blocks) times in (0, 1], stratified over the blocks of a sample as in the authors' code."""
    start = torch.rand(samples, 1, generator=generator).clamp(min=MIN_TIME)
    strata = torch.rand(samples, blocks, generator=generator).argsort(-1)  # a random permutation per sample
    return (start + strata) / blocks


def sample_noise(
    samples: int,
    answer_len: int,
    block_size: int,
    *,
    copies: int = 1,
    full_share: float = 0.0,
    complementary: bool = False,
    generator: torch.Generator | None = None,
) -> Noise:
    """Draw masks.

    Args:
        samples: N.
        answer_len: R, a multiple of `block_size`.
        block_size: B.
        copies: K noisy copies a sample.
        full_share: share of blocks that are masked entirely, which is where decoding starts (t = 1).
        complementary: copies 2k and 2k + 1 mask complementary tokens of a block, so that each token is learnt from;
            a block that is masked entirely has no complement, and its partner is drawn on its own.
    """
    blocks = answer_len // block_size
    masked, time = [], []
    for copy in range(copies):
        t = block_times(samples, blocks, generator)
        full = torch.rand(samples, blocks, generator=generator) < full_share
        paired = complementary and copy % 2 == 1
        if paired:
            full = torch.zeros_like(full)
        t = torch.where(full, 1.0, t).repeat_interleave(block_size, 1)
        mask = torch.rand(samples, answer_len, generator=generator) < t
        if paired:
            has_complement = ~masked[-1].view(samples, blocks, block_size).all(-1).repeat_interleave(block_size, 1)
            mask = torch.where(has_complement, ~masked[-1], mask)
            t = torch.where(has_complement, (1 - time[-1]).clamp(min=MIN_TIME), t)
        masked.append(mask)
        time.append(t)
    return Noise(torch.stack(masked, 1), torch.stack(time, 1))


def mask_least_confident(
    confidence: Tensor, time: Tensor, block_size: int, *, jitter: float = 0.1, generator: torch.Generator | None = None
) -> Tensor:
    """Masks as decoding meets them: in each block the t * B tokens (at least one) that the model is least sure of.

    Decoding fixes sure tokens first, so what it has to name next, given the rest, is what is hard. Random masks rarely
    show such a state.

    Args:
        confidence: (N, R) probability of the model's own best token.
        time: (N, R) t of each token's block.
        block_size: B.
        jitter: standard deviation of noise on the confidence, so that near ties come in every order.

    Returns:
        (N, R) bool.
    """
    samples, length = confidence.shape
    noisy = confidence + jitter * torch.randn(samples, length, generator=generator)
    rank = noisy.view(samples, -1, block_size).argsort(-1).argsort(-1).view(samples, length)
    return rank < (time * block_size).ceil().clamp(min=1)


def absorb(ids: Tensor, masked: Tensor, mask_token_id: int) -> Tensor:
    """The noisy copies (N, K, R) of clean answers (N, R)."""
    return torch.where(masked, mask_token_id, ids[:, None])


def trained_tokens(answer_lengths: Tensor, answer_len: int, block_size: int) -> Tensor:
    """(N, R) bool: tokens up to the end of the last used block.

    The EOS that pads that block is learnt, so that decoding can close it in parallel; later blocks are never decoded.

    Args:
        answer_lengths: (N,) tokens of each answer, its first EOS included.
    """
    used = answer_lengths.add(block_size - 1).div(block_size, rounding_mode="floor") * block_size
    return torch.arange(answer_len, device=answer_lengths.device) < used[:, None]


def block_diffusion_loss(
    logits: Tensor, labels: Tensor, masked: Tensor, time: Tensor, answer_lengths: Tensor, form: LossForm
) -> Tensor:
    """Cross-entropy on masked tokens.

    `upstream`: sum of CE / t over a sample's masked tokens, divided by its padded answer length, averaged over samples
    (in the authors' code the length counts every answer token, masked or not). `paper`: equation 3, no 1/t; the mean
    over all masked tokens of the batch.

    Args:
        logits: (N, L, V), aligned: position i names token i.
        labels: (N, L).
        masked: (N, L) bool, tokens that count.
        time: (N, L) t of each token's block.
        answer_lengths: (N,) padded answer lengths.
    """
    entropy = _entropy(logits, labels)
    if form == "upstream":
        # where() and not a product: an ignored position may carry t = 0
        return (torch.where(masked, entropy / time.clamp(min=1e-9), 0.0).sum(-1) / answer_lengths).mean()
    return (entropy * masked).sum() / masked.sum().clamp(min=1)


def autoregressive_loss(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Mean next-token cross-entropy; the caller has shifted: `logits` (N, L, V) at i name `labels` (N, L) at i.

    Args:
        valid: (N, L) bool, labels that count.
    """
    entropy = _entropy(logits, labels)
    return (entropy * valid).sum() / valid.sum().clamp(min=1)


def _entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in fp32 of each token, shaped as `labels`."""
    flat = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    return flat.view(labels.shape)
