"""Open-loop figures from known answers, and of whole files of mixed tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data.slices import slice_of
from training.evaluate import evaluate_checkpoint, wrong_images
from training.measures.boxes import BoxScore, average_precision, box_figures, matches
from training.measures.planning import PlanScore, plan_control, plan_figures, score_plan
from training.measures.questions import question_types, score_words, word_figures
from wamdiff2_core.cli.main import main
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.conversations import Conversation, Turn
from wamdiff2_core.dataset import DatasetWriter, Sample
from wamdiff2_core.decode.generator import Generation, Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import Detection, GroundingRequest, grounding_prompt
from wamdiff2_core.types import DecodeStats

TASK = PlanningTask(waypoints=2, decimals=1)
DEBUG = Path("training/configs/debug/data/samples.jsonl")


def generation(text: str) -> Generation:
    return Generation((), (), text, True, DecodeStats(forwards=5, tokens=16))


def sample(prompt: str = "?", answer: str = "yes", images: tuple[str, ...] = (), **extra: object) -> Sample:
    return Sample(Conversation((Turn("human", prompt), Turn("gpt", answer))), tuple(map(Path, images)), extra)


def score(l2_m: list[float] | None, text: str = "", standing_m: float = 9.0) -> PlanScore:
    return PlanScore(text, None if l2_m is None else np.array(l2_m), np.full(2, standing_m), 5, 16)


def test_distance_of_each_waypoint_is_measured() -> None:
    found = score_plan("1.0,0.0,2.0,0.0", generation("1.0,0.3,2.4,0.3"), TASK)
    np.testing.assert_allclose(found.l2_m, [0.3, 0.5])
    np.testing.assert_allclose(found.standing_m, [1.0, 2.0])


@pytest.mark.parametrize("text", ["1.0,0.3,2.4", "1.0,0.3,2.4,0.3,1.0", "", "1.0,0.3,2.4,x"])
def test_plans_that_cannot_be_read_are_counted_as_standing_still(text: str) -> None:
    answers = [text, "1.0,0.0,2.0,0.0"]
    figures = plan_figures([score_plan("1.0,0.0,2.0,0.0", generation(answer), TASK) for answer in answers])
    assert figures["unreadable"] == 1
    assert figures["l2_mean_m"] == 0.0
    assert figures["l2_all_m"] == 0.75


def test_plan_figures_are_those_of_the_means_per_answer() -> None:
    figures = plan_figures([score([0.0, 2.0]), score([3.0, 3.0]), score([0.0, 0.0])])
    assert figures["l2_median_m"] == 1.0
    assert figures["l2_mean_m"] == pytest.approx(4 / 3, abs=1e-3)
    assert figures["l2_max_m"] == 3.0
    assert figures["l2_by_waypoint_m"] == [1.0, 1.667]
    assert figures["tokens_per_forward"] == 3.2


def test_the_control_tells_how_many_plans_change_and_what_it_costs() -> None:
    right, wrong = [score([0.0, 0.0], "a"), score([1.0, 1.0], "b")], [score([0.0, 0.0], "a"), score(None, "c")]
    assert plan_control(right, wrong) == {
        "samples": 2, "changed": 0.5, "l2_all_m_right": 0.5, "l2_all_m_wrong": 4.5, "unreadable_wrong": 1
    }


def test_data_that_the_record_contradicts_is_refused() -> None:
    with pytest.raises(UserError, match="answers with 2 waypoints"):
        score_plan("1.0,0.0", generation("1.0,0.0,2.0,0.0"), TASK)


def test_wrong_images_are_of_another_sample_and_as_many() -> None:
    rows = [sample(images=("a",)), sample(images=("a",)), sample(images=("b",)), sample(), sample(images=("a", "b"))]
    others = wrong_images(rows)
    assert [other and other.images for other in others] == [(Path("b"),), (Path("b"),), (Path("a"),), None, None]


def test_slices_are_strings_bools_keys_inside_and_presence() -> None:
    tagged = sample(command="LEFT", light={"state": "red", "distance_m": 3.0}, hazard=False)
    slices = [slice_of(tagged.extra, key) for key in ("command", "light.state", "light", "hazard", "lead", "command.x")]
    assert slices == ["LEFT", "red", "present", "False", "none", "none"]


def test_answers_in_words_are_counted_by_type_beside_the_most_frequent_answer() -> None:
    answers = [("light", "red", "red"), ("light", "red", "green"), ("light", "green", "green"), ("lead", "no", "")]
    figures = word_figures([score_words("?", *row) for row in answers])
    assert (figures["exact"], figures["majority"], figures["empty"]) == (0.5, 0.75, 1)
    assert figures["by_type"]["light"] == {
        "samples": 3, "exact": 0.6667, "majority": 0.6667, "majority_answer": "red"
    }


def test_of_a_choice_the_letter_counts() -> None:
    question = "What next? A. Stop. B. Turn left."
    assert score_words(question, "", "B", "B. Turn left").correct
    assert not score_words(question, "", "B", "A").correct
    assert not score_words(question, "", "B", "left").correct


def test_question_types_are_keys_else_texts_else_one() -> None:
    assert question_types([sample("<image>\nA light?"), sample("A car?", question="lead")]) == ["A light?", "lead"]
    assert question_types([sample(str(row)) for row in range(51)]) == ["all"] * 51


def box(x: int, label: str = "car") -> Detection:
    return Detection((0, x, 100, x + 100), label)


def test_a_box_takes_one_object_that_it_overlaps_by_half() -> None:
    assert matches([box(30), box(0), box(400)], [box(0), box(300)]) == [True, False, False]
    assert matches([box(34)], [box(0)]) == [False]  # 66 of 134


def test_average_precision_is_the_area_under_the_interpolated_curve() -> None:
    sureness, hits = np.array([0.2, 0.9, 0.5]), np.array([True, True, False])
    # precision 1 up to recall 1/2 (51 levels), then 2/3 up to recall 1 (50 levels)
    assert average_precision(sureness, hits, 2) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert average_precision(np.array([]), np.array([]), 2) == 0.0


def test_boxes_are_measured_by_label_and_unreadable_answers_find_nothing() -> None:
    figures = box_figures([
        BoxScore("", (box(0), box(300)), (box(0), box(600)), (0.4, 0.9)),
        BoxScore("", (box(0, "walker"),), None),
    ])
    assert figures["unreadable"] == 1
    assert figures["by_label"]["car"]["recall_50"] == 0.5
    assert figures["by_label"]["car"]["ap_50"] == pytest.approx(0.5 * 51 / 101, abs=1e-4)
    assert figures["by_label"]["car"]["ap_50_unscored"] == pytest.approx(51 / 101, abs=1e-4)
    assert figures["by_label"]["walker"]["ap_50"] == 0.0
    assert figures["recall_50"] == pytest.approx(1 / 3, abs=1e-4)


@pytest.fixture(scope="session")
def mixed_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three plans, two questions and one grounding sample, one picture each."""
    from wamdiff2_core.conversations import read_rgb
    from wamdiff2_core.dataset import read_dataset

    folder = tmp_path_factory.mktemp("mixed")
    plans = read_dataset(DEBUG)[:3]
    with DatasetWriter(folder) as writer:
        pictures = [read_rgb(plan.images[0]) for plan in plans]
        for row, plan in enumerate(plans):
            light = {"light": {"state": ("red", "green")[row % 2]}}
            writer.add(f"p{row}", plan.prompt, plan.answer, [pictures[row]], light)
        for row, answer in enumerate(("yes", "no")):
            writer.add(f"q{row}", "<image>\nIs there a car?", answer, [pictures[row]])
        writer.add("g", grounding_prompt(GroundingRequest("car")), '[{"bbox_2d": [1, 2, 3, 4], "label": "car"}]',
                   pictures[:1])
    return folder / "samples.jsonl"


