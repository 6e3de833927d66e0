r"""Planning: the prompts against a second typing of their published text, byte for byte, and the waypoints' text.

`\n` below is written as a line break of its own, so that a slip in one form does not repeat in the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints, planning_prompt
from wamdiff2_core.tasks.text import AnswerError
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Waypoints

THREE = PlanningTask(waypoints=3, dt_s=0.5, decimals=1, y_axis="right")
NAVSIM_INSTRUCTION = " ".join(
    [
        "Based on the visual motion cues from the image (such as the relative speed of other vehicles and the changing",
        "distance to the intersection) and the provided telemetry,",
        "predict the optimal driving action for the next 4 seconds with 8 new waypoints.",
    ]
)


def observation(
    command: NavCommand = NavCommand.LEFT,
    targets=((10.0, 1.25), (19.996, -3.5)),
    velocity=(4.66, -0.09),
    accel=(0.5, 1.0),
) -> Observation:
    return Observation(
        frames=(CameraFrame(np.zeros((2, 4, 3), np.uint8), 0),),
        ego=EgoState(velocity_mps=np.array(velocity), acceleration_mps2=np.array(accel)),
        navigation=Navigation(np.array(targets), command),
    )


def test_bench2drive_prompt_is_the_published_text():
    expected = """Here is a front-view image from a driving vehicle:
<image>
The navigation information is: Target: [10.00, -1.25] [20.00, 3.50]. Command: go left at the next intersection
Current velocity is: 4.66
Predict the optimal driving action for the next 3 seconds with 6 new waypoints."""
    assert planning_prompt(observation(), PlanningTask()).encode() == expected.encode()


def test_navsim_prompt_of_the_paper_is_the_published_text():
    expected = (
        """Here is front-view image from a driving vehicle: <image><image><image>
The navigation information is: left.
The current position is (0.00, 0.00).
The current velocity is: (4.66, -0.09) and the current acceleration is: (0.50, 1.00).
Instruction: """
        + NAVSIM_INSTRUCTION
    )
    task = PlanningTask(prompt="navsim_paper", waypoints=8, y_axis="left")
    assert planning_prompt(observation(), task).encode() == expected.encode()


def test_navsim_prompt_of_the_released_data_is_the_published_text():
    expected = (
        """Here is a front-view images from a driving vehicle: <image>
The navigation information is: left
The current position is (0.00,0.00)
The current velocity is: (4.66,-0.09) and current accelerate is: (0.50,1.00)
Instruction: """
        + NAVSIM_INSTRUCTION
    )
    task = PlanningTask(prompt="navsim_upstream", waypoints=8, y_axis="left")
    assert planning_prompt(observation(), task).encode() == expected.encode()


def test_the_text_of_a_task_with_y_to_the_right_mirrors_all_vectors():
    task = PlanningTask(prompt="navsim_upstream", waypoints=8, y_axis="right")
    text = planning_prompt(observation(), task)
    assert "velocity is: (4.66,0.09) and current accelerate is: (0.50,-1.00)" in text


@pytest.mark.parametrize("command", list(NavCommand))
def test_every_command_stands_word_for_word_in_the_bench2drive_prompt(command):
    assert f"Command: {command.value}\n" in planning_prompt(observation(command), PlanningTask())


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (NavCommand.LEFT, "left"),
        (NavCommand.CHANGE_LEFT, "left"),
        (NavCommand.RIGHT, "right"),
        (NavCommand.CHANGE_RIGHT, "right"),
        (NavCommand.STRAIGHT, "straight"),
        (NavCommand.FOLLOW, "straight"),
        (None, "unknown"),
    ],
)
def test_navsim_knows_three_directions_and_the_unknown(command, word):
    task = PlanningTask(prompt="navsim_upstream", waypoints=8, y_axis="left")
    assert f"The navigation information is: {word}\n" in planning_prompt(observation(command), task)


def test_input_decimals_are_the_tasks_own():
    text = planning_prompt(observation(), PlanningTask(decimals=2, input_decimals=1))
    assert "Target: [10.0, -1.2] [20.0, 3.5]" in text
    assert "Current velocity is: 4.7\n" in text


def test_an_unknown_command_has_no_words_in_the_bench2drive_prompt():
    with pytest.raises(UserError, match=r"navigation\.command"):
        planning_prompt(observation(None), PlanningTask())


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
    with pytest.raises(AnswerError) as caught:
        parse_waypoints(text, THREE)
    assert caught.value.position == position
    assert caught.value.text == text
    assert f"character {position}" in str(caught.value)


@given(st.text(alphabet="0123456789.,-e ", max_size=40))
def test_parsing_never_fails_in_another_way(text):
    try:
        parsed = parse_waypoints(text, THREE)
    except AnswerError:
        return
    assert parsed.xy_m.shape == (3, 2)
    assert text.count(",") == 5


@pytest.mark.parametrize(("count", "dt_s"), [(2, 0.5), (4, 0.5), (3, 0.25)])
def test_waypoints_that_are_not_the_tasks_are_not_written(count, dt_s):
    with pytest.raises(ValueError, match=f"expected 3 every 0.5 s, got {count} every {dt_s} s"):
        format_waypoints(Waypoints(np.zeros((count, 2)), dt_s), THREE)
