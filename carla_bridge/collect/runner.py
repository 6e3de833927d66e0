"""Drives episodes in order, in this process or side by side in several, and does over what the machine has spoilt."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from carla_bridge.client.server_process import ServerProcess, parse_address
from carla_bridge.client.server_watch import no_fault
from carla_bridge.collect.episode import Driven, Wishes, World, drive
from carla_bridge.collect.fleet import UnsteadyError
from carla_bridge.collect.schedule import EPISODES_PER_BLOCK, Block, Schedule
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_file import RouteSpec, load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.server.background import check_background
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.frames import pose_from_carla
from wamdiff2_core.planner import Planner, make_planner
from wamdiff2_core.processes import end_with_parent
from wamdiff2_core.serving_record import ServingRecord

LOG = logging.getLogger(__name__)
TRIES = 4
SUBSCRIBE_S = 0.15


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """A set, all of it but its size.

    Attributes:
        routes: route files.
        out: folder of the set.
        seed: of the set.
        seconds: simulated time of an episode.
        fleet: expert-driven vehicles beside the first.
        vehicles, walkers: of background traffic.
        scenarios: whether those of the routes are played.
        encounters: of `Wishes`.
        images: whether pictures are taken.
        learner: checkpoint that drives some stretches, which the expert labels; None for none.
        learner_share: of stretches that it drives.
        carla: `HOST:PORT` of a running server; empty starts embedded ones.
        maps: folder of OpenDRIVE files for embedded servers.
    """

    routes: tuple[Path, ...]
    out: Path
    seed: int = 0
    seconds: float = 60.0
    fleet: int = 11
    vehicles: int = 20
    walkers: int = 40
    scenarios: bool = True
    encounters: float = 0.35
    images: bool = True
    learner: Path | None = None
    learner_share: float = 0.5
    carla: str = ""
    maps: Path | None = None

    def __post_init__(self) -> None:
        if not self.carla:
            check_background(self.vehicles, self.walkers)
        if self.learner is not None:
            _check_learner(self.learner, self.images)

    @property
    def wishes(self) -> Wishes:
        """What every episode is asked for."""
        learner = None if self.learner is None else _learner(self.learner)
        background = self.vehicles if self.carla else 0
        return Wishes(self.fleet, self.seconds, self.images, background, self.encounters, learner, self.learner_share)

    def specs(self) -> list[RouteSpec]:
        """The routes of all files."""
        return [spec for file in self.routes for spec in load_routes(file)]

    def schedule(self) -> Schedule:
        """Its episodes."""
        return Schedule(self.specs(), self.seed, self.seconds, self.scenarios)


def episodes(config: CollectConfig, first: int, workers: int, end: int = 0) -> Iterator[Driven]:
    """Episodes from a number on, in order.

    Args:
        config: the set.
        first: number of the first one.
        workers: processes; 1 drives in this one.
        end: number behind the last one; 0 goes on without end.

    Raises:
        InfrastructureError: servers fail again and again.
        UserError: no such town, or a route that cannot be driven there.
    """
    if workers == 1:
        for block in _blocks(first, end):
            yield from drive_block(config, block, first, end)
    else:
        yield from _side_by_side(config, first, workers, end)


def _blocks(first: int, end: int) -> Iterator[int]:
    """Numbers of the blocks of these episodes."""
    begin = first // EPISODES_PER_BLOCK
    return iter(range(begin, -(-end // EPISODES_PER_BLOCK))) if end else itertools.count(begin)


def _side_by_side(config: CollectConfig, first: int, workers: int, end: int) -> Iterator[Driven]:
    pool = ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent, (os.getpid(),))
    waiting: list[Future[list[Driven]]] = []
    blocks = _blocks(first, end)
    try:
        while True:
            for block in itertools.islice(blocks, workers + 1 - len(waiting)):
                waiting.append(pool.submit(_whole_block, config, block, first, end))
            if not waiting:
                return
            try:
                yield from waiting.pop(0).result()
            except BrokenProcessPool as error:
                raise InfrastructureError(f"a worker has died: {error}") from error
    finally:
        # What is being driven is not wanted any more; an orderly end would wait for it.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def _whole_block(config: CollectConfig, index: int, first: int, end: int) -> list[Driven]:
    return list(drive_block(config, index, first, end))


def drive_block(config: CollectConfig, index: int, first: int = 0, end: int = 0) -> Iterator[Driven]:
    """Episodes of a block that are not before `first`, and before `end` if that is not 0.

    Those before `first` are driven too, as the rest depends on them.
    """
    block, done, subscribe_s = config.schedule().block(index), first, SUBSCRIBE_S
    if end:
        block = replace(block, episodes=tuple(episode for episode in block.episodes if episode.index < end))
    for attempt in range(TRIES):
        try:
            for driven in _attempt(config, block, subscribe_s):
                if driven.index >= done:
                    yield driven
                    done = driven.index + 1
            return
        except UnsteadyError:
            LOG.info("block %d: a camera was subscribed to too late", index)
            subscribe_s *= 3
        except InfrastructureError as error:
            if attempt == TRIES - 1 or config.carla:
                raise
            LOG.warning("block %d is driven again: %s", index, error)
    raise InfrastructureError(f"block {index}: the cameras never began together in {TRIES} attempts")


def _attempt(config: CollectConfig, block: Block, subscribe_s: float) -> Iterator[Driven]:
    with ExitStack() as stack:
        if config.carla:
            world = World(parse_address(config.carla), no_fault, False)
            planner, plans = _of_server(config.carla, block, tuple(config.routes), tuple(config.specs()))
        else:
            log = config.out / "logs" / f"block-{block.index:05d}.log"
            log.parent.mkdir(exist_ok=True)
            server = stack.enter_context(
                ServerProcess(block.town, block.seed, log, config.maps, config.vehicles, config.walkers)
            )
            planner, plans = _of_file(block.town, config.maps, config.routes)
            world = World(server.wait(), server.fault, True, subscribe_s)
        for episode in block.episodes:
            yield drive(world, episode, planner, plans, config.wishes)
    if not config.carla:
        log.unlink(missing_ok=True)


def _check_learner(folder: Path, images: bool) -> None:
    """Raise `UserError` when a checkpoint cannot drive with what a fleet's vehicle has."""
    record = ServingRecord.load(folder) if folder.is_dir() else None
    if record is None or record.planning is None:
        raise UserError("--learner", "a checkpoint folder with a record of planning", str(folder))
    if record.rig != (NANO_CAMERA,) or record.planning.target_rule != NANO_TASK.target_rule:
        raise UserError("--learner", "one with the camera and targets of the nano (carla_bridge/nano.py)", str(folder))
    if not images:
        raise UserError("--learner", "pictures to drive by", "--no-images")


