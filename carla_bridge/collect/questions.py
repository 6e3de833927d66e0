"""Questions about one picture, with answers from a small closed grammar.

A question is asked only where the picture holds its answer: what is asked about is `seen`, and nothing of its kind is
`unsure`. Distances are in steps of 2 m, of 5 m from 30 m on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from carla_bridge.collect.sight import Seen, Status
from carla_bridge.collect.situation import LEAD_LOOK_M, STANDING_MPS, STANDING_WAY_M, Beside, Situation, way_m
from carla_bridge.collect.weather import Weather
from carla_bridge.nano import NANO_CAMERA
from wamdiff2_core.types import Waypoints

MOTOR = ("car", "truck", "bus", "motorcycle")
VEHICLES = (*MOTOR, "bicycle")
LIGHT = "traffic light"
MOST_QUESTIONS = 4
MOST_COUNTED = 6
DRIVES_MPS = 1.5
LEAD_BAND = (0.375, 0.625)  # of the picture's width, from the left: where the own lane is
FREE_M = 20.0  # with somebody nearer than this ahead, the way is not called free
WORDS: dict[str, tuple[str, ...]] = {
    "light": (
        "Is there a traffic light ahead, and what colour is it?", "What does the traffic light ahead show?",
        "Do you see a traffic light for your lane? Which colour?",
    ),
    "lead": (
        "Is a vehicle ahead in your lane?", "Is there a vehicle in front of you?",
        "Does anybody drive or stand in front of you?",
    ),
    "pedestrian": ("Is a pedestrian near your path?", "Is anybody on foot close to your way?"),
    "blocked": ("Is your lane blocked?", "Does anything stand in your lane?"),
    "stop": ("Is there a stop sign ahead?", "Do you see a stop sign?"),
    "decision": ("What should you do now, and why?", "What is the right action now, and why?"),
    "weather": ("What is the weather, and what time of day is it?", "Describe weather and time of day."),
    "wet": ("Is the road wet?",),
    "count": ("How many vehicles do you see?",),
    "nearest": ("How far is the nearest vehicle in the picture?",),
}
# How often a question is asked that could be: (answers with something in them, answers of the usual nothing).
RATES: dict[str, tuple[float, float]] = {
    "light": (1.0, 0.2), "lead": (0.7, 0.2), "pedestrian": (1.0, 0.15), "blocked": (1.0, 0.12), "stop": (1.0, 0.1),
    "decision": (1.0, 0.3), "weather": (0.15, 0.15), "wet": (0.15, 0.05), "count": (0.15, 0.05),
    "nearest": (0.2, 0.03),
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A question with its answer.

    Attributes:
        kind: a key of `WORDS`.
        text, answer: in words.
    """

    kind: str
    text: str
    answer: str


@dataclass(frozen=True)
class QuestionScene:
    """What is known of a moment, as far as questions need it.

    Attributes:
        seen: what the picture shows.
        situation: what goes on.
        waypoints: what is driven next.
        speed_mps: of the vehicle.
        weather: that there is.
    """

    seen: Sequence[Seen]
    situation: Situation
    waypoints: Waypoints
    speed_mps: float
    weather: Weather

    def of(self, actor_id: int) -> list[Seen]:
        """What the picture shows of an actor."""
        return [item for item in self.seen if item.thing.id == actor_id]

    def shows(self, actor_id: int) -> bool:
        """Whether an actor can be told in the picture."""
        return any(item.status is Status.SEEN for item in self.of(actor_id))

    def kind(self, labels: Sequence[str], status: Status) -> list[Seen]:
        """Everything of some kinds with a status."""
        return [item for item in self.seen if item.thing.label in labels and item.status is status]

    def none(self, *labels: str) -> bool:
        """Whether the picture clearly shows nothing of some kinds."""
        return not self.kind(labels, Status.SEEN) and not self.kind(labels, Status.UNSURE)


