r"""The planning prompts against a second typing of their published text, byte for byte.

`\n` below is written as a line break of its own, so that a slip in one form does not repeat in the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.prompts import format_number, planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation

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
    ],
)
def test_navsim_knows_three_directions(command, word):
    task = PlanningTask(prompt="navsim_upstream", waypoints=8, y_axis="left")
    assert f"The navigation information is: {word}\n" in planning_prompt(observation(command), task)


def test_input_decimals_are_the_tasks_own():
    text = planning_prompt(observation(), PlanningTask(decimals=2, input_decimals=1))
    assert "Target: [10.0, -1.2] [20.0, 3.5]" in text
    assert "Current velocity is: 4.7\n" in text


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_numbers_round_to_their_decimals_and_zero_has_no_sign(value, decimals):
    text = format_number(value, decimals)
    assert abs(float(text) - value) <= 0.5 * 10**-decimals + 1e-9
    assert len(text.partition(".")[2]) == decimals
    assert not (float(text) == 0 and text.startswith("-"))
