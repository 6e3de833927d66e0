"""`wamdiff2 bench deadline`: questions read back, plans in turn, figures known beforehand, and what it writes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.bench import deadline
from wamdiff2_core.bench.command import bench
from wamdiff2_core.cli.main import as_command, exit_code_of
from wamdiff2_core.config import CameraSpec, DecodeConfig, PlanningTask
from wamdiff2_core.dataset import read_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import planning_prompt
from wamdiff2_core.types import (
    CameraFrame,
    Check,
    DecodeStats,
    EgoState,
    NavCommand,
    Navigation,
    Observation,
    Plan,
    Waypoints,
)

DATA = Path(__file__).resolve().parents[2] / "training" / "configs" / "debug" / "data" / "samples.jsonl"
EXPERT_M = np.array([[4.0, 3.0], [8.0, 6.0]])
BLACK = CameraFrame(np.zeros((2, 2, 3), np.uint8), 0)
PAIRS = st.tuples(*[st.floats(-300, 300).map(lambda value: round(value, 2))] * 2)


@given(
    st.sampled_from(["bench2drive", "navsim_paper", "navsim_upstream"]), st.sampled_from(["left", "right"]),
    st.sampled_from([*NavCommand]), PAIRS, PAIRS, PAIRS, PAIRS,
)
def test_a_question_says_what_it_was_made_from(prompt, y_axis, command, velocity, acceleration, first, second):
    task = PlanningTask(prompt=prompt, y_axis=y_axis)
    observation = Observation(
        (BLACK,), EgoState(np.array(velocity), np.array(acceleration)), Navigation(np.array([first, second]), command)
    )
    asked = planning_prompt(observation, task)
    ego, navigation = deadline.read_question(asked, task)
    assert planning_prompt(Observation((BLACK,), ego, navigation), task) == asked
    assert ego.speed_mps == velocity[0]
    if prompt == "bench2drive":
        assert navigation.command is command
        assert navigation.targets_m.tolist() == [[*first], [*second]]
    else:
        assert ego.velocity_mps.tolist() == [*velocity]
        assert ego.acceleration_mps2.tolist() == [*acceleration]


@pytest.mark.parametrize("prompt", ["What is ahead?", "", "Here is a front-view image from a driving vehicle:\n"])
def test_another_question_is_refused(prompt):
    with pytest.raises(UserError, match="questions of the checkpoint's planning task"):
        deadline.read_question(prompt, PlanningTask())


def test_cases_are_what_the_collector_wrote_beside_the_text(nano_folder):
    record = ServingRecord.load(nano_folder)
    cases = deadline.read_cases(DATA, 7, record.planning, record.rig)
    planned = [sample for sample in read_dataset(DATA) if "waypoints_m" in sample.extra]
    chosen = [planned[index * len(planned) // 7] for index in range(7)]
    assert len(cases) == len({id(sample) for sample in chosen}) == 7
    for case, sample in zip(cases, chosen, strict=True):
        np.testing.assert_allclose(case.expert_m, sample.extra["waypoints_m"], atol=0.051)
        np.testing.assert_allclose(case.observation.navigation.targets_m, sample.extra["targets_m"], atol=0.051)
        assert case.observation.ego.speed_mps == pytest.approx(sample.extra["speed_mps"], abs=0.051)
        assert case.observation.navigation.command.name == sample.extra["command"]
        assert [frame.camera for frame in case.observation.frames] == ["front"]
        assert case.observation.frames[0].rgb.shape == (128, 256, 3)


@pytest.mark.parametrize(("change", "message"), [
    ({"answer": "1.0,2.0"}, "an answer with 6 waypoints"),
    ({"speed": "4.25"}, "a question with 1 decimals"),
    ({"rig": 2}, "2 images, as the rig has cameras"),
    ({"question": "<image>\nWhat is ahead?"}, "samples with the checkpoint's planning question"),
])
def test_samples_that_are_not_the_checkpoints_are_refused(change, message, nano_folder, tmp_path):
    record = ServingRecord.load(nano_folder)
    sample = read_dataset(DATA)[0]
    question = change.get("question", sample.prompt)
    if "speed" in change:
        question = re.sub(r"velocity is: \S+", f"velocity is: {change['speed']}", question)
    line = {"image": str(sample.images[0]), "conversations": [
        {"from": "human", "value": question}, {"from": "gpt", "value": change.get("answer", sample.answer)},
    ]}
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(line) + "\n")
    rig = [CameraSpec(name=str(number)) for number in range(change.get("rig", 1))]
    with pytest.raises(UserError, match=message):
        deadline.read_cases(file, 1, record.planning, rig)


@dataclass
class ScriptedPlanner:
    """Takes so many milliseconds of a clock, and answers so far beside the recorded plan."""

    decode: DecodeConfig
    clock: list[float]
    took_ms: list[float]
    away_m: list[float]
    stats: list[DecodeStats]
    asked: list[str]
    name: str
    warm: int = 0
    rejected: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
    seen: list[int] = field(default_factory=list)

    def warm_up(self) -> None:
        self.warm += 1

    def plan(self, observation: Observation) -> Plan:
        assert self.warm == 1
        index = observation.stamp_ns
        self.asked.append(f"{self.name}{index}")
        self.clock[0] += self.took_ms[index] / 1e3
        xy = EXPERT_M + np.array([0.0, self.away_m[index]])
        waypoints = None if index in self.unread else Waypoints(xy, 0.5)
        ok = index not in self.rejected | self.unread
        return Plan(index, waypoints, stats=self.stats[index], check=Check(ok, "" if ok else "no"))


def scripted_run():
    frames = [CameraFrame(np.zeros((2, 2, 3), np.uint8), index) for index in range(4)]
    cases = [
        deadline.Case(Observation((frame,), EgoState(), Navigation(np.ones((2, 2)))), EXPERT_M)
        for frame in frames
    ]
    clock, asked = [0.0], []
    steps = [DecodeStats(10.0, 20.0, 5, 4)] * 4
    late = [DecodeStats(10.0, 8.0 * count, 1 + count, count, hurried_steps=count, overshoot_ms=over)
            for count, over in ((1, 0.0), (2, 0.0), (2, 4.0), (3, 0.0))]
    none = ScriptedPlanner(DecodeConfig(), clock, [100, 200, 300, 400], [0, 0.5, 0.5, 3], steps, asked, "n")
    hurried = ScriptedPlanner(
        DecodeConfig(deadline_ms=50.0, grammar="task"), clock, [40, 41, 42, 43], [0, 0, 0, 0], late, asked, "h",
        rejected=frozenset({1}), unread=frozenset({3}),
    )
    told = []
    rows = deadline.measure_deadlines([none, hurried], cases, 1.0, told.append, lambda: clock[0])
    return rows, asked, told


def test_planners_take_every_case_in_turn():
    _, asked, told = scripted_run()
    assert asked == ["n0", "h0", "h1", "n1", "n2", "h2", "h3", "n3"]
    assert told == [1, 2, 3, 4, 5, 6, 7, 8]


def test_figures_of_deadlines_from_plans_known_beforehand():
    (none, hurried), _, _ = scripted_run()
    assert (none.name, none.deadline_ms, none.grammar, none.plans) == ("none", 0.0, "off", 4)
    assert (hurried.name, hurried.deadline_ms, hurried.grammar, hurried.plans) == ("50", 50.0, "task", 4)
    assert (none.ms_median, none.ms_p95) == pytest.approx((250.0, 385.0))
    assert hurried.ms_p99 == pytest.approx(42.97)
    assert (none.step_ms, hurried.step_ms) == (5.0, 8.0)
    assert none.overshoot_ms_p99 == none.late == none.hurried_steps == 0
    assert hurried.overshoot_ms_p99 == pytest.approx(4.0 * 0.97)  # of 0, 0, 0, 4
    assert hurried.overshoot_steps_p99 == pytest.approx(hurried.overshoot_ms_p99 / 8.0)
    assert (hurried.late, hurried.readable, hurried.valid) == (0.25, 0.75, 0.5)
    assert (hurried.hurried_steps, hurried.forwards_per_answer) == (2.0, 3.0)
    assert none.l2_m == pytest.approx((0 + 0.5 + 0.5 + 3) / 4)
    assert hurried.l2_m == pytest.approx((5 + 10) / 2 / 4)  # the one that cannot be read stands still
    assert (none.near, none.kept) == (0.75, 1.0)
    assert hurried.near == 0.5  # a plan that failed its check scores nothing, however near
    assert hurried.kept == pytest.approx(0.5 / 0.75)
    assert none.kept_low == none.kept_high == 1.0


def test_the_interval_is_that_of_a_quotient_of_paired_shares():
    rng = np.random.default_rng(3)
    unlimited = rng.random(900) < 0.7
    near = unlimited & (rng.random(900) < 0.9)
    whole, low, high = deadline.kept_interval(near, unlimited)
    assert whole == pytest.approx(near.sum() / unlimited.sum())
    # near is a part of unlimited, so the quotient is a share of the latter
    spread = 1.96 * math.sqrt(whole * (1 - whole) / unlimited.sum())
    assert whole - low == pytest.approx(spread, rel=0.15)
    assert high - whole == pytest.approx(spread, rel=0.15)
    assert deadline.kept_interval(near, np.zeros(900, bool)) == (None, None, None)


def run(*arguments) -> int:
    command = as_command(bench, "bench")
    return exit_code_of(lambda: command([str(word) for word in arguments], standalone_mode=False))


def test_deadlines_of_the_nano(nano_folder, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert run("deadline", nano_folder, "--data", DATA, "--samples", 2, "--deadlines", "1,60000", "--json", file) == 0
    result = json.loads(file.read_text())
    assert (result["samples"], result["near_m"]) == (2, 1.0)
    none, hopeless, ample = result["rows"]
    assert [row["name"] for row in result["rows"]] == ["none", "1", "60000"]
    own = ServingRecord.load(nano_folder).decode.grammar
    assert [row["grammar"] for row in result["rows"]] == [own, "task", "task"]
    # a millisecond is over before the prompt is: one step a block, all of them hurried, and still a plan
    assert hopeless["readable"] == 1.0
    assert hopeless["late"] == 1.0
    assert hopeless["overshoot_ms_p99"] > 0
    assert hopeless["forwards_per_answer"] <= 3
    assert hopeless["hurried_steps"] == hopeless["forwards_per_answer"] - 1
    assert ample["hurried_steps"] == ample["late"] == 0
    assert none["kept"] == ample["kept"] == 1.0 or none["kept"] is None
    assert none["l2_m"] == pytest.approx(ample["l2_m"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("hurried", "kept", "60000", "near: within 1 m"))


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--data", "none.jsonl"], "none.jsonl"),
    (["--data", DATA, "--deadlines", "soon"], "deadlines: expected integers"),
    (["--data", DATA, "--near", "0"], "near: expected a finite number of metres > 0"),
    (["--data", DATA, "--samples", "0"], "samples: expected an integer >= 1"),
])
def test_wrong_use_of_deadlines_is_told_in_one_line(arguments, expected, nano_folder, capsys):
    assert run("deadline", nano_folder, *arguments) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
