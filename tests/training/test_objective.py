"""Objectives against the authors' figures and against what the formulas say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.objective import (
    absorb,
    autoregressive_loss,
    block_diffusion_loss,
    block_times,
    mask_least_confident,
    sample_noise,
    trained_tokens,
)


@pytest.mark.parametrize("case", range(6))
def test_upstream_loss_equals_the_authors_code(shared_data: Path, case: int) -> None:
    figures = np.load(shared_data / "upstream" / "losses.npz")

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(figures[f"{name}_{case}"])

    loss = block_diffusion_loss(
        tensor("logits"), tensor("labels"), tensor("loss_mask"), tensor("t"), tensor("response").sum(-1), "upstream"
    )
    torch.testing.assert_close(loss, tensor("ce"), rtol=1e-6, atol=1e-6)


def test_paper_loss_is_the_mean_over_masked_tokens_whatever_their_time() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 6, 5), torch.randint(0, 5, (2, 6))
    masked = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=torch.bool)
    expected = -torch.stack([
        logits[n, i].log_softmax(-1)[labels[n, i]] for n, i in masked.nonzero().tolist()
    ]).mean()
    for time in (torch.full((2, 6), 0.1), torch.rand(2, 6)):
        loss = block_diffusion_loss(logits, labels, masked, time, torch.tensor([6, 6]), "paper")
        torch.testing.assert_close(loss, expected)


def test_nothing_masked_gives_zero_loss_and_finite_gradients() -> None:
    logits = torch.randn(1, 4, 5, requires_grad=True)
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    for form in ("paper", "upstream"):
        loss = block_diffusion_loss(logits, torch.zeros(1, 4, dtype=torch.long), nothing, torch.zeros(1, 4),
                                    torch.tensor([4]), form)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss == 0
        assert torch.isfinite(gradient).all()


def test_times_of_a_sample_fall_one_into_each_stratum() -> None:
    times = block_times(200, 8, torch.Generator().manual_seed(0))
    assert ((times.sort(-1).values * 8).floor().clamp(max=7) == torch.arange(8)).float().mean() > 0.999
    assert times.min() > 0
    assert times.max() <= 1


@given(st.integers(1, 4), st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(0, 2**31))
def test_complementary_copies_cover_each_token_once_unless_a_block_is_masked_entirely(
    samples: int, size: int, blocks: int, seed: int
) -> None:
    noise = sample_noise(samples, size * blocks, size, copies=2, full_share=0.3, complementary=True,
                         generator=torch.Generator().manual_seed(seed))
    first, second = (noise.masked[:, copy].view(samples, blocks, size) for copy in range(2))
    entire = first.all(-1)
    assert (first ^ second)[~entire].all()


def test_share_of_fully_masked_blocks_is_the_one_asked_for() -> None:
    noise = sample_noise(4000, 32, 16, full_share=0.3, generator=torch.Generator().manual_seed(0))
    entire = noise.time.view(4000, 2, 16)[:, :, 0] == 1
    assert abs(entire.float().mean() - 0.3) < 0.02
    assert noise.masked.view(4000, 2, 16)[entire].all()


def test_tokens_are_masked_at_the_rate_of_their_time() -> None:
    noise = sample_noise(4000, 16, 16, generator=torch.Generator().manual_seed(1))
    low, high = noise.time < 0.2, noise.time > 0.8
    assert abs(noise.masked[low].float().mean() - noise.time[low].mean()) < 0.02
    assert abs(noise.masked[high].float().mean() - noise.time[high].mean()) < 0.02


def test_absorbed_copies_differ_from_the_answer_exactly_where_masked() -> None:
    ids = torch.randint(10, 20, (3, 8))
    masked = torch.rand(3, 2, 8) < 0.5
    noisy = absorb(ids, masked, mask_token_id=7)
    assert (noisy[masked] == 7).all()
    assert torch.equal(noisy[~masked], ids[:, None].expand(3, 2, 8)[~masked])


def test_tokens_are_trained_up_to_the_end_of_the_block_that_holds_eos() -> None:
    trained = trained_tokens(torch.tensor([1, 4, 5, 12]), answer_len=12, block_size=4)
    assert trained.sum(1).tolist() == [4, 4, 8, 12]
    assert trained[2, :8].all()


def test_autoregressive_loss_ignores_what_follows_eos() -> None:
    logits, labels = torch.randn(1, 5, 4), torch.tensor([[1, 2, 3, 3, 3]])
    valid = torch.tensor([[True, True, True, False, False]])
    loss = autoregressive_loss(logits, labels, valid)
    logits[:, 3:] += 10 * torch.randn(1, 2, 4)
    torch.testing.assert_close(autoregressive_loss(logits, labels, valid), loss)


@pytest.mark.parametrize("size", [4, 8])
def test_the_least_confident_tokens_of_each_block_are_masked(size: int) -> None:
    confidence = torch.rand(5, 16, generator=torch.Generator().manual_seed(0))
    time = torch.full((5, 16), 0.5)
    masked = mask_least_confident(confidence, time, size, jitter=0.0).view(5, -1, size)
    blocks = confidence.view(5, -1, size)
    assert (masked.sum(-1) == size // 2).all()
    hidden = torch.where(masked, blocks, -1.0).amax(-1)
    shown = torch.where(masked, 2.0, blocks).amin(-1)
    assert (hidden <= shown).all()


def test_at_least_one_token_of_a_block_is_masked_and_all_of_them_at_time_one() -> None:
    confidence = torch.rand(3, 8)
    assert (mask_least_confident(confidence, torch.full((3, 8), 1e-4), 4).view(3, 2, 4).sum(-1) == 1).all()
    assert mask_least_confident(confidence, torch.ones(3, 8), 4).all()
