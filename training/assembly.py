"""The parts of a stage, built from its configuration: model, teacher, data, optimiser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.checkpoints import check_folder, checkpoints, claim_folder, resolve_checkpoint
from training.config import StageConfig, check_batch, contents, schedule_steps, stage_record
from training.data.encode import EncodedSample, SampleEncoder
from training.data.loader import StepLoader
from training.data.mixture import Mixture
from training.data.sources import ConversationIndex
from training.forward import AnswerModel
from training.layout import View
from training.parallel import Parallel, make_parallel
from training.stages.stage import Stage, TokenIds
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord

if TYPE_CHECKING:
    from accelerate import Accelerator

    from training.stages.block_distillation import Teacher


@dataclass
class Assembly:
    """Parts of a stage.

    Attributes:
        accelerator: of the launch.
        parallel: holds the student.
        stage: prepares batches and takes losses.
        plain_stage: the same for validation: never on-policy.
        loader: first step -> for each step, this process's samples.
        validation: encoded samples, empty without a validation set.
        validation_over_long: how many of its samples were dropped or shortened, by the names of `OVER_LONG`.
        steps: of the schedule.
        prepares_with_model: whether preparing a batch runs the student, so that it cannot be done ahead.
        record: serving record of the student.
        tokenizer: of the student.
        mixture: the training data.
    """

    accelerator: Accelerator
    parallel: Parallel
    stage: Stage
    plain_stage: Stage
    loader: Callable[[int], StepLoader]
    validation: Sequence[EncodedSample]
    validation_over_long: Counter[str]
    steps: int
    prepares_with_model: bool
    record: ServingRecord
    tokenizer: Any
    mixture: Mixture

    def save_model(self, folder: Path, weights: dict[str, Tensor] | None) -> None:
        """Write the student as a checkpoint folder."""
        from transformers.utils import logging

        from wamdiff2_core.model.checkpoint import save_checkpoint

        logging.disable_progress_bar()  # one for each file that is written
        model = self.accelerator.unwrap_model(self.parallel.model).model
        save_checkpoint(model, self.tokenizer, self.record, folder, state_dict=weights)


def check_stage(config: StageConfig) -> None:
    """Check files and folders of a stage, which takes no time; `config.out` is made.

    A folder with checkpoints may be gone on with at another pace, not with other contents.

    Raises:
        UserError: a data file or a checkpoint is missing, or `config.out` cannot be written to, holds another stage
            or something else.
    """
    files = [("data.train", source.file) for source in config.data.train]
    if config.data.validation is not None:
        files.append(("data.validation", config.data.validation))
    for field, name in files:
        if not Path(name).is_file():
            got = "a folder" if Path(name).is_dir() else "no such file"
            raise UserError(field, "a conversation file", f"{name} ({got})", f"give another one with --{field}")
    if config.init is not None:
        resolve_checkpoint(config.init, "init")
    if config.distillation is not None:
        resolve_checkpoint(config.distillation.teacher.checkpoint, "distillation.teacher.checkpoint")
    check_folder(Path(config.out), contents(config))


def claim(config: StageConfig) -> AbstractContextManager[None]:
    """Hold `config.out`, and note in it which stage it holds.

    Raises:
        UserError: another process trains into it.
    """
    return claim_folder(Path(config.out), contents(config))


def make_accelerator(config: StageConfig) -> Accelerator:
    """The accelerator of this launch, with the run's trackers.

    Raises:
        UserError: a tracker's package is not installed.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(), log_with=list(config.run.trackers) or None, project_dir=config.out
    )
    absent = set(config.run.trackers) - {str(getattr(tracker, "value", tracker)) for tracker in accelerator.log_with}
    if absent:  # accelerate leaves them out without a word
        raise UserError("run.trackers", "installed packages", ", ".join(sorted(absent)), "install them with pip")
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is not None:  # it learns the batch from a data loader otherwise, and clips by its own file
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = config.run.micro_batch
        plugin.deepspeed_config["gradient_clipping"] = config.optimizer.clip_norm
    if config.run.trackers:
        accelerator.init_trackers("log")
    return accelerator


