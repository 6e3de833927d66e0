"""Stage files: bases, overrides, mixtures, upstream's own YAML, and every file that is shipped."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from training.config_file import load_stage, load_vision
from training.reproduce.recipes import LARGE_SHAPE
from wamdiff2_core.errors import UserError

CONFIGS = Path(__file__).resolve().parents[2] / "training" / "configs"
FOLDERS = ("2b", "8b", "nano", "nano_large", "debug")
STAGES = sorted(path for folder in FOLDERS for path in (CONFIGS / folder).glob("*.yaml")
                if path.stem not in ("vision", "base"))
UPSTREAM_BLOCK = """
seed: 42
step_scheduler: {global_batch_size: 128, local_batch_size: 4, ckpt_every_steps: 100, num_epochs: 5}
model:
  _target_: wam_diff.models.Auto.from_pretrained
  pretrained_model_name_or_path: /models/block16
checkpoint: {enabled: true, checkpoint_dir: /out/block32, model_save_format: torch_save}
dataset: {_target_: wam_diff.data.make, path_or_dataset: /data/train.json}
dataloader:
  _target_: torchdata.StatefulDataLoader
  num_workers: 8
  collate_fn: {_target_: wam_diff.data.collate, block_size: 32, max_len: 8192, prior_dist: Mask, mask_ratio_min: 0.1}
