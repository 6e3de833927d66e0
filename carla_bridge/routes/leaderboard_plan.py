"""A planned route as the CARLA leaderboard hands it to an agent: road options, and the sparse plan.

The leaderboard's options begin and end with the junction or the lane change itself, while the commands of a `RoutePlan`
announce them. Sources: `route_manipulation.py` of Bench2Drive 0.0.4, and the option numbers of CARLA's `agents`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from wamdiff2_core.types import NavCommand

if TYPE_CHECKING:
    from carla_bridge.routes.navigation import RoutePlan

SPARSE_STEP_M = 50.0  # Bench2Drive; the leaderboard proper has 200


class RoadOption(IntEnum):
    """CARLA's numbers of what a route does at a point."""

    VOID = -1
    LEFT = 1
    RIGHT = 2
    STRAIGHT = 3
    LANEFOLLOW = 4
    CHANGELANELEFT = 5
    CHANGELANERIGHT = 6


OPTIONS = {
    NavCommand.LEFT: RoadOption.LEFT,
    NavCommand.RIGHT: RoadOption.RIGHT,
    NavCommand.STRAIGHT: RoadOption.STRAIGHT,
    NavCommand.FOLLOW: RoadOption.LANEFOLLOW,
    NavCommand.CHANGE_LEFT: RoadOption.CHANGELANELEFT,
    NavCommand.CHANGE_RIGHT: RoadOption.CHANGELANERIGHT,
}
CHANGES = (RoadOption.CHANGELANELEFT, RoadOption.CHANGELANERIGHT)


def road_options(plan: RoutePlan) -> tuple[RoadOption, ...]:
    """The option at each point of the plan from its start to its goal, the points a metre apart."""
    arc_m = plan.arc_m[plan.arc_m <= plan.length_m + 1e-6]
    options = [RoadOption.LANEFOLLOW] * len(arc_m)
    for manoeuvre in plan.manoeuvres:
        for index in np.flatnonzero((arc_m >= manoeuvre.start_m) & (arc_m <= manoeuvre.end_m)):
            options[index] = OPTIONS[manoeuvre.command]
    return tuple(options)


def sparse_indices(plan: RoutePlan) -> list[int]:
    """Which points an agent is given.

    The first, all of a lane change, each where the option changes except after a lane change, one once more than
    50 m have been added up since, and the last. As upstream, the metres before and after a given point that are due to
    it being given do not count.
    """
    options = road_options(plan)
    chosen, gone_m = [0], 0.0
    for index in range(1, len(options)):
        option, before = options[index], options[index - 1]
        changed = option is not before and before not in CHANGES
        if option in CHANGES or changed or gone_m > SPARSE_STEP_M or index == len(options) - 1:
            chosen.append(index)
            gone_m = 0.0
        else:
            gone_m += float(plan.arc_m[index] - plan.arc_m[index - 1])
    return chosen
