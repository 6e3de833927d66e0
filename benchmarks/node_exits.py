"""How planner nodes end: exit codes of nodes that get SIGINT at a random moment after they are ready.

    python -m benchmarks.node_exits --rounds 100

The nodes of a round run side by side, so that each is taken down while others load and talk. Nodes are started as the
launch file does, and take SIGINT also where the shell runs this as a background job. Exit code 1 when a node ended with
anything but 0; its log stays in --out.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.outputs import writable_folder
from wamdiff2_core.planner import RANDOM
from wamdiff2_core.processes import ManagedProcess

READY = "ready: "  # in the node's log, when it plans
START_S, END_S, POLL_S = 120.0, 60.0, 0.005
TOLD_EVERY = 10  # rounds


def ended(commands: Sequence[Sequence[str]], delays_s: Sequence[float], folder: Path) -> list[int]:
    """Start nodes together, send each SIGINT once it has been ready so long, and give their exit codes.

    Args:
        commands: of the nodes.
        delays_s: of each node, seconds.
        folder: for their logs, `0.log` and so on.

    Raises:
        UserError: a node refuses its planner.
        InfrastructureError: a node was not ready, or did not end, within its time, or ended before its signal.
    """
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(ManagedProcess(f"node {index}", command, folder / f"{index}.log"))
            for index, command in enumerate(commands)
        ]
        limit_s = time.monotonic() + START_S + max(delays_s) + END_S
        due_s: dict[int, float] = {}
        waiting = set(range(len(nodes)))
        while waiting or any(node.alive() for node in nodes):
            for index in sorted(waiting):
                node = nodes[index]
                if node.returncode == ExitCode.WRONG_USE:
                    raise UserError("planner", "one that the node can load", node.log_tail(1))
                if not node.alive():
                    raise InfrastructureError(f"{node.describe_end()} before its signal: {node.log_tail(1)}")
                if index not in due_s and READY in node.log_tail():
                    due_s[index] = time.monotonic() + delays_s[index]
                if time.monotonic() >= due_s.get(index, limit_s):
                    os.kill(node.pid, signal.SIGINT)
                    waiting.remove(index)
            if time.monotonic() > limit_s:
                raise InfrastructureError(f"nodes: some are not ready, or run on after SIGINT; see {folder}")
            time.sleep(POLL_S)
        return [node.returncode or 0 for node in nodes]


def described(codes: Counter[int]) -> str:
    """Exit codes and how often each was, the commonest first; of signals by their name, too."""
    return ", ".join(
        f"{count} with {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")
        for code, count in codes.most_common()
    )


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often nodes are started and ended.")] = 100,
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Nodes at a time.")] = 3,
    within: Annotated[float, typer.Option(min=0.0, max=60.0, help="Seconds after ready, at most, to SIGINT.")] = 1.0,
    planner: Annotated[str, typer.Option(help="Checkpoint folder, or 'random'.")] = RANDOM,
    seed: Annotated[int, typer.Option(min=0, help="Of the moments.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the logs of nodes that end with another code than 0.")] = Path(
        "runs/node-exits"
    ),
) -> int:
    """Count exit codes of planner nodes that get SIGINT."""
    from wamdiff2_ros.bench import node_command

    folder = writable_folder(out, "out")
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    commands = [node_command(planner, f"wamdiff2_exits_{os.getpid()}_{index}") for index in range(nodes)]
    moments, codes = random.Random(seed), Counter[int]()

    def told() -> str:
        return f"{codes.total()} nodes, {nodes} at a time, SIGINT up to {within:g} s after ready: {described(codes)}"

    for turn in range(rounds):
        logs = folder / f"round-{turn}"
        ends = ended(commands, [moments.uniform(0.0, within) for _ in commands], logs)
        codes.update(ends)
        if not any(ends):
            shutil.rmtree(logs)
        if turn % TOLD_EVERY == TOLD_EVERY - 1 and turn + 1 < rounds:
            typer.echo(told(), err=True)
    typer.echo(told())
    return int(ExitCode.DONE if set(codes) == {0} else ExitCode.FAILED_ITEMS)


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.node_exits"))