optimizer: {_target_: torch.optim.AdamW, lr: 4.0e-5, merger_lr: 4.0e-5, visual_lr: 2.0e-6, weight_decay: 0.05}
clip_grad_norm: {max_norm: 1.0}
"""
UPSTREAM_DISTIL = UPSTREAM_BLOCK + """
student_model: {_target_: x, pretrained_model_name_or_path: /models/2b-block32}
teacher_model: {_target_: x, pretrained_model_name_or_path: /models/8b-block32}
kd_ratio: 1.0
kd_loss_fn: {_target_: wam_diff.loss.Block_JSDLoss, temperature: 1.0, beta: 0.5}
generate_interval: 2
max_new_tokens: 512
denoising_steps: 32
teacher_block_size: 32
"""


def write(folder: Path, text: str, name: str = "stage.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_overrides_beat_the_file_and_unknown_keys_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, "stage: block_adaptation\nout: a\ndata: {train: x/y.jsonl}\nrun: {steps: 5}\n")
    config, translated = load_stage(file, ["--run.steps", "7", "--out=b", "--diffusion.block_size", "8"])
    assert (config.run.steps, config.out, config.diffusion.block_size, translated) == (7, "b", 8, None)
    assert [(source.name, source.file) for source in config.data.train] == [("x", "x/y.jsonl")]
    for wrong, words in ((["--run.stepz", "7"], r"run\.stepz"), (["run.steps=7"], "--section"),
                         (["--run.steps"], "a value after it"), (["--run.steps", "many"], r"run\.steps")):
        with pytest.raises(UserError, match=words):
            load_stage(file, wrong)


def test_a_file_is_read_without_pytorch(tmp_path: Path) -> None:
    file = write(tmp_path, "stage: block_adaptation\nout: a\ndata: {train: x/y.jsonl}\n")
    program = "import sys, pathlib; from training.config_file import load_stage; " \
              "load_stage(pathlib.Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program, str(file)], check=False).returncode == 0


def test_bases_are_read_first_and_sections_merge(tmp_path: Path) -> None:
    write(tmp_path, "out: below\nrun: {steps: 5, seed: 1}\nstage: autoregressive\n", "one.yaml")
    write(tmp_path, "base: one.yaml\nrun: {seed: 2}\ndata: {train: a.jsonl}\n", "two.yaml")
    config, _ = load_stage(write(tmp_path, "base: [two.yaml]\nrun: {micro_batch: 3}\n"))
    assert (config.out, config.run.steps, config.run.seed, config.run.micro_batch) == ("below", 5, 2, 3)
    write(tmp_path, "base: stage.yaml\n", "loop.yaml")
    with pytest.raises(UserError, match="in a circle"):
        load_stage(write(tmp_path, "base: loop.yaml\n"))
    with pytest.raises(UserError, match="no such file"):
        load_stage(write(tmp_path, "base: none.yaml\n"))


def test_a_mixture_beside_the_file_gives_its_sources(tmp_path: Path) -> None:
    write(tmp_path, "sources: [{name: a, file: a.jsonl, weight: 2.0}, {name: b, file: b.jsonl}]\n", "mix.yaml")
    config, _ = load_stage(write(tmp_path, "stage: autoregressive\nout: o\ndata: {train: mix.yaml}\n"))
    assert [(source.name, source.weight) for source in config.data.train] == [("a", 2.0), ("b", 1.0)]


@pytest.mark.parametrize(("text", "words"), [
    ("- a\n- b\n", "a mapping of sections"),
    ("a: [1\n", "valid YAML"),
    ("", "a mapping of sections, got nothing"),
    ("stage: \0\n", "valid YAML"),
    ("run: {seed: 2024-13-45}\n", "valid YAML"),
    ("run: " + "[" * 5000 + "]" * 5000, "nested too deep"),
    ("run: &run {seed: *run}\n", r"an alias of what it stands in: \*run"),
    ("stage: autoregressive\nout: o\nrun: {seed: 1, steps: 2, seed: 3}\n", "the key 'seed' twice"),
    ("run: {1: 2}\n", "a key that is no text: '1'"),
    ("base: [5]\n", "base: expected a file name, or a list of them"),
    ("base: {a: b}\n", "base: expected a file name, or a list of them"),
    ("stage: autoregressive\nout: o\ndata: {train: none.yaml}\n", "a readable YAML file"),
    ("stage: autoregressive\nout: o\ndata: {train: []}\n", "at least one source"),
    ("stage: block_distillation\nout: o\ndata: {train: a.jsonl}\n", "distillation: expected a section"),
    ("stage: adapt\nout: o\ndata: {train: a.jsonl}\n", "stage"),
    ("stage: cross_scale\nout: o\ndata: {train: a.jsonl}\ndistillation: {teacher: {checkpoint: t}}\n",
     "distillation.on_policy: expected a section"),
    ("stage: autoregressive\nout: o\ndata: {train: a.jsonl}\nrun: {trackers: [foo]}\n", "run.trackers"),
])
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_stage(write(tmp_path, text))


def test_upstreams_block_file_is_taken_over_and_the_rest_is_listed(tmp_path: Path) -> None:
    config, translated = load_stage(write(tmp_path, UPSTREAM_BLOCK), ["--run.steps", "3"])
    assert translated is not None
    assert config.stage == "block_adaptation"
    assert (config.out, config.init, config.diffusion.block_size) == ("/out/block32", "/models/block16", 32)
    assert (config.diffusion.mask, config.diffusion.loss, config.diffusion.full_share) == ("upstream", "upstream", 0.0)
    assert (config.optimizer.lr, config.optimizer.vision_lr, config.optimizer.merger_lr) == (4e-5, 2e-6, 4e-5)
    assert (config.run.global_batch, config.run.micro_batch, config.run.epochs) == (128, 4, 5)
    assert config.data.train[0].file == "/data/train.json"
    unknown = dict(translated.unknown)
    assert unknown["dataloader.collate_fn.mask_ratio_min"] == 0.1
    assert unknown["checkpoint.model_save_format"] == "torch_save"
    assert "mask_ratio_min" in "".join(translated.lines())


@pytest.mark.parametrize("on_policy", [True, False])
def test_upstreams_switch_of_on_policy_states_is_obeyed(tmp_path: Path, on_policy: bool) -> None:
    config, translated = load_stage(write(tmp_path, f"{UPSTREAM_DISTIL}on_policy: {on_policy}\n"))
    assert config.distillation is not None
    assert translated is not None
    assert (config.distillation.on_policy is not None) == on_policy
    assert "on_policy" not in dict(translated.unknown)


def test_upstreams_distillation_file_names_teacher_and_policy(tmp_path: Path) -> None:
    config, _ = load_stage(write(tmp_path, UPSTREAM_DISTIL))
    assert config.stage == "block_distillation"
    assert config.init == "/models/2b-block32"
    assert config.distillation is not None
    assert config.distillation.teacher.checkpoint == "/models/8b-block32"
    assert config.distillation.teacher.block_size == 32
    assert config.distillation.on_policy is not None
    assert (config.distillation.on_policy.every, config.distillation.on_policy.denoising_steps) == (2, 32)


def test_what_upstreams_sections_say_of_model_images_and_memory_is_taken_over(tmp_path: Path) -> None:
    more = """
