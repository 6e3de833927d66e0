"""A stage that is stopped, killed or spread over processes ends where an unbroken one ends; checkpoints serve."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.training import ranks
from training.assembly import assemble, check_stage, claim, make_accelerator
from training.checkpoints import best_checkpoint, checkpoints, resolve_checkpoint, shorten_log
from training.config import OptimizerConfig, RunConfig, StageConfig, check_batch, stage_record
from training.optimizer import parameter_groups, share_of_peak
from training.parallel import STATE_NAME
from training.trainer import Trainer
from wamdiff2_core.cli.main import main
from wamdiff2_core.config import DecodeConfig, parse
from wamdiff2_core.errors import UserError

SHAPE = {"text_width": 48, "text_layers": 2, "text_heads": 2, "text_mlp": 64, "head_dim": 24, "vision_width": 32,
         "vision_layers": 2, "vision_heads": 2, "vision_mlp": 48, "deepstack_layers": [0]}


def tree(out: Path, data: Path, /, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "stage": "block_adaptation",
        "out": str(out),
        "data": {"train": [{"name": "test", "file": str(data)}], "validation": str(data), "answer_tokens": 32},
        "shape": SHAPE,
        "diffusion": {"block_size": 16},
        "optimizer": {"lr": 2e-3, "warmup_steps": 2},
        "run": {"steps": 6, "global_batch": 2, "micro_batch": 2, "log_every": 1, "validate_every": 3,
                "checkpoint_every": 3, "trackers": [], "threads": 1},
        "record": {"images": {"size_px": [64, 32], "min_pixels": 2048, "max_pixels": 2048}},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) and isinstance(value, dict) else value
    return base


def trainer(config: StageConfig) -> Trainer:
    check_stage(config)
    with claim(config):
        pass
    return Trainer(config, assemble(config, make_accelerator(config)))


def stage(out: Path, data: Path, /, **changes: Any) -> StageConfig:
    return parse(StageConfig, tree(out, data, **changes), "test")


def final_state(out: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(out)[-1] / STATE_NAME)


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in map(json.loads, (out / "log.jsonl").read_text().splitlines())]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_stopped_and_resumed_ends_with_the_weights_of_an_unbroken_run(picture_set: Path, tmp_path: Path) -> None:
    trainer(stage(tmp_path / "whole", picture_set)).train()
    config = stage(tmp_path / "broken", picture_set)
    first = trainer(config)
    taken = first._take

    def interrupted(*arguments: Any) -> float:
        if first.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken(*arguments)

    first._take = interrupted
    first.train()
    assert first.step == 5  # the step that runs, and the one after it, in which all processes hear of it
    resumed = trainer(config)
    assert resumed.step == 5
    resumed.train()
    same(final_state(tmp_path / "whole"), final_state(tmp_path / "broken"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "broken")


@pytest.mark.slow
def test_killed_without_warning_and_resumed_takes_the_same_steps(picture_set: Path, tmp_path: Path) -> None:
    config = tree(tmp_path / "whole", picture_set, run={"steps": 60, "checkpoint_every": 1, "validate_every": 1000})
    trainer(parse(StageConfig, config, "test")).train()
    out = tmp_path / "killed"
    file = tmp_path / "killed.yaml"
    file.write_text(yaml.safe_dump({**config, "out": str(out)}))
    (child,) = ranks.start(tmp_path / "killed.log", ranks.train, str(file))
    until = time.monotonic() + 120
    while not checkpoints(out) and time.monotonic() < until:
        time.sleep(0.05)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert 0 < len(losses(out)) < 60
    resumed = trainer(parse(StageConfig, {**config, "out": str(out)}, "test"))
    assert 0 < resumed.step < 60
    resumed.train()
    same(final_state(tmp_path / "whole"), final_state(out))
    assert losses(tmp_path / "whole") == losses(out)


@pytest.mark.slow
def test_processes_and_accumulation_change_neither_losses_nor_weights(picture_set: Path, tmp_path: Path) -> None:
    run = {"steps": 3, "global_batch": 4, "precision": "fp32", "micro_batch": 1, "validate_every": 3}
    one = tree(tmp_path / "1x4", picture_set, run=run, diffusion={"copies": 2})
    trainer(parse(StageConfig, one, "test")).train()
    expected, wanted = losses(tmp_path / "1x4"), final_state(tmp_path / "1x4")
    validated = (tmp_path / "1x4" / "log.jsonl").read_text().splitlines()[-1]
    for name, processes, micro_batch in (("2x2", 2, 1), ("2x1", 2, 2), ("1x1", 1, 4)):
        out, file = tmp_path / name, tmp_path / f"{name}.yaml"
        part = {**one, "out": str(out), "run": {**one["run"], "micro_batch": micro_batch}}
        if processes == 1:
            trainer(parse(StageConfig, part, "test")).train()
        else:
            file.write_text(yaml.safe_dump(part))
            ranks.run(tmp_path / f"{name}.log", ranks.train, str(file), processes=processes)
        assert [step for step, _ in losses(out)] == [1, 2, 3]
        for (_, ours), (_, theirs) in zip(losses(out), expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        for key, tensor in final_state(out).items():
            if key.startswith("weight."):
                torch.testing.assert_close(tensor, wanted[key], rtol=1e-4, atol=1e-5)
        last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
        assert last["validation_loss"] == pytest.approx(json.loads(validated)["validation_loss"], rel=1e-4)


def test_checkpoint_is_served_by_the_core(picture_set: Path, tmp_path: Path) -> None:
    from wamdiff2_core.chat import ChatRequest
    from wamdiff2_core.conversations import read_rgb
    from wamdiff2_core.dataset import read_dataset
    from wamdiff2_core.decode.generator import Generator
    from wamdiff2_core.model.checkpoint import load_checkpoint

    trainer(stage(tmp_path, picture_set)).train()
    checkpoint = load_checkpoint(checkpoints(tmp_path)[-1])
    assert checkpoint.record is not None
    assert checkpoint.record.block_sizes == (16,)
    assert checkpoint.record.mask_token_id == checkpoint.tokenizer.mask_token_id
    sample = read_dataset(picture_set)[0]
    request = checkpoint.chat.encode(ChatRequest(sample.prompt, (read_rgb(sample.images[0]),)))
    (answer,) = Generator(checkpoint).generate([request], checkpoint.record.decode)
    assert len(answer.raw_ids) == 128


def test_training_lowers_the_loss_and_the_best_checkpoint_is_kept(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 40, "global_batch": 3, "micro_batch": 3, "validate_every": 10, "checkpoint_every": 10, "keep": 1}
    config = stage(tmp_path, text_set, stage="autoregressive", optimizer={"lr": 3e-3, "warmup_steps": 5}, run=run)
    run_of = trainer(config)
    before = run_of.validation_loss()
    run_of.train()
    assert run_of.validation_loss() < 0.5 * before
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert resolve_checkpoint(f"{tmp_path}@best", "init") == best
    assert len(checkpoints(tmp_path)) <= 2


def test_validation_has_a_pace_of_its_own_and_judges_the_checkpoint_of_its_step_alone(
    text_set: Path, tmp_path: Path
) -> None:
    run = {"steps": 6, "log_every": 4, "validate_every": 2, "checkpoint_every": 3, "keep": 9}
    trainer(stage(tmp_path, text_set, run=run)).train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "validation_loss" in line] == [2, 4, 6]
    notes = [json.loads((folder / "trainer.json").read_text()) for folder in checkpoints(tmp_path)]
    assert [note["validation_loss"] is None for note in notes] == [True, False]  # steps 3 and 6
    assert best_checkpoint(tmp_path) == tmp_path / "checkpoint-000006"


def test_a_stage_that_has_ended_says_so(text_set: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "stage.yaml"
    file.write_text(yaml.safe_dump(tree(tmp_path / "out", text_set, run={"steps": 1})))
    assert main(["train", str(file)]) == 0
    capsys.readouterr()
    assert main(["train", str(file)]) == 0
    assert "this stage has ended before, at step 1" in " ".join(capsys.readouterr().err.split())


def test_a_stopped_stage_is_told_from_one_that_has_ended(
    text_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    file = tmp_path / "stage.yaml"
    file.write_text(yaml.safe_dump(tree(tmp_path / "out", text_set, run={"validate_every": 100, "stop_at": 5})))
    taken = Trainer._take

    def interrupted(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return taken(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_take", interrupted)
    assert main(["train", str(file)]) == 1
    assert "stopped at step 3 of 5; the same command goes on" in " ".join(capsys.readouterr().err.split())
    assert main(["train", str(file)]) == 0


def test_samples_over_a_limit_are_counted_in_log_and_terminal(text_set: Path, tmp_path: Path, capsys) -> None:
    file, out = tmp_path / "stage.yaml", tmp_path / "out"
    data = {"answer_tokens": 9, "over_long": "drop"}  # the second answer is longer
    run = {"steps": 6, "global_batch": 3, "log_every": 3, "validate_every": 100}
    file.write_text(yaml.safe_dump(tree(out, text_set, data=data, run=run)))
    assert main(["train", str(file)]) == 0
    assert "validation: 2 samples, over a limit: dropped_answer_tokens 1" in " ".join(capsys.readouterr().err.split())
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    drawn = []  # every pass over three samples meets it once, and so do the draws in its place
    config = parse(StageConfig, tree(out, text_set, data=data, run=run), "test")
    loader = assemble(config, make_accelerator(config)).loader(0)
    for step, _ in zip(range(6), loader, strict=False):
        drawn.append(loader.over_long["dropped_answer_tokens"])
        assert drawn[-1] > step
    assert [line["dropped_answer_tokens"] for line in lines] == [drawn[2], drawn[5] - drawn[2]]


def test_a_batch_that_processes_cannot_share_is_refused_before_a_model_is_made() -> None:
    check_batch(RunConfig(global_batch=6), 3)
    with pytest.raises(UserError, match=r"run\.global_batch: expected a multiple of the 4 processes, got 6"):
        check_batch(RunConfig(global_batch=6), 4)


def test_a_stage_that_stops_early_keeps_its_schedule(text_set: Path, tmp_path: Path) -> None:
    line = trainer(stage(tmp_path, text_set, run={"steps": 10, "stop_at": 3})).train()
    assert line["step"] == 3
    share = share_of_peak(2, OptimizerConfig(warmup_steps=2), 10)
    assert line["lr"] == pytest.approx(2e-3 * share, rel=1e-3)


@pytest.mark.parametrize("changes", [
    {"diffusion": {"block_size": 16, "copies": 2, "own_order": True}},
    {"stage": "block_distillation", "distillation": {
        "teacher": {"checkpoint": "TEACHER"}, "kd_ratio": 0.5,
        "on_policy": {"every": 2, "max_new_tokens": 16, "denoising_steps": 2}}},
    {"stage": "cross_scale", "distillation": {
        "teacher": {"checkpoint": "TEACHER"}, "on_policy": {"every": 1, "max_new_tokens": 16, "denoising_steps": 2}}},
])
def test_stages_that_run_the_student_to_prepare_resume_to_the_same_weights(
    picture_set: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    if "distillation" in changes:
        larger = {"shape": {**SHAPE, "text_width": 96, "text_heads": 4}, "run": {"steps": 1}}
        trainer(stage(tmp_path / "teacher", picture_set, **larger)).train()
        teacher = {**changes["distillation"]["teacher"], "checkpoint": str(tmp_path / "teacher")}
        changes = {**changes, "distillation": {**changes["distillation"], "teacher": teacher}}
    run = {"steps": 4, "checkpoint_every": 1, "keep": 9, "validate_every": 4}
    config = stage(tmp_path / "out", picture_set, run=run, **changes)
    trainer(config).train()
    before = final_state(tmp_path / "out")
    for folder in checkpoints(tmp_path / "out")[-2:]:
        shutil.rmtree(folder)
    trainer(config).train()
    same(before, final_state(tmp_path / "out"))


def test_a_block_stage_starts_from_the_weights_of_the_autoregressive_stage(text_set: Path, tmp_path: Path) -> None:
    run = {"steps": 1, "precision": "fp32"}
    trainer(stage(tmp_path / "ar", text_set, stage="autoregressive", run=run)).train()
    saved = load_file(checkpoints(tmp_path / "ar")[-1] / "model.safetensors")
    config = stage(tmp_path / "b4", text_set, diffusion={"block_size": 4}, init=str(tmp_path / "ar"), run=run)
    parts = assemble(config, make_accelerator(config))
    for name, weight in parts.parallel.model.model.named_parameters():
        assert torch.equal(weight, saved[name]), name
    assert parts.record.label_alignment == "aligned"
    assert parts.record.block_sizes == (4,)


def test_a_start_with_weights_that_are_not_finite_is_refused(text_set: Path, tmp_path: Path) -> None:
    first = trainer(stage(tmp_path / "first", text_set, run={"steps": 1}))
    first.train()
    folder = checkpoints(tmp_path / "first")[-1]
    weights = load_file(folder / "model.safetensors")
    weights["model.language_model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"norm\.weight: expected finite weights"):
        trainer(stage(tmp_path / "second", text_set, init=str(folder)))


def test_rotary_frequencies_keep_fp32_when_weights_are_bf16(text_set: Path, tmp_path: Path) -> None:
    config = stage(tmp_path, text_set)
    model = assemble(config, make_accelerator(config)).parallel.model.model
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert model.model.language_model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_teacher_that_does_not_fit_is_refused(picture_set: Path, tmp_path: Path) -> None:
    trainer(stage(tmp_path / "teacher", picture_set, run={"steps": 1})).train()
    for teacher, words in (({"block_size": 8}, r"one of \[16\]"), ({"block_size": 0}, None)):
        section = {"teacher": {"checkpoint": str(tmp_path / "teacher"), **teacher}}
        config = stage(tmp_path / "out", picture_set, stage="block_distillation", distillation=section,
                       diffusion={"block_size": 16})
        if words is None:
            assemble(config, make_accelerator(config))
            continue
        with pytest.raises(UserError, match=words):
            assemble(config, make_accelerator(config))


def test_a_folder_with_another_stage_is_refused(text_set: Path, tmp_path: Path) -> None:
    trainer(stage(tmp_path, text_set, run={"steps": 1})).train()
    with pytest.raises(UserError, match=r"diffusion\.block_size 16 \(now 8\)"):
        trainer(stage(tmp_path, text_set, run={"steps": 1}, diffusion={"block_size": 8}))


def test_a_folder_with_something_else_is_refused_and_left_alone(text_set: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="out: expected an empty folder, or one of an earlier training"):
        trainer(stage(tmp_path, text_set))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_another_process_trains_into_is_refused_and_left_alone(
    text_set: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wamdiff2_core.journal.LOCK_WAIT_S", 0.2)
    config = stage(tmp_path / "out", text_set)
    check_stage(config)
    with claim(config):
        before = (tmp_path / "out" / "stage.json").read_text()
        argv = ["train", str(stage_file(tmp_path, text_set)), "--out", str(tmp_path / "out"), "--run.steps", "1"]
        assert main(argv) == 2
        assert f"process {os.getpid()} is at work" in " ".join(capsys.readouterr().err.split())
        assert (tmp_path / "out" / "stage.json").read_text() == before
    with claim(config):
        pass


def stage_file(folder: Path, text_set: Path, **overrides: str) -> Path:
    values = {"out": str(folder / "out"), "train": str(text_set), "validation": "null", "init": "null"} | overrides
    file = folder / "stage.yaml"
    file.write_text("stage: block_adaptation\nout: {out}\ninit: {init}\n"
                    "data: {{train: {train}, validation: {validation}}}\n".format_map(values))
    return file


@pytest.mark.parametrize(("given", "words"), [
    ({"train": "none.jsonl"}, "data.train: expected a conversation file, got none.jsonl (no such file)"),
    ({"train": "/tmp/."}, "mixture: expected"),
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


def test_a_dry_run_tells_steps_tokens_and_memory_and_makes_nothing(text_set: Path, tmp_path: Path, capsys) -> None:
    file = stage_file(tmp_path, text_set)
    assert main(["train", str(file), "--dry-run", "--run.global_batch", "2", "--run.epochs", "4"]) == 0
    told = capsys.readouterr().out
    assert "6 steps of 2 samples" in told  # three samples, four times
    assert "tokens a sample" in told
    assert "memory without shards about" in told
    assert not (tmp_path / "out").exists()


def test_a_dry_run_looks_at_the_teacher_and_counts_it(text_set: Path, tmp_path: Path, capsys) -> None:
    file = stage_file(tmp_path, text_set)
    distils = ["--stage", "block_distillation", "--distillation.teacher.checkpoint"]
    assert main(["train", str(file), "--dry-run", *distils, str(tmp_path / "none")]) == 2
    assert "distillation.teacher.checkpoint: expected a checkpoint folder" in capsys.readouterr().err
    nano = Path(__file__).resolve().parents[2] / "checkpoints/wamdiff2-nano"
    assert main(["train", str(file), "--dry-run", *distils, str(nano)]) == 0
    told = capsys.readouterr().out
    assert "2,920,192 of the teacher" in told
    assert all(f"{part} " in told for part in ("weights and gradients", "optimiser", "text", "vision", "teacher",
                                               "logits"))


def test_a_checkpoint_that_the_disk_does_not_take_is_named_and_leaves_no_part(
    text_set: Path, tmp_path: Path, monkeypatch
) -> None:
    run = trainer(stage(tmp_path, text_set))
    earlier = run.save()

    def save(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", save)
    run.step += 1
    with pytest.raises(OSError, match="checkpoint-000001") as told:
        run.save()
    assert told.value.errno == errno.ENOSPC
    assert sorted(path.name for path in tmp_path.iterdir()) == [earlier.name, "stage.json"]


def test_a_norm_that_is_not_known_ends_nothing(text_set: Path, tmp_path: Path) -> None:
    run = trainer(stage(tmp_path, text_set, run={"steps": 2}))
    taken = run._take
    run._take = lambda *arguments: taken(*arguments) and None
    assert "grad_norm" not in run.train()
    assert run.step == 2


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_good_checkpoint(
    text_set: Path, tmp_path: Path
) -> None:
    run = trainer(stage(tmp_path, text_set, run={"checkpoint_every": 1}))
    taken = run._take
    run._take = lambda *arguments: taken(*arguments) if run.step < 2 else float("nan")
    with pytest.raises(UserError, match="loss: expected a finite gradient, got nan in step 3"):
        run.train()
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-000001", "checkpoint-000002"]


@pytest.mark.parametrize(("section", "key", "value"), [
    ("optimizer", "lr", float("nan")), ("optimizer", "lr", -1.0), ("optimizer", "clip_norm", 0.0),
    ("run", "steps", -3), ("run", "stop_at", -1), ("run", "global_batch", 0), ("optimizer", "betas", [0.9, 1.0]),
    ("data", "prompt_multiple", 0), ("data", "workers", -1), ("data", "validation_samples", -1),
    ("shape", "head_dim", 23), ("shape", "vision_width", 36), ("shape", "text_layers", 0), ("shape", "vocab_size", 99),
    ("shape", "deepstack_layers", [2]), ("shape", "deepstack_layers", [0, 0]), ("shape", "rope_theta", 0.0),
])
def test_values_that_no_run_can_have_are_refused(
    text_set: Path, tmp_path: Path, section: str, key: str, value: Any
) -> None:
    with pytest.raises(UserError, match=rf"{section}\.{key}"):
        stage(tmp_path, text_set, **{section: {key: value}})


def test_the_record_of_a_stage_has_what_was_trained_and_what_was_asked_for(text_set: Path, tmp_path: Path) -> None:
    def decode(stage_name: str = "block_adaptation", **asked: Any) -> DecodeConfig:
        config = stage(tmp_path, text_set, stage=stage_name, record={"decode": asked})
        return stage_record(config, 1, 2).decode

    assert (decode().block_size, decode().denoising_steps) == (16, 16)
    assert decode(block_size=16, denoising_steps=4).denoising_steps == 4
    assert decode("autoregressive", max_new_tokens=9) == DecodeConfig(
        block_size=1, denoising_steps=1, strategy="autoregressive", max_new_tokens=9
    )
    with pytest.raises(UserError, match=r"record\.decode\.block_size: expected 16, as the stage trains, got 4"):
        decode(block_size=4)
    with pytest.raises(UserError, match=r"record\.decode\.strategy: expected a strategy of block decoding"):
        decode(strategy="autoregressive")


def test_rate_rises_to_the_peak_and_falls_to_the_floor() -> None:
    config = OptimizerConfig(min_lr_share=0.1, warmup_share=0.01)
    shares = [share_of_peak(step, config, 1000) for step in range(1001)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == pytest.approx(1.0, abs=1e-3)
    assert shares[-1] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in pairwise(shares[10:]))


def test_vision_mergers_and_language_learn_at_their_own_rates(small_model) -> None:
    groups = parameter_groups(small_model.named_parameters(), OptimizerConfig(lr=3.0, vision_lr=1.0, merger_lr=2.0))
    names = {id(parameter): name for name, parameter in small_model.named_parameters()}
    seen = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert seen.keys() == {name for name, _ in small_model.named_parameters()}
    assert seen["model.visual.blocks.0.attn.qkv.weight"] == (1.0, 0.05)
    assert seen["model.visual.pos_embed.weight"] == (1.0, 0.0)
    assert seen["model.visual.merger.linear_fc1.weight"] == (2.0, 0.05)
    assert seen["model.visual.deepstack_merger_list.0.norm.weight"] == (2.0, 0.0)
    assert seen["model.language_model.layers.0.mlp.up_proj.weight"] == (3.0, 0.05)
    assert seen["model.language_model.embed_tokens.weight"] == (3.0, 0.0)


def test_a_log_line_that_a_full_disk_has_cut_does_not_stop_a_resume(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step"')
    shorten_log(tmp_path, 2)
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n'
