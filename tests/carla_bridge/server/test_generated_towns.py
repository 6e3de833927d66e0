"""The towns with avenues, lights, signs, a ramp and parking lanes. Oracle: CARLA's own map."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

carla = pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import BoxKind, SignalKind  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from carla_bridge.server.town_builder import TOWN_PLANS  # noqa: E402
from carla_bridge.server.town_builder.builder import FIRST_JUNCTION_ID  # noqa: E402
from carla_bridge.server.town_builder.geometry import joint  # noqa: E402

pytestmark = pytest.mark.carla
RAMPS = {"Wamtown02": ("r3", "a2"), "Wamtown03": ("s1", "h2")}


@pytest.fixture(scope="module", params=sorted(RAMPS))
def town(request: pytest.FixtureRequest) -> Town:
    return Town.load(request.param)


def junction_names(town: Town) -> dict[int, str]:
    return {FIRST_JUNCTION_ID + i: name for i, name in enumerate(TOWN_PLANS[town.name].junctions)}


def road_id(town: Town, start: str, end: str) -> int:
    return 1 + [(road.start, road.end) for road in TOWN_PLANS[town.name].roads].index((start, end))


def test_no_edge_twice_no_dead_end_and_every_junction_is_seen_as_one(town: Town) -> None:
    edges = [(a.road_id, a.lane_id, b.road_id, b.lane_id) for a, b in town.map.get_topology()]
    assert len(edges) == len(set(edges))
    begins, ends = {edge[:2] for edge in edges}, {edge[2:] for edge in edges}
    assert ends <= begins
    seen = {b.get_junction().id for _, b in town.map.get_topology() if b.is_junction}
    assert seen == set(junction_names(town))
    root = ElementTree.fromstring(town.opendrive)
    assert {e.get("id") for e in root.findall("road")}.isdisjoint(e.get("id") for e in root.findall("junction"))


def test_every_lane_can_be_reached_from_every_other(town: Town) -> None:
    edges = [((a.road_id, a.lane_id), (b.road_id, b.lane_id)) for a, b in town.map.get_topology()]
    for waypoint in town.map.generate_waypoints(2.0):
        for aside, allowed in (
            (waypoint.get_left_lane(), carla.LaneChange.Left), (waypoint.get_right_lane(), carla.LaneChange.Right),
        ):  # fmt: skip
            if aside and aside.lane_type == carla.LaneType.Driving and waypoint.lane_change & allowed:
                assert aside.lane_id * waypoint.lane_id > 0  # nobody changes into oncoming traffic
                edges.append(((waypoint.road_id, waypoint.lane_id), (aside.road_id, aside.lane_id)))
    number = {lane: i for i, lane in enumerate(sorted({lane for edge in edges for lane in edge}))}
    rows, columns = zip(*[(number[a], number[b]) for a, b in edges], strict=True)
    graph = coo_matrix((np.ones(len(edges)), (rows, columns)), shape=(len(number),) * 2)
    count, _ = connected_components(graph, connection="strong")
    assert count == 1


def test_one_can_drive_forever_without_a_jump_or_a_kink(town: Town) -> None:
    for seed, pose in enumerate(town.spawn_points[::12]):
        rng = np.random.default_rng(seed)
        waypoint = town.map.get_waypoint(pose.location)
        for _ in range(500):
            options = waypoint.next(1.0)
            assert options
            following = options[rng.integers(len(options))]
            # `next` walks the reference line, and that of an arc is longer or shorter than the middle of the lane
            assert 0.65 < following.transform.location.distance(waypoint.transform.location) < 1.4
            turned = math.remainder(following.transform.rotation.yaw - waypoint.transform.rotation.yaw, 360)
            assert abs(turned) < 8
            waypoint = following


def test_lanes_of_an_avenue_may_be_changed_away_from_junctions_only(town: Town) -> None:
    plan = TOWN_PLANS[town.name]
    avenues = [i for i, road in enumerate(plan.roads, start=1) if road.lanes == 2]
    assert len(avenues) >= 6
    lengths = {int(r.get("id")): float(r.get("length")) for r in ElementTree.fromstring(town.opendrive).findall("road")}
    for avenue in avenues:
        for lane, change in ((-1, carla.LaneChange.Right), (-2, carla.LaneChange.Left)):
            middle = town.map.get_waypoint_xodr(avenue, lane, lengths[avenue] / 2)
            assert middle.lane_change == change
            assert town.map.get_waypoint_xodr(avenue, lane, lengths[avenue] - 5).lane_change == carla.LaneChange.NONE


def test_lights_stop_and_yield_signs_are_where_the_plan_has_them(town: Town) -> None:
    names, plan = junction_names(town), TOWN_PLANS[town.name]
    found = {
        kind: {names[spec.junction_id] for spec in town.signals if spec.kind is kind} for kind in SignalKind
    }  # fmt: skip
    assert found[SignalKind.TRAFFIC_LIGHT] == set(plan.lights)
    assert found[SignalKind.STOP] == set(plan.stop_signs)
    assert found[SignalKind.YIELD] == set(plan.yield_signs)
    assert len(set(names.values()) - set().union(*found.values())) >= 2  # some junctions have neither
    assert len(town.map.get_crosswalks()) == 5 * sum(s.kind is SignalKind.TRAFFIC_LIGHT for s in town.signals)


def test_ramp_merges_into_the_outer_lane_and_yields(town: Town) -> None:
    ramp = road_id(town, *RAMPS[town.name])
    (sign,) = [spec for spec in town.signals if spec.kind is SignalKind.YIELD]
    assert [stop.road_id for stop in sign.stops] == [ramp]
    inside = [b for a, b in town.map.get_topology() if a.road_id == ramp]
    assert len(inside) == 1
    merged = inside[0].next_until_lane_end(1.0)[-1].next(1.0)
    assert len(merged) == 1
    assert abs(merged[0].lane_id) == 2
    assert merged[0].next(20.0)[0].lane_change == carla.LaneChange.Left
    # gently: no more than 4 degrees in 5 m
    yaws = [w.transform.rotation.yaw for w in (inside[0], *inside[0].next_until_lane_end(5.0))]
    assert max(abs(math.remainder(b - a, 360)) for a, b in itertools.pairwise(yaws)) < 4
    assert len({round(yaw, 1) for yaw in yaws}) > 3


def test_parking_lanes_lie_between_driving_lane_and_sidewalk(town: Town) -> None:
    parked = [lane for lane in town.lanes if lane.kind == "parking"]
    assert len(parked) >= 8
    for lane in parked:
        widths = np.linalg.norm(lane.left_m - lane.right_m, axis=1)
        assert widths.max() == pytest.approx(2.2, abs=0.01)
        assert widths[0] < 0.05
        assert widths[-1] < 0.05
        middle = (lane.left_m[len(widths) // 2] + lane.right_m[len(widths) // 2]) / 2
        waypoint = town.map.get_waypoint(carla.Location(*middle), lane_type=carla.LaneType.Parking)
        assert waypoint.road_id == lane.road_id
        assert waypoint.get_left_lane().lane_type == carla.LaneType.Driving
        assert waypoint.get_right_lane().lane_type == carla.LaneType.Sidewalk


def test_stop_lines_lie_across_the_lanes_that_have_to_stop(town: Town) -> None:
    lines = [mark for mark in town.marks if mark.kind in ("stop_line", "yield_line")]
    stops = [(spec.kind, stop) for spec in town.signals for stop in spec.stops]
    assert len(lines) == len(stops)
    for line, (kind, stop) in zip(lines, stops, strict=True):
        assert line.kind == ("yield_line" if kind is SignalKind.YIELD else "stop_line")
        middle = carla.Location(*line.line_m.mean(axis=0))
        waypoint = town.map.get_waypoint(middle)
        assert (waypoint.road_id, waypoint.lane_id) == (stop.road_id, stop.lane_id)
        assert waypoint.transform.location.distance(middle) < 0.2
        (x0, y0, _), (x1, y1, _) = line.line_m
        across = carla.Vector3D(x1 - x0, y1 - y0, 0.0)
        assert across.length() == pytest.approx(0.94 * 3.5, abs=0.01)
        assert across.dot(waypoint.transform.get_forward_vector()) == pytest.approx(0.0, abs=0.02)


def test_crosswalks_reach_from_kerb_to_kerb_between_stop_line_and_junction(town: Town) -> None:
    assert len(town.crosswalks) == sum(spec.kind is SignalKind.TRAFFIC_LIGHT for spec in town.signals)
    for corners in town.crosswalks:
        along, across = np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[3] - corners[0])
        assert along == pytest.approx(3.0, abs=0.01)
        assert min(abs(across - width) for width in (7.0, 14.0, 17.0)) < 0.01  # 17 m with shoulders
        waypoint = town.map.get_waypoint(carla.Location(*corners.mean(axis=0)))
        assert not waypoint.is_junction
        near = [waypoint.next(2.5)[0].is_junction, waypoint.previous(2.5)[0].is_junction]
        assert near.count(True) == 1


def test_gaps_between_the_ways_of_a_junction_are_found_and_nothing_else(town: Town) -> None:
    assert len(town.islands) > 100
    for island in town.islands:
        # within the fan of ways: a junction on all sides, and no rectangle is bigger than such a gap
        middle = carla.Location(*island.mean(axis=0))
        assert town.map.get_waypoint(middle).transform.location.distance(middle) < 12
        assert np.ptp(island, axis=0)[:2].prod() < 20
    assert Town.load("Wamtown01").islands == ()


def test_nothing_stands_over_or_before_a_light_or_sign(town: Town) -> None:
    posts = np.array([post.foot_m[:2] for spec in town.signals for post in spec.posts])
    for box in (box for box in town.static_boxes if box.kind is not BoxKind.POLE):
        c, s = math.cos(math.radians(box.yaw)), math.sin(math.radians(box.yaw))
        local = (posts - (box.x, box.y)) @ np.array([[c, -s], [s, c]])
        outside = np.maximum(np.abs(local) - (box.extent_x, box.extent_y), 0)
        assert np.linalg.norm(outside, axis=1).min() > box.crown_radius + 0.3, box


def test_kinds_of_junctions_and_size(town: Town) -> None:
    arms = Counter()
    for before, inside in town.map.get_topology():
        if inside.is_junction and not before.is_junction:
            arms[inside.get_junction().id, before.road_id] += 1
    per_junction = Counter(junction for junction, _ in arms)
    assert {3, 4} <= set(per_junction.values())
    edges = np.concatenate([lane.left_m for lane in town.lanes])
    assert ((np.ptp(edges[:, :2], axis=0) > 400) & (np.ptp(edges[:, :2], axis=0) < 700)).all()
    assert len(town.opendrive) < 1_000_000
    assert len(town.spawn_points) > 80


def test_towns_differ(town: Town) -> None:
    places = [set(plan.junctions.values()) for plan in TOWN_PLANS.values()]
    assert all(len(a & b) <= 2 for i, a in enumerate(places) for b in places[:i])


def test_joint_of_poses_at_unequal_distance_is_a_straight_and_an_arc() -> None:
    line, arc = joint((0.0, 0.0), 0.0, (10.0, 4.0), math.pi / 2)
    assert (line.length_m, line.curvature_radpm) == (pytest.approx(6.0), 0.0)
    assert arc.length_m == pytest.approx(2 * math.pi)
    assert arc.curvature_radpm == pytest.approx(0.25)
    with pytest.raises(ValueError, match="one line"):
        joint((0.0, 0.0), 0.0, (10.0, 1.0), 0.0)
    with pytest.raises(ValueError, match="cross"):
        joint((0.0, 0.0), 0.0, (-10.0, 4.0), math.pi / 2)
