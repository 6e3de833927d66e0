"""The planner of a drive: what was asked for, which rig and targets it wants, and the process that runs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from carla_bridge.collect import NANO_CAMERA, NANO_TASK
from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_ros.launch_setup import PARAMETERS_FILE, PLANNER_ON_BRIDGE, NodeSetup

NANO_FOLDER = Path("checkpoints") / "wamdiff2-nano"
WORDS = ("nano", "random", "none", "expert", "external")
NAMESPACE = "wamdiff2"


@dataclass(frozen=True)
class PlannerChoice:
    """A planner for a drive.

    Attributes:
        spec: as it was asked for.
        kind: `checkpoint`, `random`, `expert`, `none`, or `external` for a node that somebody else has started.
        folder: checkpoint folder of `checkpoint`.
        camera: camera it sees.
        target_rule: target points it is shown.
    """

    spec: str
    kind: str
    folder: Path | None = None
    camera: CameraSpec = NANO_CAMERA
    target_rule: TargetRule = NANO_TASK.target_rule

    @classmethod
    def parse(cls, spec: str) -> PlannerChoice:
        """Read `nano`, `random`, `none`, `expert`, `external` or a checkpoint folder; its serving record tells rig and
        targets, and those of the nano stand in where there is none.

        Raises:
            UserError: neither a word nor a folder, or a checkpoint that does not plan from one camera.
        """
        if spec in WORDS and spec != "nano":
            return cls(spec, spec)
        folder = _nano_folder() if spec == "nano" else Path(spec)
        if not folder.is_dir():
            raise UserError("planner", "one of " + ", ".join(WORDS) + ", or a checkpoint folder", spec,
                            did_you_mean(spec, WORDS))
        record = ServingRecord.load(folder)
        if record is None:
            return cls(spec, "checkpoint", folder)
        if record.planning is None:
            raise UserError("planner", "a checkpoint that was trained to plan", str(folder))
        if len(record.rig) > 1:
            raise UserError("planner", "a checkpoint with one camera", [camera.name for camera in record.rig])
        camera = record.rig[0] if record.rig else NANO_CAMERA
        return cls(spec, "checkpoint", folder, camera, record.planning.target_rule)

    @property
    def expects_plans(self) -> bool:
        """Whether there is anybody to wait for."""
        return self.kind != "none"

    def command(self, seed: int, device: str) -> list[str] | None:
        """Command line of the planner's process; None when there is none to start."""
        if self.kind == "expert":
            setup = NodeSetup(
                executable="expert_node", name="planner", namespace="{namespace}", flags={"use_sim_time": "true"},
                remappings=tuple((f"~/input/{name}", f"/{{namespace}}/bridge/{name}")
                                 for name in ("odometry", "navigation", "route")),
            )
            module = "carla_bridge.expert_node"
        elif self.kind in ("checkpoint", "random"):
            setup, module = PLANNER_ON_BRIDGE, "wamdiff2_ros.planner_node"
        else:
            return None
        values = {
            "namespace": NAMESPACE, "params_file": str(PARAMETERS_FILE), "device": device, "image_transport": "raw",
            "checkpoint": "random" if self.folder is None else str(self.folder.resolve()),
        }
        return [sys.executable, "-m", module, *setup.ros_arguments(values), "-p", f"seed:={seed}"]


def _nano_folder() -> Path:
    """The shipped checkpoint, in the working directory or beside this package."""
    places = [Path.cwd() / NANO_FOLDER, Path(__file__).resolve().parent.parent / NANO_FOLDER]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError("planner nano", f"the shipped checkpoint in {places[0]}", "no such folder",
                    "run from the repository, or give a checkpoint folder")
