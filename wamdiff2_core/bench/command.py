"""`wamdiff2 bench`: how fast a model answers here, and against what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from wamdiff2_core.cli.main import CommandGroup
from wamdiff2_core.cli.predict import BACKEND_HELP, DEVICE_HELP, DTYPES, checked_device
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.outputs import writable_file
from wamdiff2_core.threads import set_threads

if TYPE_CHECKING:
    import torch

    from wamdiff2_core.bench.subjects import Subject

DEFAULT_CHECKPOINT = Path("checkpoints/wamdiff2-nano")
SAMPLES = 4


class BenchCommands(CommandGroup):
    """What is measured here, and what other packages measure with their own parts, as the node."""

    entry_point_group = "wamdiff2.bench"


bench = typer.Typer(cls=BenchCommands, add_completion=False, pretty_exceptions_enable=False)

_Checkpoint = Annotated[Path | None, typer.Argument(help=f"Checkpoint folder ({DEFAULT_CHECKPOINT}).")]
_Shape = Annotated[
    str | None, typer.Option(help="Random weights in place of a checkpoint: tiny-qwen-vocab, or 2b.")
]
_Rounds = Annotated[int, typer.Option(help="Measured rounds.")]
_Image = Annotated[Path | None, typer.Option(help="Picture; without one it is made up.")]
_Threads = Annotated[int | None, typer.Option(help="Threads of torch on the CPU; its own choice otherwise.")]
_Device = Annotated[str, typer.Option(help=DEVICE_HELP)]
_Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
_Backend = Annotated[str, typer.Option(help=BACKEND_HELP)]
_Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]


@bench.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Speed on this machine: the ladder of decoders, prompts by length, a whole plan."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command()
def decode(
    checkpoint: _Checkpoint = None,
    shape: _Shape = None,
    parent: Annotated[
        Path | None, typer.Option(help="Autoregressive checkpoint of the AR rows; the same weights otherwise.")
    ] = None,
    block_sizes: Annotated[str, typer.Option(help="Such as 4,8,16,32; all that the record allows otherwise.")] = "",
    any_block_size: Annotated[
        bool, typer.Option("--any-block-size", help="Also sizes that the weights were not trained for.")
    ] = False,
    rows: Annotated[
        str, typer.Option(help="Among hf_ar,own_ar,naive_block,block_eager,block,hf_forward; all otherwise.")
    ] = "",
    strategy: Annotated[str | None, typer.Option(help="Of block rows; the record's otherwise.")] = None,
    denoising_steps: Annotated[
        str, typer.Option(help="Step budgets a block, such as 4,8,32, with each block size; the record's otherwise.")
    ] = "",
    confidence_threshold: Annotated[
        float | None, typer.Option(help="Of low_confidence_dynamic; the record's otherwise.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer; as many as the model's own has otherwise.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Conversation file that prompts are taken from.")] = None,
    samples: Annotated[int | None, typer.Option(help="Prompts of --data.", show_default=str(SAMPLES))] = None,
    image: _Image = None,
    rounds: _Rounds = 10,
    threads: _Threads = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    backend: _Backend = "auto",
    json_file: _Json = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw time and tokens a forward over block size and step budget, as a PNG."),
    ] = None,
) -> None:
    """The ladder: Hugging Face, our AR, block diffusion as published, ours; equal lengths, turn about in one run."""
    from wamdiff2_core.bench import ladder
    from wamdiff2_core.bench.machine import Floor, Machine, Rates, peak_memory_gib
    from wamdiff2_core.bench.report import deliver, plot, report
    from wamdiff2_core.bench.subjects import find_shape
    from wamdiff2_core.model.checkpoint import read_model_config
    from wamdiff2_core.serving_record import ServingRecord

    _at_least_one(rounds=rounds, samples=samples, new_tokens=new_tokens)
    if data is None and samples is not None:
        raise UserError("samples", "--data beside it, which prompts are taken from", samples, "leave the option out")
    if data is not None and image is not None:
        raise UserError("image", "none with --data, whose prompts have their own", str(image), "leave one out")
    folder = _target(checkpoint, shape, image=image, data=data)
    if folder is None:
        find_shape(str(shape))
    else:
        read_model_config(folder)
    if parent is not None:
        read_model_config(parent, "parent")
        ladder.check_parent(parent)
    record = None if folder is None else ServingRecord.load(folder)
    sizes = ladder.allowed_sizes(record, _integers("block_sizes", block_sizes), any_block_size)
    names = ladder.chosen_rows(_parts("rows", rows, "names, such as own_ar,block"))
    steps = _integers("denoising_steps", denoising_steps)
    _outputs(json_file, plot_file)
    subject = _subject(folder, shape, threads, device, dtype, backend, image, data, samples or SAMPLES)
    given = {
        "strategy": strategy, "denoising_steps": max(steps, default=None), "confidence_threshold": confidence_threshold,
    }
    subject.decode = _block_decode(subject, sizes, {name: value for name, value in given.items() if value is not None})
    subject.new_tokens = new_tokens or subject.new_tokens
    autoregressive = None if parent is None else ladder.load_parent(parent, subject)
    lengths, first_ms = ladder.answer_lengths(subject, subject.decode)
    rungs = ladder.make_rungs(subject, lengths, sizes, names, autoregressive, steps)
    rates = Rates.measure(subject.device, subject.model.dtype)
    with _progress("bench decode", ladder.answers_to_come(rungs, len(lengths), rounds)) as tell:
        figures = ladder.climb(subject, rungs, lengths, rounds, lambda model: Floor(model, rates), tell)
    warm_up = zip(ladder.WARM_UP_ROWS, (subject.load_ms, first_ms), strict=True)
    measured = [*(ladder.Row(name, None, ms) for name, ms in warm_up), *figures]
    result = report(
        subject.name, measured, Machine.of(subject.device), ladder.ratios_of(figures), rates, dtype=_dtype_of(subject),
        rounds=rounds, prompt_tokens=[len(prompt.input_ids) for prompt in subject.prompts], answer_tokens=lengths,
        strategy=subject.decode.strategy, denoising_steps=sorted(set(steps)) or [subject.decode.denoising_steps],
        confidence_threshold=subject.decode.confidence_threshold, backend=subject.blocks.backend.name,
        parent=None if parent is None else str(parent),
        peak_memory_gib=peak_memory_gib(subject.device),
    )
    deliver(f"{subject.name}: {len(lengths)} prompts, {sum(lengths) / len(lengths):.0f} tokens an answer in every row, "
            f"{rounds} rounds, {subject.decode.strategy}", result, json_file)
    if plot_file is not None:
        plot(result, plot_file)


@bench.command()
def prefill(
    checkpoint: _Checkpoint = None,
    shape: _Shape = None,
    lengths: Annotated[str, typer.Option(help="Words of the prompts, after the images.")] = "64,128,256,512",
    image: _Image = None,
    rounds: _Rounds = 10,
    threads: _Threads = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    backend: _Backend = "auto",
    json_file: _Json = None,
) -> None:
    """Pictures and prompts by length: ours and Hugging Face's."""
    from wamdiff2_core.bench.machine import Floor, Machine, Rates, peak_memory_gib
    from wamdiff2_core.bench.parts import measure_prefill, prefill_calls, prefill_ratios
    from wamdiff2_core.bench.report import deliver, report

    _at_least_one(rounds=rounds)
    words = _integers("lengths", lengths)
    if not words:
        raise UserError("lengths", "integers, such as 64,128", lengths or "nothing")
    folder = _target(checkpoint, shape, image=image)
    _outputs(json_file, None)
    subject = _subject(folder, shape, threads, device, dtype, backend, image)
    rates = Rates.measure(subject.device, subject.model.dtype)
    with _progress("bench prefill", prefill_calls(subject, words, rounds)) as tell:
        rows = measure_prefill(subject, words, rounds, Floor(subject.model, rates), tell)
    result = report(
        subject.name, rows, Machine.of(subject.device), prefill_ratios(rows), rates, dtype=_dtype_of(subject),
        rounds=rounds, load_ms=subject.load_ms, peak_memory_gib=peak_memory_gib(subject.device),
    )
    deliver(f"{subject.name}: picture and prompt, {rounds} rounds", result, json_file)


