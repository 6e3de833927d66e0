"""How a node of ours ends: SIGINT and SIGTERM are a good end, whatever rclpy was doing when they came."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

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


def end_process(code: int) -> NoReturn:
    """End the process of a node that has closed all it had, with everything written that it has printed.

    The destructors of libraries are left out: threads of Fast DDS and PyTorch may outlive what they use by a moment
    (eProsima/Fast-DDS#1906, #3561), and a crash there would tell the launcher that a node failed which ended well.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