def test_a_file_of_mixed_tasks_gives_figures_of_each(
    mixed_set: Path, nano_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["evaluate", str(nano_folder), str(mixed_set), "--by", "light.state", "--confidence-threshold", "0.8",
                 "--batch-size", "2"])
    printed = capfd.readouterr().out
    assert code == 0
    result = json.loads(printed)
    assert result["decode"]["confidence_threshold"] == 0.8
    plans = result["planning"]
    assert plans["all"]["samples"] == 3
    assert plans["all"]["l2_median_m"] < 1.0
    assert plans["by"]["light.state"]["red"]["samples"] == 2
    assert plans["by"]["light.state"]["red"]["wrong_images"]["samples"] == 2
    assert result["questions"]["all"]["by_type"]["Is there a car?"]["majority"] == 0.5
    assert result["grounding"]["all"]["objects"] == 1
    assert "wrong_images" not in result["grounding"]["all"]
    again = evaluate_checkpoint(nano_folder, mixed_set, decode={"confidence_threshold": 0.8}, by=["light.state"])
    assert again == result


def test_answers_are_bound_to_the_grammar_that_serving_has_for_their_task(
    mixed_set: Path, nano_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool, float, int]] = []
    generate = Generator.generate

    def noted(generator: Generator, requests: Any, decode: DecodeConfig, **rest: Any) -> list[Generation]:
        bound = [language is not None for language in rest["grammars"]]
        assert len(bound) == len(requests)
        assert len(set(bound)) == 1
        asked.append((decode.grammar, bound[0], decode.deadline_ms, len(requests)))
        return generate(generator, requests, decode, **rest)

    monkeypatch.setattr(Generator, "generate", noted)
    of = evaluate_checkpoint(nano_folder, mixed_set, decode={"grammar": "task"}, control=False)
    assert asked == [("task", True, 0.0, 3), ("task", False, 0.0, 2), ("task", True, 0.0, 1)]
    assert of["grounding"]["all"]["unreadable"] == 0  # without the grammar this answer is no JSON
    asked.clear()
    evaluate_checkpoint(nano_folder, mixed_set, decode={"deadline_ms": 1.0, "grammar": "off"}, control=False)
    assert asked == [("task", True, 0.0, 3), ("off", False, 0.0, 2), ("off", False, 0.0, 1)]


