"""Waits for a server end with it, and otherwise last as long as they were told."""

from __future__ import annotations

import math
import queue
import threading
import time

import pytest

from carla_bridge.client.server_watch import SLICE_S, Watchdog, next_item
from wamdiff2_core.errors import InfrastructureError, UserError


class Server:
    """Found dead after so many looks that found it alive."""

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def fault(self) -> str:
        self.looks -= 1
        return "" if self.looks >= 0 else "server was ended by SIGKILL"


@pytest.fixture
def hang():
    """A call that comes back when the test is over."""
    over = threading.Event()
    yield lambda: over.wait(30.0)
    over.set()


def test_a_call_ends_with_the_server_and_names_its_end(hang):
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"^server was ended by SIGKILL$"):
        Watchdog(Server(3).fault).call(hang, "tick", 20.0)
    assert time.monotonic() - began < 3 * SLICE_S + 1.0


def test_a_call_to_a_server_that_lives_gets_its_whole_time(hang):
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"tick did not come back within 0\.7 s"):
        Watchdog(Server(math.inf).fault).call(hang, "tick", 0.7)
    assert 0.7 <= time.monotonic() - began < 1.7


def test_a_call_may_take_longer_than_a_slice():
    def slow():
        time.sleep(2.5 * SLICE_S)
        return 7

    assert Watchdog().call(slow, "tick", 20.0) == 7


@pytest.mark.parametrize(("raised", "expected", "words"), [
    (RuntimeError("time-out of 20 s"), InfrastructureError, "tick failed: time-out of 20 s"),
    (UserError("town", "one of ours", "Mars"), UserError, "got Mars"),
    (TypeError("a defect"), TypeError, "a defect"),
])
def test_only_the_librarys_own_errors_become_infrastructure_errors(raised, expected, words):
    def fail():
        raise raised

    with pytest.raises(expected, match=words):
        Watchdog().call(fail, "tick")


def test_an_error_of_the_library_after_the_server_has_ended_names_the_end():
    def fail():
        raise RuntimeError("connection reset")

    with pytest.raises(InfrastructureError, match=r"^server was ended by SIGKILL$"):
        Watchdog(Server(1).fault).call(fail, "tick")


def test_a_watchdog_is_idle_once_the_call_that_was_given_up_is_back():
    back = threading.Event()
    watchdog = Watchdog()
    with pytest.raises(InfrastructureError):
        watchdog.call(lambda: back.wait(30.0), "tick", 0.1)
    assert not watchdog.idle(0.1)
    back.set()
    assert watchdog.idle(5.0)
    assert watchdog.call(lambda: 3, "tick") == 3


def test_nothing_is_asked_of_a_server_that_has_ended():
    asked: list[int] = []
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        Watchdog(Server(0).fault).call(lambda: asked.append(1), "tick")
    assert asked == []


def test_what_a_sensor_has_sent_is_taken_even_from_a_server_that_has_ended():
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    items.put(5)
    dead = Server(0)
    assert next_item(items, 20.0, dead.fault) == 5
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        next_item(items, 20.0, dead.fault)


def test_a_silent_sensor_of_a_living_server_is_waited_for_to_the_end():
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        next_item(queue.SimpleQueue(), 0.5, Server(math.inf).fault)
    assert time.monotonic() - began >= 0.5
