"""`wamdiff2 reproduce`: train, measure and write one of the paper's ablations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from training.config import Precision
from training.reproduce import Scale

if TYPE_CHECKING:
    from training.reproduce.measure import Examiner
    from training.reproduce.recipes import Recipe, Workshop
    from training.reproduce.tables import Table


def reproduce(
    table: Annotated[str, typer.Argument(
        help="adaptation, divergence, overlap, teacher, horizon, steps or speed.", show_default=False)],
    scale: Annotated[Scale, typer.Option(help="Size of model and training: nano, or debug for seconds.")] = "nano",
    data: Annotated[Path | None, typer.Option(help="Conversation file to learn from.")] = None,
    validation: Annotated[Path | None, typer.Option(help="Conversation file to measure on.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every stage, each with its own seed.")] = 3,
    steps: Annotated[int, typer.Option(
        min=0, help="Steps of the autoregressive parent; all stages keep their proportion to it. 0: as configured.")
    ] = 0,
    parent: Annotated[str | None, typer.Option(
        help="Checkpoint folder of an autoregressive model that all stages start from, instead of training one.",
        show_default=False)] = None,
    large_parent: Annotated[str | None, typer.Option(
        help="Likewise, of the larger model that teaches across scales.", show_default=False)] = None,
    precision: Annotated[Precision | None, typer.Option(
        help="Of the training: bf16 or fp32, instead of the configured one.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=0, help="First validation samples only; 0 for all.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of all tables and their stages; runs/reproduce/SCALE.",
                                             show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the stages, and train nothing.")] = False,
) -> None:
    """Re-run an ablation of the paper at the size of the nano, with seeds and spread.

    Stages are shared by all tables of a folder, and trained once per seed. The same command goes on after a stop.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from training.reproduce.measure import Examiner
    from training.reproduce.recipes import Workshop
    from training.reproduce.runs import StoppedError, train_stages
    from training.reproduce.tables import TABLES
    from wamdiff2_core.errors import ExitCode, unknown_name
    from wamdiff2_core.outputs import writable_folder

    if table not in TABLES:
        raise unknown_name("TABLE", table, TABLES)
    asked = TABLES[table]
    given = {"ar": (parent, "--parent"), "large_ar": (large_parent, "--large-parent")}
    workshop = Workshop(
        (out or Path("runs/reproduce") / scale).resolve(), scale, data, validation, steps,
        {name: autoregressive(folder, option) for name, (folder, option) in given.items() if folder is not None},
        precision,
    )
    recipes = workshop.trained(row.stage for row in asked.rows)
    if dry_run:
        for line in plan_lines(workshop, recipes, seeds):
            typer.echo(line)
        return
    import matplotlib  # noqa: F401 - told before the training that would end without it

    from training.reproduce.render import markdown, write

    folder = writable_folder(workshop.out / table, "out")
    examiner = Examiner(workshop, workshop.validation_file(), limit)
    count = len(examiner.samples())
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        try:
            train_stages(workshop, recipes, range(seeds), progress)
        except StoppedError as stopped:
            console.print(f"{stopped}; the same command goes on")
            raise typer.Exit(ExitCode.FAILED_ITEMS) from None
        result = measured(asked, examiner, seeds, progress)
    result["samples"] = count
    write(result, folder)
    typer.echo(markdown(result))
    console.print(f"{folder}/table.json, table.md, plot.png")


def autoregressive(name: str, option: str) -> Path:
    """The checkpoint folder that an option names.

    Raises:
        UserError: it holds no autoregressive model with a serving record.
    """
    from training.checkpoints import resolve_checkpoint
    from wamdiff2_core.errors import UserError
    from wamdiff2_core.serving_record import RECORD_NAME, ServingRecord

    folder = resolve_checkpoint(name, option)
    record = ServingRecord.load(folder)
    if record is None or record.label_alignment != "shifted":
        raise UserError(option, "the folder of an autoregressive model",
                        f"{name}, " + (f"without {RECORD_NAME}" if record is None else "a block-diffusion model"))
    return folder


def plan_lines(workshop: Workshop, recipes: list[Recipe], seeds: int) -> list[str]:
    """What would be trained: stages, their steps and samples, and what is finished."""
    from training.reproduce.runs import is_finished

    lines, total, left = [], 0, 0
    for recipe in recipes:
        config = workshop.configure(recipe, 0)
        done = sum(is_finished(workshop.folder(recipe.name, seed), config.run.steps) for seed in range(seeds))
        samples = config.run.steps * config.run.global_batch
        total, left = total + samples * seeds, left + samples * (seeds - done)
        origin = f"from {recipe.init or 'a fresh model'}" + (f", taught by {recipe.teacher}" if recipe.teacher else "")
        lines.append(f"{recipe.name}: {config.stage} {origin}, {config.run.steps:,} steps, {samples:,} samples a seed"
                     + (f", {done} of {seeds} seeds done" if done else ""))
    return [*lines, f"{len(recipes)} stages x {seeds} seeds: {total:,} samples, {left:,} of them to be trained"]


def measured(table: Table, examiner: Examiner, seeds: int, progress: Any) -> dict[str, Any]:
    """Every row of a table for every seed, as `render.result_of` has it."""
    from training.reproduce.measure import paired_by_waypoint
    from training.reproduce.render import result_of
    from training.reproduce.tables import Metric

    task = progress.add_task(f"measuring {table.name}", total=seeds * len(table.rows))
    found: list[list[dict[str, Any]]] = []
    for seed in range(seeds):
        found.append([])
        for row in table.rows:
            found[-1].append(examiner.measure(row, table.kind, seed))
            progress.advance(task)
    metrics = list(table.metrics)
    if table.name == "horizon":
        for of_seed in found:
            _add_waypoints(of_seed, paired_by_waypoint(of_seed))
        keys = sorted({key for of_seed in found for key in of_seed[0] if key.startswith("waypoint_")})
        metrics += [Metric(key, f"waypoint {int(key.rpartition('_')[2])}, m", lower=True) for key in keys]
    values = {
        row.label: {metric.key: [of_seed[place].get(metric.key) for of_seed in found] for metric in metrics}
        for place, row in enumerate(table.rows)
    }
    workshop = examiner.workshop
    about = {
        "scale": workshop.scale, "seeds": list(range(seeds)), "steps": workshop.steps,
        "data": None if workshop.data is None else str(workshop.data), "validation": str(examiner.file),
        "given": {name: str(folder) for name, folder in workshop.given.items()},
        "precision": workshop.precision, "limit": examiner.limit,
    }
    return result_of(table, metrics, values, about)


def _add_waypoints(found: list[dict[str, Any]], distances: list[list[float]]) -> None:
    for figures, by_waypoint in zip(found, distances, strict=True):
        figures["l2_paired_m"] = round(sum(by_waypoint) / len(by_waypoint), 4) if by_waypoint else None
        for number, distance in enumerate(by_waypoint, 1):
            figures[f"waypoint_{number:02}"] = distance
