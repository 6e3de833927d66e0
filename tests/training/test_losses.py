"""Losses against the authors' figures and against what the formulas say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training.losses import Totals, cross_entropy, divergence, token_weights, top_k_overlap


def figures(shared_data: Path, case: int) -> dict[str, torch.Tensor]:
    file = np.load(shared_data / "upstream" / "losses.npz")
    names = ("logits", "teacher", "labels", "t", "response", "loss_mask", "ce", "jsd")
    return {name: torch.from_numpy(file[f"{name}_{case}"]) for name in names}


def totals(counted: torch.Tensor) -> Totals:
    return Totals(len(counted), float(counted.sum()))


@pytest.mark.parametrize("case", range(6))
def test_cross_entropy_equals_the_authors_code(shared_data: Path, case: int) -> None:
    f = figures(shared_data, case)
    counted = f["loss_mask"]
    weights = token_weights(counted, f["t"], f["response"].sum(-1), "upstream", totals(counted))
    loss = (weights[counted] * cross_entropy(f["logits"][counted], f["labels"][counted])).sum()
    torch.testing.assert_close(loss, f["ce"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", range(6))
def test_jensen_shannon_divergence_equals_the_authors_code(shared_data: Path, case: int) -> None:
    f = figures(shared_data, case)
    counted = f["loss_mask"]
    weights = token_weights(counted, None, f["response"].sum(-1), "upstream", totals(counted))
    loss = (weights[counted] * divergence(f["logits"][counted], f["teacher"][counted])).sum()
    torch.testing.assert_close(loss, f["jsd"], rtol=1e-5, atol=1e-6)


def test_paper_loss_is_the_mean_over_masked_tokens_whatever_their_time() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 6, 5), torch.randint(0, 5, (2, 6))
    counted = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=torch.bool)
    expected = -torch.stack([
        logits[n, i].log_softmax(-1)[labels[n, i]] for n, i in counted.nonzero().tolist()
    ]).mean()
    for time in (torch.full((2, 6), 0.1), torch.rand(2, 6), None):
        weights = token_weights(counted, time, torch.tensor([6, 6]), "paper", totals(counted))
        loss = (weights[counted] * cross_entropy(logits[counted], labels[counted])).sum()
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("form", ["paper", "upstream"])
def test_where_nothing_is_masked_nothing_weighs(form) -> None:
    nothing = torch.zeros(2, 4, dtype=torch.bool)
    weights = token_weights(nothing, torch.zeros(2, 4), torch.tensor([4, 4]), form, totals(nothing))
    assert torch.equal(weights, torch.zeros(2, 4))


@pytest.mark.parametrize("kind", ["jsd", "forward_kl", "reverse_kl"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergences_are_what_the_sums_over_the_vocabulary_say(kind, temperature: float) -> None:
    torch.manual_seed(1)
    student, teacher = torch.randn(7, 11), 3 * torch.randn(7, 11)
    s, t = (np.exp(x.numpy() / temperature) for x in (student, teacher))
    s, t = s / s.sum(-1, keepdims=True), t / t.sum(-1, keepdims=True)

    def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return (p * np.log(p / q)).sum(-1)

    m = 0.3 * t + 0.7 * s
    wanted = {"jsd": 0.3 * kl(t, m) + 0.7 * kl(s, m), "forward_kl": kl(t, s), "reverse_kl": kl(s, t)}[kind]
    got = divergence(student, teacher, kind, temperature=temperature, beta=0.3)
    np.testing.assert_allclose(got.numpy(), wanted * temperature**2, rtol=1e-4, atol=1e-6)


def test_equal_distributions_do_not_diverge_and_opposite_ones_stay_below_the_bound() -> None:
    logits = torch.randn(5, 9)
    assert divergence(logits, logits + 4.0).abs().max() < 1e-6  # a constant changes no distribution
    far = divergence(torch.tensor([[90.0, 0.0]]), torch.tensor([[0.0, 90.0]]))
    torch.testing.assert_close(far, torch.tensor([np.log(2.0)], dtype=torch.float32))


def test_top_k_overlap_counts_the_common_best_tokens() -> None:
    student = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    teacher = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0]])
    assert [float(top_k_overlap(student, teacher, k)) for k in (1, 2, 3, 5)] == pytest.approx([1, 0.5, 2 / 3, 1])
    assert top_k_overlap(student, teacher, 20) == 1.0  # a vocabulary smaller than K
