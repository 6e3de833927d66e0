"""A run that is told to stop ends after its running step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def set_on_signals(event: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set `event` instead of ending the process; only the main thread can hear them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda *_: event.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
