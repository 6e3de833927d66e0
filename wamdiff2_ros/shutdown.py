"""How a node of ours ends: a signal asks for it, and the main thread takes everything down in order."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def signals_set(ended: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `ended`, and nothing else, until the block is left. For the main thread only.

    For a context of `SignalHandlerOptions.NO`: rclpy's own handlers close it from another thread, while executor, node
    and worker still use it, and wake guard conditions that the main thread may have destroyed meanwhile.
    """
    previous = {signum: signal.signal(signum, lambda *_: ended.set()) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def end_process(code: int) -> NoReturn:
    """End the process of a node that has closed all it had, with everything written that it has printed.

    The destructors of libraries are left out: threads of Fast DDS and PyTorch may outlive what they use by a moment
    (eProsima/Fast-DDS#1906, #3561), and a crash there would tell the launcher that a node failed which ended well.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
