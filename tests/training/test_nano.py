"""The shipped checkpoint follows targets and speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.command import load_stage
from training.trainer import stage_record
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.decode.generator import Generator
from wamdiff2_core.model.checkpoint import Checkpoint, load_checkpoint
from wamdiff2_core.prompts import planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Waypoints
from wamdiff2_core.waypoint_text import parse_waypoints

ROAD = np.full((128, 256, 3), 110, np.uint8)


@pytest.fixture(scope="module")
def nano(nano_folder: Path) -> Checkpoint:
    return load_checkpoint(nano_folder)


def plan(nano: Checkpoint, targets_m: list[list[float]], speed_mps: float, command: NavCommand) -> Waypoints:
    assert nano.record is not None
    assert nano.record.planning is not None
    ego = EgoState(velocity_mps=np.array([speed_mps, 0.0]))
    observation = Observation((CameraFrame(ROAD, 0),), ego, Navigation(np.array(targets_m), command))
    request = nano.chat.encode(ChatRequest(planning_prompt(observation, nano.record.planning), (ROAD,)))
    (answer,) = Generator(nano).generate([request], nano.record.decode)
    return parse_waypoints(answer.text, nano.record.planning)


@pytest.mark.parametrize("speed_mps", [0.0, 2.0, 4.0, 6.0, 8.0])
def test_straight_targets_give_a_straight_plan_at_the_given_speed(nano: Checkpoint, speed_mps: float) -> None:
    planned = plan(nano, [[10.0, 0.0], [20.0, 0.0]], speed_mps, NavCommand.FOLLOW)
    assert np.abs(planned.xy_m[:, 1]).max() < 0.5
    assert (np.diff(planned.xy_m[:, 0]) > 0).all()
    assert abs(planned.xy_m[0, 0] - 0.5 * speed_mps) < 1.0


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_curve_bends_the_plan_to_the_side_of_its_targets(nano: Checkpoint, side: float) -> None:
    command = NavCommand.LEFT if side > 0 else NavCommand.RIGHT
    planned = plan(nano, [[9.3, 2.8 * side], [15.3, 10.3 * side]], 5.0, command)
    assert planned.xy_m[-1, 1] * side > 1.0
    assert (np.diff(planned.xy_m[:, 1] * side) > -0.11).all()


def test_record_is_that_of_its_last_stage(nano: Checkpoint) -> None:
    stage = load_stage(Path(__file__).resolve().parents[2] / "training" / "configs" / "nano_b32_own.yaml")
    assert nano.record is not None
    assert nano.record == stage_record(stage, nano.tokenizer)
