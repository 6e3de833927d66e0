"""Processes of a training that share one import of PyTorch and transformers, which takes longer than what they train.

`test_train_script.py` starts them as a user does.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["training.assembly", "training.trainer"])


def start(log: Path, target: Callable[..., Any], *arguments: Any, processes: int = 1) -> list[BaseProcess]:
    """Call a function of a module in processes of their own, with the environment that torchrun gives its ranks.

    Args:
        log: file for what they print.
        target: a process ends with the code that it returns, and with 1 when it raises.
        arguments: of the function.
        processes: one has no rank.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [_FORKS.Process(target=_rank, args=(str(log), rank, processes, port, target, arguments), daemon=True)
             for rank in range(processes)]
    for rank in ranks:
        rank.start()
    return list(ranks)


def run(log: Path, target: Callable[..., Any], *arguments: Any, processes: int) -> None:
    """The same, to the end, which has to be a good one."""
    ranks = start(log, target, *arguments, processes=processes)
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * processes, log.read_text()


def train(file: str) -> int:
    """`wamdiff2 train`."""
    from wamdiff2_core.cli.main import main

    return main(["train", file])


def _rank(log: str, rank: int, processes: int, port: int, target: Callable[..., Any], arguments: tuple[Any]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ["OMP_NUM_THREADS"] = "1"
    if processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                       "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.exit(target(*arguments))
