"""Planning under deadlines: what the plans of recorded samples cost and what they are worth, for each deadline.

A conversation file's planning questions become observations again, so that everything goes through `Planner.plan` as in
service. Each deadline has a planner of its own, as a node would; they take every sample in turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wamdiff2_core.config import CameraSpec, DecodeConfig, PlanningTask
from wamdiff2_core.dataset import Sample, read_dataset, read_images, spread_over
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import flip_y
from wamdiff2_core.model.checkpoint import Checkpoint
from wamdiff2_core.planner import CheckpointPlanner
from wamdiff2_core.tasks.planning import (
    NAVSIM_WORDS,
    TEMPLATES,
    parse_waypoints,
    planning_prompt,
)
from wamdiff2_core.tasks.text import AnswerError
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Plan

NONE = "none"
NEAR_M = 1.0
_WORD_FIELDS, _WORDS, _NUMBER = ("command", "navigation"), "[a-z ]+", r"-?[0-9]+(?:\.[0-9]+)?"
_RESAMPLES = 2000


@dataclass(frozen=True)
class Case:
    """One recorded sample.

    Attributes:
        observation: what its question says.
        expert_m: (T, 2) its own answer: base_link, x forward, y left.
    """

    observation: Observation
    expert_m: np.ndarray


@dataclass(frozen=True)
class DeadlineRow:
    """Plans under one deadline.

    Attributes:
        name: milliseconds, or `none`.
        deadline_ms: 0 for none.
        grammar: whether plans are bounded by their grammar, which a deadline brings with it.
        ms_median, ms_p95, ms_p99: `Planner.plan`, wall clock.
        step_ms: median of a plan's decoding by its steps.
        overshoot_ms_p99: how late the last token was, 0 when it was in time.
        overshoot_steps_p99: that by `step_ms`.
        late: share of plans whose last token was late.
        readable: share of plans with waypoints.
        valid: share of plans that passed their check.
        forwards_per_answer: mean.
        hurried_steps: mean of a plan.
        l2_m: mean distance of waypoints to the recorded ones; of a plan without waypoints, as if it stood still.
        near: share of plans that passed their check and whose mean distance is at most `near_m`: the planning score.
        kept: `near` by that of no deadline; None where nothing is near without one.
        kept_low, kept_high: its 95 % interval over resampled samples.
        plans: measured ones.
    """

    name: str
    deadline_ms: float
    grammar: str
    ms_median: float
    ms_p95: float
    ms_p99: float
    step_ms: float
    overshoot_ms_p99: float
    overshoot_steps_p99: float
    late: float
    readable: float
    valid: float
    forwards_per_answer: float
    hurried_steps: float
    l2_m: float
    near: float
    kept: float | None
    kept_low: float | None
    kept_high: float | None
    plans: int


def read_question(prompt: str, task: PlanningTask) -> tuple[EgoState, Navigation]:
    """What a planning question says, as `planning_prompt` takes it.

    Raises:
        UserError: it is not a question of the task.
    """
    words = NAVSIM_WORDS if task.prompt != "bench2drive" else {command: command.value for command in NavCommand}
    commands = {word: command for command, word in reversed(words.items())}
    pieces = re.split(r"\{(\w+)\}", TEMPLATES[task.prompt])
    pattern = "".join(
        f"(?P<{piece}>{_WORDS if piece in _WORD_FIELDS else _NUMBER})" if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
    match = re.fullmatch(pattern, prompt)
    said = match.groupdict() if match is not None else {}
    word = said.pop("command", None) or said.pop("navigation", None)
    if word not in commands:
        raise UserError("data", f"questions of the checkpoint's planning task ({task.prompt})", prompt)
    number = {name: float(value) for name, value in said.items()}

    def vector(x: str, y: str) -> np.ndarray:
        point = np.array([number.get(x, 0.0), number.get(y, 0.0)])
        return flip_y(point) if task.y_axis == "right" else point

    velocity = np.array([number["speed"], 0.0]) if "speed" in number else vector("vx", "vy")
    targets = np.stack([vector("x1", "y1"), vector("x2", "y2")])
    return EgoState(velocity, vector("ax", "ay")), Navigation(targets, commands[word])


def read_cases(data: Path, count: int, task: PlanningTask, rig: Sequence[CameraSpec]) -> list[Case]:
    """Planning samples of a conversation file, spread over it.

    Args:
        data: conversation file; samples that ask something else are passed over.
        count: at most so many.
        task: of the checkpoint.
        rig: its cameras, in the order of a sample's images.

    Raises:
        UserError: the file cannot be read, has no planning sample, or one whose answer is not of the task.
    """
    opening = TEMPLATES[task.prompt].partition("{")[0]
    samples = [sample for sample in read_dataset(data) if sample.prompt.startswith(opening)]
    if not samples:
        raise UserError("data", f"samples with the checkpoint's planning question ({task.prompt})", f"{data} (none)")
    return [read_case(sample, task, rig) for sample in spread_over(samples, count)]


def read_case(sample: Sample, task: PlanningTask, rig: Sequence[CameraSpec]) -> Case:
    """A planning sample as a planner sees it; its stamp is 0.

    Raises:
        UserError: its question, images or answer are not of the task and the rig.
    """
    where = f"sample {sample.conversation.id}"
    ego, navigation = read_question(sample.prompt, task)
    names = [camera.name for camera in rig] or [CameraSpec().name] * len(sample.images)
    if len(names) != len(sample.images):
        raise UserError(where, f"{len(names)} images, as the rig has cameras", len(sample.images))
    frames = tuple(CameraFrame(rgb, 0, name) for rgb, name in zip(read_images(sample, where), names, strict=True))
    observation = Observation(frames, ego, navigation)
    if (asked := planning_prompt(observation, task)) != sample.prompt:
        raise UserError(where, f"a question with {task.input_decimals} decimals: {asked}", sample.prompt)
    try:
        return Case(observation, parse_waypoints(sample.answer, task).xy_m)
    except AnswerError as error:
        raise UserError(where, f"an answer with {task.waypoints} waypoints", str(error)) from None


def planners_of(checkpoint: Checkpoint, deadlines_ms: Sequence[float]) -> list[CheckpointPlanner]:
    """A planner without a deadline, then one for each; all on the same weights, and none reuses another's prompt.

    Raises:
        UserError: the checkpoint does not plan, or its decoding cannot have a deadline.
    """
    base = checkpoint.record.decode if checkpoint.record is not None else DecodeConfig()
    base = replace(base, prompt_reuse="off")
    return [CheckpointPlanner(checkpoint, replace(base, deadline_ms=ms)) for ms in (0.0, *deadlines_ms)]


def measure_deadlines(
    planners: Sequence[CheckpointPlanner], cases: Sequence[Case], near_m: float = NEAR_M,
    show: Callable[[int], None] = lambda done: None, now: Callable[[], float] = time.perf_counter,
) -> list[DeadlineRow]:
    """Plan every case with every planner, turn about, after each has warmed up.

    Args:
        planners: the first one has no deadline.
        cases: at least one.
        near_m: see `DeadlineRow.near`.
        show: told how many plans are done.
        now: seconds on a steady clock.
    """
    for planner in planners:
        planner.warm_up()
    plans: list[list[Plan]] = [[] for _ in planners]
    times: list[list[float]] = [[] for _ in planners]
    for turn, case in enumerate(cases):
        for step in range(len(planners)):
            which = (turn + step) % len(planners)
            started = now()
            plan = planners[which].plan(case.observation)
            times[which].append((now() - started) * 1e3)
            plans[which].append(plan)
            show(turn * len(planners) + step + 1)
    away = [np.array([distance_m(plan, case) for plan, case in zip(each, cases, strict=True)]) for each in plans]
    near = [(far <= near_m) & [plan.check.ok for plan in each] for far, each in zip(away, plans, strict=True)]
    return [
        _row(planner.decode, each, took, far, good, near[0])
        for planner, each, took, far, good in zip(planners, plans, times, away, near, strict=True)
    ]


def distance_m(plan: Plan, case: Case) -> float:
    """Mean distance of a plan's waypoints to the recorded ones; of no waypoints, that of the origin to these."""
    planned = np.zeros((1, 2)) if plan.waypoints is None else plan.waypoints.xy_m
    return float(np.linalg.norm(planned - case.expert_m, axis=1).mean())


