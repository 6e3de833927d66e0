"""The plan that CARLA's leaderboard gives an agent, as a route to navigate by.

It comes as a dense list of poses with a road option each, traced by CARLA's own planner: an option stands only on the
points of the junction or lane change it speaks of. Models were trained with commands that are told ahead, as
`navigation.announced` tells them.
"""

from __future__ import annotations

import numpy as np

from carla_bridge.routes.leaderboard_plan import OPTIONS
from carla_bridge.routes.navigation import Manoeuvre, RoutePlan, announced
from carla_bridge.routes.route_planner import OVERRUN_M
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import flip_y
from wamdiff2_core.types import NavCommand, not_finite_at

COMMANDS = {int(option): command for command, option in OPTIONS.items()}
MIN_STEP_M = 0.05
MIN_LENGTH_M = 2.0
DIRECTION_M = 3.0  # length at the end that gives the direction beyond it


def route_from_global_plan(positions_carla: np.ndarray, options: list[int], route_id: str = "") -> RoutePlan:
    """The route of a leaderboard's dense plan.

    Args:
        positions_carla: (N, 3) metres, CARLA's world, about 1 m apart.
        options: N values of `RoadOption`.
        route_id: for the result.

    Returns:
        points 1 m apart, straight on for 40 m beyond the goal, so that target points never pile up there.

    Raises:
        UserError: it is no plan of at least 2 m.
    """
    points = np.asarray(positions_carla, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or len(points) != len(options):
        raise UserError("global plan", "(N, 3) positions and N options", f"{points.shape}, {len(options)}")
    place = not_finite_at(points)
    if place is not None:
        raise UserError(f"global plan: position {place[0] + 1}", "finite x, y and z", points[place[0]].tolist())
    xyz, kept = _forward_only(flip_y(points))
    arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(xyz[:, :2], axis=0), axis=1))])
    length = float(arc[-1])
    if length < MIN_LENGTH_M:
        raise UserError("global plan", f"at least {MIN_LENGTH_M:g} m of road", f"{length:.2f} m")
    tail = xyz[-1, :2] - [np.interp(length - DIRECTION_M, arc, xyz[:, k]) for k in (0, 1)]
    beyond = np.append(xyz[-1, :2] + tail / np.linalg.norm(tail) * OVERRUN_M, xyz[-1, 2])
    arc, xyz = np.append(arc, length + OVERRUN_M), np.vstack([xyz, beyond])

    even = np.arange(0.0, arc[-1] + 1e-9, 1.0)
    x, y, z = (np.interp(even, arc, xyz[:, k]) for k in range(3))
    tangent = np.gradient(np.stack([x, y], axis=1), axis=0)
    manoeuvres = _manoeuvres([COMMANDS.get(int(options[k]), NavCommand.FOLLOW) for k in kept], arc[:-1])
    return RoutePlan(
        route_id, "", np.stack([x, y], axis=1), np.arctan2(tangent[:, 1], tangent[:, 0]), z,
        announced(manoeuvres, even), length, manoeuvres=manoeuvres,
    )


def _forward_only(xyz_m: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The points without those that repeat or step back: CARLA's planner is asked from key point to key point, and
    begins each stretch at the lane point nearest to it, which may lie a little behind the last one."""
    kept = [0]
    for k in range(1, len(xyz_m)):
        step = xyz_m[k, :2] - xyz_m[kept[-1], :2]
        if np.linalg.norm(step) < MIN_STEP_M:
            continue
        if len(kept) > 1:
            before = xyz_m[kept[-1], :2] - xyz_m[kept[-2], :2]
            if step @ before < 0 and np.linalg.norm(step) < 2 * MIN_LENGTH_M:
                continue
        kept.append(k)
    return xyz_m[kept], kept


def _manoeuvres(commands: list[NavCommand], arc_m: np.ndarray) -> tuple[Manoeuvre, ...]:
    """Each run of one command other than FOLLOW, from its first point to the point after it."""
    found, begin = [], 0
    for k in range(1, len(commands) + 1):
        if k == len(commands) or commands[k] is not commands[begin]:
            if commands[begin] is not NavCommand.FOLLOW:
                end_m = float(arc_m[min(k, len(arc_m) - 1)])
                found.append(Manoeuvre(float(arc_m[begin]), end_m, commands[begin]))
            begin = k
    return tuple(found)