@bench.command()
def plan(
    checkpoint: _Checkpoint = None,
    image: _Image = None,
    temperature: Annotated[float, typer.Option(help="Of the sampled row.")] = 1.0,
    rounds: _Rounds = 20,
    threads: _Threads = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    backend: _Backend = "auto",
    json_file: _Json = None,
) -> None:
    """`Planner.plan` on one picture, from observation to checked waypoints."""
    from wamdiff2_core.bench.machine import Machine, peak_memory_gib
    from wamdiff2_core.bench.parts import measure_plan, plan_calls
    from wamdiff2_core.bench.report import deliver, report

    _at_least_one(rounds=rounds)
    if not 0 < temperature < math.inf:
        raise UserError("temperature", "a finite number above 0, beside the rows at 0", temperature)
    folder = checkpoint or DEFAULT_CHECKPOINT
    _outputs(json_file, None)
    torch_dtype, where = _settings(threads, device, dtype, backend)
    with _progress("bench plan", plan_calls(rounds)) as tell:
        rows, used_dtype = measure_plan(folder, rounds, where, torch_dtype, image, tell, temperature, backend)
    import torch

    used = torch.device(where)
    result = report(
        str(folder), rows, Machine.of(used), {}, dtype=str(used_dtype).removeprefix("torch."), rounds=rounds,
        temperature=temperature, peak_memory_gib=peak_memory_gib(used),
    )
    deliver(f"{folder}: Planner.plan, {rounds} rounds", result, json_file)