def kept_interval(near: np.ndarray, unlimited: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Share of `near` by that of `unlimited`, and its 95 % interval over resampled cases, the same in both.

    Args:
        near, unlimited: (N,) bool, of the same cases.

    Returns:
        Quotient, lower and upper end; None where nothing is near without a deadline.
    """
    if not unlimited.any():
        return None, None, None
    rows = np.random.default_rng(0).integers(0, len(near), (_RESAMPLES, len(near)))
    above, below = near[rows].sum(1), unlimited[rows].sum(1)
    low, high = np.percentile(above[below > 0] / below[below > 0], (2.5, 97.5))
    return float(near.sum() / unlimited.sum()), float(low), float(high)


def _row(
    decode: DecodeConfig, plans: Sequence[Plan], times: Sequence[float], away: np.ndarray, near: np.ndarray,
    unlimited: np.ndarray,
) -> DeadlineRow:
    middle, most, top = (float(value) for value in np.percentile(times, (50, 95, 99)))
    stats = [plan.stats for plan in plans]
    step_ms = float(np.median([one.decode_ms / max(one.steps, 1) for one in stats]))
    overshoot = [one.overshoot_ms for one in stats]
    overshoot_ms = float(np.percentile(overshoot, 99))
    return DeadlineRow(
        NONE if not decode.deadline_ms else f"{decode.deadline_ms:g}", decode.deadline_ms, decode.grammar,
        middle, most, top, step_ms, overshoot_ms, overshoot_ms / step_ms if step_ms else 0.0,
        float(np.mean([late > 0 for late in overshoot])),
        float(np.mean([plan.waypoints is not None for plan in plans])),
        float(np.mean([plan.check.ok for plan in plans])), float(np.mean([one.forwards for one in stats])),
        float(np.mean([one.hurried_steps for one in stats])), float(away.mean()), float(near.mean()),
        *kept_interval(near, unlimited), len(plans),
    )
