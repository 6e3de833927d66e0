"""How a node of ours ends: SIGINT and SIGTERM are a good end, whatever rclpy was doing when they came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import rclpy
from rclpy.exceptions import ROSInterruptException
from rclpy.executors import ExternalShutdownException
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy


@contextmanager
def signals_end_well() -> Iterator[None]:
    """Leave the block quietly on a signal; a real failure of rclpy still raises."""
    try:
        yield
    except (KeyboardInterrupt, ExternalShutdownException, ROSInterruptException):
        pass
    except _rclpy.RCLError:
        if rclpy.ok():  # otherwise a signal closed the context under a wait or a publication in hand
            raise