@bench.command()
def deadline(
    data: Annotated[Path, typer.Option(help="Conversation file with planning questions and their right answers.")],
    checkpoint: _Checkpoint = None,
    deadlines: Annotated[str, typer.Option(help="Milliseconds, beside none.")] = "50,100,200",
    samples: Annotated[int, typer.Option(help="Planning samples, spread over the file.")] = 200,
    near: Annotated[float, typer.Option(help="Metres of mean distance within which a plan scores.")] = 1.0,
    threads: _Threads = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    backend: _Backend = "auto",
    json_file: _Json = None,
) -> None:
    """Plans of recorded samples under deadlines: latency, lateness, and what is kept of the planning score."""
    from wamdiff2_core.bench.deadline import measure_deadlines, planners_of, read_cases
    from wamdiff2_core.bench.machine import Machine, peak_memory_gib
    from wamdiff2_core.bench.report import deliver, report
    from wamdiff2_core.model.checkpoint import load_checkpoint, read_model_config
    from wamdiff2_core.serving_record import RECORD_NAME, ServingRecord

    _at_least_one(samples=samples)
    limits = _integers("deadlines", deadlines)
    if not limits:
        raise UserError("deadlines", "integers >= 1, such as 50,100", "nothing")
    if not 0 < near < math.inf:
        raise UserError("near", "a finite number of metres > 0", near)
    _outputs(json_file, None)
    folder = checkpoint or DEFAULT_CHECKPOINT
    torch_dtype, where = _settings(threads, device, dtype, backend)
    read_model_config(folder)
    record = ServingRecord.load(folder)
    if record is None or record.planning is None:
        raise UserError("checkpoint", f"one whose {RECORD_NAME} has a planning task", str(folder))
    cases = read_cases(data, samples, record.planning, record.rig)
    loaded = load_checkpoint(folder, device=where, dtype=torch_dtype, backend=backend)
    planners = planners_of(loaded, limits)
    with _progress("bench deadline", len(cases) * len(planners)) as tell:
        rows = measure_deadlines(planners, cases, near, tell)
    used = loaded.model.device
    result = report(
        str(folder), rows, Machine.of(used), {}, dtype=str(loaded.model.dtype).removeprefix("torch."), data=str(data),
        samples=len(cases), near_m=near, peak_memory_gib=peak_memory_gib(used),
    )
    deliver(f"{folder}: Planner.plan, {len(cases)} samples, near: within {near:g} m", result, json_file)


@bench.command()
def grammar(
    checkpoint: _Checkpoint = None,
    block_sizes: Annotated[str, typer.Option(help="Such as 4,8,16,32; the record's own otherwise.")] = "",
    rounds: Annotated[int, typer.Option(help="Measured answers of each row.")] = 20,
    threads: _Threads = 1,
    device: _Device = "auto",
    json_file: _Json = None,
) -> None:
    """What a grammar adds to a step, beside the model: waypoints, and detections; needs no weights."""
    from wamdiff2_core.bench.grammar import STEPS, grammar_calls, measure_grammar
    from wamdiff2_core.bench.machine import Machine, peak_memory_gib
    from wamdiff2_core.bench.report import deliver, report
    from wamdiff2_core.config import DecodeConfig
    from wamdiff2_core.decode.grammar import task_language
    from wamdiff2_core.model.checkpoint import load_chat_codec, read_model_config

    _at_least_one(rounds=rounds)
    wanted = _integers("block_sizes", block_sizes)
    _outputs(json_file, None)
    folder = checkpoint or DEFAULT_CHECKPOINT
    codec, record = load_chat_codec(folder)
    _, where = _settings(threads, device, "auto", "auto")
    import torch

    used, decode = torch.device(where), DecodeConfig() if record is None else record.decode
    drawn = {name: task_language(task, codec, record)
             for name, task in (("waypoints", "planning"), ("detections", "grounding"))}
    languages = {name: language for name, language in drawn.items() if language is not None}
    sizes = sorted(set(wanted)) or [decode.block_size]
    if sizes[-1] > max(decode.block_size, decode.max_new_tokens):
        raise UserError("block_sizes", f"at most the {decode.max_new_tokens} tokens of an answer", sizes[-1])
    vocabulary = int(read_model_config(folder).get_text_config().vocab_size)
    with _progress("bench grammar", grammar_calls(languages, sizes, rounds)) as tell:
        rows = measure_grammar(languages, vocabulary, sizes, decode.max_new_tokens, rounds, used, tell)
    result = report(
        str(folder), rows, Machine.of(used), {}, rounds=rounds, steps_per_block=STEPS,
        peak_memory_gib=peak_memory_gib(used),
    )
    deliver(f"{folder}: what a grammar adds to a step, {rounds} answers of each", result, json_file)


