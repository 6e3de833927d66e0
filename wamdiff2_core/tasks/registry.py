"""All tasks by name: what a checkpoint is asked, and how its answers are read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from wamdiff2_core.config import TASK_NAMES, GroundingTask, TaskName
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.drivebench import (
    DriveBenchAnswer,
    DriveBenchRequest,
    drivebench_prompt,
    format_drivebench,
    parse_drivebench,
)
from wamdiff2_core.tasks.grounding import (
    Grounding,
    GroundingRequest,
    format_grounding,
    grounding_prompt,
    parse_grounding,
)
from wamdiff2_core.tasks.lingoqa import LingoQaRequest, lingoqa_prompt
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints, planning_prompt
from wamdiff2_core.tasks.text import TextAnswer, format_text, parse_text
from wamdiff2_core.types import Observation, Waypoints


@dataclass(frozen=True)
class Task:
    """One task, in the form a checkpoint was trained on.

    Attributes:
        name: of the task.
        request_type, result_type: what `prompt` takes, and what `parse` gives.
        prompt: request -> user text, with one `<image>` mark for each image; refuses with `UserError`.
        parse: answer text -> result; refuses with `AnswerError`.
        format: result -> answer text, for data sets; `parse` of it gives the result back, up to rounding.
    """

    name: TaskName
    request_type: type
    result_type: type
    prompt: Callable[[Any], str]
    parse: Callable[[str], Any]
    format: Callable[[Any], str]


def find_task(name: str, record: ServingRecord | None = None) -> Task:
    """A task by name, in the form of a checkpoint's record.

    Args:
        name: one of `config.TASK_NAMES`.
        record: gives the forms of planning and grounding; None is a checkpoint without one.

    Raises:
        UserError: no such task, the record names others, or planning without a record that gives its form.
    """
    if name not in TASK_NAMES:
        raise unknown_name("task", name, TASK_NAMES)
    if record is not None:
        record.check_task(name)
    if name == "lingoqa":
        return Task("lingoqa", LingoQaRequest, TextAnswer, lingoqa_prompt, parse_text, format_text)
    if name == "drivebench":
        return Task(
            "drivebench", DriveBenchRequest, DriveBenchAnswer, drivebench_prompt, parse_drivebench, format_drivebench
        )
    if name == "grounding":
        form = (record.grounding if record is not None else None) or GroundingTask()
        prompt = partial(grounding_prompt, task=form)
        return Task("grounding", GroundingRequest, Grounding, prompt, parse_grounding, format_grounding)
    planning = record.planning if record is not None else None
    if planning is None:
        raise UserError("task", "a checkpoint whose record has a planning task", "planning",
                        "prompt, rounding and axes are not guessed: write the record beside the weights")
    return Task(
        "planning", Observation, Waypoints, partial(planning_prompt, task=planning),
        partial(parse_waypoints, task=planning), partial(format_waypoints, task=planning),
    )
