"""`wamdiff2 train --dry-run`: what a stage would do, without doing it."""

from __future__ import annotations

import statistics
from typing import Any

from training.config import StageConfig, schedule_steps

SAMPLED = 64  # samples that are encoded to estimate lengths
GIB = 2**30


def plan_lines(config: StageConfig) -> list[str]:
    """Data, steps, tokens and memory of a stage, in words; weights are not read."""
    import torch

    from training.assembly import checkpoint_on_meta, model_on_meta, open_data
    from training.data.sources import ConversationIndex

    run, diffusion = config.run, config.diffusion
    mixture, encoder = open_data(config)
    lines = [f"stage {config.stage} into {config.out}", f"start from {config.init or 'a fresh model'}"]
    lines += [
        f"source {source.name}: {len(index):,} samples, {float(share):.1%} of draws"
        for source, index, share in zip(mixture.sources, mixture.indices, mixture.shares, strict=True)
    ]
    stride = max(1, len(mixture) // SAMPLED)
    drawn = (mixture.row(position, run.seed) for position in range(0, min(len(mixture), SAMPLED * stride), stride))
    encoded = [encoder.encode(sample, source) for source, sample in drawn]
    kept = [sample for sample in encoded if sample is not None]
    steps = schedule_steps(run, len(mixture))
    end = min(run.stop_at or steps, steps)
    lines.append(f"{steps:,} steps of {run.global_batch} samples, to step {end:,}; forwards of {run.micro_batch}")
    if kept:
        prompt = statistics.mean(len(sample.prompt_ids) for sample in kept)
        answer = statistics.mean(len(sample.answer_ids) for sample in kept)
        copies = 0 if config.stage == "autoregressive" else diffusion.copies
        size = 1 if config.stage == "autoregressive" else diffusion.block_size
        padded = statistics.mean(-(-len(sample.answer_ids) // size) * size for sample in kept)
        tokens = prompt + padded * (1 + copies)
        rows = padded * max(copies, 1)
        patches = statistics.mean(
            0 if sample.pixel_values is None else len(sample.pixel_values) for sample in kept
        )
        lines.append(f"prompt {prompt:.0f} tokens, answer {answer:.0f}, padded to {padded:.0f}, {copies} noisy copies: "
                     f"{tokens:.0f} tokens a sample, {tokens * end * run.global_batch / 1e6:.1f} million in all "
                     f"({len(encoded) - len(kept)} of {len(encoded)} samples looked at are too long)")
    else:
        lines.append(f"none of {len(encoded)} samples looked at fits prompt_tokens and answer_tokens")
        tokens = rows = patches = 0.0
    student = model_on_meta(config)
    teacher = None
    if config.distillation is not None:
        teacher = checkpoint_on_meta(config.distillation.teacher.checkpoint, "distillation.teacher.checkpoint")
    if config.data.validation is not None:
        lines.append(f"validation {config.data.validation}: {len(ConversationIndex(config.data.validation)):,} samples")
    lines.append(f"{_parameters(student):,} parameters"
                 + ("" if teacher is None else f", {_parameters(teacher):,} of the teacher"))
    parts = memory(config, student, teacher, tokens, rows, patches)
    lines.append(f"memory without shards about {sum(parts.values()) / GIB:.2f} GiB: "
                 + ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items()))
    lines.append(f"torch {torch.__version__}, {torch.accelerator.device_count()} accelerators here")
    return lines


def memory(
    config: StageConfig, student: Any, teacher: Any | None, tokens: float, rows: float, patches: float
) -> dict[str, float]:
    """Bytes that a process takes at its peak beside what PyTorch itself does, about, by what takes them.

    Args:
        config: the stage.
        student, teacher: models, with or without weights.
        tokens, rows, patches: text tokens, rows that may carry loss, and patches of pictures, of a sample.
    """
    import torch

    from training.forward import SCORE_ROWS

    run = config.run
    width = 2 if run.precision == "bf16" else 4
    text, vision = student.config.get_text_config(), student.config.vision_config
    written = run.kernel == "written" or (run.kernel is None and not torch.accelerator.is_available())

    def layers(length: float, width_of: int, heads: int, depth: int) -> float:
        """Values that layers keep for the backward pass, in a sequence of so many tokens."""
        if run.activation_checkpointing:
            return 2 * length * width_of * depth
        scores = 2 * length * heads if written else 0  # before and after the softmax
        return length * (34 * width_of + scores) * depth

    parts = {
        "weights and gradients": _parameters(student) * 2.0 * width,
        "optimiser": _parameters(student) * 4.0 * 4,  # master weights, their gradients, two moments
        "text": run.micro_batch * width * layers(
            tokens, text.hidden_size, text.num_attention_heads, text.num_hidden_layers
        ),
    }
    if not config.optimizer.vision_frozen:
        parts["vision"] = run.micro_batch * width * layers(
            patches, vision.hidden_size, vision.num_heads, vision.depth
        )
    models = 1
    if teacher is not None:
        models = 2
        parts["teacher"] = _parameters(teacher) * float(width)
    # logits of a piece of rows, their logarithms and a gradient, in float32
    parts["logits"] = min(run.micro_batch * rows, SCORE_ROWS) * text.vocab_size * 3 * 4 * models
    return parts


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
