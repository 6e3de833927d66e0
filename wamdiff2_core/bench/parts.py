"""What a plan is made of: pictures and prompts by length, and `Planner.plan` from one end to the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wamdiff2_core.bench.machine import Floor, synchronised
from wamdiff2_core.bench.naive import stock_inputs
from wamdiff2_core.bench.subjects import Subject, moved, observation, random_prompt
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.dataset import read_picture
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import Checkpoint, load_checkpoint
from wamdiff2_core.planner import CheckpointPlanner

ENOUGH_FOR_P99 = 50


@dataclass(frozen=True)
class PartRow:
    """Times of one part.

    Attributes:
        name: what was done.
        ms_median, ms_p95, ms_iqr: wall clock: median, 95th percentile, distance of the quartiles.
        prompt_tokens: of the prompt; None where it does not matter.
        fraction_of_floor: the least possible time by the median.
        first_ms: the first call, not among the others.
        calls: measured ones.
        forwards_per_answer: of the language model, mean; None where nothing is decoded.
        ms_p99: 99th percentile; None where the calls are too few for one.
    """

    name: str
    ms_median: float
    ms_p95: float
    ms_iqr: float
    prompt_tokens: int | None = None
    fraction_of_floor: float | None = None
    first_ms: float | None = None
    calls: int | None = None
    forwards_per_answer: float | None = None
    ms_p99: float | None = None


@dataclass(frozen=True)
class PartRun:
    """One thing to time.

    Attributes:
        name: of its row.
        prompt_tokens: None where they do not matter.
        least_s: the least seconds that it can take; None where nobody knows.
        call: it.
        before: what comes before each call, unmeasured.
    """

    name: str
    prompt_tokens: int | None
    least_s: float | None
    call: Callable[[], object]
    before: Callable[[], object] | None = None


def measure_prefill(
    subject: Subject, lengths: Sequence[int], rounds: int, floor: Floor, show: Callable[[int], None] = lambda done: None
) -> list[PartRow]:
    """Time the subject's first picture, if it has one, and prompts of several lengths, turn about.

    Rows: `vision`, the picture alone; `prefill`, our prompt forward, picture included; `hf_prefill`, the stock model's
    with the logits of the last token. With a picture, `second_question`, too: ours, of the same picture with other
    words behind it, right after another question about it.

    Args:
        subject: model; its first prompt lends its images.
        lengths: words of a prompt after its images.
        rounds: at least 1.
        floor: of the model.
        show: told how many calls are done.

    Raises:
        UserError: a prompt is longer than the model allows.
    """
    return measure_parts(prefill_runs(subject, lengths, floor), rounds, subject.device, show)


def prefill_runs(subject: Subject, lengths: Sequence[int], floor: Floor) -> list[PartRun]:
    """What `measure_prefill` times."""
    model, device = subject.model, subject.device
    blocks, size = subject.blocks, subject.decode.block_size
    limit = int(model.config.get_text_config().max_position_embeddings)
    runs: list[PartRun] = []
    asks_again = BlockModel(model, blocks.backend, 1, reuse_prompts=True)
    pixels, grid = subject.prompts[0].pixel_values, subject.prompts[0].image_grid_thw
    if pixels is not None and grid is not None:
        least = floor.vision_s(subject.prompts[0])
        runs.append(PartRun("vision", None, least, partial(blocks.backend.encode_images, pixels.to(device), grid)))
    for length in lengths:
        prompt = _prompt(subject, length)
        tokens = len(prompt.input_ids)
        if tokens > limit:
            raise UserError("lengths", f"prompts of at most {limit} tokens", f"{length} words, {tokens} tokens")
        least = floor.prefill_s(prompt)
        runs.append(PartRun("prefill", tokens, least, partial(blocks.prefill, [prompt], size, size)))
        runs.append(PartRun("hf_prefill", tokens, least, partial(_stock_prefill, model, prompt)))
        if pixels is not None:
            first, second = (partial(asks_again.prefill, [asked], size, size, "always")
                             for asked in (_another(subject, prompt), prompt))
            runs.append(PartRun("second_question", tokens, None, second, first))
    return runs


@torch.inference_mode()
def measure_parts(
    runs: Sequence[PartRun], rounds: int, device: torch.device, show: Callable[[int], None] = lambda done: None
) -> list[PartRow]:
    """Time all runs turn about, after an unmeasured round."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds + 1):
        for step in range(len(runs)):
            which = (turn + step) % len(runs)
            if (before := runs[which].before) is not None:
                before()
            started = synchronised(device)
            runs[which].call()
            times[which].append((synchronised(device) - started) * 1e3)
            show(turn * len(runs) + step + 1)
    return [
        part_row(
            run.name, every[1:], run.prompt_tokens, None if run.least_s is None else run.least_s * 1e3, every[0]
        )
        for run, every in zip(runs, times, strict=True)
    ]


