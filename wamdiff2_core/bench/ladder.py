"""The ladder: the same answers by Hugging Face, by published code and by ours, turn about in one run.

Every row decodes the same number of tokens, so that their times can be divided by one another: the number is that of
the answer the model gives by its record's decoding, EOS included, and no row stops at EOS. A block row fills whole
blocks, as it does in service. An autoregressive row on block weights writes as many tokens, whatever they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.bench.machine import Floor, Forward, counted, counted_blocks, synchronised
from wamdiff2_core.bench.naive import NO_EOS, decode_naively, generate_stock, plain_forwards
from wamdiff2_core.bench.subjects import BLOCK_SIZES, Subject
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.model.backends import AUTO, Backend
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import RECORD_NAME, ServingRecord

AUTOREGRESSIVE_ROWS = ("hf_ar", "own_ar")
BLOCK_ROWS = ("naive_block", "block_eager", "block", "hf_forward")
ROW_NAMES = (*AUTOREGRESSIVE_ROWS, *BLOCK_ROWS)
WARM_UP_ROWS = ("load", "first_answer")


@dataclass(frozen=True)
class Rung:
    """One way to answer.

    Attributes:
        name: of `ROW_NAMES`.
        block_size: None for autoregressive rows.
        model: the stock model whose forwards count.
        answer: index of a prompt to its token ids; none for `hf_forward`, which only runs forwards.
        blocks: what runs the model, in our rows.
        denoising_steps: most steps of a block; None for autoregressive rows.
    """

    name: str
    block_size: int | None
    model: Any
    answer: Callable[[int], Sequence[int]]
    blocks: BlockModel | None = None
    denoising_steps: int | None = None

    def counted(self) -> AbstractContextManager[list[Forward]]:
        """Every forward of this row inside the block."""
        return counted(self.model) if self.blocks is None else counted_blocks(self.blocks)


@dataclass(frozen=True)
class Row:
    """A rung's figures; all but name and median are None for the warm-up.

    Attributes:
        name, block_size: of the rung, or `load` or `first_answer`.
        ms_per_answer_median, ms_per_answer_p95, ms_per_answer_iqr: wall clock of an answer, prompt included: median,
            95th percentile, distance of the quartiles.
        ms_per_token: median of an answer's time by its tokens.
        forwards_per_answer: counted in the model, prompt included.
        tokens_per_forward: of an answer, up to EOS included.
        ms_per_forward: median of an answer's time by its forwards.
        fraction_of_floor: median of the least possible time by the measured one.
        first_ms: the row's first answer, not among the others.
        answers: number of measured ones.
        denoising_steps: of the rung.
    """

    name: str
    block_size: int | None
    ms_per_answer_median: float
    ms_per_answer_p95: float | None = None
    ms_per_answer_iqr: float | None = None
    ms_per_token: float | None = None
    forwards_per_answer: float | None = None
    tokens_per_forward: float | None = None
    ms_per_forward: float | None = None
    fraction_of_floor: float | None = None
    first_ms: float | None = None
    answers: int | None = None
    denoising_steps: int | None = None


def allowed_sizes(record: ServingRecord | None, wanted: Sequence[int], any_size: bool) -> list[int]:
    """Block sizes to measure, ascending: the wanted ones, or all that the record allows.

    Args:
        record: None for weights that state nothing, which take the published sizes.
        wanted: empty for all.
        any_size: also sizes that the weights were not trained for.

    Raises:
        UserError: a size is not allowed, or the weights decode no blocks at all.
    """
    for size in wanted:
        if size < 1:
            raise UserError("block_sizes", "integers >= 1", size)
    if record is None or any_size:
        return sorted(set(wanted or BLOCK_SIZES))
    if record.label_alignment == "shifted":
        raise UserError("checkpoint", "weights for block diffusion", "labels are shifted: autoregressive ones",
                        "give them as --parent, or add --any-block-size")
    for size in wanted:
        if size not in record.block_sizes:
            raise UserError("block_sizes", f"among {list(record.block_sizes)} (trained)", size,
                            "choose trained sizes, or add --any-block-size")
    return sorted(set(wanted or record.block_sizes))


def chosen_rows(names: Sequence[str]) -> tuple[str, ...]:
    """The wanted rows in the ladder's order; all when none is named.

    Raises:
        UserError: an unknown row.
    """
    for name in names:
        if name not in ROW_NAMES:
            raise unknown_name("rows", name, ROW_NAMES)
    return tuple(name for name in ROW_NAMES if not names or name in names)


def check_parent(folder: Path) -> None:
    """Raise `UserError` when a folder's record does not say that its labels are shifted; no record is a stock model."""
    record = ServingRecord.load(folder)
    if record is not None and record.label_alignment != "shifted":
        raise UserError("parent", "autoregressive weights, with shifted labels",
                        f"{folder} ({RECORD_NAME} says {record.label_alignment})", "leave the option out")


