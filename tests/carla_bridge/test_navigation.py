"""The navigator on routes made by hand; positions follow from elementary geometry."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.routes.navigation import Manoeuvre, Navigator, RoutePlan
from wamdiff2_core.config import TargetRule
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import NavCommand, Pose2D

ARC = TargetRule("arc_length", (10.0, 20.0))
F, L = NavCommand.FOLLOW, NavCommand.LEFT


def route(xy_m: np.ndarray, length_m: float, commands=None) -> RoutePlan:
    tangent = np.gradient(xy_m, axis=0)
    return RoutePlan(
        "r",
        "t",
        xy_m,
        np.arctan2(tangent[:, 1], tangent[:, 0]),
        np.zeros(len(xy_m)),
        tuple(commands or [F] * len(xy_m)),
        length_m,
    )


def straight(length: int = 140, goal: float = 100.0, commands=None) -> RoutePlan:
    return route(np.stack([np.arange(length + 1.0), np.zeros(length + 1)], axis=1), goal, commands)


def figure_eight() -> RoutePlan:
    """Two circles of 30 m radius that touch at the origin: the path passes there in the middle of its way."""
    s = np.arange(0.0, 2 * math.pi * 30)
    left = np.stack([30 * np.sin(s / 30), 30 - 30 * np.cos(s / 30)], axis=1)
    s2 = s + 1.0 - (2 * math.pi * 30 - s[-1])
    right = np.stack([30 * np.sin(s2 / 30), 30 * np.cos(s2 / 30) - 30], axis=1)
    return route(np.concatenate([left, right]), 2 * 2 * math.pi * 30 - 40)


def test_targets_lie_ahead_by_arc_length_in_base_link():
    navigator = Navigator(straight(), ARC)
    seen = navigator.update(Pose2D(5.0, 0.0, 0.0))
    np.testing.assert_allclose(seen.targets_m, [[10, 0], [20, 0]], atol=1e-9)
    # two metres to the left of the path and turned left by 90 degrees: the path is to the right, then behind
    seen = navigator.update(Pose2D(6.0, 2.0, math.pi / 2))
    np.testing.assert_allclose(seen.targets_m, [[-2, -10], [-2, -20]], atol=1e-9)
    assert navigator.deviation_m == pytest.approx(2.0)
    assert navigator.progress_m == pytest.approx(6.0)


def test_targets_follow_a_left_curve_to_the_left():
    s = np.arange(0.0, 80.0)
    curve = route(np.stack([40 * np.sin(s / 40), 40 - 40 * np.cos(s / 40)], axis=1), 50.0)
    targets = Navigator(curve, ARC).update(Pose2D(0.0, 0.0, 0.0)).targets_m
    np.testing.assert_allclose(
        targets, [[40 * math.sin(a / 40), 40 - 40 * math.cos(a / 40)] for a in (10, 20)], atol=0.02
    )
    assert targets[1, 1] > targets[0, 1] > 0


def test_targets_do_not_collapse_at_the_goal():
    navigator = Navigator(straight(), ARC)
    for x in range(0, 101, 5):
        targets = navigator.update(Pose2D(float(x), 0.0, 0.0)).targets_m
        np.testing.assert_allclose(targets[:, 0], [10, 20], atol=1e-9)


@given(st.floats(-math.pi, math.pi), st.floats(-50, 50), st.floats(-50, 50))
def test_targets_do_not_depend_on_where_the_map_has_its_origin(yaw, x, y):
    c, s = math.cos(yaw), math.sin(yaw)
    turn = np.array([[c, -s], [s, c]])
    base = straight()
    moved = route(base.xy_m @ turn.T + (x, y), base.length_m)
    here = turn @ (7.3, 0.8) + (x, y)
    expected = Navigator(base, ARC).update(Pose2D(7.3, 0.8, 0.1)).targets_m
    seen = Navigator(moved, ARC).update(Pose2D(here[0], here[1], 0.1 + yaw)).targets_m
    np.testing.assert_allclose(seen, expected, atol=1e-6)


def test_a_crossing_does_not_confuse_progress():
    path = figure_eight()
    navigator = Navigator(path, ARC)
    last = 0.0
    for arc in np.arange(0.0, path.length_m, 2.0):
        x, y = path.at(np.array([arc]))[0]
        yaw = float(path.yaw_rad[int(arc)])
        navigator.update(Pose2D(x, y, yaw))
        assert navigator.progress_m == pytest.approx(arc, abs=0.6)
        assert navigator.progress_m >= last
        last = navigator.progress_m
        assert not navigator.completed or arc > 0.98 * path.length_m


def test_jitter_backwards_does_not_lower_progress():
    navigator = Navigator(straight(), ARC)
    navigator.update(Pose2D(10.0, 0.0, 0.0))
    seen = navigator.update(Pose2D(8.0, 0.0, 0.0))
    assert navigator.progress_m == pytest.approx(10.0)
    np.testing.assert_allclose(seen.targets_m[:, 0], [10, 20])


def test_route_is_completed_only_over_99_percent_and_near_the_goal():
    navigator = Navigator(straight(), ARC)
    for x in np.arange(0.0, 99.0, 5.0):
        navigator.update(Pose2D(float(x), 0.0, 0.0))
        assert not navigator.completed
    navigator.update(Pose2D(99.5, 12.0, 0.0))
    assert navigator.progress_m > 99
    assert not navigator.completed
    navigator.update(Pose2D(99.5, 1.0, 0.0))
    assert navigator.completed
    navigator.update(Pose2D(115.0, 1.0, 0.0))
    assert navigator.completed


def test_a_jump_to_the_goal_is_no_completion():
    navigator = Navigator(straight(), ARC)
    navigator.update(Pose2D(0.0, 0.0, 0.0))
    navigator.update(Pose2D(100.0, 0.0, 0.0))
    assert not navigator.completed


def test_command_is_that_of_the_place():
    commands = [F] * 40 + [L] * 30 + [F] * 71
    navigator = Navigator(straight(commands=commands), ARC)
    seen = {}
    for x in range(0, 100, 3):
        seen[x] = navigator.update(Pose2D(float(x), 0.3, 0.0)).command
        assert navigator.command is seen[x]
    assert {x for x, command in seen.items() if command is L} == {x for x in seen if 40 <= x < 70}


def test_plan_points_are_the_next_two_points_of_the_leaderboards_sparse_plan_beyond_the_distance():
    """Its options change with the junction itself, not where the command is announced."""
    path = replace(straight(200, 160.0, [F] * 15 + [L] * 55 + [F] * 131), manoeuvres=(Manoeuvre(40.0, 69.0, L),))
    navigator = Navigator(path, TargetRule("plan_points", (7.5,)))
    assert navigator.update(Pose2D(0.0, 0.0, 0.0)).targets_m[:, 0].tolist() == [40, 70]
    for x in np.arange(0.0, 32.5, 2.5):
        assert navigator.update(Pose2D(x, 0.0, 0.0)).targets_m[0, 0] == pytest.approx(40 - x)
    assert navigator.update(Pose2D(33.0, 0.0, 0.0)).targets_m[:, 0].tolist() == [37, 122 - 33]
    for x in range(33, 131):
        navigator.update(Pose2D(float(x), 0.0, 0.0))
    assert navigator.update(Pose2D(131.0, 0.0, 0.0)).targets_m[:, 0].tolist() == [160 - 131, 200 - 131]


@pytest.mark.parametrize("rule", [TargetRule("arc_length", (10.0,)), TargetRule("plan_points", (5.0, 9.0))])
def test_rule_that_does_not_give_two_targets_is_refused(rule):
    with pytest.raises(UserError, match="target_rule"):
        Navigator(straight(), rule)
