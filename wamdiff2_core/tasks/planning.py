"""Planning: observation -> one of the published prompts, waypoints <-> the answer text "x1,y1,x2,y2,...".

`<image>` marks where an image goes; `chat.py` splits there. The odd grammar is the published one and is what weights
were trained on (paper appendix A.4; the `navsim_upstream` form is the authors' published data sample). The text has the
axis convention of its data set (`PlanningTask.y_axis`); `Observation` and `Waypoints` are always y left.
"""

from __future__ import annotations

import math
import re

import numpy as np

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import flip_y
from wamdiff2_core.tasks.text import AnswerError, format_number
from wamdiff2_core.types import NavCommand, Observation, Waypoints

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

TEMPLATES = {"bench2drive": BENCH2DRIVE, "navsim_paper": NAVSIM_PAPER, "navsim_upstream": NAVSIM_UPSTREAM}

NAVSIM_WORDS = {
    NavCommand.LEFT: "left",
    NavCommand.CHANGE_LEFT: "left",
    NavCommand.RIGHT: "right",
    NavCommand.CHANGE_RIGHT: "right",
    NavCommand.STRAIGHT: "straight",
    NavCommand.FOLLOW: "straight",
    None: "unknown",
}
_NUMBER = re.compile(r"-?[0-9]{1,6}(\.[0-9]{1,6})?")  # bounded, so that no answer overflows a float


def planning_prompt(observation: Observation, task: PlanningTask) -> str:
    """The user message that asks for waypoints.

    Args:
        observation: in base_link, y left; y is flipped here when the task's text has y to the right.
        task: which template, axis and rounding the checkpoint was trained with.

    Raises:
        UserError: the command is not known, and the template has no word for that.
    """

    def text(*values: float) -> list[str]:
        return [format_number(float(v), task.input_decimals) for v in values]

    def oriented(vectors: np.ndarray) -> np.ndarray:
        return flip_y(vectors) if task.y_axis == "right" else vectors

    navigation, ego = observation.navigation, observation.ego
    if task.prompt == "bench2drive":
        if navigation.command is None:
            raise UserError("navigation.command", "a command", "none", "this prompt has no word for an unknown one")
        x1, y1, x2, y2 = text(*oriented(navigation.targets_m).ravel())
        (speed,) = text(ego.speed_mps)
        return TEMPLATES[task.prompt].format(x1=x1, y1=y1, x2=x2, y2=y2, command=navigation.command.value, speed=speed)
    px, py = text(0.0, 0.0)  # the ego is the origin of its own frame
    vx, vy = text(*oriented(ego.velocity_mps))
    ax, ay = text(*oriented(ego.acceleration_mps2))
    return TEMPLATES[task.prompt].format(
        navigation=NAVSIM_WORDS[navigation.command], px=px, py=py, vx=vx, vy=vy, ax=ax, ay=ay
    )


def check_template(task: PlanningTask, cameras: int) -> None:
    """Raise `UserError` when a task or a rig is not what the task's own prompt says.

    Args:
        task: its waypoints must be as many, over as many seconds, as the prompt asks for.
        cameras: of the rig, one for each image of the prompt; 0 for any.
    """
    template = TEMPLATES[task.prompt]
    horizon = re.search(r"next ([0-9]+) seconds with ([0-9]+) new waypoints", template)
    assert horizon is not None
    seconds, waypoints = map(int, horizon.groups())
    if task.waypoints != waypoints:
        raise UserError("planning.waypoints", f"{waypoints}, as the prompt {task.prompt} asks", task.waypoints)
    if not math.isclose(task.waypoints * task.dt_s, seconds):
        raise UserError("planning.dt_s", f"{seconds / waypoints:g} s, as the prompt {task.prompt} asks", task.dt_s)
    images = template.count("<image>")
    if cameras and cameras != images:
        raise UserError("rig", f"{images}, one camera for each image of the prompt {task.prompt}", cameras)


def check_drivable(task: PlanningTask, field: str) -> None:
    """Raise `UserError` naming `field` for a task whose answers are not to be driven as they are.

    That is one of NAVSIM: its prompts tell an acceleration, which is not measured in a drive, and its waypoints are of
    the rear axle, not of the vehicle's centre.
    """
    if task.prompt != "bench2drive":
        raise UserError(field, "a checkpoint with the bench2drive prompt", f"one with {task.prompt}",
                        "NAVSIM prompts tell an acceleration, and their waypoints are of the rear axle")


def format_waypoints(waypoints: Waypoints, task: PlanningTask) -> str:
    """Answer text for waypoints in base_link, y left.

    Raises:
        ValueError: they are not as many, or not as far apart in time, as the task has them.
    """
    count = len(waypoints.xy_m)
    if count != task.waypoints or not math.isclose(waypoints.dt_s, task.dt_s):
        wanted = f"{task.waypoints} every {task.dt_s} s"
        raise ValueError(f"waypoints: expected {wanted}, got {count} every {waypoints.dt_s} s")
    points = flip_y(waypoints.xy_m) if task.y_axis == "right" else waypoints.xy_m
    return ",".join(format_number(value, task.decimals) for value in points.ravel())


def parse_waypoints(text: str, task: PlanningTask) -> Waypoints:
    """Read an answer, strictly: exactly `task.waypoints` pairs of plain decimal numbers, separated by single commas.

    Raises:
        AnswerError: anything else, named with its position.
    """
    values: list[float] = []
    position = 0
    for index in range(2 * task.waypoints):
        if index:
            if not text.startswith(",", position):
                raise AnswerError(text, position, f"expected ',' after number {index} of {2 * task.waypoints}")
            position += 1
        match = _NUMBER.match(text, position)
        if match is None:
            raise AnswerError(text, position, f"expected number {index + 1} of {2 * task.waypoints}")
        values.append(float(match.group()))
        position = match.end()
    if position != len(text):
        raise AnswerError(text, position, f"expected the end after {2 * task.waypoints} numbers")
    points = np.array(values).reshape(-1, 2)
    return Waypoints(flip_y(points) if task.y_axis == "right" else points, task.dt_s)
