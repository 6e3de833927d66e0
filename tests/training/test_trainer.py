"""A stage that is stopped and resumed ends where an unbroken one ends, and its checkpoints serve."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from training.command import load_stage
from training.optimizer import OptimizerConfig, learning_rate
from training.stage import StageConfig
from training.trainer import STATE_NAME, Trainer, batch_rows, checkpoints
from wamdiff2_core.cli.main import main
from wamdiff2_core.config import parse
from wamdiff2_core.errors import UserError

SHAPE = {"text_width": 48, "text_layers": 2, "text_heads": 2, "text_mlp": 64, "head_dim": 24, "vision_width": 32,
         "vision_layers": 2, "vision_heads": 2, "vision_mlp": 48, "deepstack_layers": [0]}


def stage(out: Path, data: Path, **changes: Any) -> StageConfig:
    tree = {
        "out": str(out),
        "data": {"train": str(data), "validation": str(data), "answer_tokens": 32},
        "shape": SHAPE,
        "objective": {"block_size": 16},
        "optimizer": {"warmup_steps": 2},
        "run": {"steps": 6, "batch_size": 2, "compiled": False, "log_every": 1, "validate_every": 3,
                "checkpoint_every": 3},
        "record": {"images": {"size_px": [64, 32], "min_pixels": 2048, "max_pixels": 2048}},
    }
    return parse(StageConfig, {**tree, **changes}, "test")


def test_resumed_stage_ends_with_the_weights_of_an_unbroken_one(picture_set: Path, tmp_path: Path) -> None:
    whole, broken = stage(tmp_path / "whole", picture_set), stage(tmp_path / "broken", picture_set)
    Trainer(whole).train()

    first = Trainer(broken)
    taken = first.loss

    def interrupted(inputs: Any) -> torch.Tensor:
        if first.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken(inputs)

    first.loss = interrupted
    first.train()
    assert first.step == 4
    resumed = Trainer(broken)
    assert resumed.step == 4
    resumed.train()

    states = [load_file(checkpoints(Path(config.out))[-1] / STATE_NAME) for config in (whole, broken)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    texts = [(Path(config.out) / "log.jsonl").read_text() for config in (whole, broken)]
    logs = [[json.loads(line) for line in text.splitlines()] for text in texts]
    assert [line["step"] for line in logs[1]] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]


def test_checkpoint_is_served_by_the_core(picture_set: Path, tmp_path: Path) -> None:
    from wamdiff2_core.chat import ChatRequest
    from wamdiff2_core.conversations import read_rgb
    from wamdiff2_core.dataset import read_dataset
    from wamdiff2_core.decode.generator import Generator
    from wamdiff2_core.model.checkpoint import load_checkpoint

    trainer = Trainer(stage(tmp_path, picture_set))
    trainer.train()
    checkpoint = load_checkpoint(checkpoints(tmp_path)[-1])
    assert checkpoint.record is not None
    assert checkpoint.record.block_sizes == (16,)
    assert checkpoint.record.mask_token_id == checkpoint.tokenizer.mask_token_id
    sample = read_dataset(picture_set)[0]
    request = checkpoint.chat.encode(ChatRequest(sample.prompt, (read_rgb(sample.images[0]),)))
    (answer,) = Generator(checkpoint).generate([request], checkpoint.record.decode)
    assert len(answer.raw_ids) == 128


def test_training_lowers_the_loss(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 40, "batch_size": 3, "compiled": False, "log_every": 10, "checkpoint_every": 40}
    config = stage(tmp_path, text_set, objective={"kind": "autoregressive"}, optimizer={"lr": 3e-3, "warmup_steps": 5},
                   run=run)
    trainer = Trainer(config)
    before = trainer.validation_loss()
    trainer.train()
    assert trainer.validation_loss() < 0.5 * before


def test_a_stage_that_stops_early_keeps_its_schedule(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 10, "stop_at": 3, "batch_size": 2, "compiled": False, "log_every": 1}
    line = Trainer(stage(tmp_path, text_set, run=run)).train()
    assert line["step"] == 3
    assert line["lr"] == pytest.approx(learning_rate(2, OptimizerConfig(warmup_steps=2), 10), abs=1e-6)


def test_own_order_stage_resumes_to_the_same_weights(picture_set: Path, tmp_path: Path) -> None:
    run = {"steps": 3, "batch_size": 2, "compiled": False, "checkpoint_every": 1, "keep": 9}
    config = stage(tmp_path, picture_set, objective={"block_size": 16, "own_order": True}, run=run)
    Trainer(config).train()
    last = checkpoints(tmp_path)[-1]
    before = load_file(last / STATE_NAME)
    shutil.rmtree(last)
    Trainer(config).train()
    after = load_file(last / STATE_NAME)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def test_a_block_stage_starts_from_the_weights_of_the_autoregressive_stage(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 1, "batch_size": 2, "compiled": False, "dtype": "float32"}
    Trainer(stage(tmp_path / "ar", text_set, objective={"kind": "autoregressive"}, run=run)).train()
    saved = load_file(checkpoints(tmp_path / "ar")[-1] / "model.safetensors")
    block = Trainer(stage(tmp_path / "b4", text_set, objective={"block_size": 4}, init=str(tmp_path / "ar"), run=run))
    for name, weight in block.model.named_parameters():
        assert torch.equal(weight, saved[name]), name
    assert block.record.label_alignment == "aligned"
    assert block.record.block_sizes == (4,)


def test_rotary_frequencies_keep_fp32_when_weights_are_bf16(text_set: Path, tmp_path: Path) -> None:
    trainer = Trainer(stage(tmp_path, text_set))
    assert trainer.model.lm_head.weight.dtype == torch.bfloat16
    assert trainer.model.model.language_model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_folder_with_another_stage_is_refused(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 1, "batch_size": 2, "compiled": False}
    Trainer(stage(tmp_path, text_set, run=run)).train()
    with pytest.raises(UserError, match="objective differ"):
        Trainer(stage(tmp_path, text_set, objective={"block_size": 8}, run=run))


def test_a_folder_with_something_else_is_refused_and_left_alone(text_set: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="out: expected an empty folder, or one of an earlier training"):
        Trainer(stage(tmp_path, text_set))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def stage_file(folder: Path, text_set: Path, **overrides: str) -> Path:
    values = {"out": str(folder / "out"), "train": str(text_set), "validation": "null", "init": "null"} | overrides
    file = folder / "stage.yaml"
    file.write_text("out: {out}\ninit: {init}\ndata: {{train: {train}, validation: {validation}}}\n"
                    .format_map(values))
    return file


@pytest.mark.parametrize(("given", "words"), [
    ({"train": "none.jsonl"}, "data.train: expected a conversation file, got none.jsonl (no such file)"),
    ({"train": "/tmp"}, "data.train: expected a conversation file, got /tmp (a folder)"),
    ({"validation": "none.jsonl"}, "data.validation: expected a conversation file, got none.jsonl (no such file)"),
    ({"init": "runs/none"}, "init: expected a checkpoint folder"),
])
def test_what_is_missing_is_told_in_one_line_before_anything_is_shown_or_made(
    text_set: Path, tmp_path: Path, capsys, given: dict[str, str], words: str
) -> None:
    assert main(["train", str(stage_file(tmp_path, text_set, **given))]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"error: {words}")
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_out_that_cannot_be_written_to_is_told_in_one_line_too(text_set: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", str(stage_file(tmp_path, text_set, out="/proc/x"))]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: out: expected a place that can be written to, got /proc/x")
    assert stderr.count("\n") == 1


def test_a_checkpoint_that_the_disk_does_not_take_is_named_and_leaves_no_part(
    text_set: Path, tmp_path: Path, monkeypatch
) -> None:
    trainer = Trainer(stage(tmp_path, text_set))
    earlier = trainer.save()

    def save(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", save)
    trainer.step += 1
    with pytest.raises(OSError, match="checkpoint-000001") as told:
        trainer.save()
    assert told.value.errno == errno.ENOSPC
    assert sorted(path.name for path in tmp_path.iterdir()) == [earlier.name, "stage.json"]


def test_every_epoch_sees_each_row_once_and_in_another_order() -> None:
    rows = torch.cat([batch_rows(step, size=10, batch=4, seed=3) for step in range(5)])
    assert sorted(rows[:10].tolist()) == list(range(10))
    assert sorted(rows[10:].tolist()) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()
    assert len(batch_rows(0, size=3, batch=8, seed=0)) == 8


def test_rate_rises_to_the_peak_and_falls_to_the_floor() -> None:
    config = OptimizerConfig(lr=1.0, min_lr_share=0.1, warmup_steps=10)
    rates = [learning_rate(step, config, 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[-1] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))


def test_overrides_beat_the_file_and_unknown_keys_are_named(tmp_path: Path) -> None:
    file = tmp_path / "stage.yaml"
    file.write_text("out: a\ndata: {train: x.jsonl}\nrun: {steps: 5}\n")
    config = load_stage(file, ["--run.steps", "7", "--out=b"])
    assert (config.run.steps, config.out) == (7, "b")
    with pytest.raises(UserError, match=r"run\.stepz"):
        load_stage(file, ["--run.stepz", "7"])
    with pytest.raises(UserError, match="--section"):
        load_stage(file, ["run.steps=7"])
    with pytest.raises(UserError, match="no such file"):
        load_stage(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["nano_ar", "nano_b4", "nano_b8", "nano_b16", "nano_b32", "nano_b32_own"])
def test_shipped_stage_files_are_valid(name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "training" / "configs"
    config = load_stage(folder / f"{name}.yaml")
    assert config.record.planning is not None
    assert config.record.planning.decimals == 1


def test_a_stage_file_that_is_a_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "stage.yaml"
    file.write_text("- a\n- b\n")
    with pytest.raises(UserError, match="expected a mapping of sections"):
        load_stage(file)
