"""`wamdiff2 ask`: one question on the terminal, with a checkpoint whose answer is known, and with the shipped one."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import wamdiff2_core.model.checkpoint as checkpoints
from tests.core.doubles import EOS, MASK, byte_tokenizer, tiny_model
from wamdiff2_core.cli import main as cli
from wamdiff2_core.cli.ask import ask
from wamdiff2_core.cli.box_picture import draw_boxes
from wamdiff2_core.config import TASK_NAMES, CameraSpec, DecodeConfig, ImagePolicy, PlanningTask
from wamdiff2_core.model.checkpoint import save_checkpoint
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import Detection

RECORD = ServingRecord(
    block_sizes=(128,), mask_token_id=MASK, eos_token_id=EOS, decode=DecodeConfig(128, 128, max_new_tokens=128),
    images=ImagePolicy((64, 32), 2048, 2048), rig=(CameraSpec(width_px=64, height_px=32),),
    planning=PlanningTask(decimals=1, input_decimals=1), tasks=TASK_NAMES,
)
PROBABILITY = 0.95
NANO = Path(__file__).resolve().parents[2] / "checkpoints/wamdiff2-nano"
CAR = '[{"bbox_2d": [250, 500, 750, 1000], "label": "car"}, {"bbox_2d": [0, 0, 100, 100], "label": "cone"}]'
CHOICE = "What does it do? Options: A. Stop. B. Turn left."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("generalist")
    save_checkpoint(tiny_model(1), byte_tokenizer(), RECORD, path)
    return path


@pytest.fixture
def says(monkeypatch):
    """Make every checkpoint say one text, each token with `PROBABILITY`, and keep what it was asked."""
    asked = SimpleNamespace(prompts=[])
    load = checkpoints.load_checkpoint

    def patch(answer):
        def loaded(*args, **kwargs):
            checkpoint = load(*args, **kwargs | {"backend": "eager"})  # its modules are called
            ids = checkpoint.chat.encode_answer(answer)
            ids += [EOS] * (128 - len(ids))

            def forced(module, inputs, out):
                others = out.shape[-1] - 2  # the mask token is never chosen
                sure = math.log(PROBABILITY / (1 - PROBABILITY) * others)
                return torch.zeros_like(out).scatter_(-1, torch.tensor(ids)[: len(out), None], sure)

            checkpoint.model.lm_head.register_forward_hook(forced)
            encode = checkpoint.chat.encode
            checkpoint.chat.encode = lambda request: asked.prompts.append(request) or encode(request)
            return checkpoint

        monkeypatch.setattr(checkpoints, "load_checkpoint", loaded)
        return asked

    return patch


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run the command; gives its exit code, standard output and standard error."""
    entry = SimpleNamespace(name="ask", load=lambda: ask)
    monkeypatch.setattr(cli, "metadata", SimpleNamespace(entry_points=lambda group: [entry]))

    def run_it(*arguments, model=folder):
        code = cli.main(["ask", str(model), *map(str, arguments)])
        return code, *capsys.readouterr()

    return run_it


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "frame.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 90, (32, 64, 3), np.uint8)).save(path)
    return path


def images(picture, count=1):
    return ["--image", picture] * count


def test_a_free_question_gets_its_pictures_in_front_and_the_answer_alone_on_standard_output(run, says, picture):
    asked = says("A red light.")
    code, out, err = run(*images(picture, 2), "What is ahead?")
    assert (code, out) == (0, "A red light.\n")
    assert asked.prompts[0].text == "<image><image>\nWhat is ahead?"
    assert len(asked.prompts[0].images) == 2
    assert "13 tokens in 2 forwards (6.5 a forward), 1 blocks, 1 steps; prefill" in err
    run(*images(picture), "Left of <image> is what?")
    assert asked.prompts[1].text == "Left of <image> is what?"
    run("No picture?")
    assert asked.prompts[2].text == "No picture?"


def test_lingoqa_takes_five_frames(run, says, picture):
    asked = says("Yes.")
    code, out, _ = run(*images(picture, 5), "--task", "lingoqa", "Is it wet?")
    assert (code, out) == (0, "Yes.\n")
    assert asked.prompts[0].text == "<image> <image> <image> <image> <image>\nIs it wet?"


def test_drivebench_names_its_views_and_reads_the_option(run, says, picture):
    asked = says("B")
    code, out, err = run(*images(picture), "--task", "drivebench", "--view", "CAM_BACK", CHOICE)
    assert (code, out) == (0, "B\n")
    assert asked.prompts[0].text == f"[CAM_BACK] <image>\n{CHOICE}"
    assert "option B: Turn left." in err
    run(*images(picture, 6), "--task", "drivebench", CHOICE)
    assert asked.prompts[1].text.startswith("[CAM_FRONT] <image> [CAM_FRONT_LEFT] <image>")