def prefill_calls(subject: Subject, lengths: Sequence[int], rounds: int) -> int:
    """What `measure_prefill` will have told its `show` at the end."""
    seen = subject.prompts[0].pixel_values is not None
    return (rounds + 1) * ((2 + seen) * len(lengths) + seen)


def prefill_ratios(rows: Sequence[PartRow]) -> dict[str, dict[str, float]]:
    """How many times quicker our prompt forward is than the stock one, and a second question than it, by tokens."""

    def over(slow: str, quick: str) -> dict[str, float]:
        took_ms = {row.prompt_tokens: row.ms_median for row in rows if row.name == slow}
        return {
            str(row.prompt_tokens): took_ms[row.prompt_tokens] / row.ms_median for row in rows if row.name == quick
        }

    return {"over_hf_prefill": over("hf_prefill", "prefill"), "second_over_prefill": over("prefill", "second_question")}


def measure_plan(
    folder: Path, rounds: int, device: str = "cpu", dtype: torch.dtype | None = None, image: Path | None = None,
    show: Callable[[int], None] = lambda done: None, temperature: float = 1.0, backend: str = "auto",
) -> tuple[list[PartRow], torch.dtype]:
    """Time `Planner.plan`, every time on another picture.

    Rows: `load`; `warm_up`, which a node does before it says that it is ready, and `first_plan` after it; `plan`, the
    whole call; `prefill` and `decode`, its own account of them; `other`, what is left of it: the prompt, the picture's
    preparation, reading and checking the answer. `grammar_off` or `grammar_task`, whichever the record does not say,
    and `temperature`, sampled without a grammar, are whole calls too; all these take turns. On an accelerator
    `prefill` is the time to give the work out, and what the device still has to do of it falls to `decode`.

    Args:
        folder: checkpoint that plans.
        rounds: at least 1.
        device, dtype: of the model.
        image: picture of the rig's size; None makes one up.
        show: told how many plans are done.
        temperature: of the last row, above 0.
        backend: what runs the model.

    Returns:
        The rows, and the dtype that the weights were loaded in.

    Raises:
        UserError: the checkpoint does not plan, or the picture does not fit.
    """
    if image is not None:
        read_picture(image, "image")  # told before the weights are read
    started = time.perf_counter()
    checkpoint = load_checkpoint(folder, device=device, dtype=dtype, backend=backend)
    base = checkpoint.record.decode if checkpoint.record is not None else DecodeConfig()
    own = CheckpointPlanner(checkpoint, replace(base, prompt_reuse="off"))  # others plan on the same picture
    load_ms = (time.perf_counter() - started) * 1e3
    seen = observation(own.rig, image)
    warm_up_ms = _call_ms(own.warm_up)
    first_ms = _call_ms(partial(own.plan, moved(seen, -1)))
    planners = {"plan": own} | _variants(checkpoint, own, temperature)
    for planner in planners.values():
        planner.warm_up()
    columns: dict[str, list[float]] = {name: [] for name in ("plan", "prefill", "decode", "other", *planners)}
    forwards: dict[str, list[float]] = {name: [] for name in columns}
    names = list(planners)
    for turn in range(rounds):
        for step in range(len(names)):
            name = names[(turn + step) % len(names)]
            started = time.perf_counter()
            stats = planners[name].plan(moved(seen, turn)).stats
            whole = (time.perf_counter() - started) * 1e3
            columns[name].append(whole)
            forwards[name].append(stats.forwards)
            if name == "plan":
                parts = stats.prefill_ms, stats.decode_ms, whole - stats.prefill_ms - stats.decode_ms
                for part, value in zip(("prefill", "decode", "other"), parts, strict=True):
                    columns[part].append(value)
            show(turn * len(names) + step + 1)
    once = [part_row("load", [load_ms]), part_row("warm_up", [warm_up_ms]), part_row("first_plan", [first_ms])]
    rows = once + [part_row(name, every, forwards=forwards[name]) for name, every in columns.items()]
    return rows, checkpoint.model.dtype


