"""The absorbing forward process: rates, strata, complements, and masks in the model's own order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.layout import absorb, trained_tokens
from training.noise import block_times, draw_noise, least_confident


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_times_of_a_sample_fall_one_into_each_stratum() -> None:
    source = generator()
    times = torch.stack([block_times(8, source) for _ in range(200)])
    assert ((times.sort(-1).values * 8).floor().clamp(max=7) == torch.arange(8)).float().mean() > 0.999
    assert times.min() > 0
    assert times.max() <= 1


@given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(0, 2**31))
def test_complementary_copies_cover_each_token_once_unless_a_block_is_masked_entirely(
    size: int, blocks: int, seed: int
) -> None:
    noise = draw_noise(size * blocks, size, copies=2, full_share=0.3, complementary=True, generator=generator(seed))
    first, second = (copy.view(blocks, size) for copy in noise.masked)
    entire = first.all(-1)
    assert (first ^ second)[~entire].all()


def test_share_of_fully_masked_blocks_is_the_one_asked_for() -> None:
    source = generator()
    drawn = [draw_noise(32, 16, full_share=0.3, generator=source) for _ in range(4000)]
    time = torch.stack([noise.time.view(2, 16)[:, 0] for noise in drawn])
    masked = torch.stack([noise.masked.view(2, 16) for noise in drawn])
    assert abs((time == 1).float().mean() - 0.3) < 0.02
    assert masked[time == 1].all()


def test_tokens_are_masked_at_the_rate_of_their_time() -> None:
    source = generator(1)
    drawn = [draw_noise(16, 16, generator=source) for _ in range(4000)]
    masked, time = torch.cat([noise.masked for noise in drawn]), torch.cat([noise.time for noise in drawn])
    for chosen in (time < 0.2, time > 0.8):
        assert abs(masked[chosen].float().mean() - time[chosen].mean()) < 0.02


def test_absorbed_copies_differ_from_the_answer_exactly_where_masked() -> None:
    ids, masked = torch.randint(10, 20, (3, 8)), torch.rand(3, 2, 8) < 0.5
    noisy = absorb(ids, masked, mask_id=7)
    assert (noisy[masked] == 7).all()
    assert torch.equal(noisy[~masked], ids[:, None].expand(3, 2, 8)[~masked])


def test_tokens_are_trained_up_to_the_end_of_the_block_that_holds_eos() -> None:
    trained = trained_tokens(torch.tensor([1, 4, 5, 12]), answer_len=12, block_size=4)
    assert trained.sum(1).tolist() == [4, 4, 8, 12]
    assert trained[2, :8].all()


@pytest.mark.parametrize("size", [4, 8])
def test_the_least_confident_tokens_of_each_block_are_masked(size: int) -> None:
    confidence = torch.rand(16, generator=generator())
    masked = least_confident(confidence, torch.full((16,), 0.5), size, jitter=0.0).view(-1, size)
    blocks = confidence.view(-1, size)
    assert (masked.sum(-1) == size // 2).all()
    assert (torch.where(masked, blocks, -1.0).amax(-1) <= torch.where(masked, 2.0, blocks).amin(-1)).all()


def test_at_least_one_token_of_a_block_is_masked_and_all_of_them_at_time_one() -> None:
    confidence = torch.rand(8)
    assert (least_confident(confidence, torch.full((8,), 1e-4), 4).view(2, 4).sum(-1) == 1).all()
    assert least_confident(confidence, torch.ones(8), 4).all()
