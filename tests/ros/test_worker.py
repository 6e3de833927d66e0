"""The inference thread: one item at a time, nothing queued, no failure lost."""

from __future__ import annotations

import threading

from wamdiff2_ros.worker import Worker


def build(**callables):
    results, failures = [], []
    worker = Worker(
        prepare=callables.get("prepare", lambda: None),
        work=callables.get("work", lambda item: item),
        deliver=callables.get("deliver", results.append),
        fail=callables.get("fail", failures.append),
    )
    worker.start()
    return worker, results, failures


def test_busy_worker_refuses_and_keeps_nothing():
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    results = []

    def work(item):
        begun.set()
        go.wait(5)
        return item

    def deliver(item):
        results.append(item)
        done.set()

    worker, _, _ = build(work=work, deliver=deliver)
    assert worker.offer(1)
    assert begun.wait(5)
    assert not worker.offer(2)
    go.set()
    assert done.wait(5)
    assert worker.stop(5)
    assert results == [1]


def test_item_offered_from_deliver_is_always_accepted():
    accepted, done = [], threading.Event()

    def deliver(item):
        if item == 200:
            done.set()
        else:
            accepted.append(worker.offer(item + 1))

    worker, _, _ = build(deliver=deliver)
    assert worker.offer(0)
    assert done.wait(10)
    assert all(accepted)
    assert worker.stop(5)


def test_item_that_comes_during_prepare_waits_for_it():
    order, go, done = [], threading.Event(), threading.Event()

    def prepare():
        go.wait(5)
        order.append("prepare")

    worker, _, _ = build(prepare=prepare, work=order.append, deliver=lambda _: done.set())
    assert worker.offer("item")
    go.set()
    assert done.wait(5)
    assert order == ["prepare", "item"]
    assert worker.stop(5)


def test_what_a_callable_raises_reaches_fail_and_ends_the_thread():
    for where in ("prepare", "work", "deliver"):
        failed = threading.Event()
        failures = []

        def raises(*_):
            raise RuntimeError("broken")

        def fail(error, failures=failures, failed=failed):
            failures.append(str(error))
            failed.set()

        worker, _, _ = build(**{where: raises}, fail=fail)
        worker.offer("item")
        assert failed.wait(5), where
        assert failures == ["broken"]
        assert worker.stop(5)
        assert not worker.offer("another")


def test_stop_says_when_the_item_in_hand_does_not_end():
    begun, go = threading.Event(), threading.Event()
    worker, _, _ = build(work=lambda _: (begun.set(), go.wait(5)))
    worker.offer("slow")
    assert begun.wait(5)
    assert not worker.stop(0.05)
    go.set()
    assert worker.stop(5)
