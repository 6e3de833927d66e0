"""`wamdiff2 train --dry-run`: what a stage would do, without doing it."""

from __future__ import annotations

import statistics

from training.config import StageConfig, schedule_steps

SAMPLED = 64  # samples that are encoded to estimate lengths
GIB = 2**30


def plan_lines(config: StageConfig) -> list[str]:
    """Data, steps, tokens and memory of a stage, in words; weights are not read."""
    import torch

    from training.assembly import model_on_meta, open_data

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
        lines.append(f"prompt {prompt:.0f} tokens, answer {answer:.0f}, padded to {padded:.0f}, {copies} noisy copies: "
                     f"{tokens:.0f} tokens a sample, {tokens * end * run.global_batch / 1e6:.1f} million in all "
                     f"({len(encoded) - len(kept)} of {len(encoded)} samples looked at are too long)")
    else:
        lines.append(f"none of {len(encoded)} samples looked at fits prompt_tokens and answer_tokens")
        tokens = 0.0
    model = model_on_meta(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    width = 2 if run.precision == "bf16" else 4
    fixed = parameters * (2 * width + 4 * 4)  # weights and gradients; master weights, their gradients, two moments
    text = model.config.get_text_config()
    layer_values = 2 if run.activation_checkpointing else 34  # of the hidden width, kept a token and layer
    activations = run.micro_batch * tokens * text.hidden_size * text.num_hidden_layers * layer_values * width
    lines.append(f"{parameters:,} parameters; memory without shards about {fixed / GIB:.1f} GiB for weights and "
                 f"optimiser and {activations / GIB:.1f} GiB for activations")
    lines.append(f"torch {torch.__version__}, {torch.accelerator.device_count()} accelerators here")
    return lines


