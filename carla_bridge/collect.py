"""`wamdiff2 collect`: the expert's answers as a training set.

With images, the expert drives through the CARLA client, from perturbed starts and under bursts of noise, and every
picture that the camera takes becomes a sample. Without images nothing needs to move: states of the same distribution
are placed along the routes and answered directly (`source` of a sample says which). The label always is the expert's
roll-out from the true state, so a sample off the path shows the way back.

Samples come in episodes of one seed each, written as a whole; a collection that was killed goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from carla_bridge.agents.route_follower import RouteFollower
from carla_bridge.client.server_watch import Fault, no_fault
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from carla_bridge.perturbation import NoiseBursts, sample_state
from carla_bridge.routes.navigation import Navigator, RoutePlan
from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.control.controller import Controller, PlanInMap
from wamdiff2_core.dataset import DatasetWriter, last_sample
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file
from wamdiff2_core.outputs import writable_folder
from wamdiff2_core.tasks.planning import format_waypoints, planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, Observation, Plan

if TYPE_CHECKING:
    from carla_bridge.client.client import Simulation

LOG = logging.getLogger(__name__)

SAMPLES_FILE, SETTINGS_FILE = "samples.jsonl", "collect.json"
STATES_PER_EPISODE = 100
PICTURES_PER_EPISODE = 8
CAMERA_EVERY_TICKS = 8
PLAN_EVERY_TICKS = 5
MAX_DEVIATION_M = 3.5
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


@dataclass(frozen=True)
class RouteDriver:
    """A route with its expert; shared by all episodes on it."""

    route: RoutePlan
    expert: RouteFollower


@dataclass(frozen=True)
class Record:
    """One sample to be written; `rgb` is None for a sample without an image."""

    prompt: str
    answer: str
    rgb: np.ndarray | None
    extra: dict[str, Any]


def label(
    driver: RouteDriver, ego: EgoState, near_m: float, rgb: np.ndarray | None, task: PlanningTask, source: str
) -> Record:
    """The question at a state and the expert's answer.

    Args:
        driver: the route.
        ego: true state, map frame.
        near_m: arc length the ego is known to be near.
        rgb: picture taken at that state, or None; the question then has no image mark.
        task: the question's form.
        source: `drive` or `states`.
    """
    navigator = Navigator(driver.route, task.target_rule)
    navigator.progress_m = near_m
    navigation = navigator.update(ego.map_from_base)
    picture = _NO_PICTURE if rgb is None else rgb
    observation = Observation((CameraFrame(picture, ego.stamp_ns),), ego, navigation)
    prompt = planning_prompt(observation, task)
    if rgb is None:
        prompt = prompt.replace(IMAGE_PLACEHOLDER + "\n", "")
    progress_m = driver.expert.project(ego.map_from_base, near_m)
    waypoints = driver.expert.roll_out(ego.map_from_base, ego.speed_mps, progress_m)
    pose = ego.map_from_base
    extra = {
        "source": source, "town": driver.route.town, "route": driver.route.route_id,
        "speed_mps": round(ego.speed_mps, 3), "command": navigation.command.name,
        "targets_m": navigation.targets_m.round(3).tolist(), "waypoints_m": waypoints.xy_m.round(3).tolist(),
        "map_from_base": [round(pose.x_m, 3), round(pose.y_m, 3), round(pose.yaw_rad, 4)],
        "progress_m": round(progress_m, 1), "deviation_m": round(navigator.deviation_m, 3),
    }
    return Record(prompt, format_waypoints(waypoints, task), rgb, extra)


def placed_episode(drivers: list[RouteDriver], rng: np.random.Generator, task: PlanningTask) -> Iterator[Record]:
    """States placed along random routes, without images."""
    for _ in range(STATES_PER_EPISODE):
        driver = drivers[rng.integers(len(drivers))]
        state = sample_state(driver.route, driver.expert, rng)
        ego = EgoState(velocity_mps=np.array([state.speed_mps, 0.0]), map_from_base=state.map_from_base)
        yield label(driver, ego, state.progress_m, None, task, "states")


def driven_episode(
    simulation: Simulation, drivers: list[RouteDriver], rng: np.random.Generator, task: PlanningTask
) -> Iterator[Record]:
    """The expert drives one random stretch under noise; every picture gives a sample.

    The episode begins on a tick with a picture and ends on one, and begins the cycles of all traffic lights anew, so it
    does not depend on the one before. A start at rest stands with the brake on until its first picture: a drive begins
    so.
    """
    driver = drivers[rng.integers(len(drivers))]
    start = sample_state(driver.route, driver.expert, rng)
    simulation.call(simulation.world.reset_all_traffic_lights, "world.reset_all_traffic_lights")
    simulation.place_ego(start.map_from_base, start.speed_mps)
    controller, noise = Controller(), NoiseBursts(rng)
    near_m, pictures, ticks = start.progress_m, 0, 0
    plan: PlanInMap | None = None
    while pictures < PICTURES_PER_EPISODE:
        frame = simulation.tick()
        ego = frame.ego
        near_m = driver.expert.project(ego.map_from_base, near_m)
        x, y = driver.route.at(np.array([near_m]))[0]
        off = float(np.hypot(ego.map_from_base.x_m - x, ego.map_from_base.y_m - y))
        lost = off > MAX_DEVIATION_M or bool(frame.collisions) or near_m > driver.route.length_m + 10.0
        if NANO_CAMERA.name in frame.images:
            pictures += 1
            if lost:
                return
            yield label(driver, ego, near_m, frame.images[NANO_CAMERA.name].rgb, task, "drive")
        if start.speed_mps == 0.0 and not pictures:
            simulation.apply(controller.step(None, ego, frame.stamp_ns))
            continue
        if ticks % PLAN_EVERY_TICKS == 0:
            waypoints = driver.expert.roll_out(ego.map_from_base, ego.speed_mps, near_m)
            plan = PlanInMap(Plan(frame.stamp_ns, waypoints), ego.map_from_base)
        ticks += 1
        simulation.apply(noise.disturb(controller.step(plan, ego, frame.stamp_ns), ego.speed_mps))


def collect(
    routes: Annotated[Path, typer.Option(help="Route file (Bench2Drive's XML form).")],
    out: Annotated[Path, typer.Option(help="Folder of the set; an unfinished one is gone on with.")],
    samples: Annotated[int, typer.Option(min=1, help="How many samples.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed; sets of different seeds are different.")] = 0,
    images: Annotated[bool, typer.Option(help="Drive and take pictures, or place states without them.")] = True,
    carla: Annotated[str, typer.Option(help="HOST:PORT of a running server; none: the embedded one is started.")] = "",
) -> None:
    """Collect a training set: the expert's waypoints at states along routes."""
    settings = {"routes": _digest(routes), "seed": seed, "images": images, "task": asdict(NANO_TASK)}
    first_episode = _prepare(out, settings)
    with ExitStack() as stack:
        simulation, drivers = _world(stack, routes, images, carla, out)
        writer = stack.enter_context(DatasetWriter(out, SAMPLES_FILE))
        bar = stack.enter_context(_progress())
        task_id = bar.add_task("collect", total=samples, completed=writer.count)
        episode = first_episode
        while writer.count < samples:
            rng = np.random.default_rng([seed, episode])
            records = (
                placed_episode(drivers, rng, NANO_TASK) if simulation is None
                else driven_episode(simulation, drivers, rng, NANO_TASK)
            )
            # Made as a whole before a line is written: a kill leaves whole episodes only.
            for index, record in enumerate(list(records)[: samples - writer.count]):
                pictures = () if record.rgb is None else (record.rgb,)
                extra = {**record.extra, "seed": seed, "episode": episode}
                writer.add(f"{seed}-{episode:05d}-{index:03d}", record.prompt, record.answer, pictures, extra)
            writer.flush()
            episode += 1
            bar.update(task_id, completed=writer.count)
    typer.echo(f"{writer.count} samples in {episode - first_episode} episodes: {writer.file}")


