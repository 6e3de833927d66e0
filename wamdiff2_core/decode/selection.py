"""Which token a masked position would take, how sure the model is of it, and which positions are fixed now.

Ties are broken alike everywhere: lowest position, lowest token id.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wamdiff2_core.config import DecodeConfig

NUCLEUS_CANDIDATES = 1000  # the authors search the nucleus among these when no top_k is given


def choose_tokens(logits: Tensor, config: DecodeConfig, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Candidate token of each position, and its probability.

    At temperature 0 that is the most probable token. Otherwise the logits are divided by the temperature, cut to the
    `top_k` best, then to the smallest set of best tokens whose probability exceeds `top_p`, renormalised, and drawn
    from by inverting the cumulative distribution; the probability is the one under that final distribution.

    Args:
        logits: (M, V) fp32, forbidden tokens at -inf.
        config: temperature, top_k and top_p.
        uniform: (M,) numbers in [0, 1) to draw with; needed above temperature 0.

    Returns:
        tokens (M,) long and probabilities (M,) fp32.
    """
    if config.temperature == 0 or uniform is None:
        best, tokens = logits.max(-1)
        return tokens, 1 / (logits - best[:, None]).exp_().sum(-1)
    logits = logits / config.temperature
    vocabulary = logits.shape[-1]
    keep = config.top_k or (NUCLEUS_CANDIDATES if config.top_p < 1 else vocabulary)
    if keep < vocabulary or config.top_p < 1:
        logits, candidates = logits.sort(dim=-1, descending=True, stable=True)
        logits, candidates = logits[:, :keep], candidates[:, :keep]
    else:
        candidates = torch.arange(vocabulary, device=logits.device).expand_as(logits)
    probabilities = logits.softmax(-1)
    if config.top_p < 1:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before > config.top_p, 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    cumulative = probabilities.cumsum(-1)
    # scaled to the total, which rounding leaves beside 1; the first column above it has probability > 0
    drawn = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    drawn = drawn.clamp_(max=probabilities.shape[-1] - 1)
    return candidates.gather(-1, drawn)[:, 0], probabilities.gather(-1, drawn)[:, 0]


def most_confident(confidence: Tensor, masked: Tensor, count: int | Tensor) -> Tensor:
    """(N, B) bool: the masked positions of each row with the highest confidence.

    Args:
        confidence: (N, B) probability of each position's candidate.
        masked: (N, B) bool, positions still open.
        count: how many, fewer if fewer are masked; () or (N, 1) when a tensor.
    """
    order = confidence.masked_fill(~masked, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranked = torch.arange(masked.shape[1], device=masked.device).expand_as(order)
    return torch.zeros_like(masked).scatter_(-1, order, ranked < count) & masked


def select_positions(confidence: Tensor, masked: Tensor, config: DecodeConfig, count: int | Tensor) -> Tensor:
    """Positions to fix in this step; at least one in every row that has a mask left.

    Args:
        confidence: (N, B) probability of each position's candidate.
        masked: (N, B) bool, positions still open.
        config: strategy and threshold.
        count: scheduled number for this step >= 1, () when a tensor; `low_confidence_dynamic` does not use it.

    Returns:
        (N, B) bool, a subset of `masked`.
    """
    if config.strategy == "sequential":
        return masked & (masked.cumsum(-1) <= count)
    if config.strategy == "low_confidence_static":
        return most_confident(confidence, masked, count)
    sure = masked & (confidence >= config.confidence_threshold)
    return torch.where(sure.any(-1, keepdim=True), sure, most_confident(confidence, masked, 1))


def hurry(confidence: Tensor, masked: Tensor, config: DecodeConfig, steps: int) -> Tensor:
    """Positions to fix in this step at the least, so that every row is done within `steps`: an even share of its masks.

    Args:
        confidence: (N, B) probability of each position's candidate.
        masked: (N, B) bool, positions still open.
        config: strategy; `sequential` takes the leftmost, the others the most confident.
        steps: that are left, this one included, >= 1.

    Returns:
        (N, B) bool, a subset of `masked`.
    """
    share = -(-masked.sum(-1, keepdim=True) // steps)  # (N, 1)
    if config.strategy == "sequential":
        return masked & (masked.cumsum(-1) <= share)
    return most_confident(confidence, masked, share)
