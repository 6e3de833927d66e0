"""The junction rule: hops as CARLA's own planner counts them; open where there is no map."""

from __future__ import annotations

import shutil

import pytest

from carla_bridge.leaderboard.results import Infraction, RouteRecord, RouteStatus
from carla_bridge.score.bench2drive import score_records
from carla_bridge.score.junction_rule import JunctionRule
from carla_bridge.score.route_sets import RouteFacts, RouteSet
from carla_bridge.score.sources import FoundRecord
from wamdiff2_core.errors import UserError

pytest.importorskip("carla", reason="needs the carla client library")

# route: (index of the first hop in a junction, hops), by `GlobalRoutePlanner(map, 1.0)` of CARLA's agents package
PLANNER_HOPS = {
    "24206": (None, 132), "24211": (None, 67), "24224": (None, 110), "24294": (None, 104), "24759": (None, 91),
    "24781": (None, 130), "24784": (None, 104), "24816": (None, 83), "24841": (None, 132), "25318": (None, 112),
    "25378": (None, 68), "25381": (None, 134), "25854": (None, 134), "25857": (None, 67), "25896": (None, 134),
    "25955": (None, 134), "26393": (None, 134), "26396": (None, 90), "26435": (None, 134), "26456": (None, 134),
    "26950": (20, 57), "26956": (25, 59), "26966": (18, 56), "26990": (19, 59), "27506": (31, 69), "27515": (22, 67),
    "28035": (76, 130), "28048": (19, 60),
}  # fmt: skip
PLACE = (0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def rule(shared_data):
    return JunctionRule(shared_data / "opendrive", shared_data / "bench2drive" / "bench2drive220.xml")


def failed(route_id, completion_pct, *infractions):
    return RouteRecord.of_drive(route_id, completion_pct, infractions, RouteStatus.TICK_LIMIT)


def test_hops_are_those_of_carlas_planner(rule):
    for route_id, (first, hops) in PLANNER_HOPS.items():
        flags = rule.junction_flags(route_id)
        assert (flags.index(True) if True in flags else None, len(flags)) == (first, hops), route_id
        assert rule.threshold(route_id) == (None if first is None else (first + 1 + 8) / hops)


# the same planner's ways with lane changes: hops, and hops in junctions
@pytest.mark.parametrize(
    ("town", "origin", "destination", "hops", "in_junctions"),
    [
        ("Town03", (-2.9, -42.1, 0.0), (-112.7, 33.7, 0.0), 146, 71),
        ("Town03", (221.0, 58.8, 0.0), (12.0, -132.4, -0.1), 558, 117),
        ("Town05", (-57.0, -97.4, 0.0), (-177.5, 135.5, 0.1), 353, 101),
        ("Town05", (-272.2, -14.2, 0.0), (155.1, 57.5, 0.0), 1348, 183),
    ],
)
def test_long_ways_are_those_of_carlas_planner(rule, town, origin, destination, hops, in_junctions):
    import carla

    flags = rule.graph(town).junction_flags([carla.Location(*origin), carla.Location(*destination)])
    assert (len(flags), sum(flags)) == (hops, in_junctions)


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
