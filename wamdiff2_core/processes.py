"""Child processes that never outlive their parent.

Each child gets its own process group and log file, and asks the kernel to be told when its parent dies; so neither
Ctrl-C, an exception nor `kill -9` of the parent leaves a server or a planner behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from wamdiff2_core.errors import InfrastructureError

LOG = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
# Loaded here, as a child that was forked from a process with threads must not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for a child that starts Python anew.

    The ROS wheels set up `LD_LIBRARY_PATH` by restarting Python once, and mark that with a guard variable. A child
    that inherits the guard but runs another interpreter finds no ROS libraries; so the guard goes, and with it what
    the restart has added. Other entries, as of a colcon prefix, stay.
    """
    environment = dict(os.environ)
    if environment.pop("_ROS_WHEELS_BOOTSTRAP_COMPLETE", None) is not None:
        entries = environment.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
        kept = [entry for entry in entries if entry and not Path(entry).is_relative_to(sys.prefix)]
        if kept:
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(kept)
    environment.update(extra or {})
    return environment


def end_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when the parent of this process dies; where there is no Linux, do nothing.

    Raises:
        InfrastructureError: the parent is no longer the one of this pid: it has died already.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise InfrastructureError(f"the process that started this one, {parent_pid}, has ended")


def _prepare_child() -> None:
    # A shell's background jobs ignore SIGINT, and hand that on; `stop` relies on it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ManagedProcess:
    """A child process with a log file, stopped on leaving the `with` block."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> None:
        """Start `command`.

        Args:
            name: for messages.
            command: program and arguments.
            log_path: file for its output, both streams.
            env: whole environment; `child_environment()` by default.
        """
        self.name, self.log_path = name, log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_path.open("wb")
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else child_environment(), start_new_session=True,
            preexec_fn=_prepare_child,
        )

    @property
    def pid(self) -> int:
        """Process id, which is its group's id too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal, or None while it runs."""
        return self._process.poll()

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.returncode is None

    def log_tail(self, lines: int = 8) -> str:
        """The last lines of its output."""
        text = self.log_path.read_text(errors="replace").strip()
        return "\n".join(text.splitlines()[-lines:])

    def describe_end(self) -> str:
        """How it ended, in words."""
        code = self.returncode
        if code is None:
            return f"{self.name} runs"
        if code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit code {code}"

    def fault(self) -> str:
        """How it ended; empty while it runs."""
        return "" if self.alive() else self.describe_end()

    def stop(self, patience_s: float = 10.0) -> None:
        """End the whole group: SIGINT, then SIGTERM, then SIGKILL, each after `patience_s`. Idempotent."""
        if self._log.closed:
            return
        for signum in (signal.SIGINT, signal.SIGTERM):
            if not self.alive():
                break
            self._signal_group(signum)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                LOG.warning("%s did not end on %s", self.name, signum.name)
        # Grandchildren may have stayed when their parent ended in good order.
        self._signal_group(signal.SIGKILL)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:  # inside the kernel, as on a network file system that is gone
            LOG.error("%s, process %d, did not end on SIGKILL", self.name, self.pid)
        self._log.close()

    def _signal_group(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def __enter__(self) -> ManagedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