def ask(scene: QuestionScene, rng: np.random.Generator) -> list[Question]:
    """Some of the questions that the picture answers."""
    found = []
    for kind, answer_of in ANSWERS.items():
        answer = answer_of(scene)
        chance, words = rng.random(), WORDS[kind][int(rng.integers(len(WORDS[kind])))]
        if answer is None:
            continue
        usual = answer.startswith(("No.", "0.", "Go on", "Speed up", "There is none"))
        if chance < RATES[kind][1 if usual else 0]:
            found.append(Question(kind, words, answer))
    order = rng.permutation(len(found))[:MOST_QUESTIONS]
    return [found[int(i)] for i in sorted(order)]


def metres(distance_m: float) -> str:
    """A distance in words."""
    step = 2 if distance_m < 29.0 else 5
    return f"{max(step, step * round(distance_m / step))} m"


def light(scene: QuestionScene) -> str | None:
    """The light that the vehicle's own lane obeys."""
    own = [item for item in scene.of(scene.situation.light_id) if item.thing.label == LIGHT]
    shown = [item for item in own if item.status is Status.SEEN]
    if shown and scene.situation.light_state in ("red", "yellow", "green"):
        return f"Yes, {scene.situation.light_state}, {metres(min(item.distance_m for item in shown))}."
    return "No." if scene.none(LIGHT) else None


def lead(scene: QuestionScene) -> str | None:
    """Who is ahead in the own lane."""
    first = scene.situation.lead
    if first is not None:
        if not scene.shows(first.id) or STANDING_MPS < abs(first.speed_mps) < DRIVES_MPS:
            return None
        does = "standing" if abs(first.speed_mps) <= STANDING_MPS else "driving"
        return f"Yes, {metres(first.gap_m)}, {does}."
    left_px, right_px = (share * NANO_CAMERA.width_px for share in LEAD_BAND)
    # A vehicle that is no leader may still be on the lane, as one that crosses it.
    middle = [item for item in scene.seen if item.thing.label in VEHICLES and item.status is not Status.HIDDEN
              and item.distance_m < LEAD_LOOK_M + 10.0 and item.rect_px[0] < right_px and item.rect_px[2] > left_px]
    return None if middle else "No."


def pedestrian(scene: QuestionScene) -> str | None:
    """Who is on foot near the path."""
    people = scene.situation.people
    if not people:
        return "No." if not scene.kind(["pedestrian"], Status.UNSURE) else None
    first = people[0]
    if not scene.shows(first.id) or any(not scene.shows(other.id) for other in people[1:]):
        return None
    return f"Yes, {_side(first, scene)}, {metres(first.ahead_m)}."


def blocked(scene: QuestionScene) -> str | None:
    """What stands in the lane for good."""
    if not scene.situation.obstacles:
        unsure = scene.kind(["traffic cone", "warning sign", "barrier", "obstacle"], Status.UNSURE)
        return "No." if not unsure and scene.situation.lead is None else None
    first = scene.situation.obstacles[0]
    shown = [item for item in scene.of(first.id) if item.status is Status.SEEN]
    if not shown:
        return None
    what = shown[0].thing.label
    return f"Yes, {'an' if what[0] in 'aeiou' else 'a'} {what}, {metres(first.ahead_m)}."


def stop(scene: QuestionScene) -> str | None:
    """Stop signs that look this way."""
    shown = scene.kind(["stop sign"], Status.SEEN)
    if shown:
        return f"Yes, {metres(min(item.distance_m for item in shown))}."
    return "No." if scene.none("stop sign") else None


