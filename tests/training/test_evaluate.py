"""Open-loop figures from known plans."""

from __future__ import annotations

import numpy as np
import pytest

from training.evaluate import Answered, _measure, evaluate_checkpoint, summary
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.conversations import Conversation, Turn
from wamdiff2_core.dataset import Sample
from wamdiff2_core.decode.generator import Generation
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import DecodeStats

TASK = PlanningTask(waypoints=2, decimals=1)
SAMPLE = Sample(Conversation((Turn("human", "?"), Turn("gpt", "1.0,0.0,2.0,0.0"))), extra={"command": "LEFT"})


def generation(text: str) -> Generation:
    return Generation((), (), text, True, DecodeStats(forwards=5, tokens=16))


def test_distance_of_each_waypoint_is_measured() -> None:
    answer = _measure(SAMPLE, generation("1.0,0.3,2.4,0.3"), TASK)
    assert answer.group == "LEFT"
    np.testing.assert_allclose(answer.l2_m, [0.3, 0.5])


@pytest.mark.parametrize("text", ["1.0,0.3,2.4", "1.0,0.3,2.4,0.3,1.0", "", "1.0,0.3,2.4,x"])
def test_answers_that_cannot_be_read_are_counted_and_not_scored(text: str) -> None:
    figures = summary([_measure(SAMPLE, generation(text), TASK), _measure(SAMPLE, generation("1.0,0.0,2.0,0.0"), TASK)])
    assert figures["unreadable"] == 1
    assert figures["l2_mean_m"] == 0.0


def test_figures_are_those_of_the_means_per_answer() -> None:
    answers = [Answered(np.array([0.0, 2.0]), "all", 4, 20), Answered(np.array([3.0, 3.0]), "all", 6, 20),
               Answered(np.array([0.0, 0.0]), "all", 10, 20)]
    figures = summary(answers)
    assert figures["l2_median_m"] == 1.0
    assert figures["l2_mean_m"] == pytest.approx(4 / 3, abs=1e-3)
    assert figures["l2_max_m"] == 3.0
    assert figures["l2_by_waypoint_m"] == [1.0, 1.667]
    assert figures["forwards"] == pytest.approx(6.7)
    assert figures["tokens_per_forward"] == 3.0


def test_a_missing_file_is_told_before_the_checkpoint_is_loaded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("wamdiff2_core.model.checkpoint.load_checkpoint", lambda folder: pytest.fail("loaded"))
    with pytest.raises(UserError, match="no such file"):
        evaluate_checkpoint(tmp_path, tmp_path / "none.jsonl")
