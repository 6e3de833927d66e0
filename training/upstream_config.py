"""Upstream's own YAML files (`configs/training/block*.yaml`, `configs/distillation/distil.yaml`) as stages.

What a key means is taken over where the trainer here has the same thing; what has no meaning here is listed, never
dropped in silence. Sources: the authors' repository at 0a13b29.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from training.config import leaves
from wamdiff2_core.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Translated:
    """An upstream file as a stage.

    Attributes:
        stage: tree of `config.StageConfig`.
        mapped: (upstream key, key here) for each key that was taken over.
        unknown: keys without a meaning here, with their values.
    """

    stage: dict[str, Any]
    mapped: tuple[tuple[str, str], ...]
    unknown: tuple[tuple[str, Any], ...]

    def lines(self) -> list[str]:
        """What became of the keys, to be printed."""
        taken = [f"{old} -> {new}" for old, new in self.mapped]
        left = [f"{key} = {value!r}" for key, value in self.unknown]
        return [f"taken over: {', '.join(taken)}", f"without meaning here: {', '.join(left) or 'nothing'}"]


# Key of upstream's files, by its last parts -> key here.
KEYS: Mapping[str, str] = {
    "seed": "run.seed",
    "step_scheduler.global_batch_size": "run.global_batch",
    "step_scheduler.local_batch_size": "run.micro_batch",
    "step_scheduler.num_epochs": "run.epochs",
    "step_scheduler.ckpt_every_steps": "run.checkpoint_every",
    "step_scheduler.val_every_steps": "run.validate_every",
    "step_scheduler.max_steps": "run.steps",
    "rng.seed": "run.seed",
    "optimizer.lr": "optimizer.lr",
    "optimizer.merger_lr": "optimizer.merger_lr",
    "optimizer.visual_lr": "optimizer.vision_lr",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.betas": "optimizer.betas",
    "visual_lr": "optimizer.vision_lr",
    "merger_lr": "optimizer.merger_lr",
    "clip_grad_norm.max_norm": "optimizer.clip_norm",
    "max_grad_norm": "optimizer.clip_norm",
    "checkpoint.checkpoint_dir": "out",
    "model.pretrained_model_name_or_path": "init",
    "student_model.pretrained_model_name_or_path": "init",
    "teacher_model.pretrained_model_name_or_path": "distillation.teacher.checkpoint",
    "dataloader.collate_fn.block_size": "diffusion.block_size",
    "dataloader.collate_fn.teacher_block_size": "distillation.teacher.block_size",
    "collate_fn.mask_token_id": "record.mask_token_id",
    "max_len": "data.prompt_tokens",
    "processor.min_pixels": "record.images.min_pixels",
    "processor.max_pixels": "record.images.max_pixels",
    "dataset.min_pixels": "record.images.min_pixels",
    "dataset.max_pixels": "record.images.max_pixels",
    "distributed.activation_checkpointing": "run.activation_checkpointing",
    "lr_scheduler.lr_warmup_steps": "optimizer.warmup_steps",
    "dataloader.num_workers": "data.workers",
    "dataset.path_or_dataset": "data.train",
    "dataset.data_path": "data.train",
    "validation_dataset.path_or_dataset": "data.validation",
    "kd_ratio": "distillation.kd_ratio",
    "kd_loss_fn.temperature": "distillation.temperature",
    "kd_loss_fn.beta": "distillation.beta",
    "on_policy.generate_interval": "distillation.on_policy.every",
    "on_policy.max_new_tokens": "distillation.on_policy.max_new_tokens",
    "on_policy.denoising_steps": "distillation.on_policy.denoising_steps",
    "on_policy.generate_temperature": "distillation.on_policy.temperature",
    "generate_interval": "distillation.on_policy.every",
    "max_new_tokens": "distillation.on_policy.max_new_tokens",
    "denoising_steps": "distillation.on_policy.denoising_steps",
    "generate_temperature": "distillation.on_policy.temperature",
    "block_size": "diffusion.block_size",
    "teacher_block_size": "distillation.teacher.block_size",
}

# Keys whose value is something here, or is refused: by their last parts, what each value says here.
VALUES: Mapping[str, Mapping[Any, Mapping[str, Any]]] = {
    "prior_dist": {"Mask": {}},
    "lr_decay_style": {"cosine": {}},
    "pad_token": {"<|im_end|>": {}},
    "im_end_token": {"<|im_end|>": {}},
    "model.torch_dtype": {
        "torch.bfloat16": {"run.precision": "bf16"}, "bfloat16": {"run.precision": "bf16"},
        "torch.float32": {"run.precision": "fp32"}, "float32": {"run.precision": "fp32"},
    },
    "freeze_config.freeze_vision_tower": {False: {}, True: {"optimizer.vision_lr": 0, "optimizer.merger_lr": 0}},
    "freeze_config.freeze_language_model": {False: {}},
    "freeze_config.freeze_embeddings": {False: {}},
    "generate_top_k": {0: {}, None: {}},
    "generate_top_p": {1.0: {}, None: {}},
    "kd_loss_fn._target_": {
        "Block_JSDLoss": {"distillation.divergence": "jsd"}, "KDLoss": {"distillation.divergence": "forward_kl"},
        "ReverseKDLoss": {"distillation.divergence": "reverse_kl"},
    },
}


def is_upstream(tree: Mapping[str, Any]) -> bool:
    """Whether a YAML tree is one of upstream's: it says what to build by `_target_`."""
    return any(isinstance(value, dict) and "_target_" in value for value in tree.values()) or "step_scheduler" in tree