def decision(scene: QuestionScene) -> str | None:
    """What the expert does, where the picture shows why."""
    ahead = np.vstack([[0.0, 0.0], scene.waypoints.xy_m])
    end_mps = float(np.hypot(*(ahead[-1] - ahead[-2]))) / scene.waypoints.dt_s
    speed, reason = scene.speed_mps, scene.situation.reason
    free = scene.situation.lead is None or scene.situation.lead.gap_m > FREE_M
    if speed < STANDING_MPS and way_m(scene.waypoints) < STANDING_WAY_M:
        why = _why(scene, reason)
        return None if why is None else f"Wait, because {why}."
    if abs(scene.situation.shift_m) > 0.5 and end_mps > 1.0:
        if not any(scene.shows(item.id) for item in scene.situation.obstacles):
            return None
        return f"Pass on the {'left' if scene.situation.shift_m > 0 else 'right'}, because the lane is blocked."
    if end_mps < speed - 1.2:
        why = _why(scene, reason)
        return None if why is None else f"{'Stop' if end_mps < 0.5 else 'Slow down'}, because {why}."
    if end_mps > speed + 1.0:
        green = scene.situation.light_state == "green" and scene.shows(scene.situation.light_id)
        start = "Start" if speed < 1.0 else "Speed up"
        if reason or not (green or free):
            return None
        return f"{start}, because the {'light is green' if green else 'way is free'}."
    if reason:
        why = _why(scene, reason)
        return f"Keep your distance, because {why}." if why == AHEAD else None
    return "Go on, because the way is free." if free and abs(end_mps - speed) < 1.0 else None


AHEAD = "a vehicle is ahead"


def _why(scene: QuestionScene, reason: str) -> str | None:
    """The expert's reason in words, if the picture shows it."""
    situation = scene.situation
    if reason.endswith(" light"):
        return f"the light is {reason.split()[0]}" if scene.shows(situation.light_id) else None
    if reason == "stop sign":
        return "there is a stop sign" if scene.kind(["stop sign"], Status.SEEN) else None
    if reason == "waits to pass":
        return "the lane is blocked" if any(scene.shows(item.id) for item in situation.obstacles) else None
    if "walker." in reason or reason == "gives way":
        if any(scene.shows(item.id) for item in situation.people):
            return "a pedestrian is near your path"
        return None
    if reason.startswith("vehicle.") and scene.shows(situation.reason_id):
        return AHEAD
    return None


def weather(scene: QuestionScene) -> str | None:
    """Sky and time of day; a clear night and a cloudy one look the same."""
    sky, time = scene.weather.sky, scene.weather.time
    if time == "night" and sky in ("clear", "cloudy"):
        sky = "dry"
    return f"{sky.capitalize()}, {time}."


def wet(scene: QuestionScene) -> str | None:
    """Whether the road is."""
    return None if scene.weather.time == "night" else "Yes." if scene.weather.wet else "No."


def count(scene: QuestionScene) -> str | None:
    """How many motor vehicles there are."""
    number = len(scene.kind(MOTOR, Status.SEEN))
    return None if scene.kind(VEHICLES, Status.UNSURE) or number > MOST_COUNTED else f"{number}."


def nearest(scene: QuestionScene) -> str | None:
    """The nearest vehicle."""
    distances = [item.distance_m for item in scene.kind(VEHICLES, Status.SEEN)]
    doubtful = [item.distance_m for item in scene.kind(VEHICLES, Status.UNSURE)]
    first = min(distances, default=math.inf)
    if min(doubtful, default=math.inf) < first:
        return None
    return "There is none." if not distances and not doubtful else f"{metres(first)}."


def _side(person: Beside, scene: QuestionScene) -> str:
    """`ahead` is on the path; else the half of the picture, as a path that bends may have its left side there."""
    if person.left_m == 0.0:
        return "ahead"
    left_px, _, right_px, _ = scene.of(person.id)[0].rect_px
    return f"on the {'left' if left_px + right_px < NANO_CAMERA.width_px else 'right'}"


ANSWERS: dict[str, Callable[[QuestionScene], str | None]] = {
    "light": light, "lead": lead, "pedestrian": pedestrian, "blocked": blocked, "stop": stop, "decision": decision,
    "weather": weather, "wet": wet, "count": count, "nearest": nearest,
}  # fmt: skip
