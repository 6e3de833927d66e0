"""NAVSIM: OpenScene logs and camera images to planning samples.

Layout (NAVSIM's install guide): `SRC/navsim_logs/SPLIT/LOG.pkl`, `SRC/sensor_blobs/SPLIT/LOG/CAMERA/*.jpg`. A log is
a list of frames at 2 Hz; `ego2global_translation`, `ego2global_rotation` (w, x, y, z) are the rear axle in the map,
`ego_dynamic_state` is (vx, vy, ax, ay) in the ego frame, `driving_command` one of (left, forward, right, unknown), and
`cams[NAME]["data_path"]` an image below the split's sensor folder (OpenScene's create_openscene_metadata.py).

Scenes are windows over a log, as NAVSIM's scene filter takes them: 4 frames of history, of which the last is now, and
10 of future; the next 8 are the answer: x forward, y left, metres, rear axle, heading as NAVSIM's devkit reads it.

The logs are pickles. They are read by an unpickler that knows plain values and NumPy arrays and nothing else, so a log
cannot run code.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from training.data.converters.common import Writer, existing
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import inverse, transform_points
from wamdiff2_core.tasks.planning import format_waypoints, planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Pose2D, Waypoints

# The paper shows three front images without naming them: left, front, right, as they lie side by side.
CAMERAS = {"navsim_upstream": ("CAM_F0",), "navsim_paper": ("CAM_L0", "CAM_F0", "CAM_R0")}
COMMANDS = (NavCommand.LEFT, NavCommand.STRAIGHT, NavCommand.RIGHT, None)
WAYPOINTS, DT_S = 8, 0.5
_GAP_S = 0.25  # frames further than this from their time do not make waypoints half a second apart
_NO_PICTURE = CameraFrame(np.zeros((1, 1, 3), np.uint8), 0)
_RECONSTRUCTORS = {
    (module, name)
    for package in ("numpy.core", "numpy._core")
    for module, name in ((f"{package}.multiarray", "_reconstruct"), (f"{package}.multiarray", "scalar"),
                         (f"{package}.numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype")}


@dataclass(frozen=True)
class SceneFilter:
    """Which windows of a log are scenes; the defaults are those of NAVSIM's `navtrain`.

    Attributes:
        history, future: frames up to now, and after it.
        interval: frames between the starts of two windows.
        needs_route: leave out frames without a route.
        logs, tokens: only these logs, and only windows whose present frame is one of these; None for all.
    """

    history: int = 4
    future: int = 10
    interval: int = 1
    needs_route: bool = True
    logs: frozenset[str] | None = None
    tokens: frozenset[str] | None = None

    @classmethod
    def load(cls, file: Path) -> SceneFilter:
        """Read one of NAVSIM's scene filter files, such as `navtrain.yaml`.

        Raises:
            UserError: it cannot be read, or a field has the wrong type.
        """
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # lists of 100,000 tokens take a while in Python
        try:
            data = yaml.load(file.read_text(encoding="utf-8"), loader)
            logs, tokens = data.get("log_names"), data.get("tokens")
            return cls(
                int(data.get("num_history_frames", cls.history)), int(data.get("num_future_frames", cls.future)),
                int(data.get("frame_interval") or 1), bool(data.get("has_route", True)),
                None if logs is None else frozenset(map(str, logs)),
                None if tokens is None else frozenset(map(str, tokens)),
            )
        except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
            raise UserError(str(file), "a NAVSIM scene filter (YAML)", " ".join(str(error).split())) from None


class _DataUnpickler(pickle.Unpickler):
    """Knows plain values and NumPy arrays; everything else that a pickle may name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if (module, name) not in _RECONSTRUCTORS:
            raise pickle.UnpicklingError(f"{module}.{name} is neither a plain value nor a NumPy array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference to an object outside the file")


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Bytes of an array, as pickles of protocol 2 hold them."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"text in {encoding!r} instead of an array's bytes")
    return text.encode("latin1")