def assemble(config: StageConfig, accelerator: Accelerator) -> Assembly:
    """Build or load everything that a stage needs.

    Raises:
        UserError: the data or the checkpoints do not fit the configuration.
    """
    run, diffusion = config.run, config.diffusion
    if run.threads:
        torch.set_num_threads(run.threads)
    check_batch(run, accelerator.num_processes)
    stock, tokenizer, special = _model_and_tokenizer(config)
    record = stage_record(config, special.mask, special.eos)
    encoder = _encoder(config, stock, tokenizer, record)
    mixture = Mixture(config.data.train)
    steps = schedule_steps(run, len(mixture))
    kernel = run.kernel or ("written" if accelerator.device.type == "cpu" else "fused")
    sharded = accelerator.distributed_type.value in ("FSDP", "DEEPSPEED")
    stock.train()
    if run.activation_checkpointing:
        stock.activation_checkpointing_enable({"use_reentrant": False})
    dtype = torch.bfloat16 if run.precision == "bf16" else torch.float32
    model = AnswerModel(
        stock, kernel=kernel, stock_vision=sharded, frozen_vision=config.optimizer.vision_frozen,
        kept_images=run.kept_images,
    )
    parallel = make_parallel(model, config.optimizer, dtype, accelerator)
    pad = special.eos if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    ids = TokenIds(pad, special.eos, special.mask, int(stock.config.image_token_id), config.data.prompt_multiple)
    stage, plain = _stages(config, parallel.model, ids, stock, accelerator, dtype, kernel)
    if run.compiled:
        model.score_all = True
        model.compile(dynamic=False)
    validation: list[EncodedSample] = []
    if config.data.validation is not None:
        index = ConversationIndex(config.data.validation)
        count = min(len(index), config.data.validation_samples or len(index))
        encoded = (encoder.encode(index[row]) for row in range(count))
        validation = [sample for sample in encoded if sample is not None]
    validation_over_long = encoder.over_long

    def loader(step: int) -> StepLoader:
        return StepLoader(
            mixture, encoder, run.global_batch, run.seed, accelerator.process_index, accelerator.num_processes,
            config.data.workers, step,
        )

    distillation = config.distillation
    with_model = diffusion.own_order or (distillation is not None and distillation.on_policy is not None)
    return Assembly(
        accelerator, parallel, stage, plain, loader, validation, validation_over_long, steps, with_model, record,
        tokenizer, mixture,
    )


def open_data(config: StageConfig) -> tuple[Mixture, SampleEncoder]:
    """The training data and its encoder, without any weights."""
    from training.tokenizer import build_tokenizer
    from wamdiff2_core.model.checkpoint import load_tokenizer

    if config.init is None:
        tokenizer = build_tokenizer(config.shape.vocab_size)
        special = SpecialIds(int(tokenizer.mask_token_id), int(tokenizer.eos_token_id))
    else:
        folder = resolve_checkpoint(config.init, "init")
        tokenizer, found = load_tokenizer(folder), ServingRecord.load(folder) or config.record
        special = SpecialIds(found.mask_token_id, found.eos_token_id)
    record = stage_record(config, special.mask, special.eos)
    return Mixture(config.data.train), _encoder(config, model_on_meta(config), tokenizer, record)


def model_on_meta(config: StageConfig) -> Any:
    """The student's shape without its weights."""
    from training.model_factory import build_model
    from training.tokenizer import build_tokenizer

    if config.init is None:
        with torch.device("meta"):
            return build_model(config.shape, build_tokenizer(config.shape.vocab_size))
    return checkpoint_on_meta(config.init, "init")


def checkpoint_on_meta(name: str, field: str) -> Any:
    """A checkpoint's model without its weights; see `resolve_checkpoint`."""
    from transformers import Qwen3VLForConditionalGeneration

    from wamdiff2_core.model.checkpoint import read_model_config

    with torch.device("meta"):
        return Qwen3VLForConditionalGeneration._from_config(
            read_model_config(resolve_checkpoint(name, field)), attn_implementation="sdpa"
        )


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the mask token and of EOS; a tokenizer need not name the mask, as Qwen's does not."""

    mask: int
    eos: int


