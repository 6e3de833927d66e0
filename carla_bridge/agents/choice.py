"""Which agent a drive was asked for, and how it is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carla_bridge.agents.agent import Agent, Needs
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import check_drivable

NANO_FOLDER = Path("checkpoints") / "wamdiff2-nano"
BUILT_IN = ("none", "expert", "route-only", "constant-velocity")
WORDS = ("nano", "random", *BUILT_IN, "external")
LINKS = ("ros", "in-process")


@dataclass(frozen=True)
class AgentChoice:
    """An agent for a drive.

    Attributes:
        spec: as it was asked for.
        kind: `checkpoint`, `random`, one of `BUILT_IN`, or `external` for a planner node that somebody else starts.
        link: `ros` for a planner at the end of ROS topics, `in-process` for one in the driving process.
        folder: checkpoint folder of `checkpoint`.
        camera: camera it sees; None for an agent without one.
        target_rule: target points it is shown.
        deadline_ms: wall-clock milliseconds a checkpoint has for a plan; 0 for what its record says.
        backend: what runs a checkpoint, of `wamdiff2_core.model.backends`; `auto` is the device's own.
    """

    spec: str
    kind: str
    link: str = "ros"
    folder: Path | None = None
    camera: CameraSpec | None = NANO_CAMERA
    target_rule: TargetRule = NANO_TASK.target_rule
    deadline_ms: float = 0.0
    backend: str = "auto"

    @classmethod
    def parse(cls, spec: str, link: str = "", deadline_ms: float = 0.0, backend: str = "auto") -> AgentChoice:
        """Read a word or a checkpoint folder; its serving record tells rig and targets, and those of the nano stand in
        where there is none.

        Args:
            spec: one of `WORDS`, or a folder.
            link: one of `LINKS`; empty for the usual one, which is `ros` for planners.
            deadline_ms, backend: see above.

        Raises:
            UserError: neither a word nor a folder, a checkpoint that does not plan from one camera, a link that this
                agent does not have, or a deadline or a backend for another agent than a checkpoint.
        """
        if link and link not in LINKS:
            raise unknown_name("--link", link, LINKS)
        choice = cls._parse(spec)
        only = {"external": "ros", **dict.fromkeys(BUILT_IN, "in-process")}.get(choice.kind)
        if link and only and link != only:
            raise UserError("--link", f"{only} for planner {spec}", link)
        if not 0 <= deadline_ms < math.inf:
            raise UserError("--deadline-ms", "milliseconds >= 0", deadline_ms)
        if deadline_ms and choice.kind != "checkpoint":
            raise UserError("--deadline-ms", f"none for planner {spec}, which starts no checkpoint", deadline_ms)
        if backend != "auto" and choice.kind != "checkpoint":
            raise UserError("--backend", f"none for planner {spec}, which starts no checkpoint", backend)
        return replace(choice, link=only or link or "ros", deadline_ms=deadline_ms, backend=backend)

    @classmethod
    def _parse(cls, spec: str) -> AgentChoice:
        if spec in BUILT_IN:
            return cls(spec, spec, camera=None)
        if spec in WORDS and spec != "nano":
            return cls(spec, spec)
        folder = nano_folder() if spec == "nano" else Path(spec)
        if not folder.is_dir():
            raise unknown_name("--planner", spec, WORDS, or_else="a checkpoint folder")
        record = ServingRecord.load(folder)
        if record is None:
            return cls(spec, "checkpoint", folder=folder)
        if record.planning is None:
            raise UserError("--planner", "a checkpoint that was trained to plan", str(folder))
        check_drivable(record.planning, "--planner")
        if len(record.rig) > 1:
            raise UserError("--planner", "a checkpoint with one camera", [camera.name for camera in record.rig])
        camera = record.rig[0] if record.rig else NANO_CAMERA
        return cls(spec, "checkpoint", folder=folder, camera=camera, target_rule=record.planning.target_rule)

    @property
    def needs(self) -> Needs:
        """What the agent must be given."""
        cameras = (self.camera,) if self.camera is not None else ()
        return Needs(cameras, inertial=self.link == "ros", target_rule=self.target_rule)

    def check_device(self, device: str) -> None:
        """Raise `UserError` when the agent needs a torch device and this machine has no such one, or its backend does
        not run there."""
        from wamdiff2_core.model.checkpoint import check_device

        if self.kind == "checkpoint" and device != "cpu":
            check_device(device)
        if self.backend != "auto":
            from wamdiff2_core.model.backends import choose_backend

            choose_backend(self.backend, device)

    def make(self, seed: int, device: str) -> Agent:
        """The agent, in this process.

        Args:
            seed: of a random planner.
            device: torch device of a checkpoint.

        Raises:
            UserError: the checkpoint cannot be loaded.
        """
        from carla_bridge.agents.expert.agent import PrivilegedExpert
        from carla_bridge.agents.in_process import ConstantVelocity, InProcessPlanner, NoPlanner, RouteOnly
        from wamdiff2_core.planner import make_planner

        if self.kind in BUILT_IN:
            made: dict[str, Callable[[], Agent]] = {
                "none": NoPlanner, "expert": PrivilegedExpert, "route-only": RouteOnly,
                "constant-velocity": ConstantVelocity,
            }
            return made[self.kind]()
        options: dict[str, Any] = {"deadline_ms": self.deadline_ms} if self.deadline_ms else {}
        planner = make_planner(
            self.folder or self.kind, device=device, seed=seed, backend=self.backend, **options
        )
        return InProcessPlanner(planner, self.needs, self.spec)


def nano_folder() -> Path:
    """The shipped checkpoint, in the working directory or beside this package.

    Raises:
        UserError: it is in neither.
    """
    places = [Path.cwd() / NANO_FOLDER, Path(__file__).resolve().parents[2] / NANO_FOLDER]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError("--planner nano", f"the shipped checkpoint in {places[0]}", "no such folder",
                    "run from the repository, or give a checkpoint folder")