def load_parent(folder: Path, subject: Subject) -> Any:
    """The autoregressive model that `hf_ar` and `own_ar` run on the subject's own prompts.

    Raises:
        UserError: not a checkpoint with shifted labels, or one that cannot read the subject's prompts.
    """
    check_parent(folder)
    recorded = ServingRecord.load(folder) is not None
    model: Any = load_checkpoint(
        folder, device=subject.device, dtype=subject.model.dtype, require_tokenizer=False,
        mask_token_id=None if recorded else subject.mask_token_id,
        eos_token_id=None if recorded else subject.eos_token_id,
    ).model
    own, other = subject.model.config, model.config
    for name, mine, its in (
        ("vocab_size", own.get_text_config().vocab_size, other.get_text_config().vocab_size),
        ("image_token_id", own.image_token_id, other.image_token_id),
        ("patch_size", own.vision_config.patch_size, other.vision_config.patch_size),
    ):
        if mine != its:
            raise UserError(f"parent: {name}", f"the checkpoint's {mine}", its, "give the model it was adapted from")
    return model


def answer_lengths(subject: Subject, config: DecodeConfig) -> tuple[list[int], float]:
    """Tokens of each prompt's answer, EOS included, and the milliseconds of the first answer of this process.

    Args:
        subject: its `new_tokens` decide, when given.
        config: decoding of these answers.
    """
    record = ServingRecord(mask_token_id=subject.mask_token_id, eos_token_id=subject.eos_token_id)
    generator = Generator.of(subject.model, None, record, enforce_record=False, backend=subject.blocks.backend)
    if subject.new_tokens is not None:
        config = replace(config, max_new_tokens=subject.new_tokens)
    started = time.perf_counter()
    answers = generator.generate(subject.prompts[:1], config)
    first_ms = (time.perf_counter() - started) * 1e3
    if subject.new_tokens is not None:
        return [subject.new_tokens] * len(subject.prompts), first_ms
    answers += [generator.generate([prompt], config)[0] for prompt in subject.prompts[1:]]
    return [min(answer.stats.tokens, config.max_new_tokens) for answer in answers], first_ms


def make_rungs(
    subject: Subject, lengths: Sequence[int], sizes: Sequence[int], names: Sequence[str] = ROW_NAMES,
    parent: Any = None, steps: Sequence[int] = (),
) -> list[Rung]:
    """The rungs of a ladder, ready to answer the subject's prompts.

    Args:
        subject: model and prompts.
        lengths: tokens of each prompt's answer.
        sizes: block sizes.
        names: of `ROW_NAMES`.
        parent: stock model of the autoregressive rows; None takes the subject's own.
        steps: step budgets a block, each measured with each size; that of the subject's decoding when there is none.
            A block has at most as many steps as tokens, and budgets that come to the same are measured once.
    """
    model, prompts, mask = subject.model, subject.prompts, subject.mask_token_id
    record = ServingRecord(mask_token_id=mask, eos_token_id=NO_EOS)
    causal = model if parent is None else parent
    one_by_one = DecodeConfig(strategy="autoregressive")

    def generator(which: Any, backend: Backend | str) -> Generator:
        return Generator.of(which, None, record, enforce_record=False, backend=backend)

    ours = generator(model, subject.blocks.backend)
    own = ours if parent is None else generator(parent, AUTO)
    stock = generator(model, "eager")

    def configured(index: int, size: int, budget: int) -> DecodeConfig:
        return replace(
            subject.decode, block_size=size, denoising_steps=budget, max_new_tokens=lengths[index]
        )

    def own_ar(index: int) -> Sequence[int]:
        return own.generate([prompts[index]], replace(one_by_one, max_new_tokens=lengths[index]))[0].raw_ids

    def hf_ar(index: int) -> Sequence[int]:
        return generate_stock(causal, prompts[index], lengths[index])

    def block(index: int, size: int, budget: int) -> Sequence[int]:
        return ours.generate([prompts[index]], configured(index, size, budget))[0].raw_ids

    def block_eager(index: int, size: int, budget: int) -> Sequence[int]:
        return stock.generate([prompts[index]], configured(index, size, budget))[0].raw_ids

    def naive(index: int, size: int, budget: int) -> Sequence[int]:
        return decode_naively(model, prompts[index], configured(index, size, budget), mask)

    def forwards_alone(size: int, budget: int) -> Callable[[int], Sequence[int]]:
        """As many forwards as `naive_block` makes, so that the two rows differ in what stands around them alone."""
        later: list[int] = []
        for index in range(len(prompts)):
            with counted(model) as seen:
                naive(index, size, budget)
            later.append(len(seen) - 1)

        def run(index: int) -> Sequence[int]:
            plain_forwards(model, prompts[index], size, later[index])
            return ()

        return run

    def at(size: int, budget: int, answer: Callable[[int, int, int], Sequence[int]]) -> Callable[[int], Sequence[int]]:
        return lambda index: answer(index, size, budget)

    rungs = []
    if "hf_ar" in names:
        rungs.append(Rung("hf_ar", None, causal, hf_ar))
    if "own_ar" in names:
        rungs.append(Rung("own_ar", None, causal, own_ar, own.blocks))
    budgets = steps or (subject.decode.denoising_steps,)
    for size in sizes:
        for budget in sorted({min(size, budget) for budget in budgets}):
            if "naive_block" in names:
                rungs.append(Rung("naive_block", size, model, at(size, budget, naive), None, budget))
            if "block_eager" in names:
                rungs.append(Rung("block_eager", size, model, at(size, budget, block_eager), stock.blocks, budget))
            if "block" in names:
                rungs.append(Rung("block", size, model, at(size, budget, block), ours.blocks, budget))
            if "hf_forward" in names:
                rungs.append(Rung("hf_forward", size, model, forwards_alone(size, budget), None, budget))
    return rungs


