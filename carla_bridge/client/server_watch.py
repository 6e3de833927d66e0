"""Waiting for what a server owes, no longer than it lives.

The `carla` library does not tell when a server has ended: its calls come back when their time-out has passed, if at
all, and its sensors fall silent. So every wait is cut into slices, and between them whoever started the server is
asked.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from wamdiff2_core.errors import InfrastructureError

T = TypeVar("T")
Fault = Callable[[], str]  # what is known about the server's failure; empty while it serves
SLICE_S = 0.2


def no_fault() -> str:
    """Of a server that somebody else has started: nothing is known about it."""
    return ""


def next_item(items: queue.SimpleQueue[T], timeout_s: float, fault: Fault) -> T:
    """The next item of a queue that the server's answers come in by.

    Args:
        items: the queue; what is in it is handed out, whatever has become of the server.
        timeout_s: wall clock.
        fault: what is known about the server's failure.

    Raises:
        queue.Empty: nothing came within `timeout_s`.
        InfrastructureError: nothing came, and the server has failed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            return items.get(timeout=min(SLICE_S, left_s))
        except queue.Empty:
            if reason := fault():
                raise InfrastructureError(reason) from None
            if left_s == 0.0:
                raise


class Watchdog:
    """Runs calls on a thread of its own, so that one which never comes back ends in an error instead of a hang."""

    def __init__(self, fault: Fault = no_fault) -> None:
        self._fault = fault
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="carla-calls", daemon=True).start()

    def call(self, function: Callable[[], T], what: str, timeout_s: float = math.inf) -> T:
        """The result of `function`.

        Args:
            function: a call of the library; errors other than the library's own come through as they are.
            what: names it in messages.
            timeout_s: wall clock; by default the library's own limit holds.

        Raises:
            InfrastructureError: it failed, it did not come back in time, or the server has ended.
        """
        if reason := self._fault():
            raise InfrastructureError(reason)
        outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def job() -> None:
            try:
                outcomes.put((function(), None))
            except BaseException as error:
                outcomes.put((None, error))

        self._jobs.put(job)
        try:
            result, error = next_item(outcomes, timeout_s, self._fault)
        except queue.Empty:
            raise InfrastructureError(f"{what} did not come back within {timeout_s:g} s") from None
        if isinstance(error, RuntimeError) and not isinstance(error, InfrastructureError):
            raise InfrastructureError(self._fault() or f"{what} failed: {error}") from error
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def idle(self, timeout_s: float) -> bool:
        """Whether an earlier call that was given up has come back within `timeout_s`."""
        try:
            self.call(lambda: None, "", timeout_s)
        except InfrastructureError:
            return False
        return True

    def stop(self) -> None:
        """End the thread, once the call in hand comes back."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
