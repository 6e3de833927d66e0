"""SimLingo's Bench2Drive training set (PDM-Lite in CARLA) to planning samples.

Layout (SimLingo's data agent): any depth of folders below SRC, and in each route's folder `measurements/0000.json.gz`,
`rgb/0000.jpg` and `results.json.gz`, at 4 Hz. A measurement has `ego_matrix` (4 x 4, CARLA's world from the vehicle's
centre), `speed` (m/s), `target_point` and `target_point_next` (ego frame, the 2nd and 3rd points of the route beyond
7.5 m) and `command` (CARLA's RoadOption). All of it is CARLA's: x forward, y right; so is the text.

As SimLingo's own loader does: the first 2.5 s of a route are left out, and routes that failed, unless only for being
slow or out of lane with more than 94 % of the way done. A frame whose next three seconds were not recorded is left out.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from training.data.converters.common import Writer, existing
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import flip_y
from wamdiff2_core.tasks.planning import format_waypoints, planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation, Waypoints

TASK = PlanningTask()  # Bench2Drive's prompt: 6 waypoints every 0.5 s, 2 decimals, y right
FRAMES_PER_WAYPOINT = 2  # measurements come every 0.25 s
SKIPPED_FRAMES = 10
COMMANDS = {
    1: NavCommand.LEFT, 2: NavCommand.RIGHT, 3: NavCommand.STRAIGHT, 4: NavCommand.FOLLOW,
    5: NavCommand.CHANGE_LEFT, 6: NavCommand.CHANGE_RIGHT,
}
_MIN_ROUTE_SCORE = 94.0
_FORGIVEN = ("min_speed_infractions", "outside_route_lanes")
_NO_PICTURE = CameraFrame(np.zeros((1, 1, 3), np.uint8), 0)


def convert(src: Path, writer: Writer, failed_routes: bool = False) -> None:
    """Write the planning samples of all routes below a folder.

    Args:
        src: any folder above the routes.
        writer: where to.
        failed_routes: keep them too, and those without a result.

    Raises:
        UserError: there is no route.
    """
    found = False
    for route in route_folders(existing(src, "SimLingo's data folder")):
        found = True
        if writer.full:
            return
        if not failed_routes and (reason := why_left_out(route)):
            writer.leave_out(reason)
            continue
        _convert_route(route, src, writer)
    if not found:
        raise UserError("SRC", "SimLingo's layout, route folders with measurements and rgb", f"none below {src}")


def route_folders(src: Path) -> Iterator[Path]:
    """Folders that hold `measurements` and `rgb`, sorted."""
    for folder, children, _ in os.walk(src):
        if {"measurements", "rgb"} <= set(children):
            yield Path(folder)
            children.clear()
        children.sort()


def why_left_out(route: Path) -> str:
    """Why a route is not learnt from, or nothing."""
    try:
        result = _read(route / "results.json.gz")
        if result["scores"]["score_composed"] >= 100.0:
            return ""
        forgiven = sum(len(result["infractions"][kind]) for kind in _FORGIVEN)
        fine = result["scores"]["score_route"] > _MIN_ROUTE_SCORE and result["num_infractions"] == forgiven
        return "" if fine else "route failed"
    except FileNotFoundError:
        return "route without a result"
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return "route with an unreadable result"


def _convert_route(route: Path, src: Path, writer: Writer) -> None:
    name = route.relative_to(src).as_posix()
    measurements: dict[int, Any] = {}
    for file in sorted((route / "measurements").glob("*.json.gz")):
        try:
            measurements[int(file.name.partition(".")[0])] = _read(file)
        except (OSError, EOFError, ValueError) as error:
            writer.problem("unreadable measurement", f"{file}: {error}")
    horizon = range(FRAMES_PER_WAYPOINT, FRAMES_PER_WAYPOINT * TASK.waypoints + 1, FRAMES_PER_WAYPOINT)
    for frame, now in measurements.items():
        if writer.full:
            return
        if frame < SKIPPED_FRAMES:
            writer.leave_out("start of a route")
            continue
        if not all(frame + ahead in measurements for ahead in horizon):
            writer.leave_out("no three seconds ahead")
            continue
        try:
            future = [measurements[frame + ahead] for ahead in horizon]
            waypoints = Waypoints(flip_y(_in_ego_frame(now, future)), TASK.dt_s)
            targets = flip_y(np.array([now["target_point"][:2], now["target_point_next"][:2]], np.float64))
            command = COMMANDS.get(int(now["command"]), NavCommand.FOLLOW)  # VOID, -1, is driven as CARLA's agents do
            ego = EgoState(np.array([float(now["speed"]), 0.0]))
            observation = Observation((_NO_PICTURE,), ego, Navigation(targets, command))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            writer.problem("bad measurement", f"{name}/{frame:04}: {type(error).__name__}: {error}")
            continue
        extra = {"route": name, "command": command.name, "speed_mps": round(ego.speed_mps, 3)}
        writer.add(f"{name}/{frame:04}", [route / "rgb" / f"{frame:04}.jpg"], planning_prompt(observation, TASK),
                   format_waypoints(waypoints, TASK), extra)


def _in_ego_frame(now: dict[str, Any], future: list[dict[str, Any]]) -> np.ndarray:
    """(T, 2) positions in the vehicle's frame now: x forward, y right, metres; hills are looked at from above it."""
    world_from_ego = np.array(now["ego_matrix"], np.float64)
    positions = np.array([np.array(frame["ego_matrix"], np.float64)[:3, 3] for frame in future])
    local: np.ndarray = (positions - world_from_ego[:3, 3]) @ world_from_ego[:3, :3]
    return local[:, :2]


def _read(file: Path) -> Any:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return json.load(stream)
