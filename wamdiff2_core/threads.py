"""How the CPU threads of torch wait for one another."""

from __future__ import annotations

import os


def wait_without_spinning() -> None:
    """Let waiting threads of this process and its children sleep, unless the user has set OMP_WAIT_POLICY.

    OpenMP's own choice is to spin for a while, which is as quick on idle cores and, beside other work, makes a plan
    several times slower. OpenMP reads the variable when it is loaded: call this before torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