def test_a_picture_that_cannot_be_read_is_told_in_one_line(nano_folder: Path, tmp_path: Path, capsys) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "<image>\nIs there a car?", "yes", [b"no picture"])
    assert main(["evaluate", str(nano_folder), str(writer.file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: sample 'a': image: expected a picture that can be decoded")
    assert told.count("\n") == 1


@pytest.mark.parametrize(("option", "words"), [
    (["--device", "gpu"], "device: expected a device of this machine"), (["--dtype", "int8"], "dtype: expected one of"),
    (["--backend", "cuda", "--device", "cpu"], "backend"),
    (["--threads", "99999"], "threads: expected an integer from 1 to 1024, got 99999"),
])
def test_where_it_cannot_run_is_told(mixed_set: Path, tmp_path: Path, capsys, option: list[str], words: str) -> None:
    assert main(["evaluate", str(tmp_path), str(mixed_set), *option]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "expected"), [
    ({"by": ["light_state"]}, "by: expected a key of the samples, got light_state; did you mean 'light'"),
    ({"decode": {"block_size": 4}}, "block_size"),
    ({"decode": {"strategy": "autoregressive"}}, "strategy"),
])
def test_what_cannot_be_evaluated_is_told(mixed_set: Path, nano_folder: Path, changes: dict, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        evaluate_checkpoint(nano_folder, mixed_set, **changes)


def test_a_missing_file_is_told_before_the_checkpoint_is_loaded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("wamdiff2_core.model.checkpoint.load_checkpoint", lambda folder: pytest.fail("loaded"))
    with pytest.raises(UserError, match="no such file"):
        evaluate_checkpoint(tmp_path, tmp_path / "none.jsonl")
