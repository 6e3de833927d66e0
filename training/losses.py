"""Losses as pure functions: a value for each answer token, and the weight it has in the loss of an optimiser step.

The loss of a step is the sum of weight x value over all its tokens, wherever they are computed: weights carry the
step's own totals, so neither micro-batches nor processes change loss or gradient.

Two published forms of the block diffusion loss exist and both are here under their names: `paper` (equation 3) has no
1/t and averages over masked tokens; `upstream` is what the authors' code does: CE / t, divided by the padded answer
length, averaged over samples. Distillation averages as `upstream` does, without 1/t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.config import Divergence, LossForm


@dataclass(frozen=True)
class Totals:
    """Totals of an optimiser step over all processes and micro-batches.

    Attributes:
        samples: samples.
        tokens: answer tokens that carry loss.
    """

    samples: float
    tokens: float


def token_weights(counted: Tensor, time: Tensor | None, lengths: Tensor, form: LossForm, totals: Totals) -> Tensor:
    """Weight of each answer token in the loss of a step; 0 where it carries none.

    Args:
        counted: (N, L) bool, tokens that carry loss: K copies of R tokens.
        time: (N, L) t of each token's block; None leaves 1/t out of `upstream`.
        lengths: (N,) padded answer lengths, of one copy times the number of copies.
        form: `paper`: one over all counted tokens. `upstream`: 1 / (t * length * samples).
        totals: of the step.

    Returns:
        (N, L) float32.
    """
    if form == "paper":
        return counted / max(totals.tokens, 1.0)
    weights = counted / (lengths[:, None] * totals.samples)
    if time is None:
        return weights
    return torch.where(counted, weights / time.clamp(min=1e-9), 0.0)  # an ignored position may carry t = 0


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(M,) cross-entropy in fp32 of logits (M, V)."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def divergence(
    student: Tensor, teacher: Tensor, kind: Divergence = "jsd", *, temperature: float = 1.0, beta: float = 0.5
) -> Tensor:
    """Divergence of two distributions over the vocabulary, for each token, times temperature squared.

    `jsd`: beta * KL(T || m) + (1 - beta) * KL(S || m) with m = beta * T + (1 - beta) * S; beta = 1/2 is the paper's
    symmetric Jensen-Shannon divergence. `forward_kl`: KL(T || S). `reverse_kl`: KL(S || T).

    Args:
        student, teacher: (M, V) logits.
        kind: see above.
        temperature: of both softmaxes.
        beta: weight of the teacher in `jsd`.

    Returns:
        (M,) float32.
    """
    s = (student.float() / temperature).log_softmax(-1)
    t = (teacher.float() / temperature).log_softmax(-1)
    if kind == "forward_kl":
        value = _kl(t, s)
    elif kind == "reverse_kl":
        value = _kl(s, t)
    else:
        log_beta = torch.tensor(beta, device=s.device).log(), torch.tensor(1 - beta, device=s.device).log()
        m = torch.logaddexp(t + log_beta[0], s + log_beta[1])
        value = beta * _kl(t, m) + (1 - beta) * _kl(s, m)
    return value * temperature**2


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities."""
    return functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)


def top_k_overlap(student: Tensor, teacher: Tensor, k: int) -> Tensor:
    """(M,) share of the teacher's K best tokens that are among the student's K best (paper table 6)."""
    k = min(k, student.shape[-1])
    best = student.topk(k, -1).indices[:, :, None] == teacher.topk(k, -1).indices[:, None, :]
    return best.any(-1).float().mean(-1)
