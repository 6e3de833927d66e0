"""The junction rule: hops as CARLA's own planner counts them; open where there is no map."""

from __future__ import annotations

import shutil

import pytest

from carla_bridge.leaderboard_results import Infraction, RouteRecord, RouteStatus
from carla_bridge.score.bench2drive import score_records
from carla_bridge.score.junction_rule import JunctionRule
from carla_bridge.score.route_sets import RouteFacts, RouteSet
from carla_bridge.score.sources import FoundRecord
from wamdiff2_core.errors import UserError

pytest.importorskip("carla", reason="needs the carla client library")

# route: (index of the first hop in a junction, hops), by `GlobalRoutePlanner(map, 1.0)` of CARLA's agents package
PLANNER_HOPS = {
    "26950": (20, 57), "26956": (25, 59), "26966": (18, 56), "26990": (19, 59), "27506": (31, 69), "27515": (22, 67),
    "28035": (76, 130), "28048": (19, 60),
}  # fmt: skip
PLACE = (0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def rule(shared_data):
    return JunctionRule(shared_data / "opendrive", shared_data / "bench2drive" / "bench2drive220.xml")


def failed(route_id, completion_pct, *infractions):
    return RouteRecord.of_drive(route_id, completion_pct, infractions, RouteStatus.TICK_LIMIT)


def test_thresholds_are_those_of_carlas_planner(rule):
    found = {route_id: rule.threshold(route_id) for route_id in PLANNER_HOPS}
    assert found == {route_id: (first + 1 + 8) / hops for route_id, (first, hops) in PLANNER_HOPS.items()}


def test_a_failed_route_passes_beyond_its_junction_only(rule):
    assert rule.passed(failed("26950", 50.88)) is True  # 29 of 57 hops are 50.877 %
    assert rule.passed(failed("26950", 50.87)) is False
    assert rule.passed(failed("26950", 90.0, Infraction.stop_sign(1, PLACE))) is False
    assert rule.passed(failed("26950", 90.0, Infraction.red_light(1, PLACE))) is False
    assert rule.passed(failed("26950", 90.0, Infraction.collision("vehicle.a.b", 1, PLACE))) is True


def test_score_counts_decided_routes_and_leaves_open_what_has_no_map(shared_data):
    routes = RouteSet("x", {
        "26950": RouteFacts("Town03", "T_Junction"),
        "26956": RouteFacts("Town05", "T_Junction"),
        "27529": RouteFacts("Town04", "T_Junction"),
    })
    records = [failed("26950", 60.0), failed("26956", 10.0), failed("27529", 90.0)]
    rule = JunctionRule(shared_data / "opendrive", shared_data / "bench2drive" / "bench2drive220.xml")
    score = score_records([FoundRecord(record, "a.json") for record in records], routes, rule=rule)
    signs = score.abilities["Traffic_Signs"]
    assert (signs.successes, signs.bounds, signs.rule) == (1, (1 / 3, 2 / 3), "junction rule, 1 open")
    assert score.as_coded.abilities["Traffic_Signs"] is None
    (problem,) = score.problems
    assert "no Town04.xodr: 27529 left open" in problem.message
    assert not problem.forbids_headline


def test_a_complete_set_of_maps_gives_upstreams_figure(rule):
    routes = RouteSet("x", {"26950": RouteFacts("Town03", "T_Junction"), "26956": RouteFacts("Town05", "T_Junction")})
    records = [failed("26950", 60.0), failed("26956", 10.0)]
    score = score_records([FoundRecord(record, "a.json") for record in records], routes, rule=rule)
    assert score.abilities["Traffic_Signs"].rule == "junction rule"
    assert score.as_coded.abilities["Traffic_Signs"] == score.abilities["Traffic_Signs"].value == 0.5


def test_a_route_without_a_junction_stays_open(rule):
    assert rule.threshold("24211") is None


def test_maps_are_found_where_carla_keeps_them(shared_data, tmp_path):
    (tmp_path / "Town02" / "OpenDrive").mkdir(parents=True)
    shutil.copy(shared_data / "opendrive" / "Town02.xodr", tmp_path / "Town02" / "OpenDrive")
    rule = JunctionRule(tmp_path, shared_data / "bench2drive" / "bench2drive220.xml")
    assert rule.threshold("28048") == 28 / 60


def test_a_folder_without_maps_and_a_broken_map_are_wrong_use(shared_data, tmp_path):
    routes = shared_data / "bench2drive" / "bench2drive220.xml"
    with pytest.raises(UserError, match=r"TownXX\.xodr"):
        JunctionRule(tmp_path, routes)
    (tmp_path / "Town02.xodr").write_text("no map")
    with pytest.raises(UserError, match=r"Town02\.xodr"):
        JunctionRule(tmp_path, routes).threshold("28048")
