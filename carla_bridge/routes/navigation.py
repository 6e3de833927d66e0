"""Where the ego is on its route, and what the route asks for: target points and the command, as a model sees them.

Pure geometry in the map frame (REP-103); `route_planner` makes the routes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from carla_bridge.routes.leaderboard_plan import sparse_indices
from wamdiff2_core.config import TargetRule
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import inverse, transform_points
from wamdiff2_core.types import NavCommand, Navigation, Pose2D

WINDOW_BACK_M, WINDOW_AHEAD_M = 5.0, 20.0
GOAL_SHARE, GOAL_RADIUS_M = 0.99, 10.0
CHANGES = (NavCommand.CHANGE_LEFT, NavCommand.CHANGE_RIGHT)
ANNOUNCE_M, ANNOUNCE_CHANGE_M = 25.0, 10.0  # a junction's command, and a lane change's, holds from here before it


@dataclass(frozen=True)
class Manoeuvre:
    """A junction or a lane change of a route: from where to where it lasts, arc lengths, and its command."""

    start_m: float
    end_m: float
    command: NavCommand


def announced(manoeuvres: Iterable[Manoeuvre], arc_m: np.ndarray) -> tuple[NavCommand, ...]:
    """The command at each arc length: that of a manoeuvre from where it is announced until its end, else FOLLOW."""
    commands = np.full(len(arc_m), NavCommand.FOLLOW, dtype=object)
    in_order = sorted(manoeuvres, key=lambda manoeuvre: manoeuvre.start_m)
    for change in [manoeuvre for manoeuvre in in_order if manoeuvre.command in CHANGES]:
        commands[(arc_m >= change.start_m - ANNOUNCE_CHANGE_M) & (arc_m < change.end_m)] = change.command
    # later junctions first: the window of an earlier one ends at its exit and wins before it
    for junction in reversed([manoeuvre for manoeuvre in in_order if manoeuvre.command not in CHANGES]):
        commands[(arc_m >= junction.start_m - ANNOUNCE_M) & (arc_m < junction.end_m)] = junction.command
    return tuple(commands)


@dataclass(frozen=True)
class RoutePlan:
    """A dense path to drive, in the map frame (CARLA's world with y negated).

    Attributes:
        route_id, town: of the route it was made from.
        xy_m: (N, 2) points 1 m apart, from the start to beyond the goal.
        yaw_rad: (N,) direction of the path.
        z_m: (N,) height of the lane.
        commands: N commands. LEFT, RIGHT or STRAIGHT hold from 25 m before a junction, or from the exit of the one
            before it if that is nearer, until its exit; a lane change holds from 10 m before it until its end; else
            FOLLOW.
        length_m: arc length from the start to the goal; the path goes on beyond it.
        lanes: (road id, lane id) of the lanes from start to goal, in order.
        manoeuvres: junctions and lane changes, in order; the commands announce them.
    """

    route_id: str
    town: str
    xy_m: np.ndarray
    yaw_rad: np.ndarray
    z_m: np.ndarray
    commands: tuple[NavCommand, ...]
    length_m: float
    lanes: tuple[tuple[int, int], ...] = ()
    manoeuvres: tuple[Manoeuvre, ...] = ()
    arc_m: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        steps = np.linalg.norm(np.diff(self.xy_m, axis=0), axis=1)
        object.__setattr__(self, "arc_m", np.concatenate([[0.0], np.cumsum(steps)]))

    @property
    def start(self) -> Pose2D:
        """Pose of base_link at the start."""
        return Pose2D(float(self.xy_m[0, 0]), float(self.xy_m[0, 1]), float(self.yaw_rad[0]))

    @property
    def goal_m(self) -> np.ndarray:
        """(2,) the goal, map frame."""
        return self.at(np.array([self.length_m]))[0]

    def at(self, arc_m: np.ndarray) -> np.ndarray:
        """(K, 2) points at arc lengths, held at the path's ends."""
        return np.stack([np.interp(arc_m, self.arc_m, self.xy_m[:, k]) for k in (0, 1)], axis=1)

    def command_at(self, arc_m: float) -> NavCommand:
        """Command at an arc length."""
        index = int(np.searchsorted(self.arc_m, arc_m, side="right")) - 1
        return self.commands[min(max(index, 0), len(self.commands) - 1)]


class Navigator:
    """Follows the ego along one route.

    The ego is looked for from 5 m behind to 20 m ahead of where it has come to, so a route may cross or touch itself.

    Args:
        route: the path.
        rule: which points are shown as targets.

    Raises:
        UserError: the rule does not give two targets.
    """

    def __init__(self, route: RoutePlan, rule: TargetRule) -> None:
        wanted = 2 if rule.kind == "arc_length" else 1
        if len(rule.distances_m) != wanted:
            raise UserError("target_rule.distances_m", f"{wanted} distances for {rule.kind}", rule.distances_m)
        self.route = route
        self.progress_m = 0.0
        self.deviation_m = 0.0
        self.completed = False
        self.command = route.commands[0]
        self._rule = rule
        # The end of the path is a point too: beyond the goal targets must not pile up.
        self._sparse_m = np.append(route.arc_m[sparse_indices(route)], route.arc_m[-1])

    def update(self, map_from_base: Pose2D) -> Navigation:
        """Take the ego's pose and return what the route asks for, in base_link.

        Sets `progress_m` (farthest arc length reached), `deviation_m` (distance to the path), `completed` (over 99 % of
        the length and within 10 m of the goal; once true it stays true) and `command`.
        """
        here = np.array([map_from_base.x_m, map_from_base.y_m])
        arc, self.deviation_m = self._project(here)
        self.progress_m = max(self.progress_m, arc)
        near_goal = float(np.linalg.norm(here - self.route.goal_m)) < GOAL_RADIUS_M
        self.completed = self.completed or (near_goal and self.progress_m > GOAL_SHARE * self.route.length_m)
        self.command = self.route.command_at(arc)
        targets = transform_points(inverse(map_from_base), self.route.at(self._target_arcs(arc)))
        return Navigation(targets, self.command)

    def _project(self, here_m: np.ndarray) -> tuple[float, float]:
        """Arc length of the nearest point of the path in the window, and the distance to it."""
        arcs, xy = self.route.arc_m, self.route.xy_m
        first = max(int(np.searchsorted(arcs, self.progress_m - WINDOW_BACK_M, side="right")) - 1, 0)
        last = min(int(np.searchsorted(arcs, self.progress_m + WINDOW_AHEAD_M)), len(arcs) - 1)
        start, step = xy[first:last], np.diff(xy[first : last + 1], axis=0)
        lengths = np.linalg.norm(step, axis=1)
        share = np.einsum("ij,ij->i", here_m - start, step) / np.maximum(lengths, 1e-9) ** 2
        share = np.clip(share, 0.0, 1.0)
        distances = np.linalg.norm(start + share[:, None] * step - here_m, axis=1)
        best = int(np.argmin(distances))
        return float(arcs[first + best] + share[best] * lengths[best]), float(distances[best])

    def _target_arcs(self, arc_m: float) -> np.ndarray:
        if self._rule.kind == "arc_length":
            return arc_m + np.array(self._rule.distances_m)
        ahead = int(np.searchsorted(self._sparse_m, arc_m + self._rule.distances_m[0], side="right"))
        index = np.minimum([ahead, ahead + 1], len(self._sparse_m) - 1)
        return self._sparse_m[index]
