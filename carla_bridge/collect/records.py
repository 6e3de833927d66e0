"""From moments to lines of the set: one of planning, some questions, some descriptions to locate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from carla_bridge.collect.perturbation import NOWHERE, beside
from carla_bridge.collect.pilot import Moment
from carla_bridge.collect.questions import LIGHT, MOTOR, QuestionScene, ask
from carla_bridge.collect.sight import Seen, Status
from carla_bridge.collect.situation import extra_of
from carla_bridge.collect.weather import Weather
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.tasks.grounding import (
    Detection,
    Grounding,
    GroundingRequest,
    box_from_pixels,
    format_grounding,
    grounding_prompt,
)
from wamdiff2_core.tasks.planning import format_waypoints, planning_prompt
from wamdiff2_core.types import CameraFrame, Observation

PLANNING, QA, GROUNDING = "samples.jsonl", "qa.jsonl", "grounding.jsonl"
FILES = (PLANNING, QA, GROUNDING)
QA_PROMPT = IMAGE_PLACEHOLDER + "\n{question}"
MOST_BOXES, MOST_DESCRIPTIONS = 4, 2
# How often a description is asked for that the picture holds; and one that it does not.
DESCRIPTIONS: dict[str, float] = {
    "pedestrian": 1.0, "red traffic light": 1.0, "yellow traffic light": 1.0, "green traffic light": 0.8,
    "traffic light": 0.4, "stop sign": 1.0, "traffic cone": 1.0, "warning sign": 1.0, "barrier": 1.0, "bicycle": 1.0,
    "motorcycle": 0.8, "truck": 1.0, "bus": 1.0, "car": 0.4, "vehicle": 0.4,
}  # fmt: skip
ABSENT_RATE = 0.015
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


@dataclass(frozen=True)
class Line:
    """One line of one of the files.

    Attributes:
        file: one of `FILES`.
        id: unique in its file.
        prompt, answer: the conversation.
        extra: further keys.
    """

    file: str
    id: str
    prompt: str
    answer: str
    extra: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """All lines of one picture, the planning line first.

    Attributes:
        id: names the picture.
        jpeg: its file; None without.
        lines: of it.
    """

    id: str
    jpeg: bytes | None
    lines: tuple[Line, ...]


def record_of(record_id: str, moment: Moment, weather: Weather, rng: np.random.Generator) -> Record:
    """The lines of a moment; `rng` draws which questions are asked."""
    waypoints = moment.label
    picture = _NO_PICTURE
    prompt = planning_prompt(
        Observation((CameraFrame(picture, moment.ego.stamp_ns),), moment.ego, moment.navigation), NANO_TASK
    )
    if moment.jpeg is None:
        prompt = prompt.replace(IMAGE_PLACEHOLDER + "\n", "")
    pose, seen = beside(moment.ego.map_from_base, moment.aside), moment.seen
    extra = {
        **moment.extra, "situation": moment.tag, "weather": weather.id,
        "speed_mps": round(moment.ego.speed_mps, 3), "command": moment.navigation.command.name,  # type: ignore[union-attr]
        "targets_m": moment.navigation.targets_m.round(3).tolist(),
        "waypoints_m": (waypoints.xy_m.round(3) + 0.0).tolist(),
        "map_from_base": [round(pose.x_m, 3), round(pose.y_m, 3), round(pose.yaw_rad, 4)],
        "progress_m": round(moment.progress_m, 1), "deviation_m": round(moment.deviation_m, 3),
        **extra_of(moment.situation),
    }
    if moment.aside != NOWHERE:
        extra["camera_aside"] = [round(moment.aside.left_m, 3), round(moment.aside.turned_rad, 4)]
    for key, status in (("objects", Status.SEEN), ("unsure_objects", Status.UNSURE)):
        if found := [_object(item) for item in seen if item.status is status]:
            extra[key] = found
    lines = [Line(PLANNING, record_id, prompt, format_waypoints(waypoints, NANO_TASK), extra)]
    if moment.jpeg is not None:
        brief = {"weather": weather.id, "situation": moment.tag}
        scene = QuestionScene(seen, moment.situation, waypoints, max(0.0, moment.ego.speed_mps), weather)
        for number, question in enumerate(ask(scene, rng)):
            text = QA_PROMPT.format(question=question.text)
            about = {"question": question.kind, **brief}
            lines.append(Line(QA, f"{record_id}-q{number}", text, question.answer, about))
        for number, (description, answer) in enumerate(descriptions(seen, rng)):
            text = grounding_prompt(GroundingRequest(description))
            about = {"description": description, **brief}
            lines.append(Line(GROUNDING, f"{record_id}-g{number}", text, format_grounding(answer), about))
    return Record(record_id, moment.jpeg, tuple(lines))


def descriptions(seen: Sequence[Seen], rng: np.random.Generator) -> list[tuple[str, Grounding]]:
    """Some descriptions with the boxes that match, from left to right; none of which it is unsure what matches."""
    found = []
    for description, rate in DESCRIPTIONS.items():
        chance = rng.random()
        matching = [item for item in seen if matches(item, description)]
        if any(item.status is Status.UNSURE for item in matching):
            continue
        shown = sorted((item for item in matching if item.status is Status.SEEN), key=lambda item: item.rect_px)
        if len(shown) <= MOST_BOXES and chance < (rate if shown else ABSENT_RATE):
            boxes = tuple(Detection(_grid(item), description) for item in shown)
            found.append((description, Grounding(boxes)))
    order = rng.permutation(len(found))[:MOST_DESCRIPTIONS]
    return [found[int(i)] for i in sorted(order)]


def matches(item: Seen, description: str) -> bool:
    """Whether a description is of a thing."""
    label = item.thing.label
    if description == "vehicle":
        return label in MOTOR
    if description.endswith(" " + LIGHT):
        return label == LIGHT and item.thing.state == description.split()[0]
    return label == description


def name_of(item: Seen) -> str:
    """The most precise description of a thing."""
    return f"{item.thing.state} {LIGHT}" if item.thing.label == LIGHT else item.thing.label


def _grid(item: Seen) -> tuple[int, int, int, int]:
    return box_from_pixels(*item.rect_px, NANO_CAMERA.width_px, NANO_CAMERA.height_px)


def _object(item: Seen) -> dict[str, Any]:
    return {"label": name_of(item), "bbox_2d": list(_grid(item)), "distance_m": round(item.distance_m, 1)}
