"""What it costs to project the whole sequence to the vocabulary in training, against the rows that carry loss.

    python -m benchmarks.training_logits [--prompt 600] [--steps 3]

A Qwen3-VL of 2 text and 2 vision layers, 128 wide, with Qwen's vocabulary of 151,936 rows, learns answers of 64 tokens
after a prompt of `--prompt`, in blocks of 32, on the CPU in fp32. `full` is the stock way: the stock model on
[prompt | answer | noisy answer] under the whole mask, logits of every row, cross-entropy of the masked ones. `rows` is
the trainer's forward. Each runs in a process of its own, whose peak memory is measured above what the model itself
takes; `rows` once more with a prompt four times as long.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Annotated, Any

import typer

from wamdiff2_core.cli.main import run_alone

VOCABULARY, MASK_ID, EOS_ID, IMAGE_ID = 151936, 151671, 151645, 151655
ANSWER, BLOCK = 64, 32


def main(
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 600,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of one sample.")] = 3,
    case: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Print the table."""
    if case:
        print(json.dumps(measure(case, prompt, steps)))
        return
    cases = (("full", prompt), ("rows", prompt), ("rows", 4 * prompt))
    results = [_in_a_process(case, prompt, steps) for case, prompt in cases]
    print("logits  prompt  samples/s  peak above model, MiB  loss")
    for (way, tokens), result in zip(cases, results, strict=True):
        print(f"{way:6}  {tokens:6}  {result['samples_per_s']:9.2f}  {result['peak_mib']:21.0f}  {result['loss']:.4f}")
    full, rows, long = results
    print(f"rows over full: {rows['samples_per_s'] / full['samples_per_s']:.1f} x samples/s, "
          f"{full['peak_mib'] / rows['peak_mib']:.1f} x less memory; "
          f"{4 * prompt} prompt tokens take {long['peak_mib'] - rows['peak_mib']:.0f} MiB more than "
          f"{prompt} (its logits alone would take "
          f"{3 * prompt * VOCABULARY * 4 / 2**20:.0f} MiB)")


def measure(case: str, prompt: int, steps: int) -> dict[str, float]:
    """Samples a second, peak memory above the model's and the loss of the first step."""
    import torch

    torch.set_num_threads(1)
    model = _model()
    batch, noise, part = _sample(prompt)
    before = _peak_mib()
    seconds, losses = [], []
    for _ in range(steps + 1):
        started = time.perf_counter()
        loss = (_full if case == "full" else _rows)(model, batch, noise, part)
        loss.backward()
        model.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
        losses.append(float(loss.detach()))
    return {"samples_per_s": 1 / (sum(seconds[1:]) / steps), "peak_mib": _peak_mib() - before, "loss": losses[0]}


def _model() -> Any:
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    text = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "rope_parameters": rope,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 2, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "patch_size": 16,
        "out_hidden_size": 128, "num_position_embeddings": 256, "deepstack_visual_indexes": [0],
    }
    torch.manual_seed(0)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE_ID, tie_word_embeddings=True)
    return Qwen3VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")


def _sample(prompt: int) -> tuple[Any, Any, Any]:
    """A text sample of random ids, laid out, with half of its answer masked."""
    import torch

    from training.config import DiffusionConfig
    from training.data.encode import EncodedSample
    from training.stages.block_adaptation import corrupted, draw_batch
    from training.stages.stage import Slots, TokenIds, collate_for

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 150000, (prompt + ANSWER,), generator=generator)
    positions = torch.arange(prompt).expand(3, -1)
    sample = EncodedSample(ids[:prompt], positions, ids[prompt:], None, None, "", "")
    config = DiffusionConfig(BLOCK)
    batch = collate_for([sample], TokenIds(EOS_ID, EOS_ID, MASK_ID, IMAGE_ID), BLOCK)
    noise = draw_batch(batch, config, Slots(0, 0, (0,)))
    return batch, noise, corrupted(batch, noise, config, MASK_ID)


def _full(model: Any, batch: Any, noise: Any, part: Any) -> Any:
    """Cross-entropy of the stock model's logits of every row."""
    import torch

    from wamdiff2_core.model.masks import training_mask

    prompt = batch.prompt_ids.shape[1]
    ids = torch.cat([batch.prompt_ids, batch.answer_ids, part.inputs.ids[:, -ANSWER:]], 1)
    positions = torch.cat([batch.prompt_positions, batch.answer_positions.repeat(1, 2).expand(3, -1, -1)], 2)
    mask = training_mask(prompt, ANSWER, BLOCK)[None, None]
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    labels = torch.full_like(ids, -100)
    labels[:, -ANSWER:] = torch.where(part.counted, part.labels, -100)
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def _rows(model: Any, batch: Any, noise: Any, part: Any) -> Any:
    """The trainer's loss."""
    from training.config import DiffusionConfig
    from training.forward import AnswerModel
    from training.stages.block_adaptation import BlockAdaptation
    from training.stages.stage import TokenIds

    stage = BlockAdaptation(AnswerModel(model), TokenIds(EOS_ID, EOS_ID, MASK_ID, IMAGE_ID), DiffusionConfig(BLOCK))
    return stage.loss(part, part.totals)[0]


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _in_a_process(case: str, prompt: int, steps: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.training_logits", "--case", case, "--prompt", str(prompt),
               "--steps", str(steps)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.training_logits"))
