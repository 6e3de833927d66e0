"""One thread for inference, so that no executor callback ever waits for a model.

While the thread is busy, new work is refused: a plan from an old image is worth less than the next image's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Worker(Generic[T, R]):
    """Runs `prepare` once, then `work` on each accepted item, in a thread of its own."""

    def __init__(
        self,
        prepare: Callable[[], None],
        work: Callable[[T], R],
        deliver: Callable[[R], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Name what the thread does; `start` starts it.

        Args:
            prepare: runs first; an item handed over meanwhile waits for it.
            work: turns an item into a result; items are refused meanwhile.
            deliver: takes the result, when items are accepted again. So whoever answers a result with the next item, as
                a lockstep simulation does, is never refused.
            fail: takes what another callable raised; the thread then ends, and items are refused for good.
        """
        self._prepare, self._work, self._deliver, self._fail = prepare, work, deliver, fail
        self._changed = threading.Condition()
        self._item: T | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def start(self) -> None:
        """Start the thread, and with it `prepare`."""
        self._thread.start()

    def offer(self, item: T) -> bool:
        """Hand over an item; False when the thread is busy or has ended, and the item is dropped."""
        with self._changed:
            if self._stopping or self._item is not None:
                return False
            self._item = item
            self._changed.notify()
            return True

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after its current item, and wait; False when it has not ended by then."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._prepare()
            while (item := self._next()) is not None:
                result = self._work(item)
                with self._changed:
                    self._item = None  # only now: an item under work counts as busy
                self._deliver(result)
        except Exception as error:
            with self._changed:
                self._stopping = True
            self._fail(error)

    def _next(self) -> T | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._item is not None)
            return None if self._stopping else self._item
