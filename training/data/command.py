"""`wamdiff2 data`: look at conversation files before a run does: check, show, mix, convert."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from training.data.converters.command import convert
from training.data.limits import LengthLimits
from wamdiff2_core.errors import ExitCode, UserError
from wamdiff2_core.outputs import writable_file

if TYPE_CHECKING:
    from training.data.check import Report
    from training.data.tokens import TokenCounter

data = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
data.add_typer(convert, name="convert")
_BAR_WIDTH = 40
_BINS = 12
_CheckpointOption = Annotated[
    Path | None, typer.Option(help="Checkpoint folder: lengths in tokens, as its tokenizer and image policy make them.")
]
_CacheOption = Annotated[Path | None, typer.Option(help="Folder for indices, where the data cannot be written to.")]


@data.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Training data: check, show, mix and convert conversation files."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command()
def check(
    file: Annotated[Path, typer.Argument(help="Conversation file, .json or .jsonl.")],
    checkpoint: _CheckpointOption = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Limit of a prompt, image tokens included.")
    ] = LengthLimits.prompt_tokens,
    answer_tokens: Annotated[
        int, typer.Option(min=2, help="Limit of an answer, EOS included.")
    ] = LengthLimits.answer_tokens,
    images: Annotated[
        Literal["decode", "header"], typer.Option(help="Decode images, or read their heads only: faster, less sure.")
    ] = "decode",
    examples: Annotated[int, typer.Option(min=0, help="Problems shown of each kind; 0 shows all.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads that open images.")] = 4,
    cache: _CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> int:
    """Find what is wrong in a conversation file, and tell what is in it.

    Exit codes: 0 nothing wrong; 1 problems in the data; 2 wrong use.
    """
    from rich.progress import Progress

    from training.data.check import FileCheck

    counter = _counter(checkpoint)[0]
    limits = None if counter is None else LengthLimits(prompt_tokens, answer_tokens)
    run = FileCheck(file, counter, limits, examples, images == "decode", threads, cache)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("samples")
        report = run.run(lambda done, total: progress.update(task, completed=done, total=total))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print_report(report, Console(highlight=False))
    return int(ExitCode.DONE if report.ok else ExitCode.FAILED_ITEMS)


@data.command()
def show(
    file: Annotated[Path, typer.Argument(help="Conversation file, .json or .jsonl.")],
    sample: Annotated[str, typer.Argument(metavar="ID|N", help="Id of a sample, or its number from 1.")],
    checkpoint: _CheckpointOption = None,
    images: Annotated[
        Path | None, typer.Option(help="Write a picture of the images here, with the waypoints of a planning sample.")
    ] = None,
    y_axis: Annotated[
        Literal["left", "right"] | None, typer.Option(help="Direction of y in the answer; by the prompt if not given.")
    ] = None,
    cache: _CacheOption = None,
) -> int:
    """Print one sample: its conversation as a model sees it, its images and its own keys."""
    from training.data.show import contact_sheet, find_sample, layout, text_y_axis, waypoints_of
    from training.data.sources import ConversationIndex
    from wamdiff2_core.dataset import read_images

    console = Console(highlight=False)
    index = ConversationIndex(file, cache)
    number = find_sample(index, sample)
    found = index[number]
    counter, record = _counter(checkpoint)
    pictures = read_images(found, f"sample {number + 1}")
    sizes = [(rgb.shape[1], rgb.shape[0]) for rgb in pictures]
    grid_tokens = None
    if counter is not None and sizes:
        grids = counter.grids(found.conversation, sizes)
        grid_tokens = (grids.prod(-1) // counter.codec.image_processor.merge_size**2).tolist()
    console.print(f"[bold]sample {number + 1}[/] of {len(index)}, id {escape(repr(found.conversation.id))}, "
                  f"datasource {escape(repr(found.conversation.datasource))}")
    for part in layout(found, grid_tokens, counter):
        tokens = "" if part.tokens is None else f" [dim]{part.tokens} tokens[/]"
        if part.image is None:
            console.print(f"[bold cyan]{part.role}[/]{tokens}")
            console.print(escape(part.text or ""), soft_wrap=True)
        else:
            width, height = sizes[part.image]
            name = escape(found.conversation.images[part.image])
            console.print(f"[bold cyan]{part.role}[/]{tokens} [green]image {part.image + 1}[/] "
                          f"{width} x {height} {name}", soft_wrap=True)
    if counter is not None:
        console.print(f"in all: prompt {counter.prompt(found.conversation, sizes)} tokens, "
                      f"answer {counter.answer(found.answer)} with EOS")
    if found.extra:
        console.print("[bold]keys of its own[/]", escape(json.dumps(found.extra, ensure_ascii=False)), soft_wrap=True)
    if images is not None:
        rig = () if record is None else record.rig
        points = waypoints_of(found, y_axis or text_y_axis(found))
        if not pictures and points is None:
            raise UserError("--images", "a sample with images or waypoints", f"neither in sample {number + 1}")
        target = writable_file(images, "--images")
        contact_sheet(pictures, points, rig).save(target, format="PNG")
        console.print(f"wrote {escape(str(target))}", soft_wrap=True)
    return int(ExitCode.DONE)


@data.command()
def mix(
    config: Annotated[str, typer.Argument(help="YAML file of a mixture, or a named one: unified, navsim, simlingo.")],
    weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=WEIGHT", help="Another weight for a source; 0 leaves it out.")
    ] = None,
    draws: Annotated[int, typer.Option(min=0, help="Samples of the whole run; 0: one pass over all samples.")] = 0,
    cache: _CacheOption = None,
) -> int:
    """Print the sizes, shares and expected draws of a mixture."""
    from training.data.mixture import Mixture, MixtureConfig

    mixture = Mixture(MixtureConfig.load(config).with_weights(_weights(weight or [])).sources, cache)
    draws = draws or len(mixture)
    table = Table("source", *(_right(name) for name in ("samples", "weight", "share", "draws", "passes")), "file")
    for source, index, share in zip(mixture.sources, mixture.indices, mixture.shares, strict=True):
        expected = round(draws * share)
        table.add_row(escape(source.name), f"{len(index):,}", f"{source.weight:g}", f"{100 * float(share):.2f} %",
                      f"{expected:,}", f"{expected / len(index):.2f}", escape(source.file))
    table.add_section()
    table.add_row("all", f"{len(mixture):,}", "", "100 %", f"{draws:,}", "", "")
    Console(highlight=False).print(table)
    return int(ExitCode.DONE)


def _right(name: str) -> Any:
    from rich.table import Column

    return Column(name, justify="right")


def _weights(pairs: list[str]) -> dict[str, float]:
    weights = {}
    for pair in pairs:
        name, sign, value = pair.rpartition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            sign = ""
        if not sign:
            raise UserError("--weight", "NAME=WEIGHT, such as navsim=2.5", pair)
    return weights


def _counter(checkpoint: Path | None) -> tuple[TokenCounter | None, Any]:
    if checkpoint is None:
        return None, None
    from training.data.tokens import TokenCounter
    from wamdiff2_core.model.checkpoint import load_chat_codec

    codec, record = load_chat_codec(checkpoint)
    return TokenCounter(codec), record


def _print_report(report: Report, console: Console) -> None:
    from training.data.check import KINDS

    stats = report.statistics
    console.print(f"[bold]{stats.samples:,} samples[/]")
    _bars(console, "samples by source", stats.sources)
    _bars(console, "images of a sample", {f"{count}": n for count, n in sorted(stats.images.items())})
    _bars(console, "image sizes", {f"{w} x {h}": n for (w, h), n in stats.sizes.most_common(_BINS)})
    if set(stats.turns) - {2}:
        _bars(console, "turns of a sample", {f"{count}": n for count, n in sorted(stats.turns.items())})
    _bars(console, f"prompt, {stats.unit}", binned(stats.prompt_length))
    _bars(console, f"answer, {stats.unit}", binned(stats.answer_length))
    _bars(console, "commands", stats.commands)
    _bars(console, "speed, m/s", binned(stats.speeds_mps))
    if stats.unit == "characters":
        console.print("[dim]lengths in tokens, and their limits, need --checkpoint[/]")
    if stats.without_id:
        console.print(f"{stats.without_id:,} samples without an id")
    if stats.special_text_in_prompts:
        console.print(f"{stats.special_text_in_prompts:,} prompts spell a special token; it is encoded as plain text")
    for kind, meaning in KINDS.items():
        if count := report.counts[kind]:
            console.print(f"[bold red]{kind}[/] {count:,}: {meaning}")
            for problem in (problem for problem in report.examples if problem.kind == kind):
                name = f" (id {problem.id})" if problem.id else ""
                where = f"sample {problem.sample}" if problem.sample else "file"
                console.print(f"  {where}{escape(name)}: {escape(problem.detail)}", soft_wrap=True)
    console.print("[bold green]nothing wrong[/]" if report.ok else
                  f"[bold red]{sum(report.counts.values()):,} problems of {len(report.counts)} kinds[/]")


def binned(counts: Mapping[int, int]) -> dict[str, int]:
    """A histogram of whole numbers in at most `_BINS` bins of equal width, from the lowest to the highest."""
    if not counts:
        return {}
    low, high = min(counts), max(counts)
    width = max(1, -(-(high - low + 1) // _BINS))
    bins: Counter[int] = Counter()
    for value, count in counts.items():
        bins[(value - low) // width] += count
    starts = (low + number * width for number in range(max(bins) + 1))
    return {
        f"{start}" if width == 1 else f"{start}..{min(start + width - 1, high)}": bins[number]
        for number, start in enumerate(starts)
    }


def _bars(console: Console, title: str, counts: Mapping[str, int]) -> None:
    from rich.bar import Bar

    if not counts:
        return
    most = max(counts.values())
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    for name, count in counts.items():
        table.add_row(escape(name), f"{count:,}", Bar(most, 0, count, width=_BAR_WIDTH, color="green"))
    console.print(table)
