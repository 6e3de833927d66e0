"""The town file, and what `Town` derives from it. Oracle: CARLA's own map."""

from __future__ import annotations

import math
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

carla = pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import BoxKind  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from carla_bridge.server.town.town_library import SHIPPED_FOLDER  # noqa: E402
from carla_bridge.server.town_builder import TOWN_PLANS, RoadPlan, TownPlan, build_town  # noqa: E402
from carla_bridge.server.town_builder.command import town  # noqa: E402
from wamdiff2_core.errors import UserError  # noqa: E402

pytestmark = pytest.mark.carla


def sideways_m(waypoint, location) -> float:
    """Distance across the lane; along a curve `get_waypoint` may be off by 0.2 m, as it searches along chords."""
    right = waypoint.transform.get_right_vector()
    return abs((location - waypoint.transform.location).dot(right))


@pytest.fixture(scope="module")
def wamtown() -> Town:
    return Town.load("Wamtown01")


@pytest.mark.parametrize("name", TOWN_PLANS)
def test_shipped_file_is_what_the_builder_writes(tmp_path, name):
    town(name, tmp_path / "deep" / "again.xodr")
    assert (tmp_path / "deep" / "again.xodr").read_bytes() == (SHIPPED_FOLDER / f"{name}.xodr").read_bytes()


def test_unknown_plan_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="Wamtown03"):
        town("Wamtown3")


def test_no_junction_has_the_id_of_a_road(wamtown):
    root = ElementTree.fromstring(wamtown.opendrive)
    roads = {e.attrib["id"] for e in root.findall("road")}
    assert roads.isdisjoint(e.attrib["id"] for e in root.findall("junction"))


def test_no_topology_edge_appears_twice(wamtown):
    edges = [(a.road_id, a.lane_id, b.road_id, b.lane_id) for a, b in wamtown.map.get_topology()]
    assert len(edges) == len(set(edges)) > 100


def test_every_lane_leads_into_all_other_arms_of_its_junction(wamtown):
    successors = Counter()
    for begin, following in wamtown.map.get_topology():
        if not begin.is_junction:
            assert following.is_junction
            successors[begin.road_id, begin.lane_id] += 1
    assert len(successors) == 2 * 29
    assert set(successors.values()) == {2, 3}


def test_one_can_drive_forever_without_a_jump(wamtown):
    for seed, pose in enumerate(wamtown.spawn_points[::40]):
        rng = np.random.default_rng(seed)
        waypoint = wamtown.map.get_waypoint(pose.location)
        for _ in range(1000):
            options = waypoint.next(1.0)
            assert options
            following = options[rng.integers(len(options))]
            # `next` walks the reference line: on the tightest right turn the lane is 15 % shorter
            assert 0.8 < following.transform.location.distance(waypoint.transform.location) < 1.25
            turned = math.remainder(following.transform.rotation.yaw - waypoint.transform.rotation.yaw, 360)
            assert abs(turned) < 8
            waypoint = following


def test_junctions_of_three_and_four_arms_and_curves_are_there(wamtown):
    arms = Counter()
    for begin, _ in wamtown.map.get_topology():
        if begin.is_junction:
            arms[begin.get_junction().id] += 1
    assert {6, 12} == set(arms.values())
    radii = [1 / abs(float(arc.attrib["curvature"])) for arc in ElementTree.fromstring(wamtown.opendrive).iter("arc")]
    assert min(radii) > 8
    assert any(20 <= r <= 30 for r in radii)
    assert any(80 <= r <= 100 for r in radii)


def test_plan_with_a_corner_that_does_not_fit_is_refused():
    plan = TownPlan("t", {"a": (0.0, 0.0), "b": (50.0, 50.0)}, (RoadPlan("a", "b", ((50.0, 0.0, 60.0),)),))
    with pytest.raises(ValueError, match="overlaps"):
        build_town(plan)


