"""The shipped checkpoint's camera, prompt and target rule; also what an agent without a record of its own is given."""

from __future__ import annotations

from wamdiff2_core.config import CameraSpec, PlanningTask, TargetRule

NANO_TASK = PlanningTask(
    prompt="bench2drive", waypoints=6, dt_s=0.5, decimals=1, input_decimals=1, y_axis="right",
    target_rule=TargetRule("arc_length", (10.0, 20.0)),
)
NANO_CAMERA = CameraSpec()
