from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.types import Waypoints
from wamdiff2_core.waypoint_text import WaypointTextError, format_waypoints, parse_waypoints

THREE = PlanningTask(waypoints=3, dt_s=0.5, decimals=1, y_axis="right")


@st.composite
def tasks_and_points(draw):
    task = PlanningTask(
        waypoints=draw(st.integers(1, 8)),
        dt_s=draw(st.sampled_from([0.25, 0.5, 1.0])),
        decimals=draw(st.integers(0, 3)),
        y_axis=draw(st.sampled_from(["left", "right"])),
    )
    numbers = st.floats(-200, 200)
    rows = st.lists(st.tuples(numbers, numbers), min_size=task.waypoints, max_size=task.waypoints)
    return task, np.array(draw(rows))


@given(tasks_and_points())
def test_waypoints_survive_their_text_up_to_rounding(case):
    task, xy_m = case
    back = parse_waypoints(format_waypoints(Waypoints(xy_m, task.dt_s), task), task)
    np.testing.assert_allclose(back.xy_m, xy_m, atol=0.5 * 10.0**-task.decimals + 1e-9)
    assert back.dt_s == task.dt_s


@given(tasks_and_points())
def test_text_written_twice_is_the_same_text(case):
    task, xy_m = case
    text = format_waypoints(Waypoints(xy_m, task.dt_s), task)
    assert format_waypoints(parse_waypoints(text, task), task) == text


def test_left_is_positive_y_in_core_and_negative_in_a_text_with_y_to_the_right():
    left_turn = Waypoints(np.array([[4.0, 0.0], [7.9, 0.6], [11.2, 2.4]]), 0.5)
    assert format_waypoints(left_turn, THREE) == "4.0,0.0,7.9,-0.6,11.2,-2.4"
    assert parse_waypoints("4.0,0.0,7.9,-0.6,11.2,-2.4", THREE).xy_m[2, 1] == 2.4
    left_axis = PlanningTask(waypoints=3, decimals=1, y_axis="left")
    assert format_waypoints(left_turn, left_axis) == "4.0,0.0,7.9,0.6,11.2,2.4"


def test_x_comes_first_and_rows_stay_in_time_order():
    np.testing.assert_array_equal(parse_waypoints("1,2,3,4,5,6", THREE).xy_m, [[1, -2], [3, -4], [5, -6]])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        (" 1,2,3,4,5,6", 0),
        ("1,2,3,4,5", 9),
        ("1,2,3,4,5,", 10),
        ("1,2,3,4,5,6,7", 11),
        ("1,2,3,4,5,6,", 11),
        ("1,2,3,4,5,6 ", 11),
        ("1, 2,3,4,5,6", 2),
        ("1;2,3,4,5,6", 1),
        ("1,,2,3,4,5,6", 2),
        ("1,2,x,4,5,6", 4),
        ("1,2,.5,4,5,6", 4),
        ("1,2,5.,4,5,6", 5),
        ("1,2,+5,4,5,6", 4),
        ("1,2,--5,4,5,6", 4),
        ("1,2,1e3,4,5,6", 5),
        ("1,2,nan,4,5,6", 4),
        ("1,2,inf,4,5,6", 4),
        ("(1,2,3,4,5,6)", 0),
        ("1,2,3,4,5,6\n", 11),
        ("\u0661,2,3,4,5,6", 0),
        ("1,2," + "9" * 400 + ",4,5,6", 10),
    ],
)
def test_anything_but_the_plain_list_is_refused_at_the_first_odd_character(text, position):
    with pytest.raises(WaypointTextError) as caught:
        parse_waypoints(text, THREE)
    assert caught.value.position == position
    assert caught.value.text == text
    assert f"character {position}" in str(caught.value)


@given(st.text(alphabet="0123456789.,-e ", max_size=40))
def test_parsing_never_fails_in_another_way(text):
    try:
        parsed = parse_waypoints(text, THREE)
    except WaypointTextError:
        return
    assert parsed.xy_m.shape == (3, 2)
    assert text.count(",") == 5
