"""The leaderboard's plan as a route: made by hand here, as CARLA's own planner emits it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from carla_bridge.routes import ROUTES_FOLDER, route_planner
from carla_bridge.routes.global_plan import route_from_global_plan
from carla_bridge.routes.leaderboard_plan import road_options
from carla_bridge.routes.route_file import load_routes
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import flip_y
from wamdiff2_core.types import NavCommand

LEFT, RIGHT, STRAIGHT, FOLLOW, CHANGE_LEFT = 1, 2, 3, 4, 5


def straight(options: list[int], step_m: float = 1.0) -> tuple[np.ndarray, list[int]]:
    x = step_m * np.arange(len(options))
    return np.stack([x, np.full(len(x), 5.0), np.zeros(len(x))], axis=1), options


def runs(commands: tuple[NavCommand, ...]) -> list[tuple[NavCommand, int, int]]:
    """(command, first index, index after the last) of each run that is not FOLLOW."""
    edges = [0, *(k for k in range(1, len(commands)) if commands[k] is not commands[k - 1]), len(commands)]
    return [(commands[a], a, b) for a, b in itertools.pairwise(edges) if commands[a] is not NavCommand.FOLLOW]


def test_positions_are_flipped_and_go_on_beyond_the_goal() -> None:
    route = route_from_global_plan(*straight([FOLLOW] * 31), route_id="r")
    assert route.route_id == "r"
    assert route.length_m == pytest.approx(30.0)
    np.testing.assert_allclose(route.xy_m[:, 1], -5.0)
    np.testing.assert_allclose(route.xy_m[:, 0], np.arange(71.0))
    np.testing.assert_allclose(route.goal_m, [30.0, -5.0])
    assert set(route.commands) == {NavCommand.FOLLOW}


def test_turns_are_told_25_m_ahead_and_until_the_exit() -> None:
    route = route_from_global_plan(*straight([FOLLOW] * 40 + [LEFT] * 12 + [FOLLOW] * 30))
    assert runs(route.commands) == [(NavCommand.LEFT, 15, 52)]


def test_an_earlier_turn_wins_over_the_announcement_of_the_next() -> None:
    route = route_from_global_plan(*straight([FOLLOW] * 40 + [LEFT] * 10 + [FOLLOW] * 8 + [RIGHT] * 10 + [FOLLOW] * 5))
    assert runs(route.commands) == [(NavCommand.LEFT, 15, 50), (NavCommand.RIGHT, 50, 68)]


def test_lane_changes_are_told_10_m_ahead() -> None:
    points, options = straight([FOLLOW] * 30 + [CHANGE_LEFT] * 2 + [FOLLOW] * 30)
    points[31:, 1] -= 3.5
    route = route_from_global_plan(points, options)
    (command, first, after), = runs(route.commands)
    assert command is NavCommand.CHANGE_LEFT
    assert (first, after) == (20, 35)  # the diagonal makes the way 2.64 m longer
    np.testing.assert_allclose(route.xy_m[[0, 40], 1], [-5.0, -1.5])


def test_points_that_repeat_or_step_back_are_left_out() -> None:
    points, options = straight([FOLLOW] * 50)
    again = np.insert(points, 25, [points[24], points[23] + [0.4, 0.1, 0.0]], axis=0)
    route = route_from_global_plan(again, options + [FOLLOW] * 2)
    assert route.length_m == pytest.approx(49.0, abs=0.1)
    assert np.all(np.diff(route.xy_m[:, 0]) > 0.9)


@pytest.mark.carla
def test_it_undoes_what_the_leaderboard_does_to_a_planned_route() -> None:
    carla = pytest.importorskip("carla", reason="needs the carla client library")
    town = Path(route_planner.__file__).parents[1] / "server" / "towns" / "Wamtown01.xodr"
    planner = route_planner.RoutePlanner(carla.Map("Wamtown01", town.read_text()))
    for spec in load_routes(ROUTES_FOLDER / "demo.xml"):
        planned = planner.plan(spec)
        options = [int(option) for option in road_options(planned)]
        positions = np.column_stack([flip_y(planned.xy_m), planned.z_m])[: len(options)]
        again = route_from_global_plan(positions, options)
        assert again.length_m == pytest.approx(planned.length_m, abs=1.0)
        shared = np.arange(0.0, again.length_m - 1.0)
        assert np.abs(again.at(shared) - planned.at(shared)).max() < 0.1
        told, planned_told = [[plan.command_at(arc) for arc in shared] for plan in (again, planned)]
        differing = sum(a is not b for a, b in zip(told, planned_told, strict=True))
        assert differing <= 2 * len(planned.manoeuvres)


def test_what_is_no_plan_is_refused() -> None:
    points, options = straight([FOLLOW] * 10)
    for wrong, code in ((points[:, :2], options), (points, options[:-1]), (points * np.nan, options)):
        with pytest.raises(UserError, match="global plan"):
            route_from_global_plan(wrong, code)
    points[4, 1] = np.nan
    with pytest.raises(UserError, match=r"global plan: position 5: expected finite .*\[4.0, nan, 0.0\]"):
        route_from_global_plan(points, options)
    with pytest.raises(UserError, match="at least 2 m"):
        route_from_global_plan(points[[3, 3, 3]], [FOLLOW] * 3)
