"""The CPU threads of torch: how many there are, and how they wait for one another."""

from __future__ import annotations

import os

from wamdiff2_core.errors import require

MOST_THREADS = 1024  # more than any machine has cores; far above, PyTorch and OpenMP end the process


def wait_without_spinning() -> None:
    """Let waiting threads of this process and its children sleep, unless the user has set OMP_WAIT_POLICY.

    OpenMP's own choice is to spin for a while, which is as quick on idle cores and, beside other work, makes a plan
    several times slower. OpenMP reads the variable when it is loaded: call this before torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def set_threads(count: int) -> None:
    """Let torch use so many threads of the CPU.

    Raises:
        UserError: fewer than one, or more than any machine has use for.
    """
    require(1 <= count <= MOST_THREADS, "threads", f"an integer from 1 to {MOST_THREADS}", count,
            "as many as cores are enough")
    import torch

    torch.set_num_threads(count)
