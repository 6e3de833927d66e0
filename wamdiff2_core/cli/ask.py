"""`wamdiff2 ask`: one question to a checkpoint, answered on the terminal.

The answer goes to standard output, verbatim; how it reads and how it was decoded go to standard error. Everything that
can be checked without the weights is checked before they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from wamdiff2_core.chat import IMAGE_PLACEHOLDER, ChatRequest
from wamdiff2_core.cli.predict import BACKEND_HELP, DEVICE_HELP, DTYPES, checked_device, checked_record, decode_config
from wamdiff2_core.config import TASK_NAMES, CameraSpec, DecodeConfig
from wamdiff2_core.dataset import read_picture
from wamdiff2_core.errors import ExitCode, UserError, unknown_name
from wamdiff2_core.outputs import writable_file
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.drivebench import VIEWS, DriveBenchRequest, options_of, parse_drivebench
from wamdiff2_core.tasks.grounding import GroundingRequest, box_scores, parse_grounding, pixels_from_box
from wamdiff2_core.tasks.lingoqa import LingoQaRequest
from wamdiff2_core.tasks.registry import find_task
from wamdiff2_core.tasks.text import AnswerError, parse_text
from wamdiff2_core.types import CameraFrame, DecodeStats, EgoState, NavCommand, Navigation, Observation

FREE = "free"
BOUND_TASKS = ("planning", "grounding")  # whose answers have a grammar
COMMANDS = {command.name.lower().replace("_", "-"): command for command in NavCommand}


@dataclass(frozen=True)
class Drive:
    """What planning is asked with, as typed: pairs "X,Y" in base_link, x forward, y left."""

    targets: list[str] = field(default_factory=list)
    command: str = "follow"
    velocity: str = "0"
    acceleration: str = "0"


@dataclass(frozen=True)
class Asked:
    """A resolved question.

    Attributes:
        folder, device, dtype, backend: checkpoint, where it runs, and what runs it.
        task: one of `TASK_NAMES`, or free.
        question: as typed.
        prompt: user text, with one mark for each image.
        images: (H, W, 3) uint8 RGB each.
        decode: decoding.
        candidates: answers to it.
        out: where a picture with boxes goes, or None.
    """

    folder: Path
    device: str
    dtype: str
    backend: str
    task: str
    question: str
    prompt: str
    images: tuple[np.ndarray, ...]
    decode: DecodeConfig
    candidates: int
    out: Path | None


def ask(
    model: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder.")],
    question: Annotated[str, typer.Argument(help="Question, or what to locate; planning takes none.")] = "",
    image: Annotated[list[Path] | None, typer.Option(help="Picture; again for each further one, in order.")] = None,
    task: Annotated[str, typer.Option(help="free, " + ", ".join(TASK_NAMES) + ".")] = FREE,
    view: Annotated[
        list[str] | None, typer.Option(help="drivebench: camera view of the one picture (CAM_FRONT); six need none.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="X,Y", help="planning: a target point, metres, y left; give two.")
    ] = None,
    command: Annotated[str, typer.Option(help="planning: " + ", ".join(COMMANDS) + " or unknown.")] = "follow",
    velocity: Annotated[str, typer.Option(metavar="VX[,VY]", help="planning: m/s, y left.")] = "0",
    acceleration: Annotated[str, typer.Option(metavar="AX[,AY]", help="planning: m/s2, y left.")] = "0",
    out: Annotated[Path | None, typer.Option(help="grounding: PNG file for the picture with its boxes.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Length limit.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens denoised together.")] = None,
    denoising_steps: Annotated[int | None, typer.Option(help="Step budget of a block.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Remasking strategy, or autoregressive.")] = None,
    confidence_threshold: Annotated[float | None, typer.Option(help="Of low_confidence_dynamic.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0: most probable token.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    candidates: Annotated[
        int, typer.Option(help="Answers in words, at a temperature above 0; the prompt is run once for all.")
    ] = 1,
    grammar: Annotated[
        str | None, typer.Option(help="off, or task: only answers that planning or grounding can read.")
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option(help="Wall-clock milliseconds for the answer; binds a plan to the grammar; 0: none."),
    ] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
) -> int:
    """Ask a checkpoint one question about pictures.

    Decoding is the checkpoint's own unless an option says otherwise. Exit code 1: the answer is not what the task asks
    for, or the plan may not be driven.
    """
    if task != FREE and task not in TASK_NAMES:
        raise unknown_name("task", task, (FREE, *TASK_NAMES))
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    drive = Drive(target or [], command, velocity, acceleration)
    _refuse_foreign_options(task, view, drive, out)
    in_words = task not in BOUND_TASKS
    if in_words and grammar is None:
        grammar = "off"  # the record's is for its other tasks
    if candidates != 1 and not in_words:
        raise UserError("candidates", f"1 for {task}", candidates, "leave the option out; words may have several")
    record = checked_record(model, "checkpoint")
    decode = decode_config(
        record, max_new_tokens=max_new_tokens, block_size=block_size, denoising_steps=denoising_steps,
        strategy=strategy, confidence_threshold=confidence_threshold, temperature=temperature, seed=seed,
        grammar=grammar, deadline_ms=deadline_ms,
    )
    if out is not None:
        if out.suffix.lower() != ".png":
            raise UserError("out", "a file that ends in .png", str(out))
        writable_file(out, "out")
    images = tuple(read_picture(path, "image") for path in image or [])
    if task == "planning":
        if question:
            raise UserError("question", "none for planning", question,
                            "say --target, --command and --velocity; --task free takes any question")
        return _plan(model, record, images, drive, decode, checked_device(device, backend), dtype, backend)
    prompt = prompt_of(task, question, len(images), tuple(view or ()), record)
    where = checked_device(device, backend)
    return _answer(Asked(model, where, dtype, backend, task, question, prompt, images, decode, candidates, out))


def prompt_of(
    task: str, question: str, image_count: int, views: tuple[str, ...], record: ServingRecord | None
) -> str:
    """User text of a question; a free one without image marks gets its images in front.

    Raises:
        UserError: the task's own refusals, or another number of images than its prompt has marks.
    """
    if task == FREE:
        if not question.strip():
            raise UserError("question", "some text", "nothing")
        marks = IMAGE_PLACEHOLDER in question or not image_count
        prompt = question if marks else IMAGE_PLACEHOLDER * image_count + "\n" + question
    else:
        requests: dict[str, Callable[[], Any]] = {
            "lingoqa": lambda: LingoQaRequest(question),
            "drivebench": lambda: DriveBenchRequest(question, views or (VIEWS if image_count > 1 else VIEWS[:1])),
            "grounding": lambda: GroundingRequest(question),
        }
        prompt = find_task(task, record).prompt(requests[task]())
    marks_count = prompt.count(IMAGE_PLACEHOLDER)
    if marks_count != image_count:
        raise UserError("image", f"{marks_count}, as this question has places", image_count,
                        "give --image once for each place")
    return prompt


def observation_of(images: Sequence[np.ndarray], rig: Sequence[CameraSpec], drive: Drive, prompt: str) -> Observation:
    """What the planner sees.

    Args:
        images: (H, W, 3) uint8 RGB, in the order of the rig.
        rig: cameras of the checkpoint; empty when any will do.
        drive: as typed.
        prompt: form of the planning question; only bench2drive's shows targets.

    Raises:
        UserError: a malformed number, an unknown command, or too few images or targets.
    """
    if len(images) != max(len(rig), 1):
        names = ", ".join(camera.name for camera in rig)
        raise UserError("image", f"one for each camera of the checkpoint ({names or 'front'})", len(images))
    if drive.command != "unknown" and drive.command not in COMMANDS:
        raise unknown_name("command", drive.command, (*COMMANDS, "unknown"))
    if len(drive.targets) != 2 and (drive.targets or prompt == "bench2drive"):
        raise UserError("target", "two target points", len(drive.targets), "give --target X,Y twice")
    targets = [_pair("target", text, both=True) for text in drive.targets] or [(0.0, 0.0)] * 2
    cameras = [camera.name for camera in rig] or ["front"]
    frames = tuple(CameraFrame(rgb, 0, camera) for rgb, camera in zip(images, cameras, strict=True))
    ego = EgoState(
        np.array(_pair("velocity", drive.velocity)), np.array(_pair("acceleration", drive.acceleration))
    )
    return Observation(frames, ego, Navigation(np.array(targets), COMMANDS.get(drive.command)))


def _refuse_foreign_options(task: str, view: list[str] | None, drive: Drive, out: Path | None) -> None:
    """Options of one task are no part of another."""
    for name, given, owner in (
        ("view", bool(view), "drivebench"), ("out", out is not None, "grounding"),
        ("target, command, velocity, acceleration", drive != Drive(), "planning"),
    ):
        if given and task != owner:
            raise UserError(name, f"--task {owner}", f"--task {task}", "leave the option out")


def _plan(
    folder: Path, record: ServingRecord | None, images: tuple[np.ndarray, ...], drive: Drive, decode: DecodeConfig,
    device: str, dtype: str, backend: str,
) -> int:
    from wamdiff2_core.planner import CheckpointPlanner, check_frames

    task = find_task("planning", record)
    assert record is not None
    assert record.planning is not None
    observation = observation_of(images, record.rig, drive, record.planning.prompt)
    check_frames(observation, record.rig)
    task.prompt(observation)  # refuses what it has no words for
    planner = CheckpointPlanner.load(
        folder, device=device, dtype=None if dtype == "auto" else dtype, backend=backend, **asdict(decode)
    )
    if decode.deadline_ms:
        planner.warm_up()  # the first plan of a process is slow, and its steps cannot be foreseen
    plan = planner.plan(observation)
    _say(plan.text, error=False)
    if plan.waypoints is not None:
        _say("base_link, x forward, y left:")
        for index, (x, y) in enumerate(plan.waypoints.xy_m, 1):
            _say(f"at {index * plan.waypoints.dt_s:.2f} s: x {x:.2f} m, y {y:.2f} m")
    _say("the plan may be driven" if plan.check.ok else f"the plan may not be driven: {plan.check.message}")
    _say(_stats(plan.stats))
    return int(ExitCode.DONE if plan.check.ok else ExitCode.FAILED_ITEMS)


def _answer(asked: Asked) -> int:
    from wamdiff2_core.decode import Generator
    from wamdiff2_core.decode.grammar import task_decoding
    from wamdiff2_core.model.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(
        asked.folder, device=asked.device, dtype=None if asked.dtype == "auto" else asked.dtype, backend=asked.backend
    )
    grounding = asked.task == "grounding"
    decode, language = task_decoding(asked.task, checkpoint.chat, checkpoint.record, asked.decode)
    generator = Generator(checkpoint)
    for _ in range(2 if decode.deadline_ms else 1):  # the first answer of a process is slow, its steps not foreseen
        began_ns = generator.clock()
        inputs = checkpoint.chat.encode(ChatRequest(asked.prompt, asked.images))
        answers = generator.generate(
            [inputs], decode, trace=grounding, grammars=[language], began_ns=began_ns, candidates=asked.candidates
        )
    faults = []
    for answer in answers:
        _say(answer.text, error=False)
        if grounding:
            assert answer.trace is not None
            spans = checkpoint.chat.token_spans(answer.token_ids)
            faults.append(_show_boxes(asked, answer.text, spans, answer.trace.confidence))
        else:
            faults.append(_fault_of(asked, answer.text))
        if faults[-1] is not None:
            _say(str(faults[-1]))
        _say(_stats(answer.stats) + ("" if answer.ended else "; not ended at the length limit"))
    return int(ExitCode.DONE if not any(faults) else ExitCode.FAILED_ITEMS)


def _fault_of(asked: Asked, text: str) -> AnswerError | None:
    try:
        if asked.task == "drivebench":
            options = options_of(asked.question)
            chosen = parse_drivebench(text, options).option
            if chosen in options:
                _say(f"option {chosen}: {options[chosen]}")
        else:
            parse_text(text)
    except AnswerError as error:
        return error
    return None


def _show_boxes(
    asked: Asked, text: str, spans: Sequence[tuple[int, int]], confidence: Sequence[float]
) -> AnswerError | None:
    from wamdiff2_core.cli.box_picture import save_boxes

    found = parse_grounding(text, lenient=True)
    scores = box_scores(found, spans, confidence)
    height, width = asked.images[0].shape[:2]
    for detection, score in zip(found.detections, scores, strict=True):
        x_min, y_min, x_max, y_max = pixels_from_box(detection.box, width, height)
        _say(f"{score:.2f} {detection.label}: x {x_min:.0f} to {x_max:.0f}, y {y_min:.0f} to {y_max:.0f} pixels")
    _say(f"{len(found.detections)} objects" + ("" if found.fault is None else ", which are whole in a damaged answer"))
    if asked.out is not None:
        save_boxes(asked.out, asked.images[0], found.detections, scores)
        _say(f"-> {asked.out}")
    return found.fault


def _stats(stats: DecodeStats) -> str:
    rate = stats.tokens / stats.forwards if stats.forwards else 0.0
    chosen = f", {stats.interventions} tokens by the grammar" if stats.interventions else ""
    hurried = f", {stats.hurried_steps} of them hurried" if stats.hurried_steps else ""
    late = f"; {stats.overshoot_ms:.0f} ms after the deadline" if stats.overshoot_ms else ""
    return (
        f"{stats.tokens} tokens in {stats.forwards} forwards ({rate:.1f} a forward), {stats.blocks} blocks, "
        f"{stats.steps} steps{hurried}{chosen}; "
        f"prefill {stats.prefill_ms:.0f} ms, decode {stats.decode_ms:.0f} ms{late}"
    )


def _pair(name: str, text: str, both: bool = False) -> tuple[float, float]:
    """Two numbers of "X,Y"; the second is 0 when left out, unless `both` are needed."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in ((2,) if both else (1, 2)) or not np.isfinite(numbers).all():
        raise UserError(name, "numbers as X,Y" if both else "numbers as X or X,Y", text or "nothing")
    return numbers[0], numbers[1] if len(numbers) > 1 else 0.0


def _say(line: str, error: bool = True) -> None:
    Console(stderr=error, soft_wrap=True, highlight=False, markup=False, emoji=False).print(line)
