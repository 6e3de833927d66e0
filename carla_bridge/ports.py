"""Free ports for servers, and waiting until one listens."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

from wamdiff2_core.errors import InfrastructureError


def free_ports(count: int, *, tries: int = 200) -> int:
    """First of `count` neighbouring TCP ports of 127.0.0.1 that are free now, below the range of outgoing connections.

    Raises:
        InfrastructureError: none found.
    """
    chooser = random.SystemRandom()
    for _ in range(tries):
        first = chooser.randrange(20_000, 32_000 - count)
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                sockets.append(probe)
                probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise InfrastructureError(f"no {count} neighbouring free TCP ports on 127.0.0.1 in {tries} tries")


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