def test_lane_surfaces_lie_where_carla_has_the_lanes(wamtown):
    assert {lane.kind for lane in wamtown.lanes} == {"driving", "sidewalk"}
    for lane in wamtown.lanes[::3]:
        width = np.linalg.norm(lane.left_m - lane.right_m, axis=1)
        np.testing.assert_allclose(width, 3.5 if lane.kind == "driving" else 2.5, atol=1e-3)
        middle = (lane.left_m + lane.right_m)[len(lane.left_m) // 2] / 2
        kind = carla.LaneType.Driving if lane.kind == "driving" else carla.LaneType.Sidewalk
        if not lane.in_junction:
            waypoint = wamtown.map.get_waypoint(carla.Location(*middle), lane_type=kind)
            assert (waypoint.road_id, waypoint.lane_id) == (lane.road_id, lane.lane_id)
            assert sideways_m(waypoint, carla.Location(*middle)) < 0.05


def test_left_edge_is_left_of_travel(wamtown):
    for lane in wamtown.lanes:
        forward = (lane.left_m + lane.right_m)[1] - (lane.left_m + lane.right_m)[0]
        rightwards = lane.right_m[0] - lane.left_m[0]
        # CARLA's world is left-handed: forward x right points up when computed with the usual formula
        assert forward[0] * rightwards[1] - forward[1] * rightwards[0] > 0


def test_marks_agree_with_what_carla_reports_beside_a_lane(wamtown):
    kinds = {"broken": carla.LaneMarkingType.Broken, "solid": carla.LaneMarkingType.Solid}
    inner = [mark for mark in wamtown.marks if mark.color == "yellow"]
    assert {mark.kind for mark in inner} == {"broken", "solid"}
    for mark in inner:
        a, b = mark.line_m[0], mark.line_m[-1]
        if np.linalg.norm(b - a) < 3:
            continue
        x, y, z = mark.line_m[len(mark.line_m) // 2]
        waypoint = wamtown.map.get_waypoint(carla.Location(x, y, z))
        assert waypoint.left_lane_marking.type == kinds[mark.kind]
        offset = waypoint.transform.location.distance(carla.Location(x, y, z))
        assert offset == pytest.approx(1.75, abs=0.05)


def test_scenery_stands_clear_of_every_lane(wamtown):
    kinds = Counter(box.kind for box in wamtown.static_boxes)
    assert kinds[BoxKind.BUILDING] > 100
    assert kinds[BoxKind.TREE] > 100
    assert kinds[BoxKind.LAMP] > 50
    points = np.array([(w.transform.location.x, w.transform.location.y) for w in wamtown.map.generate_waypoints(0.5)])
    for box in wamtown.static_boxes:
        c, s = math.cos(math.radians(box.yaw)), math.sin(math.radians(box.yaw))
        local = (points - (box.x, box.y)) @ np.array([[c, -s], [s, c]])
        outside = np.maximum(np.abs(local) - (box.extent_x, box.extent_y), 0)
        assert np.linalg.norm(outside, axis=1).min() > 1.75, box


def test_buildings_stand_apart(wamtown):
    buildings = [box for box in wamtown.static_boxes if box.kind is BoxKind.BUILDING]
    for i, a in enumerate(buildings):
        for b in buildings[:i]:
            gap = math.hypot(a.x - b.x, a.y - b.y)
            assert gap > min(a.extent_x, a.extent_y) + min(b.extent_x, b.extent_y)


def test_loading_twice_gives_the_same_town(wamtown):
    again = Town.load("Carla/Maps/Wamtown01")
    assert again.name == "Wamtown01"
    assert again.static_boxes == wamtown.static_boxes
    assert [str(p) for p in again.spawn_points] == [str(p) for p in wamtown.spawn_points]


def test_spawn_points_lie_in_driving_lanes_and_face_along_them(wamtown):
    assert len(wamtown.spawn_points) > 100
    for pose in wamtown.spawn_points:
        waypoint = wamtown.map.get_waypoint(pose.location)
        assert not waypoint.is_junction
        assert sideways_m(waypoint, pose.location) < 0.05
        assert abs(math.remainder(waypoint.transform.rotation.yaw - pose.rotation.yaw, 360)) < 1.0


def test_unknown_town_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="Wamtown01"):
        Town.load("Wamtown1")


def test_broken_file_is_refused(tmp_path):
    (tmp_path / "x.xodr").write_text("<OpenDRIVE>")
    with pytest.raises(UserError, match="OpenDRIVE"):
        Town.load(tmp_path / "x.xodr")
    with pytest.raises(UserError, match="OpenDRIVE"):
        Town.from_opendrive("empty", "<OpenDRIVE/>")


def test_a_file_of_any_name_is_a_town_and_one_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "roads.xml"
    path.write_bytes((SHIPPED_FOLDER / "Wamtown01.xodr").read_bytes())
    assert Town.load(path).name == "roads"
    path.write_bytes(b"\xff\xfe\x00")
    for file in (path, tmp_path / "missing.xodr"):
        with pytest.raises(UserError, match=file.name):
            Town.load(file)


@pytest.mark.parametrize("name", ["Town01", "Town03"])
def test_a_foreign_town_gets_surfaces_marks_and_scenery(shared_data, name):
    foreign = Town.load(shared_data / "opendrive" / f"{name}.xodr")
    assert foreign.name == name
    assert len(foreign.spawn_points) > 100
    assert sum(lane.kind == "driving" for lane in foreign.lanes) > 100
    assert len(foreign.marks) > 50
    kinds = Counter(box.kind for box in foreign.static_boxes)
    assert kinds[BoxKind.BUILDING] > 50
    assert len(foreign.lane_polylines()) == 2 * sum(lane.kind == "driving" for lane in foreign.lanes)
