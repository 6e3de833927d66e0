"""One route given to one process, and what came back: the lines of an evaluation's journal."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from carla_bridge.agents.choice import WORDS, AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.recording.results import RouteResult
from wamdiff2_core.config import Strict, parse
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import replace_file

TASK_NAME, ATTEMPT_NAME, PROGRESS_NAME = "task.json", "attempt.json", "progress.json"
WORKER_LOG = Path("logs") / "worker.log"


class Kind(StrEnum):
    """What an attempt came to."""

    DRIVEN = "driven"  # to a verdict about the driving, good or bad
    INFRASTRUCTURE = "infrastructure"  # a server, process or machine failed: nothing is known about the driving
    UNUSABLE = "unusable"  # the route cannot be driven here, as for want of its town
    REFUSED = "refused"  # what is asked for cannot be done on any route, as with an agent that cannot be used


@dataclass(frozen=True, kw_only=True)
class Refusal(Strict):
    """The parts of the `UserError` that refuses an agent, or whatever else concerns all routes."""

    field: str
    expected: str
    got: str
    fix: str

    @classmethod
    def of(cls, error: UserError) -> Refusal:
        """Its parts as text."""
        return cls(field=error.field, expected=error.expected, fix=error.fix,
                   got=error.got if isinstance(error.got, str) else repr(error.got))

    def error(self) -> UserError:
        """The error again."""
        return UserError(self.field, self.expected, self.got, self.fix)


@dataclass(frozen=True)
class Job:
    """A route to be driven once: which of the repeats, counted from 0."""

    route_id: str
    repeat: int

    def name(self, repeats: int) -> str:
        """Name of its files."""
        return self.route_id if repeats == 1 else f"{self.route_id}-r{self.repeat}"


@dataclass(frozen=True, kw_only=True)
class Task(Strict):
    """What a worker is told; `DriveConfig` in words.

    Attributes:
        route_id, repeat: which drive.
        routes: route file.
        planner, link, latency, carla, device: as the command line has them.
        seed: of this repeat.
        plan_wait_s: wall-clock seconds to wait for a plan.
        video: whether to take pictures for people.
        maps: folder of OpenDRIVE files; empty without.
        vehicles, walkers: how many of background traffic.
        scenarios: whether those of the routes are played.
        blank_camera: whether the planner is given black pictures.
        deadline_ms: wall-clock milliseconds a checkpoint has for a plan; 0 for what its record says.
        backend: what runs a checkpoint.
    """

    route_id: str
    repeat: int
    routes: str
    planner: str
    link: str
    latency: str
    carla: str
    device: str
    seed: int
    plan_wait_s: float
    video: bool
    maps: str
    vehicles: int
    walkers: int
    scenarios: bool
    blank_camera: bool = False
    deadline_ms: float = 0.0
    backend: str = "auto"

    @classmethod
    def of(cls, job: Job, config: DriveConfig) -> Task:
        """The task of a job; each repeat has the next seed."""
        return cls(
            route_id=job.route_id,
            repeat=job.repeat,
            routes=str(config.routes.resolve()),
            planner=_planner_text(config.agent),
            link=config.agent.link,
            latency=str(config.latency),
            carla=config.carla,
            device=config.device,
            seed=config.seed + job.repeat,
            plan_wait_s=config.patience.wait_s,
            video=config.video,
            maps="" if config.maps is None else str(config.maps.resolve()),
            vehicles=config.vehicles,
            walkers=config.walkers,
            scenarios=config.scenarios,
            blank_camera=config.blank_camera,
            deadline_ms=config.agent.deadline_ms,
            backend=config.agent.backend,
        )

    def config(self, out: Path) -> DriveConfig:
        """The drive, into a folder of its own."""
        return DriveConfig(
            routes=Path(self.routes),
            agent=AgentChoice.parse(self.planner, self.link, self.deadline_ms, self.backend),
            out=out,
            latency=LatencyMode.parse(self.latency),
            carla=self.carla,
            seed=self.seed,
            device=self.device,
            patience=Patience(wait_s=self.plan_wait_s),
            video=self.video,
            maps=Path(self.maps) if self.maps else None,
            vehicles=self.vehicles,
            walkers=self.walkers,
            scenarios=self.scenarios,
            blank_camera=self.blank_camera,
        )

    def save(self, folder: Path) -> Path:
        """Write `task.json`."""
        path = folder / TASK_NAME
        replace_file(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Task:
        """Read `task.json`."""
        return parse(cls, json.loads(path.read_text()), str(path))


@dataclass(frozen=True)
class Attempt(Strict):
    """What one attempt came to, as the journal has it.

    Attributes:
        route_id, repeat: which drive.
        number: which attempt at it, counted from 1.
        kind: what it came to.
        reason: in words; for a driven route its verdict.
        seed: of the world and of a random planner.
        source: what signed the plans.
        began: ISO 8601 time, UTC.
        wall_s: wall-clock seconds, start of server and planner included.
        result: of a driven route.
        node: address of the cluster's node that drove; empty without a cluster.
        refusal: of a refused attempt, the error.
    """

    route_id: str
    repeat: int
    number: int
    kind: Kind
    reason: str
    seed: int
    source: str = ""
    began: str = ""
    wall_s: float = 0.0
    result: RouteResult | None = None
    node: str = ""
    refusal: Refusal | None = None

    @property
    def job(self) -> Job:
        """Which drive."""
        return Job(self.route_id, self.repeat)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> Attempt:
        """From what `to_json` gave.

        Raises:
            UserError: something else.
        """
        return parse(cls, data, where)

    def save(self, folder: Path) -> None:
        """Write `attempt.json` whole."""
        replace_file(folder / ATTEMPT_NAME, json.dumps(self.to_json()) + "\n")


def read_attempt(folder: Path) -> Attempt | None:
    """What a worker left in its folder; None when it ended before it could."""
    path = folder / ATTEMPT_NAME
    return Attempt.from_json(json.loads(path.read_text()), str(path)) if path.is_file() else None


def _planner_text(agent: AgentChoice) -> str:
    # A word is left to the worker: on another machine the shipped checkpoint may lie elsewhere.
    return agent.spec if agent.folder is None or agent.spec in WORDS else str(agent.folder.resolve())
