"""The embedded server as a child of the process that drives in it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from carla_bridge.client.versions import embedded_dialect
from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.processes import ManagedProcess

START_S = 90.0
Address = tuple[str, int]


def parse_address(text: str, option: str = "--carla") -> Address:
    """Host and port of `HOST:PORT`; `option` names it in errors.

    Raises:
        UserError: not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65535:
        raise UserError(option, "HOST:PORT", text)
    return host, int(port)


class ServerProcess:
    """A server of its own; leaving the `with` block ends it. It starts at once, and `wait` returns when it serves."""

    def __init__(
        self, town: str, seed: int, log_path: Path, maps: Path | None = None, vehicles: int = 0, walkers: int = 0
    ) -> None:
        """Start it, on ports of its own, for the `carla` library of this process.

        Args:
            town: to open.
            seed: of the world's random choices.
            log_path: for its output.
            maps: folder of further towns' OpenDRIVE files.
            vehicles, walkers: how many of background traffic.

        Raises:
            UserError: it cannot serve the installed library.
        """
        self._lease = lease_ports()
        self._port = self._lease.number
        command = [sys.executable, "-m", "carla_bridge.server", "--port", str(self._port), "--town", town,
                   "--seed", str(seed), "--vehicles", str(vehicles), "--walkers", str(walkers),
                   "--client-version", embedded_dialect(),
                   *(("--maps", str(maps)) if maps is not None else ())]
        self._process = ManagedProcess("embedded server", command, log_path)

    def wait(self) -> Address:
        """Its address, once it serves.

        Raises:
            UserError: it has no such town, or refuses another argument.
            InfrastructureError: it did not come up.
        """
        process = self._process
        try:
            wait_for_port(self._port, process.alive, START_S)
        except InfrastructureError as error:
            tail = process.log_tail(1)
            if process.returncode == ExitCode.WRONG_USE:
                raise UserError("embedded server", "arguments that it takes", tail) from None
            raise InfrastructureError(f"{error}: {tail}") from None
        return "127.0.0.1", self._port

    def fault(self) -> str:
        """How it ended; empty while it runs."""
        return self._process.fault()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()
        self._lease.close()
