"""When a plan acts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.drive.latency import LatencyMode, PlanSchedule
from wamdiff2_core.errors import UserError

TICK_NS = 50_000_000


@dataclass(frozen=True)
class Note:
    stamp_ns: int


@pytest.mark.parametrize(("text", "kind", "ms"), [("lockstep", "lockstep", 0), ("measured", "measured", 0),
                                                  ("250", "fixed", 250), ("0", "fixed", 0), ("12.5ms", "fixed", 12.5)])
def test_mode_is_read_from_its_text(text, kind, ms):
    assert LatencyMode.parse(text) == LatencyMode(kind, ms)


@pytest.mark.parametrize("text", ["", "fast", "-1", "20000", "nan", "inf"])
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match="latency"):
        LatencyMode.parse(text)


@given(st.integers(0, 10**10))
def test_delay_is_the_measured_one_only_in_measured_mode(measured_ns):
    assert LatencyMode("lockstep").delay_ns(measured_ns) == 0
    assert LatencyMode("measured").delay_ns(measured_ns) == measured_ns
    assert LatencyMode("fixed", 150.0).delay_ns(measured_ns) == 150_000_000


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3 * 10**9)), min_size=1, max_size=12))
def test_plan_never_acts_before_its_delay_and_acts_on_the_first_tick_after_it(steps):
    """Against a brute-force reading: of all plans whose time has come, the one with the newest stamp acts."""
    schedule: PlanSchedule[Note] = PlanSchedule()
    offers, stamp = [], 0
    for gap_ticks, delay_ns in steps:
        offers.append((stamp, stamp + delay_ns))
        stamp += gap_ticks * TICK_NS
    for tick in range(0, stamp + 4 * 10**9, TICK_NS):
        for stamp_ns, acts_ns in offers:
            if stamp_ns == tick:
                schedule.offer(Note(stamp_ns), acts_ns)
        due = [stamp_ns for stamp_ns, acts_ns in offers if stamp_ns <= tick and acts_ns <= tick]
        active = schedule.in_force(tick)
        assert (active.stamp_ns if active else None) == (max(due) if due else None)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_planner_is_busy_until_its_plan_acts(stamp_ns, delay_ns):
    schedule: PlanSchedule[Note] = PlanSchedule()
    schedule.occupy(stamp_ns + delay_ns)
    assert schedule.busy(stamp_ns + delay_ns - 1)
    assert not schedule.busy(stamp_ns + delay_ns)


def test_cleared_schedule_drops_waiting_plans_too():
    schedule: PlanSchedule[Note] = PlanSchedule()
    schedule.offer(Note(0), 0)
    schedule.offer(Note(1), 100)
    assert schedule.in_force(50) == Note(0)
    schedule.clear()
    assert schedule.in_force(200) is None