def _target(checkpoint: Path | None, shape: str | None, **own: Path | None) -> Path | None:
    """The checkpoint folder, or None for a shape, which brings a prompt of its own."""
    if shape is None:
        return checkpoint or DEFAULT_CHECKPOINT
    if checkpoint is not None:
        raise UserError("shape", "a checkpoint or a shape", f"{checkpoint} and {shape}", "leave one out")
    for name, value in own.items():
        if value is not None:
            raise UserError(name, "nothing beside --shape, whose prompt is random", str(value), "leave one out")
    return None


def _subject(
    folder: Path | None, shape: str | None, threads: int | None, device: str, dtype: str, backend: str,
    image: Path | None, data: Path | None = None, samples: int = 1,
) -> Subject:
    from wamdiff2_core.bench.subjects import checkpoint_subject, random_subject

    torch_dtype, where = _settings(threads, device, dtype, backend)
    if folder is None:
        return random_subject(str(shape), where, torch_dtype, backend)
    return checkpoint_subject(folder, where, torch_dtype, image, data, samples, backend)


def _settings(threads: int | None, device: str, dtype: str, backend: str) -> tuple[torch.dtype | None, str]:
    """Set the threads; the dtype, None for the model's own, and the device, on which the backend runs."""
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if threads is not None:
        set_threads(threads)
    import torch

    chosen: torch.dtype | None = None if dtype == "auto" else getattr(torch, dtype)
    return chosen, checked_device(device, backend)


def _block_decode(subject: Subject, sizes: list[int], given: dict[str, Any]) -> Any:
    """Decoding of block rows: the subject's own with what was given, at its own block size or the largest measured.

    Weights with shifted labels, measured all the same, take the published defaults.
    """
    from wamdiff2_core.config import DecodeConfig

    base = subject.decode
    if base.strategy == "autoregressive":
        base = DecodeConfig(max_new_tokens=base.max_new_tokens)
    size = base.block_size if base.block_size in sizes else max(sizes)
    config = replace(base, block_size=size, **given)
    if config.strategy == "autoregressive":
        raise UserError("strategy", "a strategy of block diffusion", config.strategy, "own_ar is that row")
    return config


def _outputs(json_file: Path | None, plot_file: Path | None) -> None:
    """Refuse files that cannot be written before anything is measured."""
    if json_file is not None:
        writable_file(json_file, "json")
    if plot_file is not None:
        if plot_file.suffix.lower() != ".png":
            raise UserError("plot", "a file that ends in .png", str(plot_file))
        writable_file(plot_file, "plot")
        if json_file is not None and json_file.resolve() == plot_file.resolve():
            raise UserError("plot", "another file than --json", str(plot_file))
        import matplotlib  # noqa: F401 - told before the measurement that would end without it


def _at_least_one(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UserError(name, "an integer >= 1", number)


def _integers(name: str, text: str) -> list[int]:
    """Positive integers of "4,8"; none of an empty text."""
    form = "integers >= 1, such as 4,8"
    parts = _parts(name, text, form)
    for part in parts:
        if not part.isdecimal() or len(part) > 9 or int(part) < 1:
            raise UserError(name, form, text)
    return [int(part) for part in parts]


def _parts(name: str, text: str, form: str) -> list[str]:
    """What stands between the commas; nothing of an empty text."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if text.strip() and not parts:
        raise UserError(name, form, text)
    return parts


def _dtype_of(subject: Subject) -> str:
    return str(subject.model.dtype).removeprefix("torch.")


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)
