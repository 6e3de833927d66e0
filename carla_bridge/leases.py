"""Numbers that only one process of this machine uses at a time: TCP ports of a server, the ROS domain of a drive.

A lease is a lock on a file named by the number. The kernel gives it back when its holder ends, however it ends; so a
killed run leaves nothing to clean up, and two runs side by side never take the same number between looking and using.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from wamdiff2_core.errors import InfrastructureError

# Below the range that outgoing connections are given; the fourth port is for the traffic manager.
FIRST_PORT, LAST_PORT, PORTS_PER_LEASE, TRAFFIC_MANAGER = 20_000, 32_000, 4, 3
DOMAINS = range(1, 102)


class Lease:
    """A number, until `close` or the end of the process.

    Attributes:
        number: what was leased.
    """

    def __init__(self, kind: str, candidates: Iterable[int], usable: Callable[[int], bool]) -> None:
        """Take the first candidate that nobody has leased and that is usable.

        Args:
            kind: what the numbers are; letters and dashes.
            candidates: in the order to try.
            usable: asked while the lease is held already.

        Raises:
            InfrastructureError: none is left.
        """
        folder = Path(tempfile.gettempdir()) / f"wamdiff2-leases-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in candidates:
            descriptor = os.open(folder / f"{kind}-{number}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if usable(number):
                    self.number, self._descriptor = number, descriptor
                    return
            except BlockingIOError:
                pass
            os.close(descriptor)
        raise InfrastructureError(f"no free {kind} is left on this machine")

    def close(self) -> None:
        """Give the number back. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lease_ports() -> Lease:
    """First of `PORTS_PER_LEASE` neighbouring TCP ports: a server's three, and one for its traffic manager."""
    candidates = list(range(FIRST_PORT, LAST_PORT, PORTS_PER_LEASE))
    random.SystemRandom().shuffle(candidates)
    return Lease("server-port", candidates, lambda port: all(map(_tcp_free, range(port, port + PORTS_PER_LEASE))))


def lease_ros_domain() -> Lease:
    """A ROS domain that no other drive of this machine uses."""
    candidates = random.SystemRandom().sample(DOMAINS, len(DOMAINS))
    # DDS derives its ports from the domain: when the first participant's port is free, so is the domain.
    return Lease("ros-domain", candidates, lambda domain: _udp_free(7400 + 250 * domain + 10))


def _tcp_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an ended one that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bindable(probe, ("127.0.0.1", port))


def _udp_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return _bindable(probe, ("", port))


def _bindable(probe: socket.socket, address: tuple[str, int]) -> bool:
    try:
        probe.bind(address)
    except OSError:
        return False
    return True
