"""The absorbing forward process: which answer tokens are masked, at which time (paper section 3.2).

Every block of an answer gets a time t in (0, 1], and each of its tokens is replaced by the mask token with
probability t. Times are stratified over the blocks of a sample, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_TIME = 1e-3  # the authors' floor of u; keeps 1/t finite


@dataclass(frozen=True)
class Noise:
    """Masks of one answer.

    Attributes:
        masked: (K, R) bool, tokens replaced by the mask token in each of the K copies.
        time: (K, R) float, t of each token's block.
    """

    masked: Tensor
    time: Tensor


def block_times(blocks: int, generator: torch.Generator | None = None) -> Tensor:
    """(blocks,) times in (0, 1]: one in each of `blocks` equal strata, in random order."""
    start = torch.rand(1, generator=generator).clamp(min=MIN_TIME)
    strata = torch.rand(blocks, generator=generator).argsort()
    return (start + strata) / blocks


def draw_noise(
    answer_len: int,
    block_size: int,
    *,
    copies: int = 1,
    full_share: float = 0.0,
    complementary: bool = False,
    generator: torch.Generator | None = None,
) -> Noise:
    """Draw the masks of one sample.

    Args:
        answer_len: R, a multiple of `block_size`.
        block_size: B.
        copies: K noisy copies.
        full_share: share of blocks that are masked entirely, which is where decoding starts (t = 1).
        complementary: copies 2k and 2k + 1 mask complementary tokens of a block, so that each token is learnt from;
            a block that is masked entirely has no complement, and its partner is drawn on its own.
        generator: source of the numbers.
    """
    blocks = answer_len // block_size
    masked: list[Tensor] = []
    time: list[Tensor] = []
    for copy in range(copies):
        t = block_times(blocks, generator)
        full = torch.rand(blocks, generator=generator) < full_share
        paired = complementary and copy % 2 == 1
        if paired:
            full = torch.zeros_like(full)
        t = torch.where(full, 1.0, t).repeat_interleave(block_size)
        mask = torch.rand(answer_len, generator=generator) < t
        if paired:
            has_complement = ~masked[-1].view(blocks, block_size).all(-1).repeat_interleave(block_size)
            mask = torch.where(has_complement, ~masked[-1], mask)
            t = torch.where(has_complement, (1 - time[-1]).clamp(min=MIN_TIME), t)
        masked.append(mask)
        time.append(t)
    return Noise(torch.stack(masked), torch.stack(time))


def least_confident(
    confidence: Tensor, time: Tensor, block_size: int, *, jitter: float = 0.1, generator: torch.Generator | None = None
) -> Tensor:
    """Masks as decoding meets them: in each block the t * B tokens (at least one) that the model is least sure of.

    Decoding fixes sure tokens first, so what it has to name next, given the rest, is what is hard. Random masks rarely
    show such a state.

    Args:
        confidence: (R,) probability of the model's own best token.
        time: (R,) t of each token's block.
        block_size: B.
        jitter: standard deviation of noise on the confidence, so that near ties come in every order.
        generator: source of the numbers.

    Returns:
        (R,) bool.
    """
    noisy = confidence + jitter * torch.randn(len(confidence), generator=generator)
    rank = noisy.view(-1, block_size).argsort(-1).argsort(-1).flatten()
    return rank < (time * block_size).ceil().clamp(min=1)
