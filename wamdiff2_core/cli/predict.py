"""`wamdiff2 predict`: answers for a whole conversation file, with upstream WAM-Diff2's flags and files.

Everything the user gave is checked before the model is loaded. Bad samples become rows with `error`; the command then
ends with exit code 1. A run that was killed goes on where it stood when the same command is given again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from wamdiff2_core.config import DecodeConfig, ImagePolicy
from wamdiff2_core.conversations import read_objects
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError, unknown_name
from wamdiff2_core.outputs import writable_file
from wamdiff2_core.serving_record import ServingRecord

V = TypeVar("V")
BACKEND_HELP = "What runs the model: auto, eager, cpu, cuda, cuda-flashinfer or npu."
DEVICE_HELP = "auto (cuda, else npu, else cpu), cpu, cuda, cuda:N, npu or npu:N."
DTYPES = ("auto", "float32", "bfloat16", "float16")
POLL_S = 0.1
SHOWN_FAULTS = 5


def predict(
    input_file: Annotated[Path, typer.Option("--input_file", help="JSON list, or JSON lines when it ends in .jsonl.")],
    output_file: Annotated[
        Path, typer.Option("--output_file", help="Answers in input order; .jsonl gives JSON lines.")
    ],
    model: Annotated[Path, typer.Option("--model_id", "--model_path", help="Checkpoint folder.")],
    max_new_tokens: Annotated[int | None, typer.Option("--max_new_tokens", help="Length limit (128).")] = None,
    block_size: Annotated[int | None, typer.Option("--block_size", help="Tokens denoised together (32).")] = None,
    denoising_steps: Annotated[
        int | None, typer.Option("--denoising_steps", help="Step budget per block (32).")
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0: most probable token (0).")] = None,
    top_k: Annotated[int | None, typer.Option("--top_k", help="Keep the k most probable tokens; 0: all (0).")] = None,
    top_p: Annotated[float | None, typer.Option("--top_p", help="Nucleus mass (1.0).")] = None,
    remasking_strategy: Annotated[
        str | None,
        typer.Option(
            "--remasking_strategy",
            help="sequential, autoregressive, low_confidence_static or low_confidence_dynamic (the last).",
        ),
    ] = None,
    confidence_threshold: Annotated[
        float | None, typer.Option("--confidence_threshold", help="Of low_confidence_dynamic (0.9).")
    ] = None,
    min_pixels: Annotated[int | None, typer.Option("--min_pixels", help="Least image area (12544).")] = None,
    max_pixels: Annotated[int | None, typer.Option("--max_pixels", help="Largest image area (2073600).")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of sampling (0).")] = None,
    grammar: Annotated[
        str | None,
        typer.Option("--grammar", help="off, or task: only answers that planning or grounding can read (off)."),
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option("--deadline_ms", help="Wall-clock milliseconds for an answer, which then depends on the machine; "
                     "binds plans to the grammar; 0: none (0)."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help=DEVICE_HELP)] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto",
    backend: Annotated[str, typer.Option("--backend", help=BACKEND_HELP)] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Drop what an earlier run left unfinished.")] = False,
) -> int:
    """Answer a file of conversations with a checkpoint.

    Defaults in parentheses hold for a checkpoint without a serving record; one with a record brings its own, and a flag
    that contradicts it is refused. NUM_DEVICES (or NUM_GPUS) processes share the work; so do those of torchrun.
    """
    from wamdiff2_core.cli.predict_worker import PredictRequest, answer_share, limit_threads, merge

    start = time.monotonic()
    record = checked_record(model, "model_id")
    decode = flag_decoding(
        record,
        max_new_tokens=max_new_tokens,
        block_size=block_size,
        denoising_steps=denoising_steps,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        strategy=remasking_strategy,
        confidence_threshold=confidence_threshold,
        seed=seed,
        grammar=grammar,
        deadline_ms=deadline_ms,
    )
    images = image_policy(record, min_pixels, max_pixels)
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    samples = read_objects(input_file)
    checked_output(output_file, input_file)
    request = PredictRequest(
        model=model,
        input_file=input_file,
        output_file=output_file,
        decode=decode,
        images=images,
        images_fixed=record is not None,
        device=device,
        dtype=dtype,
        backend=backend,
        overwrite=overwrite,
        fingerprint=fingerprint(model, input_file, decode, images, dtype),
    )
    rank, world, spawned = process_layout(len(samples))
    progress = Progress(
        TextColumn("predict"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=rank != 0,
        transient=True,
    )
    with progress:
        task = progress.add_task("predict", total=len(range(rank, len(samples), world)))
        if spawned:
            answer_in_processes(request, spawned, lambda done: progress.update(task, completed=done))
        else:
            limit_threads(world)
            answer_share(
                request,
                rank,
                world,
                checked_device(device, backend, int(os.environ.get("LOCAL_RANK", rank))),
                lambda done: progress.update(task, completed=done),
            )
    rows = merge(request, len(samples), spawned or world)
    if rows is None:
        return int(ExitCode.DONE)
    return int(tell_outcome(rows, output_file, time.monotonic() - start))


def tell_outcome(rows: Sequence[Mapping[str, Any]], output_file: Path, seconds: float) -> ExitCode:
    """Print the first faults and a line of figures; gives the command's exit code.

    Args:
        rows: of the output.
        output_file: where they are.
        seconds: that the run took.
    """
    faults = [row for row in rows if "error" in row]
    told = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    for row in faults[:SHOWN_FAULTS]:
        told.print(f"{row['id']}: {row['error']}")
    if len(faults) > SHOWN_FAULTS:
        told.print(f"and {len(faults) - SHOWN_FAULTS} more: see `error` in {output_file}")
    line = f"{len(rows)} samples, {len(faults)} errors, {seconds:.1f} s -> {output_file}"
    Console(soft_wrap=True, highlight=False, markup=False).print(line)
    return ExitCode.FAILED_ITEMS if faults else ExitCode.DONE


def checked_record(model: Path, field: str) -> ServingRecord | None:
    """The serving record of a checkpoint folder, when it has one.

    Args:
        model: the folder.
        field: option that names it, for messages.

    Raises:
        UserError: it is no checkpoint folder, has no tokenizer, or its record is malformed.
    """
    from wamdiff2_core.model.checkpoint import TOKENIZER_FILES, read_model_config

    read_model_config(model, field)
    if not any((model / name).exists() for name in TOKENIZER_FILES):
        raise UserError(
            field,
            "a checkpoint folder with a tokenizer (tokenizer.json)",
            str(model),
            "copy the tokenizer files of the model it was trained from into the folder",
        )
    return ServingRecord.load(model)


def flag_decoding(record: ServingRecord | None, **flags: Any) -> DecodeConfig:
    """`decode_config`, its errors named by upstream's flags."""
    try:
        return decode_config(record, **flags)
    except UserError as error:
        field = "remasking_strategy" if error.field == "strategy" else error.field
        raise UserError(field, error.expected, error.got, error.fix) from None


