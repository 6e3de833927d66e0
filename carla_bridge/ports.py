"""Waiting until a server listens."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from wamdiff2_core.errors import InfrastructureError


def wait_for_port(port: int, alive: Callable[[], bool], timeout_s: float, host: str = "127.0.0.1") -> None:
    """Return when `host:port` accepts connections.

    Raises:
        InfrastructureError: the process behind it ended, or `timeout_s` passed.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not alive():
            raise InfrastructureError(f"the process that should serve port {port} ended")
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except OSError:
            time.sleep(0.05)
    raise InfrastructureError(f"port {port} did not open within {timeout_s:g} s")