def load_log(file: Path) -> list[dict[str, Any]]:
    """Frames of a log, without running anything.

    Raises:
        UserError: it is damaged, holds more than data, or is not a list of frames.
    """
    try:
        frames = _DataUnpickler(io.BytesIO(file.read_bytes())).load()
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise UserError(str(file), "a log of plain data", f"{type(error).__name__}: {error}") from None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise UserError(str(file), "a list of frames", type(frames).__name__)
    return frames


def convert(
    src: Path, writer: Writer, split: str = "trainval", scenes: SceneFilter = SceneFilter(),
    prompt: Literal["navsim_upstream", "navsim_paper"] = "navsim_upstream",
) -> None:
    """Write the planning samples of a split.

    Args:
        src: folder with `navsim_logs` and `sensor_blobs`.
        writer: where to.
        split: folder name in both.
        scenes: which windows.
        prompt: the authors' data sample (front camera), or the paper's appendix (three cameras).

    Raises:
        UserError: the layout is not there.
    """
    logs = existing(src / "navsim_logs" / split, f"NAVSIM's layout, navsim_logs/{split}")
    blobs = existing(src / "sensor_blobs" / split, f"NAVSIM's layout, sensor_blobs/{split}")
    task = PlanningTask(prompt=prompt, waypoints=WAYPOINTS, dt_s=DT_S, y_axis="left")
    for file in sorted(logs.glob("*.pkl")):
        if scenes.logs is not None and file.stem not in scenes.logs:
            continue
        try:
            frames = load_log(file)
        except UserError as error:
            writer.problem("unreadable log", str(error))
            continue
        for start in range(0, len(frames), scenes.interval):
            if writer.full:
                return
            _convert_window(frames[start : start + scenes.history + scenes.future], writer, blobs, file.stem, scenes,
                            task)


def _convert_window(
    window: Sequence[dict[str, Any]], writer: Writer, blobs: Path, log: str, scenes: SceneFilter, task: PlanningTask
) -> None:
    if len(window) < scenes.history + scenes.future:
        writer.leave_out("the log ends before")
        return
    now = window[scenes.history - 1]
    future = window[scenes.history : scenes.history + WAYPOINTS]
    try:
        if scenes.tokens is not None and now["token"] not in scenes.tokens:
            writer.leave_out("not in the scene filter")
            return
        if scenes.needs_route and len(now["roadblock_ids"]) == 0:
            writer.leave_out("no route")
            return
        times_s = [(int(frame["timestamp"]) - int(now["timestamp"])) / 1e6 for frame in future]
        if any(abs(time - (k + 1) * DT_S) > _GAP_S for k, time in enumerate(times_s)):
            writer.leave_out("frames missing in the future")
            return
        xy_m = transform_points(inverse(ego_pose(now)), np.array([ego_position(frame) for frame in future]))
        vx, vy, ax, ay = (float(value) for value in now["ego_dynamic_state"])
        command = COMMANDS[int(np.argmax(now["driving_command"]))]
        navigation = Navigation(np.zeros((2, 2)), command)  # NAVSIM's prompt has no targets
        observation = Observation((_NO_PICTURE,), EgoState(np.array([vx, vy]), np.array([ax, ay])), navigation)
        images = [blobs / now["cams"][camera]["data_path"] for camera in CAMERAS[task.prompt]]
        answer = format_waypoints(Waypoints(xy_m, DT_S), task)
        name = str(now["token"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        writer.problem("bad frame", f"{log}: {type(error).__name__}: {error}")
        return
    writer.add(name, images, planning_prompt(observation, task), answer,
               {"log": log, "command": "UNKNOWN" if command is None else command.name, "speed_mps": round(vx, 3)})


def ego_position(frame: dict[str, Any]) -> tuple[float, float]:
    """Rear axle in the map, metres."""
    x, y = (float(value) for value in frame["ego2global_translation"][:2])
    return x, y


def ego_pose(frame: dict[str, Any]) -> Pose2D:
    """Pose of the rear axle in the map; the heading is the yaw that NAVSIM's devkit takes from the quaternion."""
    w, x, y, z = np.asarray(frame["ego2global_rotation"], np.float64) / np.linalg.norm(frame["ego2global_rotation"])
    return Pose2D(*ego_position(frame), math.atan2(2 * (w * z - x * y), 1 - 2 * (y * y + z * z)))
