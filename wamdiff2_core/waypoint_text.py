"""Waypoints <-> the answer text "x1,y1,x2,y2,...".

The text has the axis convention of its data set (`PlanningTask.y_axis`); `Waypoints` is always y left.
"""

from __future__ import annotations

import re

import numpy as np

from wamdiff2_core.config import PlanningTask
from wamdiff2_core.frames import flip_y
from wamdiff2_core.prompts import format_number
from wamdiff2_core.types import Waypoints

_NUMBER = re.compile(r"-?[0-9]{1,6}(\.[0-9]{1,6})?")  # bounded, so that no answer overflows a float


class WaypointTextError(ValueError):
    """The text is not the expected list of waypoints.

    Attributes:
        text: the whole answer.
        position: index of the first character that does not fit.
    """

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text, self.position = text, position
        super().__init__(f"waypoint text: {problem} at character {position} of {text!r}")


def format_waypoints(waypoints: Waypoints, task: PlanningTask) -> str:
    """Answer text for waypoints in base_link, y left."""
    points = flip_y(waypoints.xy_m) if task.y_axis == "right" else waypoints.xy_m
    return ",".join(format_number(value, task.decimals) for value in points.ravel())


def parse_waypoints(text: str, task: PlanningTask) -> Waypoints:
    """Read an answer, strictly: exactly `task.waypoints` pairs of plain decimal numbers, separated by single commas.

    Raises:
        WaypointTextError: anything else, named with its position.
    """
    values: list[float] = []
    position = 0
    for index in range(2 * task.waypoints):
        if index:
            if not text.startswith(",", position):
                raise WaypointTextError(text, position, f"expected ',' after number {index} of {2 * task.waypoints}")
            position += 1
        match = _NUMBER.match(text, position)
        if match is None:
            raise WaypointTextError(text, position, f"expected number {index + 1} of {2 * task.waypoints}")
        values.append(float(match.group()))
        position = match.end()
    if position != len(text):
        raise WaypointTextError(text, position, f"expected the end after {2 * task.waypoints} numbers")
    points = np.array(values).reshape(-1, 2)
    return Waypoints(flip_y(points) if task.y_axis == "right" else points, task.dt_s)
