"""A training stage as one tree of configuration, and the serving record that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.data.limits import LengthLimits, OverLong
from training.data.sources import SourceConfig
from training.model_factory import NanoShape
from wamdiff2_core.config import DecodeConfig, ImagePolicy, MaskKind, RemaskingStrategy, Strict
from wamdiff2_core.errors import require
from wamdiff2_core.serving_record import ServingRecord

Precision = Literal["bf16", "fp32"]
Kernel = Literal["written", "fused"]
Tracker = Literal["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]
LossForm = Literal["paper", "upstream"]
Divergence = Literal["jsd", "forward_kl", "reverse_kl"]
StageName = Literal["autoregressive", "block_adaptation", "block_distillation", "cross_scale"]


@dataclass(frozen=True)
class DiffusionConfig(Strict):
    """How answers are corrupted and what is paid for naming them.

    Attributes:
        block_size: B; the prompt is block-causal in B too.
        mask: `strict`, or `upstream` to continue the authors' weights.
        loss: `paper` (no 1/t, mean over masked tokens) or `upstream` (CE / t over the padded answer length).
        full_share: share of blocks masked entirely; 1 is equation 3 of the paper, 0 the authors' code.
        copies: noisy copies a sample; they share the work for prompt and clean answer.
        complementary: pairs of copies mask complementary tokens.
        own_order: every second copy masks the tokens that the model itself, seeing the block all masked, is least sure
            of (one more forward pass). It takes the place of complementary masks.
    """

    block_size: int = 32
    mask: MaskKind = "strict"
    loss: LossForm = "paper"
    full_share: float = 0.3
    copies: int = 1
    complementary: bool = False
    own_order: bool = False

    def __post_init__(self) -> None:
        require(self.block_size >= 1, "block_size", "an integer >= 1", self.block_size,
                "published sizes: 4, 8, 16, 32")
        require(0 <= self.full_share <= 1, "full_share", "0..1", self.full_share)
        require(self.copies >= 1, "copies", "an integer >= 1", self.copies)
        require(not self.own_order or self.copies >= 2, "copies", "at least 2 with own_order", self.copies)
        require(self.mask == "strict" or self.copies == 1, "copies",
                "1 with mask 'upstream' (clean tokens see the noisy copy)", self.copies)


@dataclass(frozen=True)
class OnPolicyConfig(Strict):
    """Training on states that the student's own decoding passes through.

    Attributes:
        every: each `every`-th step is on-policy; the others use the data set's answers.
        strategy: how the student decodes.
        denoising_steps: step budget per block; 0 for one step a token.
        confidence_threshold: of `low_confidence_dynamic`.
        temperature: 0 takes the most probable token.
        max_new_tokens: length limit of an answer.
    """

    every: int = 2
    strategy: RemaskingStrategy = "low_confidence_static"
    denoising_steps: int = 0
    confidence_threshold: float = 0.9
    temperature: float = 0.0
    max_new_tokens: int = 512

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", "an integer >= 1", self.every)
        require(self.strategy != "autoregressive", "strategy", "a strategy of block decoding", self.strategy)
        require(self.denoising_steps >= 0, "denoising_steps", "an integer >= 0", self.denoising_steps)
        require(0 <= self.confidence_threshold <= 1, "confidence_threshold", "0..1", self.confidence_threshold)
        require(0 <= self.temperature < math.inf, "temperature", "a finite number >= 0", self.temperature)
        require(self.max_new_tokens >= 1, "max_new_tokens", "an integer >= 1", self.max_new_tokens)


@dataclass(frozen=True)
class TeacherConfig(Strict):
    """The model whose distribution is learnt.

    Attributes:
        checkpoint: folder, or the folder of an earlier stage.
        block_size: B it reads with; 0 takes its record's. 1 with shifted labels is an autoregressive teacher.
        mask: its mask; None takes its record's.
    """

    checkpoint: str
    block_size: int = 0
    mask: MaskKind | None = None

    def __post_init__(self) -> None:
        require(self.block_size >= 0, "block_size", "an integer >= 0", self.block_size)


@dataclass(frozen=True)
class DistillationConfig(Strict):
    """What a student learns from its teacher (paper section 3.3).

    Attributes:
        teacher: see `TeacherConfig`.
        divergence: `jsd`, `forward_kl` or `reverse_kl`.
        temperature: of both distributions.
        beta: weight of the teacher in `jsd`; 1/2 is symmetric.
        kd_ratio: weight of the divergence; one minus it is that of the cross-entropy, which counts on the data set's
            answers only.
        average: `upstream` (over padded answer length, then samples) or `paper` (over masked tokens).
        on_policy: None never decodes.
        overlap_at: K of the logged top-K overlap (paper table 6).
    """

    teacher: TeacherConfig
    divergence: Divergence = "jsd"
    temperature: float = 1.0
    beta: float = 0.5
    kd_ratio: float = 1.0
    average: LossForm = "upstream"
    on_policy: OnPolicyConfig | None = None
    overlap_at: tuple[int, ...] = (1, 5, 10, 20)

    def __post_init__(self) -> None:
        require(0 <= self.kd_ratio <= 1, "kd_ratio", "0..1", self.kd_ratio)
        require(0 < self.temperature < math.inf, "temperature", "a finite number > 0", self.temperature)
        require(0 < self.beta < 1, "beta", "in (0, 1)", self.beta)
        require(all(k >= 1 for k in self.overlap_at), "overlap_at", "integers >= 1", self.overlap_at)


@dataclass(frozen=True)
class DataConfig(Strict):
    """What a stage learns from.

    Attributes:
        train: sources with their weights, or the name of one conversation file.
        validation: conversation file for the validation loss, or None.
        prompt_tokens: longest prompt.
        answer_tokens: longest answer, EOS included.
        over_long: what happens to a longer sample: `refuse` ends the run, `drop` leaves it out and counts it,
            `shorten` cuts free text at a sentence.
        prompt_multiple: prompts are padded to a multiple of it.
        validation_samples: first samples of the validation set that are used; 0 for all.
        workers: processes that read and encode; 0 does it in the run's own.
    """

    train: tuple[SourceConfig, ...]
    validation: str | None = None
    prompt_tokens: int = LengthLimits.prompt_tokens
    answer_tokens: int = LengthLimits.answer_tokens
    over_long: OverLong = LengthLimits.over_long
    prompt_multiple: int = 1
    validation_samples: int = 256
    workers: int = 0

    def __post_init__(self) -> None:
        require(len(self.train) > 0, "train", "at least one source", "none")
        require(self.prompt_multiple >= 1, "prompt_multiple", "an integer >= 1", self.prompt_multiple)
        for name in ("validation_samples", "workers"):
            require(getattr(self, name) >= 0, name, "an integer >= 0", getattr(self, name))
        _ = self.limits

    @property
    def limits(self) -> LengthLimits:
        """Longest prompt and answer, and what happens to longer ones."""
        return LengthLimits(self.prompt_tokens, self.answer_tokens, self.over_long)


@dataclass(frozen=True)
class OptimizerConfig(Strict):
    """AdamW with linear warm-up and cosine decay, in three groups of parameters.

    Attributes:
        lr: peak learning rate of the language model.
        vision_lr: of the vision tower without its mergers; None is `lr`, 0 freezes it.
        merger_lr: of the mergers between vision and language; None is `lr`, 0 freezes them. Both or none are frozen.
        min_lr_share: last learning rate as a share of the peak.
        warmup_share: share of the steps with a linear rise from 0.
        warmup_steps: steps of the rise; 0 takes `warmup_share`.
        weight_decay: on matrices; norms, biases and embeddings have none.
        betas: of Adam.
        clip_norm: gradient norm limit.
    """

    lr: float = 4e-5
    vision_lr: float | None = None
    merger_lr: float | None = None
    min_lr_share: float = 0.01
    warmup_share: float = 0.1
    warmup_steps: int = 0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "clip_norm"):
            require(0 < getattr(self, name) < math.inf, name, "a finite number > 0", getattr(self, name))
        for name in ("vision_lr", "merger_lr"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, name, "a finite number >= 0", value)
        require((self.vision_lr == 0) == (self.merger_lr == 0), "vision_lr, merger_lr", "both 0 (frozen) or none",
                (self.vision_lr, self.merger_lr))
        for name in ("min_lr_share", "warmup_share"):
            require(0 <= getattr(self, name) <= 1, name, "0..1", getattr(self, name))
        require(0 <= self.weight_decay < math.inf, "weight_decay", "a finite number >= 0", self.weight_decay)
        require(self.warmup_steps >= 0, "warmup_steps", "an integer >= 0", self.warmup_steps)
        require(all(0 <= beta < 1 for beta in self.betas), "betas", "two numbers in [0, 1)", self.betas)

    @property
    def vision_frozen(self) -> bool:
        """Whether images are encoded by weights that do not change."""
        return self.vision_lr == 0


@dataclass(frozen=True)
class RunConfig(Strict):
    """How a stage runs.

    Attributes:
        epochs: passes over the data; of a mixture, draws as many as its sources have samples.
        steps: optimiser steps; 0 follows from `epochs`.
        stop_at: end at this step of the schedule; 0 runs all of it.
        global_batch: samples an optimiser step, over all processes.
        micro_batch: samples a forward; the rest is accumulated.
        seed: of data order, noise and decoding.
        precision: `bf16`: computed in bf16 with fp32 master weights; `fp32`.
        kernel: of attention: `written` is the faster one on a CPU, `fused` on an accelerator; None chooses.
        threads: CPU threads of PyTorch; 0 leaves its default.
        compiled: compile the forward: slow to start, then faster.
        activation_checkpointing: compute activations of layers again in the backward pass.
        kept_images: with frozen vision, images whose tokens are kept in memory instead of encoded at every pass.
        log_every, validate_every, checkpoint_every: in steps.
        keep: newest checkpoints that are kept, beside the best one.
        trackers: of accelerate, such as `tensorboard`.
    """

    epochs: float = 5.0
    steps: int = 0
    stop_at: int = 0
    global_batch: int = 128
    micro_batch: int = 4
    seed: int = 42
    precision: Precision = "bf16"
    kernel: Kernel | None = None
    threads: int = 0
    compiled: bool = False
    activation_checkpointing: bool = False
    kept_images: int = 0
    log_every: int = 10
    validate_every: int = 100
    checkpoint_every: int = 100
    keep: int = 2
    trackers: tuple[Tracker, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        for name in ("steps", "stop_at", "threads", "kept_images"):
            require(getattr(self, name) >= 0, name, "an integer >= 0", getattr(self, name))
        require(self.steps > 0 or 0 < self.epochs < math.inf, "epochs", "a finite number > 0", self.epochs)
        for name in ("global_batch", "micro_batch", "log_every", "validate_every", "checkpoint_every", "keep"):
            require(getattr(self, name) >= 1, name, "an integer >= 1", getattr(self, name))


@dataclass(frozen=True)
class StageConfig(Strict):
    """One training stage.

    Attributes:
        stage: which one; the file of that name in `training/stages` has it.
        out: folder of checkpoints and log.
        init: checkpoint folder, or folder of an earlier stage, to start from; None for a fresh model and tokenizer.
        shape: of a fresh model.
        diffusion: of every stage but `autoregressive`.
        distillation: of `block_distillation` and `cross_scale`.
        record: what serving is told; label alignment, block sizes, mask, token ids and the block size of `decode` are
            filled in by the stage, and for autoregressive weights the strategy too. `decode.denoising_steps` is the
            block size unless another number than the default is given.
    """

    stage: StageName
    out: str
    data: DataConfig
    init: str | None = None
    shape: NanoShape = field(default_factory=NanoShape)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    distillation: DistillationConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    record: ServingRecord = field(default_factory=ServingRecord)

    def __post_init__(self) -> None:
        distils = self.stage in ("block_distillation", "cross_scale")
        require(distils == (self.distillation is not None), "distillation",
                f"{'a section' if distils else 'no section'} in stage {self.stage}",
                "none" if self.distillation is None else "one")
        require(self.stage != "cross_scale" or self.distillation.on_policy is not None, "distillation.on_policy",
                "a section in stage cross_scale, which trains on the student's trajectories", "none")
        require(self.run.kept_images == 0 or self.optimizer.vision_frozen, "run.kept_images", "0 while vision learns",
                self.run.kept_images, "freeze it: optimizer.vision_lr 0 and optimizer.merger_lr 0")
        given, size = self.record.decode.block_size, decoded_block_size(self)
        require(given in (DecodeConfig.block_size, size), "record.decode.block_size", f"{size}, as the stage trains",
                given, "leave it out")
        strategy = self.record.decode.strategy
        require(self.stage == "autoregressive" or strategy != "autoregressive", "record.decode.strategy",
                f"a strategy of block decoding in stage {self.stage}", strategy)


@dataclass(frozen=True)
class VisionConfig(Strict):
    """What is learnt from, and how.

    Attributes:
        out: folder of checkpoints and log.
        train: conversation files. Lines of one picture belong together: `objects` (`label`, `bbox_2d` as in answers of
            `wamdiff2_core.tasks.grounding`, `distance_m`) of a planning line (`waypoints_m`), which may have none, are
            what it shows, and of `unsure_objects` nothing is said; lines with the key `question` ask, and the wording
            of their answer is a class.
        validation: likewise.
        init: checkpoint folder, or folder of an earlier run, whose vision tower is gone on with and whose text weights
            are kept; None begins anew.
        shape: of the model.
        images: what the model takes.
        optimizer: `vision_lr` and `merger_lr` apply; `lr` is the head's.
        run: `kernel`, `compiled`, `activation_checkpointing`, `micro_batch` and `trackers` have no effect here.
    """

    out: str
    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    init: str | None = None
    shape: NanoShape = field(default_factory=NanoShape)
    images: ImagePolicy = field(default_factory=ImagePolicy)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)


def schedule_steps(run: RunConfig, samples: int) -> int:
    """Optimiser steps of the whole schedule over so many samples."""
    return run.steps or max(1, round(run.epochs * samples / run.global_batch))


def check_batch(run: RunConfig, processes: int) -> None:
    """Raise `UserError` when a step's samples cannot be divided among so many processes."""
    require(run.global_batch % processes == 0, "run.global_batch", f"a multiple of the {processes} processes",
            run.global_batch)