def _model_and_tokenizer(config: StageConfig) -> tuple[Any, Any, SpecialIds]:
    """Stock model in fp32, its tokenizer and its special ids."""
    from training.model_factory import build_model
    from training.tokenizer import build_tokenizer

    newest = checkpoints(Path(config.out))
    if config.init is None and not newest:
        tokenizer = build_tokenizer(config.shape.vocab_size)
        special = SpecialIds(int(tokenizer.mask_token_id), int(tokenizer.eos_token_id))
        return build_model(config.shape, tokenizer, config.run.seed), tokenizer, special
    from wamdiff2_core.model.checkpoint import load_checkpoint

    folder = newest[-1] if newest else resolve_checkpoint(str(config.init), "init")
    has_record = ServingRecord.load(folder) is not None
    loaded = load_checkpoint(
        folder, dtype=torch.float32, mask_token_id=None if has_record else config.record.mask_token_id,
        eos_token_id=None if has_record else config.record.eos_token_id,
    )
    for name, weight in loaded.model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(f"{folder}: {name}", "finite weights", "inf or NaN", "take an earlier checkpoint")
    return loaded.model, loaded.tokenizer, SpecialIds(loaded.mask_token_id, loaded.eos_token_id)


def _encoder(config: StageConfig, model: Any, tokenizer: Any, record: ServingRecord) -> SampleEncoder:
    from wamdiff2_core.chat import ChatCodec
    from wamdiff2_core.images import make_image_processor

    processor = make_image_processor(record.images, model.config.vision_config)
    codec = ChatCodec(tokenizer, processor, record.images, model.config.image_token_id, record.eos_token_id)
    return SampleEncoder(
        codec, model.config.image_token_id, model.config.vision_config.spatial_merge_size, config.data.limits
    )


def _stages(
    config: StageConfig, model: AnswerModel, ids: TokenIds, stock: Any, accelerator: Accelerator, dtype: torch.dtype,
    kernel: Any,
) -> tuple[Stage, Stage]:
    """The stage for training and for validation."""
    from training.stages.autoregressive import Autoregressive
    from training.stages.block_adaptation import BlockAdaptation
    from training.stages.block_distillation import BlockDistillation
    from training.stages.cross_scale import CrossScale
    from training.trajectories import StudentDecoder

    diffusion, distillation = config.diffusion, config.distillation
    if config.stage == "autoregressive":
        stage = Autoregressive(model, ids, diffusion.block_size)
        return stage, stage
    if distillation is None:
        adaptation = BlockAdaptation(model, ids, diffusion)
        return adaptation, adaptation
    teacher = _teacher(config, stock, accelerator, dtype, kernel)
    plain = BlockDistillation(model, teacher, ids, diffusion, distillation)
    if distillation.on_policy is None:
        return plain, plain
    decoder = StudentDecoder(distillation.on_policy, diffusion.block_size, ids.mask, ids.eos)
    kind = CrossScale if config.stage == "cross_scale" else BlockDistillation
    return kind(model, teacher, ids, diffusion, distillation, decoder), plain


def _teacher(config: StageConfig, student: Any, accelerator: Accelerator, dtype: torch.dtype, kernel: Any) -> Teacher:
    from training.stages.block_distillation import Teacher
    from wamdiff2_core.model.checkpoint import load_checkpoint

    assert config.distillation is not None
    asked = config.distillation.teacher
    folder = resolve_checkpoint(asked.checkpoint, "distillation.teacher.checkpoint")
    loaded = load_checkpoint(folder, dtype=dtype)
    rows, wanted = (m.config.get_text_config().vocab_size for m in (loaded.model, student))
    if rows != wanted:
        raise UserError("distillation.teacher.checkpoint", f"the student's vocabulary of {wanted} rows", rows)
    record = loaded.record
    alignment = record.label_alignment if record is not None else "aligned"
    block_size = asked.block_size or (record.block_sizes[-1] if record is not None else 0)
    if not block_size:
        raise UserError("distillation.teacher.block_size", "a block size: the folder has no record", 0)
    if record is not None and block_size not in record.block_sizes:
        raise UserError("distillation.teacher.block_size", f"one of {list(record.block_sizes)} (trained)", block_size)
    larger, smaller = max(block_size, config.diffusion.block_size), min(block_size, config.diffusion.block_size)
    if larger % smaller:
        raise UserError("distillation.teacher.block_size", f"a divisor or multiple of {config.diffusion.block_size}",
                        block_size)
    mask = asked.mask or (record.mask_kind if record is not None else "strict")
    model = AnswerModel(loaded.model.to(accelerator.device).requires_grad_(False), kernel=kernel)
    return Teacher(model, View(block_size, mask), alignment)
