"""What is evaluated, and what must be the same when an evaluation goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carla_bridge.drive.driver import DriveConfig
from carla_bridge.evaluation.attempts import Job
from carla_bridge.evaluation.installation import checkpoint_of, versions
from carla_bridge.provenance import code_hash, file_hashes, map_files
from carla_bridge.recording.results import EVALUATION_KIND
from carla_bridge.routes.route_file import RouteSpec
from carla_bridge.routes.subset import chosen_ids
from wamdiff2_core.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """An evaluation, all of it.

    Attributes:
        drive: agent, routes and rules; `out` is the evaluation's folder.
        specs: the routes to drive.
        repeats: how often each is driven; each time with the next seed.
        retries: how many more attempts a drive gets after one that the infrastructure has spoilt.
    """

    drive: DriveConfig
    specs: tuple[RouteSpec, ...]
    repeats: int = 1
    retries: int = 2

    def __post_init__(self) -> None:
        if self.drive.hero:
            raise UserError("--passive", "no --workers beside it, nor --cluster: the hero is driven once, "
                            "from where it is", f"hero {self.drive.hero}")
        if self.drive.agent.kind == "external":
            raise UserError("--planner", "one that each route's process can start", "external")
        if self.drive.ros_arguments:
            raise UserError("ROS arguments", "none with --workers", " ".join(self.drive.ros_arguments))

    @property
    def jobs(self) -> list[Job]:
        """Every drive: all routes in the file's order, then all of them again for the next repeat."""
        return [Job(spec.id, repeat) for repeat in range(self.repeats) for spec in self.specs]

    def identity(self) -> dict[str, Any]:
        """What decides about the outcome: the first line of the journal, compared when the evaluation goes on.

        Workers, machines and retries are not part of it: they may change from one call to the next.
        """
        drive = self.drive
        return {
            "kind": EVALUATION_KIND,
            "routes": drive.routes.name,
            "routes_sha256": hashlib.sha256(drive.routes.read_bytes()).hexdigest(),
            "route_ids": [spec.id for spec in self.specs],
            "repeats": self.repeats,
            "seed": drive.seed,
            "vehicles": drive.vehicles,
            "walkers": drive.walkers,
            "scenarios": drive.scenarios,
            "blank_camera": drive.blank_camera,
            "planner": drive.agent.spec,
            "checkpoint": checkpoint_of(drive.agent),
            "link": drive.agent.link,
            "device": drive.device,
            "latency": str(drive.latency),
            "deadline_ms": drive.agent.deadline_ms,
            "backend": drive.agent.backend,
            "plan_wait_s": drive.patience.wait_s,
            "server": drive.carla or "embedded",
            "maps": file_hashes(self.map_files()),
            "label": drive.label,
            "code": code_hash(),
            "versions": versions(),
        }

    def map_files(self) -> dict[str, Path]:
        """The towns' own OpenDRIVE files; a town that is not among them is a shipped one, as the code."""
        return map_files(self.drive.maps, (spec.town for spec in self.specs))


def select_routes(specs: Sequence[RouteSpec], subset: str | None) -> tuple[RouteSpec, ...]:
    """Routes of a file by the leaderboard's words.

    Args:
        specs: all routes of the file.
        subset: ids and ranges of them in the file's order, such as `1711,24206-28048`; None for all routes.

    Raises:
        UserError: not of that form, or no such route.
    """
    ids = set(chosen_ids([spec.id for spec in specs], subset))
    return tuple(spec for spec in specs if spec.id in ids)
