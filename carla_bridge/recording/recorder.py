"""Writes the files of one route while it is driven; `results` holds their schema."""

from __future__ import annotations

import csv
import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import simplejpeg

from carla_bridge.leaderboard.metric_info import METRIC_FILE, metric_entry
from carla_bridge.recording.results import PLANS_NAME, TRAJECTORY_NAME, PlanRecord, RouteShape, Tick
from carla_bridge.recording.scene_track import SCENE_NAME, SceneWriter
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.outputs import disk_errors_named
from wamdiff2_core.types import CameraFrame, EgoState

if TYPE_CHECKING:
    from carla_bridge.client.surroundings import Surroundings


class RouteRecorder:
    """Files of one route, closed on leaving the `with` block. A full disk is told with the name of the file.

    Attributes:
        ticks, plans: what was written so far.
    """

    def __init__(self, folder: Path, route: RoutePlan) -> None:
        """Create `folder` and write the route's shape.

        Args:
            folder: of this route.
            route: what is to be driven.
        """
        with disk_errors_named(folder):
            for name in ("frames", "model"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            shape = RouteShape(route.xy_m.round(3).tolist(), route.length_m)
            (folder / "route.json").write_text(json.dumps(dataclasses.asdict(shape)))
        self.folder = folder
        self.ticks: list[Tick] = []
        self.plans: list[PlanRecord] = []
        self._trajectory = (folder / TRAJECTORY_NAME).open("w", newline="")
        self._csv = csv.writer(self._trajectory, lineterminator="\n")
        self._csv.writerow([field.name for field in dataclasses.fields(Tick)])
        self._plans = (folder / PLANS_NAME).open("w")
        self._metrics = (folder / METRIC_FILE).open("w")
        self._metrics.write("{")
        self._scene_file = (folder / SCENE_NAME).open("w")
        self._scene = SceneWriter(self._scene_file)

    def tick(self, tick: Tick, ego: EgoState) -> None:
        """Add a tick to the trajectory and to the metric file."""
        with disk_errors_named(self.folder / METRIC_FILE):
            entry = json.dumps({str(len(self.ticks)): metric_entry(ego)})
            self._metrics.write((",\n" if self.ticks else "") + entry[1:-1])
        self.ticks.append(tick)
        with disk_errors_named(self.folder / TRAJECTORY_NAME):
            self._csv.writerow(tick.row())

    def plan(self, record: PlanRecord) -> None:
        """Add a line to the plans."""
        self.plans.append(record)
        with disk_errors_named(self.folder / PLANS_NAME):
            self._plans.write(json.dumps(dataclasses.asdict(record)) + "\n")

    def scene(self, t_ns: int, around: Surroundings) -> None:
        """Add a line to the scene: what is around the ego vehicle at a time since the route began."""
        with disk_errors_named(self.folder / SCENE_NAME):
            self._scene.write(t_ns, around)

    def pictures(self, name: str, planner: CameraFrame | None, display: CameraFrame | None) -> None:
        """Store the pictures of one moment as `name`; without a display camera the planner's stands in."""
        for folder, frame, quality in (("model", planner, 90), ("frames", display or planner, 82)):
            if frame is not None:
                jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(frame.rgb), quality=quality, colorspace="RGB")
                path = self.folder / folder / name
                with disk_errors_named(path):
                    path.write_bytes(jpeg)

    def close(self) -> None:
        """Flush and close the files. Idempotent."""
        with ExitStack() as stack:  # each is closed, whatever the others come to
            for name, file, end in ((SCENE_NAME, self._scene_file, ""), (PLANS_NAME, self._plans, ""),
                                    (METRIC_FILE, self._metrics, "}\n"), (TRAJECTORY_NAME, self._trajectory, "")):
                stack.callback(_close, file, self.folder / name, end)

    def __enter__(self) -> RouteRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(file: TextIO, path: Path, end: str) -> None:
    with disk_errors_named(path):
        try:
            if not file.closed:
                file.write(end)
        finally:
            file.close()
