"""The shipped checkpoint follows targets and speed. A few of its answers cannot be read; most must be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.config import stage_record
from training.config_file import load_stage
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.decode.generator import Generator
from wamdiff2_core.model.checkpoint import Checkpoint, load_checkpoint
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import parse_waypoints, planning_prompt
from wamdiff2_core.tasks.text import AnswerError
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation

ROAD = np.full((128, 256, 3), 110, np.uint8)
SPEEDS_MPS = np.linspace(0.0, 8.0, 17)


@pytest.fixture(scope="module")
def nano(nano_folder: Path) -> Checkpoint:
    return load_checkpoint(nano_folder)


def plans(nano: Checkpoint, targets_m: list[list[float]], command: NavCommand) -> dict[float, np.ndarray]:
    """Waypoints (6, 2), x forward, y left, of the readable answers, by speed."""
    assert nano.record is not None
    assert nano.record.planning is not None
    requests = []
    for speed_mps in SPEEDS_MPS:
        ego = EgoState(velocity_mps=np.array([speed_mps, 0.0]))
        observation = Observation((CameraFrame(ROAD, 0),), ego, Navigation(np.array(targets_m), command))
        requests.append(nano.chat.encode(ChatRequest(planning_prompt(observation, nano.record.planning), (ROAD,))))
    planned = {}
    free = replace(nano.record.decode, grammar="off")
    for speed_mps, answer in zip(SPEEDS_MPS, Generator(nano).generate(requests, free), strict=True):
        try:
            planned[float(speed_mps)] = parse_waypoints(answer.text, nano.record.planning).xy_m
        except AnswerError:
            continue
    assert len(planned) >= 0.8 * len(SPEEDS_MPS)
    return planned


def test_straight_targets_give_straight_plans_that_start_at_the_given_speed(nano: Checkpoint) -> None:
    planned = plans(nano, [[10.0, 0.0], [20.0, 0.0]], NavCommand.FOLLOW)
    sideways_m = np.array([np.abs(xy_m[:, 1]).max() for xy_m in planned.values()])
    first_m = np.array([xy_m[0, 0] - 0.5 * speed_mps for speed_mps, xy_m in planned.items()])
    assert np.median(sideways_m) < 0.3
    assert np.median(np.abs(first_m)) < 0.5
    reach_m = np.array([xy_m[-1, 0] for xy_m in planned.values()])
    assert np.corrcoef(list(planned), reach_m)[0, 1] > 0.7  # faster now is farther in three seconds


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_turn_bends_plans_to_the_side_of_its_targets(nano: Checkpoint, side: float) -> None:
    command = NavCommand.LEFT if side > 0 else NavCommand.RIGHT
    planned = plans(nano, [[9.3, 2.8 * side], [15.3, 10.3 * side]], command)
    ends_m = np.array([xy_m[-1, 1] * side for xy_m in planned.values()])
    assert np.median(ends_m) > 2.0


def test_record_of_the_autoregressive_one_is_that_of_its_last_stage() -> None:
    root = Path(__file__).resolve().parents[2]
    stage, _ = load_stage(root / "training" / "configs" / "nano" / "ar.yaml")
    record = ServingRecord.load(root / "checkpoints" / "wamdiff2-nano-ar")
    assert record is not None
    assert record == stage_record(stage, record.mask_token_id, record.eos_token_id)
