"""The planning prompts, byte for byte, and the one builder that fills them from an observation.

`<image>` marks where an image goes; `chat.py` splits there. The odd grammar is the published one and is what weights
were trained on (paper appendix A.4; the `navsim_upstream` form is the authors' published data sample).
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.frames import flip_y
from wamdiff2_core.types import NavCommand, Observation

IMAGE_PLACEHOLDER = "<image>"

BENCH2DRIVE = (
    "Here is a front-view image from a driving vehicle:\n<image>\n"
    "The navigation information is: Target: [{x1}, {y1}] [{x2}, {y2}]. Command: {command}\n"
    "Current velocity is: {speed}\n"
    "Predict the optimal driving action for the next 3 seconds with 6 new waypoints."
)
NAVSIM_PAPER = (
    "Here is front-view image from a driving vehicle: <image><image><image>\n"
    "The navigation information is: {navigation}.\n"
    "The current position is ({px}, {py}).\n"
    "The current velocity is: ({vx}, {vy}) and the current acceleration is: ({ax}, {ay}).\n"
    "Instruction: Based on the visual motion cues from the image (such as the relative speed of other vehicles and the "
    "changing distance to the intersection) and the provided telemetry, predict the optimal driving action for the "
    "next 4 seconds with 8 new waypoints."
)
NAVSIM_UPSTREAM = (
    "Here is a front-view images from a driving vehicle: <image>\n"
    "The navigation information is: {navigation}\n"
    "The current position is ({px},{py})\n"
    "The current velocity is: ({vx},{vy}) and current accelerate is: ({ax},{ay})\n"
    "Instruction: Based on the visual motion cues from the image (such as the relative speed of other vehicles and the "
    "changing distance to the intersection) and the provided telemetry, predict the optimal driving action for the "
    "next 4 seconds with 8 new waypoints."
)

NAVSIM_WORDS = {
    NavCommand.LEFT: "left",
    NavCommand.CHANGE_LEFT: "left",
    NavCommand.RIGHT: "right",
    NavCommand.CHANGE_RIGHT: "right",
    NavCommand.STRAIGHT: "straight",
    NavCommand.FOLLOW: "straight",
    None: "unknown",
}


def format_number(value: float, decimals: int) -> str:
    """Fixed decimals, without a minus sign on zero."""
    text = f"{value:.{decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def planning_prompt(observation: Observation, task: PlanningTask) -> str:
    """The user message that asks for waypoints.

    Args:
        observation: in base_link, y left; y is flipped here when the task's text has y to the right.
        task: which template, axis and rounding the checkpoint was trained with.
    """

    def text(*values: float) -> list[str]:
        return [format_number(float(v), task.input_decimals) for v in values]

    def oriented(vectors: np.ndarray) -> np.ndarray:
        return flip_y(vectors) if task.y_axis == "right" else vectors

    navigation, ego = observation.navigation, observation.ego
    if task.prompt == "bench2drive":
        x1, y1, x2, y2 = text(*oriented(navigation.targets_m).ravel())
        (speed,) = text(ego.speed_mps)
        return BENCH2DRIVE.format(x1=x1, y1=y1, x2=x2, y2=y2, command=navigation.command.value, speed=speed)
    template = NAVSIM_PAPER if task.prompt == "navsim_paper" else NAVSIM_UPSTREAM
    px, py = text(0.0, 0.0)  # the ego is the origin of its own frame
    vx, vy = text(*oriented(ego.velocity_mps))
    ax, ay = text(*oriented(ego.acceleration_mps2))
    return template.format(
        navigation=NAVSIM_WORDS[navigation.command], px=px, py=py, vx=vx, vy=vy, ax=ax, ay=ay
    )