def test_an_answer_that_is_no_option_ends_with_1(run, says, picture):
    says("Turn left")
    code, out, err = run(*images(picture), "--task", "drivebench", CHOICE)
    assert (code, out) == (1, "Turn left\n")
    assert "answer: expected one of A, B at character 0" in err


def test_grounding_shows_boxes_in_pixels_with_scores_and_draws_them(run, says, picture, tmp_path):
    asked = says(CAR)
    target = tmp_path / "new" / "boxes.png"
    code, out, err = run(*images(picture), "--task", "grounding", "--out", target, "car")
    assert (code, out) == (0, CAR + "\n")
    assert asked.prompts[0].text.startswith("<image>\nLocate every object that matches the description ‘‘car’’")  # noqa: RUF001
    assert "0.95 car: x 32 to 64, y 8 to 24 pixels" in err
    assert "0.95 cone: x 0 to 6, y 0 to 3 pixels" in err
    assert "2 objects" in err
    drawn = np.asarray(Image.open(target))
    assert drawn.shape == (32, 64, 3)
    red, green, blue = drawn[20, 32].astype(int)
    assert red > 200 > 60 > max(green, blue)
    before = np.asarray(Image.open(picture))
    assert np.array_equal(drawn[27:, :20], before[27:, :20])


def test_a_cut_off_grounding_answer_keeps_whole_objects_and_says_so(run, says, picture):
    says(CAR[:80])
    code, out, err = run(*images(picture), "--task", "grounding", "car")
    assert (code, out) == (1, CAR[:80] + "\n")
    assert "0.95 car" in err
    assert "1 objects, which are whole in a damaged answer" in err
    assert f"at character 80 of {CAR[:80]!r}" in err


def test_an_answer_that_does_not_end_says_so(run, says, picture):
    says("x" * 200)
    assert run(*images(picture), "What?")[2].rstrip().endswith("; not ended at the length limit")


def test_planning_takes_the_drive_from_options(run, says, picture):
    asked = says("2.0,-0.1,4.0,-0.2,6.0,-0.4,8.0,-0.7,10.0,-1.1,12.0,-1.6")
    code, out, err = run(
        *images(picture), "--task", "planning", "--target", "10,1.5", "--target=20,-3", "--command", "change-left",
        "--velocity", "4.0",
    )
    assert (code, out) == (0, "2.0,-0.1,4.0,-0.2,6.0,-0.4,8.0,-0.7,10.0,-1.1,12.0,-1.6\n")
    assert "Target: [10.0, -1.5] [20.0, 3.0]. Command: do a lane change to the left\n" in asked.prompts[0].text
    assert "Current velocity is: 4.0\n" in asked.prompts[0].text
    assert "at 3.00 s: x 12.00 m, y 1.60 m" in err
    assert "the plan may be driven" in err


def test_a_plan_that_cannot_be_read_ends_with_1(run, says, picture):
    says("straight on")
    code, out, err = run(*images(picture), "--task", "planning", "--target", "1,0", "--target", "2,0")
    assert (code, out) == (1, "straight on\n")
    assert "the plan may not be driven: answer: expected number 1 of 12 at character 0" in err


