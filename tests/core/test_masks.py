from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wamdiff2_core.model.masks import as_attention_mask, block_ids, prefix_mask, training_mask


def sees(query: int, key: int, prefix_len: int, answer_len: int, block_size: int, kind: str) -> bool:
    """One entry of the mask, from the definition."""

    def place(index: int) -> tuple[str, int, int]:
        if index < prefix_len:
            return "prefix", index // block_size, 0
        copy, offset = divmod(index - prefix_len, answer_len)
        return ("clean" if copy == 0 else "noisy"), -(-prefix_len // block_size) + offset // block_size, copy

    (query_part, query_block, query_copy), (key_part, key_block, key_copy) = place(query), place(key)
    if query_part == "prefix":
        return key_part == "prefix" and key_block <= query_block
    if key_part == "prefix":
        return True
    if query_part == "clean":
        if key_part == "noisy" and kind == "strict":
            return False
        return key_block <= query_block
    if key_part == "clean":
        return key_block < query_block
    return key_block == query_block and key_copy == query_copy


@settings(max_examples=40, deadline=None)
@given(
    prefix_len=st.integers(1, 11),
    answer_len=st.integers(1, 9),
    block_size=st.integers(1, 5),
    kind=st.sampled_from(["strict", "upstream"]),
    num_noisy=st.integers(1, 2),
)
def test_training_mask_equals_a_loop_over_its_definition(prefix_len, answer_len, block_size, kind, num_noisy):
    mask = training_mask(prefix_len, answer_len, block_size, kind, num_noisy=num_noisy)
    length = prefix_len + (1 + num_noisy) * answer_len
    expected = torch.tensor(
        [[sees(q, k, prefix_len, answer_len, block_size, kind) for k in range(length)] for q in range(length)]
    )
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("kind", ["strict", "upstream"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens(kind, side):
    prefix_len, answer_len, block_size, pad = 5, 8, 4, 3
    real = torch.ones(prefix_len, dtype=torch.bool)
    padding = torch.zeros(pad, dtype=torch.bool)
    prefix_valid = torch.cat([padding, real] if side == "left" else [real, padding])
    answer_valid = torch.tensor([True] * answer_len + [False] * block_size)
    valid = torch.cat([prefix_valid, answer_valid])[None]
    padded = training_mask(prefix_len + pad, answer_len + block_size, block_size, kind, valid=valid)[0]
    rows = torch.cat([prefix_valid, answer_valid, answer_valid])
    assert torch.equal(padded[rows][:, rows], training_mask(prefix_len, answer_len, block_size, kind))
    assert not padded[rows][:, ~rows].any()
    assert torch.equal(padded[~rows], torch.eye(len(rows), dtype=torch.bool)[~rows])


def test_rows_of_a_batch_are_independent():
    valid = torch.ones(2, 6 + 4, dtype=torch.bool)
    valid[0, :3] = False
    batch = training_mask(6, 4, 2, valid=valid)
    for row in range(2):
        assert torch.equal(batch[row], training_mask(6, 4, 2, valid=valid[row : row + 1])[0])


def test_prefix_blocks_count_from_the_first_real_token():
    valid = torch.tensor([False, False, True, True, True])
    assert block_ids(valid, 2).tolist() == [-1, -1, 0, 0, 1]
    assert prefix_mask(valid, 2)[2:, 2:].tolist() == [[True, True, False], [True, True, False], [True, True, True]]


def test_blocks_of_one_token_are_causal():
    assert torch.equal(prefix_mask(torch.ones(7, dtype=torch.bool), 1), torch.ones(7, 7).tril().bool())


def test_eager_gets_numbers_to_add_and_sdpa_gets_booleans():
    allowed = torch.tensor([[True, False], [True, True]])
    assert as_attention_mask(allowed, torch.float32, "sdpa").dtype == torch.bool
    added = as_attention_mask(allowed, torch.float32, "eager")
    assert added.shape == (1, 1, 2, 2)
    assert added[0, 0].softmax(-1).tolist() == [[1.0, 0.0], [0.5, 0.5]]
