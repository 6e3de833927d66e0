"""The real planner node around a planner that does as the environment says.

SCRIPT_LOADED: file whose appearance ends loading; empty for at once. SCRIPT_PLAN_S: seconds a plan takes.
SCRIPT_ANSWER: `straight`, `unreadable`, `raise` or `missing`. SCRIPT_RIG: `256x128`, or empty for none.
SCRIPT_PROMPT: prompt of the planning task in its record, or empty for no record.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from wamdiff2_core.config import CameraSpec, PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.types import Check, DecodeStats, Observation, Plan, Waypoints
from wamdiff2_ros.planner_node import run


class ScriptedPlanner:
    """Drives straight on at the observed speed, after a pause."""

    def __init__(self) -> None:
        loaded = os.environ.get("SCRIPT_LOADED", "")
        while loaded and not os.path.exists(loaded):
            time.sleep(0.02)
        if os.environ.get("SCRIPT_ANSWER") == "missing":
            raise UserError("parameter planner", "a checkpoint folder", "scripted")
        size = os.environ.get("SCRIPT_RIG", "")
        self.rig = (CameraSpec(width_px=int(size.split("x")[0]), height_px=int(size.split("x")[1])),) if size else ()
        task = {
            "": None, "bench2drive": PlanningTask(), "navsim_paper": PlanningTask("navsim_paper", 8),
        }[os.environ.get("SCRIPT_PROMPT", "")]
        self.record = ServingRecord(planning=task) if task is not None else None

    def warm_up(self) -> None:
        """Nothing to warm."""

    def plan(self, observation: Observation) -> Plan:
        """Row i lies (i + 1) * 0.5 s ahead."""
        time.sleep(float(os.environ.get("SCRIPT_PLAN_S", "0")))
        answer = os.environ.get("SCRIPT_ANSWER", "straight")
        if answer == "raise":
            raise RuntimeError("no idea")
        if answer == "unreadable":
            return Plan(observation.stamp_ns, None, "1.0,x", check=Check(False, "not waypoints"), source="scripted")
        x_m = observation.ego.speed_mps * 0.5 * np.arange(1, 7)
        waypoints = Waypoints(np.stack([x_m, np.zeros(6)], axis=1), 0.5)
        stats = DecodeStats(3.0, 4.5, 5, 4, 2, 33, 6, 3, 1.5)
        return Plan(observation.stamp_ns, waypoints, "text", stats, source="scripted")


if __name__ == "__main__":
    sys.exit(run(make=lambda settings: ScriptedPlanner()))
