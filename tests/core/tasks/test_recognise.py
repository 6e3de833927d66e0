"""A question is recognised by its end, whatever it asks."""

from __future__ import annotations

import pytest

from wamdiff2_core.tasks.recognise import MOST_WAYPOINTS, asked_task, asked_waypoints


@pytest.mark.parametrize(
    ("digits", "count"), [("6", 6), ("0006", 6), ("0", 0), ("9" * 9, 10**9 - 1), ("9" * 5000, MOST_WAYPOINTS)]
)
def test_waypoints_of_any_count_are_asked_for(digits: str, count: int) -> None:
    question = f"Predict the action with {digits} new waypoints."
    assert asked_waypoints(question) == count
    assert asked_task(question) == "planning"