def decode_config(record: ServingRecord | None, **flags: Any) -> DecodeConfig:
    """Decoding from the record's defaults, or the published ones, with the given flags on top.

    Raises:
        UserError: a flag out of range, or one that the weights were not trained for.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    decode = replace(record.decode if record else DecodeConfig(), **given)
    if record:
        record.check_request(decode)
    return decode


def image_policy(record: ServingRecord | None, min_pixels: int | None, max_pixels: int | None) -> ImagePolicy:
    """Image policy of the record, or of the flags when there is none.

    Raises:
        UserError: limits out of range, or other than the record's.
    """
    policy = record.images if record else ImagePolicy()
    given: dict[str, Any] = {k: v for k, v in (("min_pixels", min_pixels), ("max_pixels", max_pixels)) if v is not None}
    for field, value in given.items():
        stored = getattr(policy, field)
        if record and value != stored:
            raise UserError(field, f"{stored}, which this checkpoint was trained with", value, "leave the flag out")
    return replace(policy, **given)


def checked_output(output_file: Path, input_file: Path) -> None:
    """Make the folder of the output, and see that files can be written there.

    Raises:
        UserError: they cannot, or the output is a folder, a device, or the input file.
    """
    if output_file.resolve() == input_file.resolve():
        raise UserError("output_file", "another file than the input", str(output_file))
    writable_file(output_file, "output_file")


def fingerprint(model: Path, input_file: Path, decode: DecodeConfig, images: ImagePolicy, dtype: str) -> dict[str, Any]:
    """What decides the answers, as plain JSON: two runs with equal fingerprints may share a journal."""
    from wamdiff2_core.model.checkpoint import checkpoint_hash

    plain = {
        "model": checkpoint_hash(model),
        "input": hashlib.sha256(input_file.read_bytes()).hexdigest()[:16],
        **{f"decode.{key}": value for key, value in asdict(decode).items()},
        **{f"images.{key}": value for key, value in asdict(images).items()},
        "dtype": dtype,
    }
    return dict(json.loads(json.dumps(plain)))


def process_layout(count: int) -> tuple[int, int, int]:
    """(rank, world, processes to spawn): torchrun's when it started us, else NUM_DEVICES or NUM_GPUS.

    Args:
        count: number of samples; no more processes than that are spawned.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = environment_integer("RANK", 0), environment_integer("WORLD_SIZE", 1)
        if rank >= world:
            raise UserError("RANK", f"below WORLD_SIZE ({world})", rank)
        return rank, world, 0
    name = "NUM_DEVICES" if "NUM_DEVICES" in os.environ else "NUM_GPUS"
    wanted = min(environment_integer(name, 1) if name in os.environ else 1, max(count, 1))
    return 0, 1, wanted if wanted > 1 else 0