def climb(
    subject: Subject, rungs: Sequence[Rung], lengths: Sequence[int], rounds: int,
    floor_of: Callable[[Any], Floor], show: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Measure all rungs, turn about.

    Each rung first answers every prompt twice, unmeasured: once to count its forwards, once as it will run. In every
    round it then answers every prompt once; each round begins with another rung.

    Args:
        subject: prompts and device.
        rungs: of `make_rungs`.
        lengths: tokens of each prompt's answer.
        rounds: at least 1.
        floor_of: floor of a model.
        show: told how many answers are done.
    """
    device, prompts = subject.device, range(len(subject.prompts))
    floors: dict[int, Floor] = {}
    forwards: list[list[list[Forward]]] = []
    least: list[list[float]] = []
    first: list[float] = []
    measured: list[list[list[float]]] = [[[] for _ in prompts] for _ in rungs]
    done = 0
    for rung in rungs:
        floor = floors.setdefault(id(rung.model), floor_of(rung.model))
        made = []
        for index in prompts:
            with rung.counted() as seen:
                rung.answer(index)
            made.append(seen)
        forwards.append(made)
        least.append([floor.answer_s(subject.prompts[index], made[index]) * 1e3 for index in prompts])
        warm = [_timed(rung, index, device) for index in prompts]
        first.append(warm[0])
        done += 2 * len(prompts)
        show(done)
    for turn in range(rounds):
        for index in prompts:
            for step in range(len(rungs)):
                which = (turn + step) % len(rungs)
                measured[which][index].append(_timed(rungs[which], index, device))
                done += 1
                show(done)
    return [
        _row(rung, lengths, [len(seen) for seen in made], floor_ms, times, first_ms)
        for rung, made, floor_ms, times, first_ms in zip(rungs, forwards, least, measured, first, strict=True)
    ]


def answers_to_come(rungs: Sequence[Rung], prompts: int, rounds: int) -> int:
    """What `climb` will have told its `show` at the end."""
    return len(rungs) * prompts * (2 + rounds)


def ratios_of(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """How many times quicker `block` is, by block size, and what `naive_block` takes against plain forwards.

    Quotients of median times of answers of equal length; one whose rows were not measured is left out. Where a size has
    several step budgets, names are such as "32 in 8 steps".
    """
    median = {(row.name, row.block_size, row.denoising_steps): row.ms_per_answer_median for row in rows}
    shapes = sorted({(row.block_size, row.denoising_steps or 0) for row in rows if row.block_size is not None})
    sizes = [size for size, _ in shapes]
    pairs = {
        "over_hf_ar": ("hf_ar", "block"), "over_naive_block": ("naive_block", "block"),
        "over_block_eager": ("block_eager", "block"), "naive_block_over_hf_forward": ("naive_block", "hf_forward"),
    }
    ratios: dict[str, dict[str, float]] = {name: {} for name in pairs}
    for size, budget in shapes:
        shape = size, budget or None
        label = str(size) if sizes.count(size) == 1 else f"{size} in {budget} steps"
        for name, (upper, lower) in pairs.items():
            above = median.get((upper, *(shape if upper in BLOCK_ROWS else (None, None))))
            below = median.get((lower, *shape))
            if above is not None and below is not None:
                ratios[name][label] = above / below
    return ratios


def _timed(rung: Rung, index: int, device: Any) -> float:
    started = synchronised(device)
    rung.answer(index)
    return (synchronised(device) - started) * 1e3


def _row(
    rung: Rung, lengths: Sequence[int], forwards: Sequence[int], floor_ms: Sequence[float],
    times: Sequence[Sequence[float]], first_ms: float,
) -> Row:
    every = np.array(times)  # (prompts, rounds)

    def by(numbers: Sequence[float]) -> float:
        return float(np.median(every / np.array(numbers)[:, None]))

    low, middle, high, top = np.percentile(every, (25, 50, 75, 95))
    return Row(
        rung.name, rung.block_size, float(middle), float(top), float(high - low), by(lengths),
        float(np.mean(forwards)), sum(lengths) / sum(forwards), by(forwards),
        float(np.median(np.array(floor_ms)[:, None] / every)), first_ms, every.size, rung.denoising_steps,
    )
