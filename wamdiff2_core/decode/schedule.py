"""How many tokens a denoising step fixes."""

from __future__ import annotations


def schedule(block_size: int, steps: int) -> list[int]:
    """Tokens to fix at each step of a block.

    The remainder goes to the first steps. A budget above the block size is one token a step, so no step is idle.

    Args:
        block_size: B >= 1.
        steps: step budget >= 1.

    Returns:
        min(B, steps) numbers, each >= 1, which sum to B.
    """
    steps = min(steps, block_size)
    base, remainder = divmod(block_size, steps)
    return [base + (step < remainder) for step in range(steps)]