def environment_integer(name: str, least: int) -> int:
    """An integer environment variable.

    Raises:
        UserError: not an integer, or below `least`.
    """
    text = os.environ[name]
    if not text.isdecimal() or int(text) < least:
        raise UserError(name, f"an integer >= {least}", text or "nothing")
    return int(text)


def checked_device(device: str, backend: str, local_rank: int = 0) -> str:
    """`device_of`, where the backend runs.

    Raises:
        UserError: there is no such device or backend, or the backend is for another kind of device.
    """
    from wamdiff2_core.model.backends import choose_backend

    where = device_of(device, local_rank)
    choose_backend(backend, where)
    return where


def device_of(device: str, local_rank: int) -> str:
    """Torch device of one process; several processes spread over the accelerators of the machine.

    Raises:
        UserError: there is no such device.
    """
    from wamdiff2_core.model.checkpoint import check_device
    from wamdiff2_core.model.devices import ACCELERATORS, accelerator_module, find_accelerator

    if device == "auto":
        device = find_accelerator() or "cpu"
    module = accelerator_module(device) if device in ACCELERATORS else None
    if module is not None:
        return f"{device}:{local_rank % module.device_count()}"
    check_device(device)
    return device


def answer_in_processes(request: Any, world: int, show: Any) -> None:
    """Run `world` spawned workers to their end.

    Raises:
        UserError: a worker refused the request.
        OSError: a worker's disk is full; it names the file.
        InfrastructureError: a worker died. In either case what it answered is kept for the next run.
    """
    import multiprocessing

    from wamdiff2_core.cli.predict_worker import worker_process

    context = multiprocessing.get_context("spawn")
    counts = context.RawArray("q", world)
    outcomes = [context.Pipe(duplex=False) for _ in range(world)]
    workers = [
        context.Process(
            target=worker_process,
            args=(
                request, rank, world, checked_device(request.device, request.backend, rank), counts, outcomes[rank][1],
            ),
        )
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for _, sender in outcomes:
        sender.close()
    try:
        while any(worker.is_alive() for worker in workers) and not any(worker.exitcode for worker in workers):
            show(sum(counts))
            time.sleep(POLL_S)
    finally:
        failed = next((rank for rank, worker in enumerate(workers) if worker.exitcode), None)
        for worker in workers:
            if failed is not None:
                worker.terminate()
            worker.join()
    if failed is not None:
        raise_outcome(failed, workers[failed].exitcode, outcomes[failed][0])
    show(sum(counts))


def raise_outcome(rank: int, exit_code: int | None, outcome: Any) -> None:
    """Raise in this process what made a worker fail: the error that it sent, or that it died."""
    try:
        error = outcome.recv()
    except EOFError:
        raise InfrastructureError(
            f"worker {rank}: expected to end well, got exit code {exit_code}; give the same command again to go on"
        ) from None
    raise error
