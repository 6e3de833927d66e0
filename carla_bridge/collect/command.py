"""`wamdiff2 collect`: drives a fleet of experts and writes a training set of plans, questions and boxes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carla_bridge.client.server_process import parse_address
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from carla_bridge.provenance import code_hash, file_hashes, map_files, versions_of
from carla_bridge.routes import ROUTES_FOLDER
from wamdiff2_core.errors import UserError
from wamdiff2_core.outputs import writable_folder

if TYPE_CHECKING:
    from carla_bridge.collect.runner import CollectConfig

DEFAULT_ROUTES = (ROUTES_FOLDER / "embedded-40.xml", ROUTES_FOLDER / "train.xml")


def collect(
    out: Annotated[Path, typer.Option(help="Folder of the set; an unfinished one is gone on with.")],
    routes: Annotated[
        list[Path] | None, typer.Option(help="Route file (Bench2Drive's XML form); again for each further one.",
                                        show_default="embedded-40.xml and train.xml"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many planning samples.")] = 1000,
    max_episodes: Annotated[int, typer.Option("--episodes", min=0, help="At most so many episodes; 0: any.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed; sets of different seeds are different.")] = 0,
    seconds: Annotated[float, typer.Option(min=5.0, help="Simulated time of an episode.")] = 60.0,
    fleet: Annotated[int, typer.Option(min=0, max=30, help="Expert-driven vehicles beside the first.")] = 11,
    vehicles: Annotated[int, typer.Option(min=0, help="Vehicles of background traffic.")] = 20,
    walkers: Annotated[
        int | None, typer.Option(min=0, help="Walkers, in the embedded world.", show_default="40"),
    ] = None,
    scenarios: Annotated[bool, typer.Option(help="Play the scenarios of the routes, or leave them out.")] = True,
    encounters: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, show_default="0.35",
                                   help="How often somebody crosses before a vehicle of the fleet, or something "
                                        "stands in its lane."),
    ] = None,
    images: Annotated[bool, typer.Option(help="Take pictures, or plan from words alone.")] = True,
    learner: Annotated[
        Path | None, typer.Option(help="Checkpoint that drives some stretches; the expert says what it should do."),
    ] = None,
    learner_share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Share of stretches that it drives.", show_default="0.5"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a server of its own.")] = 1,
    carla: Annotated[str, typer.Option(help="HOST:PORT of a running server; none: embedded ones are started.")] = "",
    maps: Annotated[Path | None, typer.Option(help="Folder of .xodr files, for towns of embedded servers.")] = None,
    preview: Annotated[int, typer.Option(min=0, help="Pictures of a contact sheet, preview.jpg; 0: none.")] = 0,
) -> None:
    """Collect a training set: what the expert does, questions about what the camera sees, and boxes."""
    from carla_bridge.collect.output import SetFolder
    from carla_bridge.collect.preview import write_preview
    from carla_bridge.collect.records import FILES
    from carla_bridge.collect.runner import CollectConfig, episodes

    writable_folder(out, "--out")
    if carla:
        parse_address(carla)
        if workers > 1:
            raise UserError("--workers", "1 with --carla: a server has one world", workers)
        if walkers:
            raise UserError("--walkers", "none with --carla: only the embedded server has walkers of its own", walkers)
        walkers = 0
    if learner is None and learner_share is not None:
        raise UserError("--learner-share", "a --learner with it", learner_share)
    if encounters and fleet == 0:
        raise UserError("--encounters", "0 with --fleet 0: the vehicles of the fleet have them", encounters)
    given: dict[str, Any] = {"walkers": walkers, "encounters": encounters, "learner_share": learner_share}
    config = CollectConfig(
        routes=tuple(routes or DEFAULT_ROUTES), out=out, seed=seed, seconds=seconds, fleet=fleet, vehicles=vehicles,
        scenarios=scenarios, images=images, learner=learner, carla=carla, maps=maps,
        **{name: value for name, value in given.items() if value is not None},
    )
    config.schedule()  # reads the files, so that a bad one is told before anything is begun
    with SetFolder(out, _request(config), samples) as target, _progress() as bar:
        before, began_s, processor_s = target.samples, time.monotonic(), sum(os.times()[:4])
        task = bar.add_task("collect", total=samples, completed=target.samples, episodes=target.episodes)
        more = episodes(config, target.episodes, workers, max_episodes)
        while not target.full and (max_episodes == 0 or target.episodes < max_episodes):
            target.add(next(more))
            bar.update(task, completed=target.samples, episodes=target.episodes)
        more.close()  # type: ignore[attr-defined]
        count, driven = target.samples, target.episodes
    made, processor_s = count - before, max(0.01, sum(os.times()[:4]) - processor_s)
    typer.echo(f"{made} samples now: {made / (time.monotonic() - began_s):.1f} a second of wall clock, "
               f"{made / processor_s:.1f} a second of processor time, servers included")
    typer.echo(f"{count} samples in {driven} episodes: " + " ".join(str(out / name) for name in FILES))
    if preview:
        typer.echo(f"preview: {write_preview(out, preview)}")


def _request(config: CollectConfig) -> dict[str, Any]:
    """What the content of a set depends on, as JSON values."""
    from dataclasses import asdict

    values = {name: getattr(config, name) for name in (
        "seed", "seconds", "fleet", "vehicles", "walkers", "scenarios", "encounters", "images", "carla",
    )}  # fmt: skip
    maps = map_files(config.maps, (spec.town for spec in config.specs()))
    task = asdict(NANO_TASK)
    task["target_rule"]["distances_m"] = list(task["target_rule"]["distances_m"])
    return {
        "routes": file_hashes({file.name: file for file in config.routes}), "maps": file_hashes(maps), **values,
        "task": task, "camera": asdict(NANO_CAMERA), "code": code_hash(),
        "versions": versions_of("wamdiff2", "carla", "numpy", "opencv-python-headless", "simplejpeg"),
        **({} if config.learner is None else _learner_request(config.learner, config.learner_share)),
    }


def _learner_request(folder: Path, share: float) -> dict[str, Any]:
    """What is added where a learner drives."""
    from wamdiff2_core.model.checkpoint import checkpoint_hash

    return {
        "learner": checkpoint_hash(folder), "learner_share": share,
        "learner_versions": versions_of("torch", "transformers"),
    }


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Samples per second of wall-clock time."""

        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "")

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                    TextColumn("samples, {task.fields[episodes]} episodes"), Rate(),
                    TimeRemainingColumn(elapsed_when_finished=True), speed_estimate_period=600.0)