processor: {_target_: x, min_pixels: 3136, max_pixels: 500000}
distributed: {_target_: x.FSDP2Manager, tp_size: 1, activation_checkpointing: true}
lr_scheduler: {lr_decay_style: cosine}
freeze_config: {freeze_embeddings: false, freeze_vision_tower: true, freeze_language_model: false}
"""
    text = UPSTREAM_BLOCK.replace("mask_ratio_min", "mask_token_id: 151669, pad_token: <|im_end|>, mask_ratio_min")
    config, translated = load_stage(write(tmp_path, text + more))
    assert translated is not None
    assert (config.record.images.min_pixels, config.record.images.max_pixels) == (3136, 500000)
    assert config.run.activation_checkpointing
    assert config.record.mask_token_id == 151669
    assert (config.optimizer.vision_lr, config.optimizer.merger_lr) == (0, 0)  # frozen, whatever rates are named
    assert ("lr_scheduler.lr_decay_style", "what is done here anyway") in translated.mapped
    assert {"distributed.tp_size", "checkpoint.enabled"} <= dict(translated.unknown).keys()


@pytest.mark.parametrize(("name", "divergence"), [
    ("Block_JSDLoss", "jsd"), ("KDLoss", "forward_kl"), ("ReverseKDLoss", "reverse_kl"),
])
def test_upstreams_divergence_is_the_one_that_is_learnt_by(tmp_path: Path, name: str, divergence: str) -> None:
    config, _ = load_stage(write(tmp_path, UPSTREAM_DISTIL.replace("Block_JSDLoss", name)))
    assert config.distillation is not None
    assert config.distillation.divergence == divergence


@pytest.mark.parametrize(("said", "instead", "words"), [
    ("prior_dist: Mask", "prior_dist: Uniform", "prior_dist: expected Mask, got Uniform"),
    ("prior_dist: Mask", "prior_dist: [Mask]", "prior_dist: expected Mask"),
    ("Block_JSDLoss", "BlockKDLoss", "kd_loss_fn._target_: expected Block_JSDLoss or KDLoss or ReverseKDLoss"),
    ("kd_ratio: 1.0", "generate_top_p: 0.9", "generate_top_p: expected 1.0"),
    ("kd_ratio: 1.0", "freeze_config: {freeze_language_model: true}", "freeze_language_model: expected False"),
    ("kd_ratio: 1.0", "lr_scheduler: {lr_decay_style: linear}", "lr_decay_style: expected cosine"),
])
def test_what_the_trainer_here_cannot_do_is_refused(tmp_path: Path, said: str, instead: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_stage(write(tmp_path, UPSTREAM_DISTIL.replace(said, instead)))


@pytest.mark.parametrize("file", STAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_stage_files_are_valid_and_open_with_their_launch_line(file: Path) -> None:
    config, _ = load_stage(file)
    assert config.out.startswith("runs/")
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert any(str(file.relative_to(CONFIGS.parents[1])) in line for line in comments)
    if config.stage != "autoregressive":
        assert config.init is not None


@pytest.mark.parametrize("file", STAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_checkpoint_may_be_asked_all_that_its_mixture_taught_it(file: Path) -> None:
    task = {"navsim": "planning", "drivelm": "drivebench", "lingoqa": "lingoqa", "coco": "grounding",
            "questions": "lingoqa", "grounding": "grounding"}
    config, _ = load_stage(file)
    taught = {task.get(source.name, "planning") for source in config.data.train}
    assert taught == set(config.record.trained_tasks)


def test_what_a_stage_starts_from_and_learns_from_is_made_by_a_shipped_stage() -> None:
    made = {str(load_stage(file)[0].out) for file in STAGES}
    made |= {load_vision(CONFIGS / folder / "vision.yaml").out for folder in ("nano", "nano_large")}
    for file in STAGES:
        config, _ = load_stage(file)
        teacher = None if config.distillation is None else config.distillation.teacher.checkpoint
        wanted = {folder for folder in (config.init, teacher) if folder is not None and folder.startswith("runs/")}
        assert wanted <= made, file


def test_the_nano_learns_from_a_model_of_the_size_that_the_ablations_use() -> None:
    for file in (CONFIGS / "nano_large").glob("*.yaml"):
        if file.name == "base.yaml":
            continue
        large = load_vision(file) if file.stem == "vision" else load_stage(file)[0]
        nano = CONFIGS / "nano" / file.name
        small = load_vision(nano) if file.stem == "vision" else load_stage(nano)[0]
        assert large.shape == replace(small.shape, **LARGE_SHAPE["nano"])
        assert large.run == small.run
        assert large.optimizer == small.optimizer


def test_published_optimiser_settings_stand_in_the_large_stages() -> None:
    for size in ("2b", "8b"):
        for stage in ("b4", "b8", "b16", "b32"):
            config, _ = load_stage(CONFIGS / size / f"{stage}.yaml")
            assert (config.optimizer.lr, config.optimizer.vision_lr, config.run.global_batch) == (4e-5, 2e-6, 128)
            assert (config.run.epochs, config.optimizer.weight_decay, config.optimizer.warmup_share) == (5, 0.05, 0.1)
        distil, _ = load_stage(CONFIGS / size / "distil_b32.yaml")
        assert (distil.optimizer.lr, distil.optimizer.merger_lr, distil.optimizer.vision_lr) == (2e-6, 2e-6, 2e-6)


def test_the_nano_s_vision_file_is_valid_and_opens_with_its_launch_line() -> None:
    file = CONFIGS / "nano" / "vision.yaml"
    assert load_vision(file).run.precision == "fp32"
    assert "wamdiff2 pretrain-vision training/configs/nano/vision.yaml" in file.read_text().splitlines()[1]