def plan_calls(rounds: int) -> int:
    """The most that `measure_plan` will have told its `show` at the end."""
    return 3 * rounds


def _variants(checkpoint: Checkpoint, own: CheckpointPlanner, temperature: float) -> dict[str, CheckpointPlanner]:
    """Planners with the other grammar, where the tokenizer allows it, and at a temperature; without a deadline."""
    free = replace(own.decode, grammar="off", temperature=0.0, deadline_ms=0.0)
    wanted = {"grammar_off": free, "grammar_task": replace(free, grammar="task")}
    wanted.pop(f"grammar_{own.decode.grammar}")
    planners = {}
    for name, decode in wanted.items():
        with suppress(UserError):
            planners[name] = CheckpointPlanner(checkpoint, decode)
    planners["temperature"] = CheckpointPlanner(checkpoint, replace(free, temperature=temperature))
    return planners


def _call_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _prompt(subject: Subject, words: int) -> ModelInputs:
    """The subject's first prompt up to its last image, then random words; the words alone when it has no image."""
    config, own = subject.model.config, subject.prompts[0]
    text = random_prompt(config, words)
    if own.pixel_values is None:
        return text
    opening = own.input_ids[: 1 + int((own.input_ids == config.image_token_id).nonzero().max())]
    return replace(own, input_ids=torch.cat([opening, text.input_ids]))


def _another(subject: Subject, prompt: ModelInputs) -> ModelInputs:
    """The same up to its last image, and then the words from the last to the first."""
    opening = 1 + int((prompt.input_ids == subject.model.config.image_token_id).nonzero().max())
    words = prompt.input_ids[opening:].flip(0)
    return replace(prompt, input_ids=torch.cat([prompt.input_ids[:opening], words]))


def _stock_prefill(model: Any, prompt: ModelInputs) -> None:
    from transformers import DynamicCache

    model.model.rope_deltas = None
    cache = DynamicCache(config=model.config)
    model(**stock_inputs(model, prompt), cache=cache, use_cache=True, logits_to_keep=1)


def part_row(
    name: str, times: Sequence[float], tokens: int | None = None, floor_ms: float | None = None,
    first_ms: float | None = None, forwards: Sequence[float] = (),
) -> PartRow:
    """The row of measured milliseconds, and of forwards, if any were counted."""
    low, middle, high, top = (float(value) for value in np.percentile(times, (25, 50, 75, 95)))
    fraction = None if floor_ms is None else floor_ms / middle
    top99 = float(np.percentile(times, 99)) if len(times) >= ENOUGH_FOR_P99 else None
    counted = float(np.mean(forwards)) if forwards else None
    return PartRow(name, middle, top, high - low, tokens, fraction, first_ms, len(times), counted, top99)
