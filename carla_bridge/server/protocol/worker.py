"""Work beside the event loop: pieces that take seconds, and touch nothing that the loop's thread owns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

THREAD_PREFIX = "town-"


class Worker:
    """Does one piece of work after the other, in a thread that does not hold up the end of the program.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = THREAD_PREFIX + name
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._running = False

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Have `work` done after what was submitted before; until it begins, its future can be cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            self._queue.append((future, work))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                future, work = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:
                    future.set_exception(error)


def working() -> bool:
    """Whether any worker is busy."""
    return any(thread.name.startswith(THREAD_PREFIX) for thread in threading.enumerate())
