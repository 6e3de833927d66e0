"""Every task by name: what it builds fits the chat form, and what it writes it can read."""

from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.config import TASK_NAMES, GroundingTask, PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.drivebench import DriveBenchAnswer, DriveBenchRequest
from wamdiff2_core.tasks.grounding import Detection, Grounding, GroundingRequest
from wamdiff2_core.tasks.lingoqa import LingoQaRequest
from wamdiff2_core.tasks.registry import find_task
from wamdiff2_core.tasks.text import TextAnswer
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Observation, Waypoints

GENERALIST = ServingRecord(planning=PlanningTask(decimals=1), tasks=TASK_NAMES, grounding=GroundingTask("straight"))
OBSERVATION = Observation(
    (CameraFrame(np.zeros((2, 4, 3), np.uint8), 0),), EgoState(), Navigation([[10.0, 0.0], [20.0, 0.0]])
)
CASES = {
    "planning": (OBSERVATION, 1, Waypoints(np.arange(12.0).reshape(6, 2), 0.5)),
    "lingoqa": (LingoQaRequest("Why?"), 5, TextAnswer("The light is red.")),
    "drivebench": (DriveBenchRequest("Why?"), 6, DriveBenchAnswer("B", "B")),
    "grounding": (GroundingRequest("car"), 1, Grounding((Detection((1, 2, 3, 4), "car"),))),
}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_task_asks_with_its_images_and_reads_what_it_writes(name):
    request, images, result = CASES[name]
    task = find_task(name, GENERALIST)
    assert task.name == name
    assert isinstance(request, task.request_type)
    assert isinstance(result, task.result_type)
    assert task.prompt(request).count(IMAGE_PLACEHOLDER) == images
    again = task.parse(task.format(result))
    if name == "planning":
        np.testing.assert_array_equal(again.xy_m, result.xy_m)
    else:
        assert again == result


def test_the_form_of_a_task_is_the_records():
    assert '"car"' in find_task("grounding", GENERALIST).prompt(GroundingRequest("car"))
    assert "‘‘car’’" in find_task("grounding").prompt(GroundingRequest("car"))  # noqa: RUF001 - the published marks
    assert find_task("planning", GENERALIST).format(CASES["planning"][2]).startswith("0.0,-1.0,2.0,")


def test_what_a_checkpoint_was_not_trained_on_is_refused():
    planner = ServingRecord(planning=PlanningTask())
    for name in ("lingoqa", "drivebench", "grounding"):
        with pytest.raises(UserError, match=r"task: expected one of planning \(trained\)"):
            find_task(name, planner)
    with pytest.raises(UserError, match="whose record has a planning task"):
        find_task("planning")
    with pytest.raises(UserError, match="did you mean 'lingoqa'"):
        find_task("lingqa")
