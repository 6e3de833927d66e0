from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wamdiff2_core.cli.main import main
from wamdiff2_core.planner import CheckpointPlanner
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import GroundingRequest, grounding_prompt
from wamdiff2_core.tasks.lingoqa import LingoQaRequest, lingoqa_prompt
from wamdiff2_core.tasks.planning import BENCH2DRIVE, NAVSIM_PAPER, NAVSIM_UPSTREAM, parse_waypoints
from wamdiff2_core.tasks.recognise import asked_task, asked_waypoints
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation

HURRIED = {"denoising_steps": 1, "strategy": "low_confidence_static"}


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (128, 256, 3), np.uint8)


def test_the_planner_reads_every_answer(nano_folder: Path):
    bound, free = (CheckpointPlanner.load(nano_folder, grammar=mode, **HURRIED) for mode in ("task", "off"))
    unreadable = 0
    for seed in range(4):
        observation = Observation(
            (CameraFrame(noise(seed), 0, "front"),), EgoState(np.array([3.0 * seed, 0.0])),
            Navigation(np.array([[10.0, 2.0], [19.0, 5.0]]), NavCommand.LEFT),
        )
        plan = bound.plan(observation)
        assert plan.waypoints is not None
        assert plan.stats.forwards == free.plan(observation).stats.forwards
        unreadable += free.plan(observation).waypoints is None
    assert unreadable > 0


def test_predict_bounds_answers_of_planning_questions(nano_folder: Path, tmp_path: Path):
    Image.fromarray(noise(1)).save(tmp_path / "a.png")
    prompt = BENCH2DRIVE.format(x1=9.0, y1=1.0, x2=19.0, y2=2.0, command="follow the road", speed=3.0)
    sample = {"image": "a.png", "conversations": [{"from": "human", "value": prompt}]}
    (tmp_path / "in.json").write_text(json.dumps([sample]))
    arguments = ["predict", "--input_file", str(tmp_path / "in.json"), "--model_id", str(nano_folder),
                 "--denoising_steps", "1", "--remasking_strategy", "low_confidence_static"]
    task = ServingRecord.load(nano_folder).planning
    assert main([*arguments, "--output_file", str(tmp_path / "out.json"), "--grammar", "task"]) == 0
    parse_waypoints(json.loads((tmp_path / "out.json").read_text())[0]["prediction"], task)


def test_predict_with_a_deadline_leaves_no_plan_unreadable(nano_folder: Path, tmp_path: Path):
    prompt = BENCH2DRIVE.format(x1=9.0, y1=1.0, x2=19.0, y2=2.0, command="follow the road", speed=3.0)
    samples = []
    for seed in range(3):
        Image.fromarray(noise(seed)).save(tmp_path / f"{seed}.png")
        samples.append({"image": f"{seed}.png", "conversations": [{"from": "human", "value": prompt}]})
    (tmp_path / "in.json").write_text(json.dumps(samples))
    arguments = ["predict", "--input_file", str(tmp_path / "in.json"), "--model_id", str(nano_folder),
                 "--output_file", str(tmp_path / "out.json"), "--deadline_ms"]
    assert main([*arguments, "0.01"]) == 0
    task = ServingRecord.load(nano_folder).planning
    for row in json.loads((tmp_path / "out.json").read_text()):
        parse_waypoints(row["prediction"], task)
    assert main([*arguments, "nan"]) == 2


def test_ask_tells_of_hurried_steps_and_of_a_missed_deadline(
    nano_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    Image.fromarray(noise(1)).save(tmp_path / "a.png")
    arguments = ["ask", str(nano_folder), "--task", "planning", "--image", str(tmp_path / "a.png"), "--target", "9,1",
                 "--target", "19,2", "--velocity", "3", "--deadline-ms"]
    assert main([*arguments, "0.01"]) in (0, 1)
    said = capsys.readouterr()
    parse_waypoints(said.out.strip(), ServingRecord.load(nano_folder).planning)
    assert "2 blocks, 2 steps, 2 of them hurried" in said.err
    assert " ms after the deadline" in said.err
    assert main(["ask", str(nano_folder), "What is ahead?", "--deadline-ms", "0.01"]) in (0, 1)
    assert " of them hurried" in capsys.readouterr().err
    assert main([*arguments, "-1"]) == 2
    assert "deadline_ms: expected milliseconds >= 0" in capsys.readouterr().err


def test_a_grammar_that_is_not_known_is_refused(nano_folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ask", str(nano_folder), "What is ahead?", "--grammar", "tusk"]) == 2
    assert "did you mean 'task'" in capsys.readouterr().err


def test_the_task_of_a_question():
    for template, waypoints in ((BENCH2DRIVE, 6), (NAVSIM_PAPER, 8), (NAVSIM_UPSTREAM, 8)):
        assert asked_task(template + "\n") == "planning"
        assert asked_waypoints(template + "\n") == waypoints
    assert asked_task("Why does a planner answer with 6 new waypoints. Is it a rule?") == "questions"
    assert asked_task("What does 'Report bbox coordinates in JSON format.' mean?") == "questions"
    assert asked_task(grounding_prompt(GroundingRequest("a car"))) == "grounding"
    assert asked_task(lingoqa_prompt(LingoQaRequest("Is it red?"))) == "questions"