def leaves(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values of a tree of mappings by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        found.update(leaves(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return found


def decoded_block_size(config: StageConfig) -> int:
    """Block size that a stage's weights decode with; 1 token a forward for autoregressive ones."""
    return 1 if config.stage == "autoregressive" else config.diffusion.block_size


def stage_record(config: StageConfig, mask_token_id: int, eos_token_id: int) -> ServingRecord:
    """The configured record with what the stage itself decides, as `StageConfig.record` says."""
    autoregressive, size = config.stage == "autoregressive", decoded_block_size(config)
    steps = config.record.decode.denoising_steps
    decode = replace(
        config.record.decode, block_size=size,
        denoising_steps=size if autoregressive or steps == DecodeConfig.denoising_steps else steps,
        strategy="autoregressive" if autoregressive else config.record.decode.strategy,
    )
    return replace(
        config.record, label_alignment="shifted" if autoregressive else "aligned", block_sizes=(size,),
        mask_kind="strict" if autoregressive else config.diffusion.mask, mask_token_id=mask_token_id,
        eos_token_id=eos_token_id, decode=decode,
    )


def contents(config: StageConfig | VisionConfig) -> dict[str, Any]:
    """What decides the weights, as plain JSON: everything but where and at which pace it runs."""
    import json
    from dataclasses import asdict

    tree: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    decisive = ("epochs", "steps", "global_batch", "seed", "precision")
    tree["run"] = {key: tree["run"][key] for key in decisive}
    tree.get("data", {}).pop("workers", None)
    del tree["out"]
    return tree