def translate(tree: Mapping[str, Any], file: Path) -> Translated:
    """Take an upstream configuration over; its loss form, mask and noise are named as they are here.

    Raises:
        UserError: it asks for what the trainer here cannot do, such as another noise than the absorbing mask.
    """
    stage: dict[str, Any] = {
        "diffusion": {"mask": "upstream", "loss": "upstream", "full_share": 0.0, "copies": 1},
        "data": {"over_long": "refuse"},
        "record": {"mask_kind": "upstream"},
    }
    mapped: list[tuple[str, str]] = []
    unknown: list[tuple[str, Any]] = []
    settled: dict[str, Any] = {}
    distils = any("teacher" in str(key) for key in tree)
    for dotted, value in leaves(tree).items():
        if dotted == "on_policy" and distils:
            mapped.append((dotted, "distillation.on_policy"))
            continue
        said = _known(dotted, VALUES)
        if said is not None and (distils or not dotted.startswith("kd_loss_fn")):
            chosen = _chosen(file, dotted, value, said)
            settled.update(chosen)
            mapped += [(dotted, key) for key in chosen] or [(dotted, "what is done here anyway")]
            continue
        key = _known(dotted, KEYS)
        if key is None or (key.startswith("distillation") and not distils):
            if not dotted.endswith("_target_"):
                unknown.append((dotted, value))
            continue
        _put(stage, tuple(key.split(".")), value)
        mapped.append((dotted, key))
    for key, value in settled.items():  # over rates that the file names as well
        _put(stage, tuple(key.split(".")), value)
    stage["stage"] = "block_distillation" if distils else "block_adaptation"
    if distils and _on_policy_off(tree):
        stage.get("distillation", {}).pop("on_policy", None)
    stage.setdefault("out", f"runs/{file.stem}")
    return Translated(stage, tuple(mapped), tuple(unknown))


def _known(dotted: str, table: Mapping[str, T]) -> T | None:
    """The entry of the longest tail of a key."""
    parts = dotted.split(".")
    tails = (".".join(parts[first:]) for first in range(len(parts)))
    return next((table[tail] for tail in tails if tail in table), None)


def _chosen(file: Path, dotted: str, value: Any, said: Mapping[Any, Mapping[str, Any]]) -> Mapping[str, Any]:
    name = value.rsplit(".", 1)[-1] if dotted.endswith("_target_") and isinstance(value, str) else value
    if isinstance(name, (list, dict)) or name not in said:
        raise UserError(f"{file}: {dotted}", " or ".join(str(one) for one in said), value,
                        "the trainer here has nothing else; write a stage file of its own (docs/training.md)")
    return said[name]


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _on_policy_off(tree: Mapping[str, Any]) -> bool:
    return any(name.rsplit(".", 1)[-1] in ("on_policy", "enabled") and value is False
               for name, value in leaves(tree).items() if "on_policy" in name)
