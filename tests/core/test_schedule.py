from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.decode.schedule import schedule


@given(st.integers(1, 300), st.integers(1, 300))
def test_schedule_sums_to_the_block_and_never_idles(block_size, steps):
    counts = schedule(block_size, steps)
    assert sum(counts) == block_size
    assert min(counts) >= 1
    assert len(counts) == min(block_size, steps)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1


def test_the_remainder_goes_to_the_first_steps():
    assert schedule(8, 5) == [2, 2, 2, 1, 1]
    assert schedule(32, 12) == [3] * 8 + [2] * 4
    assert schedule(4, 32) == [1, 1, 1, 1]
