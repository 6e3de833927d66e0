"""The way into a Ray cluster, within a known time."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading

import ray

from carla_bridge.client.server_process import parse_address
from carla_bridge.ports import wait_for_port
from wamdiff2_core.errors import InfrastructureError
from wamdiff2_core.processes import child_environment

OPEN_S, ANSWER_S = 5.0, 40.0  # until the head's port is open, and until what listens there has answered as Ray


def check_reachable(address: str) -> None:
    """Raise an error where no cluster answers, or this machine is none of its nodes.

    Ray itself waits minutes for a head that is not there, and Ctrl-C with it; so another process tries first.
    """
    host, port = parse_address(address, "--cluster")
    try:
        wait_for_port(port, lambda: True, OPEN_S, host)
    except InfrastructureError as error:
        raise InfrastructureError(
            f"no Ray cluster at {address}: {error}; start its head with ray start --head --port {port}"
        ) from None
    code = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); ray.shutdown()"
    try:
        done = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, timeout=ANSWER_S,
                              check=False, stdin=subprocess.DEVNULL, env=child_environment())
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"what listens at {address} has not answered as a Ray cluster in {ANSWER_S:g} s; the "
                                  "address is that of its head, and this machine must be one of its nodes") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InfrastructureError(f"cannot join the Ray cluster at {address}: {said}")


def connect(address: str) -> None:
    """Make this process one of the cluster's; SIGTERM means what it meant before."""
    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    if main_thread:  # Ray has put its own, which ends the process at once
        signal.signal(signal.SIGTERM, handler)
