"""A vision tower from nothing: targets by brute force, coloured squares are learnt, resuming changes nothing."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from training.checkpoints import checkpoints
from training.config_file import load_vision
from training.vision_pretraining import FAR_M, Classes, Picture, VisionPretraining, read_pictures, targets
from wamdiff2_core.cli.main import main
from wamdiff2_core.conversations import Conversation, Turn
from wamdiff2_core.dataset import Sample
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.grounding import box_from_pixels

ONE_PROCESS = SimpleNamespace(process_index=0, num_processes=1, is_main_process=True)
COLOURS = {"red square": (220, 30, 30), "green square": (30, 200, 30)}
SIZE = (128, 64)
SHOWN = Sample(Conversation((Turn("human", "<image>"), Turn("gpt", "x")), ("x",)), (Path("x"),))


def write_set(folder: Path, count: int, seed: int) -> list[str]:
    """Pictures of at most one square, its box, and a question about its colour."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    plans, questions = [], []
    for number in range(count):
        pixels = rng.integers(90, 130, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
        kind = [None, *COLOURS][int(rng.integers(3))]
        objects = []
        if kind is not None:
            x, y, side = (int(rng.integers(*limits)) for limits in ((0, 100), (0, 40), (12, 24)))
            pixels[y : y + side, x : x + side] = COLOURS[kind]
            box = box_from_pixels(x, y, x + side, y + side, *SIZE)
            objects = [{"label": kind, "bbox_2d": list(box), "distance_m": 200 / side}]
        name = f"images/{number:05d}.png"
        Image.fromarray(pixels).save(folder / name)

        def line(asked: str, answer: str, name: str = name, **extra: object) -> str:
            turns = [{"from": "human", "value": f"<image>\n{asked}"}, {"from": "gpt", "value": answer}]
            return json.dumps({"image": name, "conversations": turns, **extra})

        plans.append(line("Plan.", "0,0", situation="free", waypoints_m=[[0, 0]], objects=objects))
        questions.append(line("Colour?", kind or "None.", question="colour"))
    files = [folder / "samples.jsonl", folder / "qa.jsonl"]
    for file, lines in zip(files, (plans, questions), strict=True):
        file.write_text("\n".join(lines) + "\n")
    return [str(file) for file in files]


def pretraining(folder: Path, train: list[str], *overrides: str) -> VisionPretraining:
    config = folder / "vision.yaml"
    config.write_text(
        "shape: {text_width: 32, text_layers: 1, text_heads: 1, text_mlp: 64, vision_width: 32, vision_layers: 2,"
        " vision_heads: 2, vision_mlp: 64, deepstack_layers: [0]}\n"
        "images: {size_px: [128, 64], min_pixels: 8192, max_pixels: 8192}\n"
        "optimizer: {lr: 3.0e-3, warmup_steps: 10}\n"
        "run: {steps: 6, global_batch: 16, precision: fp32, threads: 1, log_every: 2, checkpoint_every: 3}\n"
    )
    given = ["--out", str(folder / "out"), "--train", f"[{','.join(train)}]", *overrides]
    (folder / "out").mkdir(exist_ok=True)
    return VisionPretraining(load_vision(config, given), ONE_PROCESS)


def test_targets_are_those_of_every_cell_by_itself() -> None:
    rng = np.random.default_rng(3)
    classes = Classes(("a", "b"), {"q": ("no", "yes, # m")})
    pictures = []
    for _ in range(40):
        objects = []
        for _ in range(int(rng.integers(0, 5))):
            x, y = rng.uniform(0, 0.9, 2)
            wide, high = rng.uniform(0.01, 0.5, 2)
            objects.append((str(rng.choice(["a", "b"])), (x, y, min(1.0, x + wide), min(1.0, y + high)),
                            float(rng.uniform(1, 80))))
        unsure = [objects.pop()] if len(objects) > 2 else []
        pictures.append(Picture(SHOWN, objects, {"q": str(rng.choice(["no", "yes, 12 m", "perhaps"]))}, unsure))
    rows, columns = 3, 5
    found = targets(pictures, classes, rows, columns)
    for n, picture in enumerate(pictures):
        assert picture.objects is not None
        for row in range(rows):
            for column in range(columns):
                cell = row * columns + column
                for k, label in enumerate(classes.labels):
                    expected = 0.0
                    for value, boxes in ((math.nan, picture.unsure), (1.0, picture.objects)):
                        for other, (x1, y1, x2, y2), _ in boxes:
                            wide = min(x2, (column + 1) / columns) - max(x1, column / columns)
                            high = min(y2, (row + 1) / rows) - max(y1, row / rows)
                            least = 0.05 * min(1 / (rows * columns), (x2 - x1) * (y2 - y1))
                            if other == label and wide > 0 and high > 0 and wide * high > least:
                                expected = value
                    assert found.shown[n, cell, k].item() == pytest.approx(expected, nan_ok=True)
                here = [
                    (distance, box) for _, box, distance in picture.objects
                    if int((box[0] + box[2]) / 2 * columns) == column and int((box[1] + box[3]) / 2 * rows) == row
                ]
                if not here:
                    assert found.nearest[n, cell].isnan().all()
                    continue
                distance, (x1, y1, x2, y2) = min(here)
                place = [(x1 + x2) / 2 * columns - column, (y1 + y2) / 2 * rows - row,
                         math.log((x2 - x1) * columns), math.log((y2 - y1) * rows),
                         math.log1p(distance) / math.log1p(FAR_M)]
                assert found.nearest[n, cell].tolist() == pytest.approx(place, abs=1e-5)
        answer = picture.answers["q"]
        assert found.answers[n, 0] == {"no": 0, "yes, 12 m": 1, "perhaps": -1}[answer]
        expected = math.log(13) / math.log(1 + FAR_M) if answer == "yes, 12 m" else math.nan
        assert found.distances[n, 0].item() == pytest.approx(expected, nan_ok=True)


def test_lines_of_one_picture_belong_together(tmp_path: Path) -> None:
    pictures = read_pictures(write_set(tmp_path / "set", 12, 0))
    assert len(pictures) == 12
    assert all(picture.objects is not None and len(picture.answers) == 1 for picture in pictures)
    for picture in pictures:
        assert picture.objects is not None
        assert picture.answers["colour"] == (picture.objects[0][0] if picture.objects else "None.")
        pixels = np.asarray(Image.open(picture.sample.images[0]))
        for label, (x1, y1, x2, y2), _ in picture.objects:
            centre = pixels[round((y1 + y2) / 2 * SIZE[1]), round((x1 + x2) / 2 * SIZE[0])]
            assert tuple(centre.tolist()) == COLOURS[label]


def test_squares_are_learnt_on_pictures_not_seen(tmp_path: Path) -> None:
    train, validation = write_set(tmp_path / "train", 600, 1), write_set(tmp_path / "val", 150, 2)
    training = pretraining(
        tmp_path, train, "--validation", f"[{','.join(validation)}]", "--run.steps", "160",
        "--run.validate_every", "1000", "--run.checkpoint_every", "1000",
    )
    before = training.validate()
    *_, last = training.train()
    assert before["right_colour"] < 0.6
    assert last["right_colour"] > 0.95
    assert last["recall"] > 0.8
    assert last["precision"] > 0.8


def test_resuming_takes_the_very_same_steps(tmp_path: Path) -> None:
    train = write_set(tmp_path / "train", 40, 1)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    straight = list(pretraining(whole, train).train())
    for _ in pretraining(halves, train).train():
        if (halves / "out/checkpoint-000003").exists():
            break
    resumed = pretraining(halves, train)
    assert resumed.step == 3
    again = list(resumed.train())
    assert [again[-1][key] for key in ("objects", "places", "answers", "distances")] == [
        straight[-1][key] for key in ("objects", "places", "answers", "distances")]
    weights = [(folder / "out/checkpoint-000006/model.safetensors").read_bytes() for folder in (whole, halves)]
    assert weights[0] == weights[1]


def test_a_run_stops_where_it_is_told_to_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    train = write_set(tmp_path / "train", 20, 1)
    pretraining(tmp_path, train)  # writes the file
    out = tmp_path / "run"
    given = ["pretrain-vision", str(tmp_path / "vision.yaml"), "--train", f"[{','.join(train)}]", "--out", str(out)]
    losses = VisionPretraining.losses

    def interrupted(training: VisionPretraining, pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
        if training.step == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(training, pictures)

    monkeypatch.setattr(VisionPretraining, "losses", interrupted)
    assert main([*given, "--run.stop_at", "4"]) == 1
    assert "stopped at step 2 of 4; the same command goes on" in " ".join(capsys.readouterr().err.split())
    assert main([*given, "--run.stop_at", "4"]) == 0
    assert [folder.name for folder in checkpoints(out)] == ["checkpoint-000003", "checkpoint-000004"]
    assert main(given) == 0
    assert checkpoints(out)[-1].name == "checkpoint-000006"


def test_a_checkpoint_that_the_disk_does_not_take_is_named_and_leaves_no_part(tmp_path: Path, monkeypatch) -> None:
    training = pretraining(tmp_path, write_set(tmp_path / "train", 20, 1))

    def save(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", save)
    with pytest.raises(OSError, match="checkpoint-000000") as told:
        training.save()
    assert told.value.errno == errno.ENOSPC
    assert not list((tmp_path / "out").iterdir())


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    training = pretraining(tmp_path, write_set(tmp_path / "train", 20, 1))
    for file in (tmp_path / "train" / "images").iterdir():
        file.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"train/images: image: expected a picture that can be decoded"):
        next(training.train())


def test_a_batch_that_processes_cannot_share_is_refused(tmp_path: Path) -> None:
    train = write_set(tmp_path / "train", 20, 1)
    pretraining(tmp_path, train)
    config = load_vision(tmp_path / "vision.yaml", ["--out", str(tmp_path), "--train", f"[{','.join(train)}]"])
    with pytest.raises(UserError, match=r"run\.global_batch: expected a multiple of the 3 processes, got 16"):
        VisionPretraining(config, SimpleNamespace(process_index=0, num_processes=3, is_main_process=True))


def test_the_folder_is_a_first_stage_s_start(tmp_path: Path) -> None:
    from wamdiff2_core.model.checkpoint import load_checkpoint

    training = pretraining(tmp_path, write_set(tmp_path / "train", 40, 1))
    fresh = {name: weight.clone() for name, weight in training.model.state_dict().items()}
    list(training.train())
    loaded = load_checkpoint(checkpoints(tmp_path / "out")[-1], dtype=torch.float32).model.state_dict()
    moved = {name for name, weight in fresh.items() if not torch.equal(weight, loaded[name])}
    assert moved
    assert all("visual." in name for name in moved)


def test_a_tower_is_gone_on_with(tmp_path: Path) -> None:
    train = write_set(tmp_path / "train", 40, 1)
    first = pretraining(tmp_path, train)
    list(first.train())
    second = tmp_path / "second"
    second.mkdir()
    again = pretraining(second, train, "--init", str(tmp_path / "out"), "--run.seed", "7")
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    with pytest.raises(UserError, match=r"init: expected a model of this `shape`, got .*: size mismatch for .*visual"):
        pretraining(second, train, "--init", str(tmp_path / "out"), "--shape.vision_width", "64")


def test_what_is_unsure_costs_nothing_whatever_the_head_says(tmp_path: Path) -> None:
    training = pretraining(tmp_path, write_set(tmp_path / "train", 40, 1))
    shown = [picture for picture in training.pictures if picture.objects]
    unsure = [Picture(picture.sample, [], unsure=picture.objects or []) for picture in shown]
    for weight, bias in ((-5.0, 5.0), (5.0, -5.0)):
        with torch.no_grad():
            training.head.cells.weight[:2], training.head.cells.bias[:2] = weight, bias
        sure = [Picture(picture.sample, []) for picture in shown]
        assert training.losses(unsure)["objects"] < training.losses(sure)["objects"]
        assert training.losses(unsure)["objects"].isfinite()


@pytest.mark.parametrize("broken", [{"bbox_2d": [1, 2, 3]}, {"bbox_2d": None}, {"label": "car"}])
def test_objects_in_another_form_are_told_with_their_line(tmp_path: Path, broken: dict[str, Any]) -> None:
    plans = Path(write_set(tmp_path / "set", 3, 0)[0])
    lines = [json.loads(line) for line in plans.read_text().splitlines()]
    lines[1] |= {"id": "seven", "objects": [broken]}
    plans.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="objects of seven: expected objects with label, bbox_2d"):
        read_pictures([str(plans)])


@pytest.mark.parametrize(
    "lines", ["", '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]}']
)
def test_files_that_tell_nothing_are_refused(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text(lines + "\n")
    with pytest.raises(UserError, match="objects"):
        pretraining(tmp_path, [str(file)])


def test_a_folder_of_another_run_or_of_something_else_is_refused_by_the_command(tmp_path: Path, capsys) -> None:
    train = write_set(tmp_path / "train", 40, 1)
    pretraining(tmp_path, train)  # writes the file
    given = ["pretrain-vision", str(tmp_path / "vision.yaml"), "--train", f"[{','.join(train)}]", "--out"]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    assert main([*given, str(tmp_path / "foreign")]) == 2
    assert "out: expected an empty folder" in capsys.readouterr().err
    out = tmp_path / "run"
    assert main([*given, str(out)]) == 0
    assert main([*given, str(out), "--shape.vision_width", "64"]) == 2
    assert "shape.vision_width 32 (now 64)" in " ".join(capsys.readouterr().err.split())
    assert main([*given, str(out)]) == 0
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6]
