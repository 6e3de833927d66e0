from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.selection import choose_tokens, most_confident, select_positions

STRATEGIES = ["sequential", "low_confidence_static", "low_confidence_dynamic"]


def config(**kwargs) -> DecodeConfig:
    return DecodeConfig(**kwargs)


@settings(max_examples=200, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    threshold=st.floats(0, 1),
    count=st.integers(1, 9),
    row=st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.9, 1.0, float("nan")]), st.booleans()), min_size=1, max_size=9
    ),
)
def test_every_step_fixes_something_that_was_open(strategy, threshold, count, row):
    confidence = torch.tensor([[value for value, _ in row]])
    masked = torch.tensor([[open_ for _, open_ in row]])
    fixed = select_positions(confidence, masked, config(strategy=strategy, confidence_threshold=threshold), count)
    assert not (fixed & ~masked).any()
    assert fixed.any() == masked.any()
    if strategy != "low_confidence_dynamic":
        assert fixed.sum() == min(count, int(masked.sum()))


def test_threshold_is_inclusive_and_below_it_the_single_best_is_fixed():
    masked = torch.tensor([[True, True, True, False]] * 2)
    confidence = torch.tensor([[0.5, 0.75, 0.25, 1.0], [0.125, 0.25, 0.375, 1.0]])
    fixed = select_positions(confidence, masked, config(confidence_threshold=0.5), 4)
    assert fixed.tolist() == [[True, True, False, False], [False, False, True, False]]


def test_sequential_fixes_the_leftmost_masks():
    masked = torch.tensor([[False, True, True, False, True]])
    fixed = select_positions(torch.rand(1, 5), masked, config(strategy="sequential"), 2)
    assert fixed.tolist() == [[False, True, True, False, False]]


def test_equal_confidence_takes_the_lowest_position():
    masked = torch.tensor([[False] + [True] * 40])
    fixed = most_confident(torch.full((1, 41), 0.5), masked, 2)
    assert fixed.nonzero().tolist() == [[0, 1], [0, 2]]


def test_equal_logits_take_the_lowest_token():
    tokens, confidence = choose_tokens(torch.zeros(3, 50), config())
    assert tokens.tolist() == [0, 0, 0]
    assert confidence.tolist() == pytest.approx([0.02] * 3)


def test_greedy_confidence_is_the_softmax_probability():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)) * 5
    tokens, confidence = choose_tokens(logits, config())
    best = logits.softmax(-1).max(-1)
    assert torch.equal(tokens, best.indices)
    torch.testing.assert_close(confidence, best.values)


def reference_distribution(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """Filtered distribution by plain Python, from the definition."""
    scaled = [(value / temperature, -token) for token, value in enumerate(logits.tolist())]
    ranked = sorted(scaled, reverse=True)[: top_k or None]
    top = ranked[0][0]
    weights = [(2.718281828459045 ** (value - top), -token) for value, token in ranked]
    total = sum(weight for weight, _ in weights)
    kept, mass = [], 0.0
    for weight, token in weights:
        if top_p < 1 and mass > top_p:
            break
        kept.append((weight / total, token))
        mass += weight / total
    return {token: probability / sum(p for p, _ in kept) for probability, token in kept}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.7), (5, 0.6), (12, 0.8)])
def test_draws_follow_the_filtered_distribution(top_k, top_p):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 2
    expected = reference_distribution(logits, 0.8, top_k, top_p)
    count = 20_000
    uniform = (torch.arange(count) + 0.5) / count
    sampling = config(temperature=0.8, top_k=top_k, top_p=top_p)
    tokens, probabilities = choose_tokens(logits.expand(count, -1), sampling, uniform)
    drawn = Counter(tokens.tolist())
    assert set(drawn) == {token for token, probability in expected.items() if probability > 1 / count}
    for token, times in drawn.items():
        assert times / count == pytest.approx(expected[token], abs=2e-4)
        assert float(probabilities[tokens == token][0]) == pytest.approx(expected[token], rel=1e-4)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_forbidden_tokens_are_never_drawn(uniform):
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    tokens, _ = choose_tokens(logits, config(temperature=1.0), torch.tensor([uniform]))
    assert tokens.item() in (1, 3)