@lru_cache(maxsize=1)
def _learner(folder: Path) -> Planner:
    import torch

    torch.set_num_threads(1)  # the server beside it takes the other core
    # A plan must not depend on the clock, nor on the vehicle that was planned for before.
    return make_planner(folder, deadline_ms=0.0, warm_start="off", prompt_reuse="off")


@lru_cache(maxsize=4)
def _of_file(town: str, maps: Path | None, routes: tuple[Path, ...]) -> tuple[RoutePlanner, tuple[RoutePlan, ...]]:
    """Planner and planned routes of a town that the embedded server would open."""
    from carla_bridge.server.town.town import Town
    from carla_bridge.server.town.town_library import TownLibrary

    planner = RoutePlanner(Town.load(TownLibrary(maps, None).find(town)).map)
    return planner, _planned(planner, town, [spec for file in routes for spec in load_routes(file)])


_known: dict[tuple[Any, ...], tuple[RoutePlanner, tuple[RoutePlan, ...]]] = {}


def _of_server(
    address: str, block: Block, routes: tuple[Path, ...], specs: tuple[RouteSpec, ...]
) -> tuple[RoutePlanner, tuple[RoutePlan, ...]]:
    """The same of a town of a running server."""
    from carla_bridge.client.client import Simulation

    key = address, block.town, routes
    if key not in _known:
        x, y, _ = block.episodes[0].spec.keypoints_carla[0]
        with Simulation(*parse_address(address), ego_pose=pose_from_carla(float(x), float(y), 0.0), cameras=(),
                        town=block.town, inertial=False) as simulation:
            planner = RoutePlanner(simulation.map)
        _known[key] = planner, _planned(planner, block.town, list(specs))
    return _known[key]


def _planned(planner: RoutePlanner, town: str, specs: list[RouteSpec]) -> tuple[RoutePlan, ...]:
    plans = tuple(planner.plan(spec) for spec in specs if spec.town == town)
    if not plans:
        raise UserError("routes", f"at least one in {town}", "none")
    return plans
