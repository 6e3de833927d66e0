"""The route follower on routes of known shape."""

from __future__ import annotations

import itertools
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.agents.route_follower import FollowerConfig, RouteFollower
from wamdiff2_core.frames import transform_points
from wamdiff2_core.types import EgoState, Pose2D

CONFIG = FollowerConfig()


def bend(radius_m: float, side: int, before_m: float = 40.0, after_m: float = 60.0) -> SimpleNamespace:
    """Straight along x, a quarter circle, straight on; points 1 m apart. `xy_m` as of a route."""
    arc = np.arange(0.0, before_m + radius_m * math.pi / 2 + after_m, 1.0)
    turn = np.clip((arc - before_m) / radius_m, 0.0, math.pi / 2)
    x = np.minimum(arc, before_m) + radius_m * np.sin(turn)
    y = radius_m * (1 - np.cos(turn)) + np.maximum(arc - before_m - radius_m * math.pi / 2, 0.0)
    return SimpleNamespace(xy_m=np.stack([x, side * y], axis=1))


def distances(points_m: np.ndarray, route: SimpleNamespace) -> np.ndarray:
    """Distance of points to a finely sampled route."""
    arc = np.arange(len(route.xy_m))
    fine = np.linspace(0, len(arc) - 1, 20 * len(arc))
    dense = np.stack([np.interp(fine, arc, route.xy_m[:, k]) for k in (0, 1)], axis=1)
    return np.min(np.linalg.norm(points_m[:, None] - dense[None], axis=2), axis=1)


def test_on_a_straight_it_accelerates_to_cruise_speed_on_the_route() -> None:
    follower = RouteFollower(bend(20.0, 1, before_m=200.0))
    xy = follower.roll_out(Pose2D(10.0, 0.0, 0.0), 0.0, 10.0).xy_m
    assert xy[:, 1] == pytest.approx(np.zeros(6), abs=1e-9)
    assert xy[:3, 0] == pytest.approx([0.25, 1.0, 2.25], abs=0.02)  # a t^2 / 2 with 2 m/s^2
    cruise = follower.roll_out(Pose2D(10.0, 0.0, 0.0), 8.0, 10.0).xy_m
    assert np.diff(cruise[:, 0]) == pytest.approx(np.full(5, 4.0), abs=0.02)


@pytest.mark.parametrize("radius", [6.0, 8.0, 12.0, 30.0])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_bend_is_taken_near_the_route_at_a_bounded_lateral_acceleration(radius: float, side: int) -> None:
    route = bend(radius, side)
    follower = RouteFollower(route)
    pose, speed, points, accelerations = Pose2D(20.0, 0.0, 0.0), 8.0, [], []
    for _ in range(4):  # chained roll-outs, each begun at the end of the first second of the one before
        xy = transform_points(pose, follower.roll_out(pose, speed, follower.project(pose)).xy_m)
        path = np.vstack([[[pose.x_m, pose.y_m]], xy])
        steps = np.diff(path, axis=0)
        speeds = np.linalg.norm(steps, axis=1) / 0.5
        turns = np.abs((np.diff(np.arctan2(steps[:, 1], steps[:, 0])) + math.pi) % (2 * math.pi) - math.pi)
        accelerations += list(turns / 0.5 * speeds[1:])
        points.append(xy)
        heading = math.atan2(*(path[3] - path[2])[::-1])
        pose, speed = Pose2D(*path[2], heading), float(speeds[1])
    assert distances(np.vstack(points), route).max() < 0.7
    assert max(accelerations) < 2.0 * CONFIG.max_lateral_mps2
    assert follower.speed_limit_mps(40.0 + radius * 0.8) == pytest.approx(
        min(8.0, math.sqrt(CONFIG.max_lateral_mps2 * radius)), rel=0.08
    )


def test_the_speed_profile_is_reachable_by_comfortable_braking() -> None:
    follower = RouteFollower(bend(6.0, 1))
    speeds = np.array([follower.speed_limit_mps(s) for s in np.arange(0.0, 100.0, 0.5)])
    assert ((speeds[:-1] ** 2 - speeds[1:] ** 2) / (2 * 0.5)).max() <= CONFIG.comfort_decel_mps2 + 1e-6


@settings(max_examples=40, deadline=None)
@given(
    lateral=st.floats(-1.2, 1.2), heading=st.floats(-0.26, 0.26), speed=st.floats(3.0, 9.0),
    side=st.sampled_from([-1, 1]),
)
def test_offsets_are_recovered_within_the_plan(lateral: float, heading: float, speed: float, side: int) -> None:
    route = bend(200.0, side)
    follower = RouteFollower(route)
    pose = Pose2D(15.0, lateral, heading)
    xy = transform_points(pose, follower.roll_out(pose, speed, 15.0).xy_m)
    off = distances(xy, route)
    assert off[-1] < 0.35
    assert off.max() < abs(lateral) + 2.0 * abs(math.sin(heading)) + 0.3


@given(lateral=st.floats(-1.2, 1.2), heading=st.floats(-0.26, 0.26), speed=st.floats(0.0, 9.0))
@settings(max_examples=30, deadline=None)
def test_mirrored_states_on_mirrored_routes_give_mirrored_plans(lateral: float, heading: float, speed: float) -> None:
    left = RouteFollower(bend(10.0, 1)).roll_out(Pose2D(30.0, lateral, heading), speed, 30.0).xy_m
    right = RouteFollower(bend(10.0, -1)).roll_out(Pose2D(30.0, -lateral, -heading), speed, 30.0).xy_m
    assert right == pytest.approx(left * [1.0, -1.0], abs=1e-6)


def test_it_does_not_brake_for_the_end_of_the_route() -> None:
    route = bend(200.0, 1, before_m=100.0, after_m=0.0)
    follower = RouteFollower(route)
    pose = Pose2D(*route.xy_m[-1], math.pi / 2)
    xy = follower.roll_out(pose, 8.0, follower.project(pose)).xy_m
    assert np.linalg.norm(np.diff(xy, axis=0), axis=1) == pytest.approx(np.full(5, 4.0), abs=0.1)


def test_a_route_that_crosses_itself_is_followed_where_the_ego_came_from() -> None:
    # A square ring of 40 m whose last side runs over the first one's start, crossing it.
    corners = np.array([[0, 0], [40, 0], [40, 40], [20, 40], [20, -40]], dtype=float)
    legs = [a + (b - a) / np.linalg.norm(b - a) * np.arange(0, np.linalg.norm(b - a))[:, None]
            for a, b in itertools.pairwise(corners)]
    follower = RouteFollower(SimpleNamespace(xy_m=np.vstack(legs)))
    for x in np.arange(0.0, 20.5, 2.0):
        plan = follower.plan(EgoState(velocity_mps=np.array([5.0, 0.0]), map_from_base=Pose2D(x, 0.0, 0.0)))
    assert plan.xy_m[2, 0] > 5.0
    assert abs(plan.xy_m[2, 1]) < 0.2


def test_a_plan_takes_under_two_milliseconds() -> None:
    follower = RouteFollower(bend(8.0, 1))
    best = min(_timed(follower) for _ in range(20))
    assert best < 2e-3


def _timed(follower: RouteFollower) -> float:
    start = time.perf_counter()
    follower.roll_out(Pose2D(30.0, 0.5, 0.1), 6.0, 30.0)
    return time.perf_counter() - start