def test_the_shipped_checkpoint_turns_left_as_it_is_told(run, nano_folder):
    code, out, err = run(
        "--image", nano_folder.parents[1] / "docs/images/left_turn.jpg", "--task", "planning", "--velocity", "6",
        "--target", "9.0,3.4", "--target", "13.2,12.2", "--command", "left", model=nano_folder,
    )
    assert code == 0
    assert out.count(",") == 11
    assert "the plan may be driven" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "lingqa", "Why?"], "did you mean 'lingoqa'?"),
        (["--task", "lingoqa", "Why?"], "image: expected 5, as this question has places, got 1"),
        (["--task", "lingoqa", "Why <image>?"], "question: expected text without the image mark <image>"),
        (["--task", "grounding"], "description: expected some text"),
        ([], "question: expected some text, got nothing"),
        (["What <image> and <image>?"], "image: expected 2, as this question has places, got 1"),
        (["--task", "drivebench", "--view", "CAM_FRNT", "Why?"], "did you mean 'CAM_FRONT'?"),
        (["--view", "CAM_FRONT", "Why?"], "view: expected --task drivebench, got --task free"),
        (["--out", "x.png", "Why?"], "out: expected --task grounding, got --task free"),
        (["--velocity", "3", "Why?"], "expected --task planning, got --task free"),
        (["--task", "grounding", "--out", "x.jpg", "car"], "out: expected a file that ends in .png, got x.jpg"),
        (["--task", "planning", "Why?"], "question: expected none for planning"),
        (["--task", "planning"], "target: expected two target points, got 0; give --target X,Y twice"),
        (["--task", "planning", "--target", "1", "--target", "2,3"], "target: expected numbers as X,Y, got 1"),
        (["--task", "planning", "--target", "1,nan", "--target", "2,3"], "target: expected numbers as X,Y, got 1,nan"),
        (["--task", "planning", "--target", "1,0", "--target", "2,0", "--velocity", "fast"],
         "velocity: expected numbers as X or X,Y, got fast"),
        (["--task", "planning", "--command", "lft"], "did you mean 'left'?"),
        (["--task", "planning", "--target", "1,0", "--target", "2,0", "--command", "unknown"],
         "navigation.command: expected a command, got none"),
        (["--image", "nowhere.png", "Why?"], "image: expected an image file, got none at nowhere.png"),
        (["--block-size", "7", "Why?"], "block_size: expected one of [128] (trained), got 7"),
        (["--dtype", "float8", "Why?"], "dtype: expected one of auto"),
        (["--device", "tpu", "Why?"], "device: expected a device of this machine"),
        (["--device", "meta", "Why?"], "device: expected a device of this machine"),
        (["--temperature", "inf", "Why?"], "temperature: expected a finite number >= 0, got inf"),
        (["--deadline-ms", "1e308", "Why?"], "deadline_ms: expected milliseconds >= 0 (0 = none), a day at most"),
        (["--seed", "9" * 20, "Why?"], "seed: expected an integer from 0 to 2**63 - 1, got 9999"),
        (["--seed", "-1", "Why?"], "seed: expected an integer from 0 to 2**63 - 1, got -1"),
        (["--grammar", "", "Why?"], "grammar: expected one of off, task, got nothing"),
    ],
)
def test_wrong_use_is_told_in_one_line_before_the_weights_are_read(run, picture, monkeypatch, arguments, message):
    monkeypatch.setattr(checkpoints, "load_checkpoint", lambda *args, **kwargs: pytest.fail("loaded"))
    code, out, err = run(*images(picture), *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_picture_is_named(run, tmp_path):
    (tmp_path / "frame.png").write_bytes(b"not a picture")
    code, _, err = run("--image", tmp_path / "frame.png", "Why?")
    assert code == 2
    assert "image: expected a picture that can be decoded, got cannot decode 'frame.png'" in err


def test_a_checkpoint_is_not_asked_what_it_was_not_trained_on(run, nano_folder, picture):
    code, _, err = run(*images(picture, 1), "--task", "drivebench", "Why?", model=nano_folder)
    assert code == 2
    trained = ", ".join(ServingRecord.load(nano_folder).trained_tasks)
    assert f"task: expected one of {trained} (trained), got drivebench" in err


def test_planning_needs_the_checkpoints_rig(run, picture, tmp_path):
    wide = tmp_path / "wide.png"
    Image.fromarray(np.zeros((32, 80, 3), np.uint8)).save(wide)
    targets = ["--task", "planning", "--target", "1,0", "--target", "2,0"]
    assert "observation.frames[front]: expected 64 x 32 pixels, got 80 x 32" in run("--image", wide, *targets)[2]
    two = run(*images(picture, 2), *targets)[2]
    assert "image: expected one for each camera of the checkpoint (front), got 2" in two


def test_labels_and_boxes_of_any_kind_can_be_drawn():
    rgb = np.zeros((40, 60, 3), np.uint8)
    boxes = {(0, 0, 1000, 1000): "all", (500, 500, 500, 500): "交通灯", (0, 0, 0, 9): "all"}
    drawn = draw_boxes(rgb, [Detection(box, label) for box, label in boxes.items()], [1.0, 0.5, 0.0])
    assert drawn.shape == rgb.shape
    assert not rgb.any()
    edges = [drawn[0, 59], drawn[39, 0], drawn[39, 59]]
    assert all(edge[0] > 200 for edge in edges)


def test_words_may_have_several_answers_at_a_temperature(run, picture):
    words = ("Describe weather and time of day.", "--image", picture, "--max-new-tokens", 16)
    code, out, _ = run(*words, "--temperature", 0.7, "--candidates", 3, model=NANO)
    assert (code, len(out.splitlines())) == (0, 3)
    for more, message in (
        (("--candidates", 2), "candidates: expected 1 at temperature 0"),
        (("--task", "grounding", "--candidates", 2), "candidates: expected 1 for grounding, got 2"),
    ):
        code, _, error = run(*words, *more)
        assert code == 2
        assert message in error