def _prepare(out: Path, settings: dict[str, Any]) -> int:
    """Check that `out` is empty or was begun with the same settings; the episode to go on with."""
    writable_folder(out, "out")
    file = out / SETTINGS_FILE
    text = json.dumps(settings, indent=1)
    if file.exists():
        if json.loads(file.read_text()) != json.loads(text):
            raise UserError("out", "an empty folder, or one begun with the same routes, seed and kind", str(out),
                            "choose another folder")
    elif any(out.iterdir()):
        raise UserError("out", "an empty folder, or one begun by this command", str(out), "choose another folder")
    else:
        replace_file(file, text + "\n")
    last = last_sample(out / SAMPLES_FILE)
    return 0 if last is None else int(last.extra["episode"]) + 1


def _world(
    stack: ExitStack, routes: Path, images: bool, address: str, out: Path
) -> tuple[Simulation | None, list[RouteDriver]]:
    """The planned routes, and with images a simulation in their town."""
    from carla_bridge.routes.route_file import load_routes
    from carla_bridge.routes.route_planner import RoutePlanner
    from carla_bridge.server.town.town import Town

    specs = load_routes(routes)
    towns = sorted({spec.town for spec in specs})
    if len(towns) != 1:
        raise UserError("routes", "routes of one town", towns, "collect one set for each town")
    if not images:
        planner = RoutePlanner(Town.load(towns[0]).map)
        plans = [planner.plan(spec) for spec in specs]
        return None, [RouteDriver(plan, RouteFollower(plan)) for plan in plans]

    from carla_bridge.client.client import CameraMount, Simulation
    from wamdiff2_core.frames import pose_from_carla

    host, port, fault = _server(stack, address, towns[0], out)
    start = specs[0].keypoints_carla[0]
    simulation = stack.enter_context(Simulation(
        host, port, ego_pose=pose_from_carla(start[0], start[1], 0.0), town=towns[0], inertial=False,
        cameras=[CameraMount(NANO_CAMERA, CAMERA_EVERY_TICKS)], fault=fault,
    ))
    planner = RoutePlanner(simulation.map)
    plans = [planner.plan(spec) for spec in specs]
    while not simulation.tick().images:
        pass
    return simulation, [RouteDriver(plan, RouteFollower(plan)) for plan in plans]


def _server(stack: ExitStack, address: str, town: str, out: Path) -> tuple[str, int, Fault]:
    """Address of the server, the given one or that of an embedded server started here, and what tells of its end."""
    from carla_bridge.client.server_process import ServerProcess, parse_address

    if address:
        return *parse_address(address), no_fault
    server = stack.enter_context(ServerProcess(town, 0, out / "server.log"))
    return *server.wait(), server.fault


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _digest(file: Path) -> str:
    if not file.is_file():
        raise UserError("routes", "a route file", str(file))
    return hashlib.sha256(file.read_bytes()).hexdigest()
