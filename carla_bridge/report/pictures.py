"""Camera pictures of a run with their plans drawn in, as files beside the pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg

from carla_bridge.recording.results import PlanRecord
from carla_bridge.report.overlay import draw_plan
from wamdiff2_core.config import CameraSpec

PICTURES_NAME = "pictures"
QUALITY = 80


@dataclass(frozen=True)
class Picture:
    """A camera picture with its plan: `file` is relative to the report's folder."""

    file: str
    caption: str
    text: str


class PictureBook:
    """The pictures of one route, drawn when they are asked for."""

    def __init__(
        self, route_folder: Path, report_folder: Path, name: str, camera: CameraSpec, plans: list[PlanRecord]
    ) -> None:
        """Prepare to write into `report_folder`, under file names that begin with `name`."""
        self._frames, self._target, self._name, self._camera = route_folder / "frames", report_folder, name, camera
        there = {path.name for path in self._frames.iterdir()} if self._frames.is_dir() else set()
        self._plans = [plan for plan in plans if plan.image in there]

    def spread(self, count: int) -> list[Picture]:
        """`count` pictures spread over the drive; those in the middle of a turn first, as they show most."""
        plans = self._plans
        if not plans:
            return []
        spread = max(1, len(plans) // (2 * count))
        chosen = {round(i) for i in np.linspace(0, len(plans) - 1, count)}
        return [self._draw(_most_turning(plans, index, spread)) for index in sorted(chosen)]

    def at(self, t_s: float) -> str:
        """File of the last picture at or before a time; empty without one. Its caption says when it was taken."""
        before = [plan for plan in self._plans if plan.t_ns * 1e-9 <= t_s + 1e-6]
        return self._draw(before[-1]).file if before else ""

    def _draw(self, plan: PlanRecord) -> Picture:
        file = f"{PICTURES_NAME}/{self._name}-{plan.image}"
        path = self._target / file
        if not path.is_file():
            rgb = simplejpeg.decode_jpeg((self._frames / plan.image).read_bytes(), "RGB")
            drawn = draw_plan(rgb, self._camera, np.array(plan.waypoints_m), np.array(plan.targets_m), plan.ok)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(simplejpeg.encode_jpeg(drawn, quality=QUALITY, colorspace="RGB"))
        caption = f"{plan.t_ns * 1e-9:.2f} s · {plan.speed_mps:.1f} m/s · {plan.command.lower().replace('_', ' ')}"
        if not plan.ok:
            caption += f" · {plan.message or 'no plan'}"
        return Picture(file, caption, plan.text)


def _most_turning(plans: list[PlanRecord], index: int, spread: int) -> PlanRecord:
    """Of the plans around `index`, the one that turns most; the plan itself at the drive's ends."""
    if index in (0, len(plans) - 1):
        return plans[index]
    near = plans[max(0, index - spread) : index + spread + 1]
    return max(near, key=lambda plan: abs(plan.waypoints_m[-1][1]) if plan.ok else 0.0)
