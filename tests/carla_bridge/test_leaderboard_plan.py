"""Road options and the sparse plan. Oracles: the key points' geometry, the map's junctions, and the rule by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

carla = pytest.importorskip("carla")

from carla_bridge.routes.leaderboard_plan import RoadOption, road_options, sparse_indices  # noqa: E402
from carla_bridge.routes.navigation import Manoeuvre, RoutePlan  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from wamdiff2_core.frames import flip_y, wrap_angle  # noqa: E402
from wamdiff2_core.types import NavCommand  # noqa: E402

pytestmark = pytest.mark.carla
TURNS = (RoadOption.LEFT, RoadOption.RIGHT, RoadOption.STRAIGHT)


def straight_plan(length_m: int, *manoeuvres: Manoeuvre) -> RoutePlan:
    xy = np.stack([np.arange(length_m + 41.0), np.zeros(length_m + 41)], axis=1)
    return RoutePlan("1", "T", xy, np.zeros(len(xy)), np.zeros(len(xy)), (NavCommand.FOLLOW,) * len(xy),
                     float(length_m), manoeuvres=manoeuvres)


def test_points_come_every_fifty_metres_and_at_each_change():
    plan = straight_plan(200, Manoeuvre(80.0, 95.0, NavCommand.LEFT), Manoeuvre(150.0, 153.0, NavCommand.CHANGE_RIGHT))
    options = road_options(plan)
    assert len(options) == 201
    assert [i for i, option in enumerate(options) if option is RoadOption.LEFT] == list(range(80, 96))
    # 51 m must have been added up before, so the first is at 52; 80 and 96 are changes, 154 comes after a lane change
    assert sparse_indices(plan) == [0, 52, 80, 96, 148, 150, 151, 152, 153, 200]
    assert sparse_indices(straight_plan(120)) == [0, 52, 104, 120]


def turn_of_keypoints(keypoints_m: np.ndarray, begin_m: np.ndarray, end_m: np.ndarray) -> float:
    """Change of heading between the key points before a junction and those after it, left positive."""
    def nearest(point: np.ndarray) -> int:
        return int(np.hypot(*(keypoints_m - point).T).argmin())

    first, last = nearest(begin_m), nearest(end_m)
    while first > 0 and np.hypot(*(keypoints_m[first] - begin_m)) < 1.0:
        first -= 1
    before = keypoints_m[max(first, 1)] - keypoints_m[max(first, 1) - 1]
    last = min(max(last, first + 1), len(keypoints_m) - 2)
    after = keypoints_m[last + 1] - keypoints_m[last]
    return wrap_angle(math.atan2(after[1], after[0]) - math.atan2(before[1], before[0]))


@pytest.mark.parametrize("name", ["Town01", "Town02", "Town03", "Town05"])
def test_bench2drive_routes_keep_to_lanes_and_turn_as_their_key_points_do(shared_data, name):
    carla_map = carla.Map(name, (shared_data / "opendrive" / f"{name}.xodr").read_text())
    planner = RoutePlanner(carla_map)
    turns = {option: 0 for option in TURNS}
    specs = [s for s in load_routes(shared_data / "bench2drive" / "bench2drive220.xml") if s.town == name]
    for spec in specs:
        plan = planner.plan(spec)
        assert np.linalg.norm(np.diff(plan.xy_m, axis=0), axis=1).max() < 2.0
        keypoints = flip_y(spec.keypoints_carla[:, :2])
        options = road_options(plan)
        sparse = plan.arc_m[sparse_indices(plan)]
        assert np.diff(sparse).max() <= 53.0
        assert (sparse[0], sparse[-1]) == pytest.approx((0.0, plan.length_m), abs=1.0)
        in_junction = []
        for (x, y), z in zip(plan.xy_m[: len(options)], plan.z_m, strict=False):
            lane = carla_map.get_waypoint(carla.Location(float(x), float(-y), float(z)))
            place = lane.transform.location
            assert math.hypot(place.x - x, place.y + y) <= lane.lane_width / 2
            in_junction.append(lane.is_junction)
        marked = [option in TURNS for option in options]
        assert np.mean([m != j for m, j in zip(marked, in_junction, strict=True)]) < 0.06
        for manoeuvre in plan.manoeuvres:
            inside = manoeuvre.start_m > 8.0 and manoeuvre.end_m < plan.length_m - 8.0
            if manoeuvre.command not in (NavCommand.LEFT, NavCommand.RIGHT, NavCommand.STRAIGHT) or not inside:
                continue
            begin, end = plan.at(np.array([manoeuvre.start_m, manoeuvre.end_m]))
            turn = math.degrees(turn_of_keypoints(keypoints, begin, end))
            if abs(abs(turn) - 35.0) < 12.0:  # too near to the limit between straight on and turning
                continue
            expected = (
                NavCommand.STRAIGHT if abs(turn) < 35.0 else NavCommand.LEFT if turn > 0 else NavCommand.RIGHT
            )
            assert manoeuvre.command is expected, (spec.id, manoeuvre, turn)
            turns[RoadOption[expected.name]] += 1
    assert sum(turns.values()) >= 1
