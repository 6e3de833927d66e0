"""What drivers see and know of the roads, against polygons of shapely and calls of `carla.Map`."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import affinity
from shapely.geometry import LineString, Polygon, box

pytest.importorskip("carla", reason="needs the carla client library")
from carla_bridge.server.actors.spawning import make_actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import SignalKind
from carla_bridge.server.town.town import Town
from carla_bridge.server.traffic.footpaths import Crosswalk, Footpaths, read_footpaths
from carla_bridge.server.traffic.network import ARC, CLEARANCE_M, COS, LIMIT, SIN, RoadNetwork, with_directions
from carla_bridge.server.traffic.routes import Route
from carla_bridge.server.traffic.sight import BESIDE_M, HALF_SLICE_M, Bodies, bodies_ahead
from carla_bridge.server.traffic.strollers import Strollers

HALF_M = (2.3, 0.9)


@pytest.fixture(scope="module")
def town() -> Town:
    return Town.load("Wamtown02")


@pytest.fixture(scope="module")
def network(town: Town) -> RoadNetwork:
    return RoadNetwork(town.map, town.opendrive, town.signals)


@pytest.fixture(scope="module")
def paths(town: Town) -> Footpaths:
    return read_footpaths(town.lanes, town.crosswalks, town.map, town.signals)


def rectangle(x: float, y: float, yaw: float, half_length: float, half_width: float) -> Polygon:
    """A box as a polygon."""
    flat = box(-half_length, -half_width, half_length, half_width)
    return affinity.translate(affinity.rotate(flat, yaw, origin=(0, 0), use_radians=True), x, y)


def bodies_of(rows: list[tuple[float, float, float, float, float]], speed: float = 0.0) -> Bodies:
    """Bodies from x, y, yaw, half length, half width; all move along their axes."""
    table = np.array(rows)
    axis = np.stack([np.cos(table[:, 2]), np.sin(table[:, 2])], axis=1)
    n = len(rows)
    return Bodies(np.arange(n) + 100, table[:, :2], np.zeros(n), axis, table[:, 3:5], speed * axis, np.zeros(n, bool))


coordinate = st.floats(-30.0, 60.0)


@settings(max_examples=60, deadline=None)
@given(
    bend=st.floats(-0.04, 0.04),
    rows=st.lists(
        st.tuples(coordinate, coordinate, st.floats(-3.2, 3.2), st.floats(0.2, 5.0), st.floats(0.2, 1.3)),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_what_is_in_the_way_is_what_the_swept_band_touches(
    bend: float, rows: list[tuple[float, float, float, float, float]]
) -> None:
    arc = np.arange(0.0, 50.0, 1.0)
    yaw = bend * arc
    places = np.cumsum(np.stack([np.cos(yaw), np.sin(yaw)], axis=1), axis=0)
    points = np.concatenate([places, np.cos(yaw)[:, None], np.sin(yaw)[:, None]], axis=1)[None]
    ahead = (arc - HALF_M[0])[None]
    seen = bodies_ahead(
        np.array([1]), np.zeros(1), np.array([HALF_M]), points, ahead, np.array([45.0]), bodies_of(rows)
    )
    half = HALF_M[1] + BESIDE_M
    for j, row in enumerate(rows):
        there = rectangle(*row)
        slices = [
            (float(a), rectangle(x, y, math.atan2(s, c), HALF_SLICE_M, half))
            for a, (x, y, c, s) in zip(ahead[0], points[0], strict=True)
            if -HALF_SLICE_M <= a <= 45.0
        ]
        # touching by a hair may be told either way
        sure = [a for a, piece in slices if piece.buffer(-1e-6).intersects(there)]
        possible = [a for a, piece in slices if piece.buffer(1e-6).intersects(there)]
        found = np.flatnonzero(seen.body == j)
        if sure:
            assert len(found) == 1
            assert possible[0] - HALF_SLICE_M - 1e-6 <= seen.gap_m[found[0]] <= sure[0] + HALF_SLICE_M + 1e-6
        elif not possible:
            assert len(found) == 0


@pytest.mark.parametrize(("inside_m", "seen_bodies"), [(0.1, 1), (-0.1, 0)])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_body_beside_the_way_counts_when_its_flank_reaches_in(side: int, inside_m: float, seen_bodies: int) -> None:
    arc = np.arange(0.0, 60.0, 1.0)
    points = np.stack([arc, np.zeros(60), np.ones(60), np.zeros(60)], axis=1)[None]
    middle = HALF_M[1] + BESIDE_M + 0.9 - inside_m
    beside = bodies_of([(20.0, side * middle, 0.0, 2.3, 0.9)])
    seen = bodies_ahead(
        np.array([1]), np.zeros(1), np.array([HALF_M]), points, (arc - HALF_M[0])[None], np.array([50.0]), beside
    )
    assert len(seen.body) == seen_bodies


@given(gap=st.floats(0.0, 40.0), length=st.floats(0.3, 6.0), speed=st.floats(0.0, 15.0))
def test_gap_to_a_vehicle_straight_ahead_is_exact(gap: float, length: float, speed: float) -> None:
    arc = np.arange(0.0, 60.0, 1.0)
    points = np.stack([arc, np.zeros(60), np.ones(60), np.zeros(60)], axis=1)[None]
    ahead = bodies_of([(HALF_M[0] + gap + length, 0.0, 0.0, length, 1.0)], speed)
    seen = bodies_ahead(
        np.array([1]), np.zeros(1), np.array([HALF_M]), points, (arc - HALF_M[0])[None], np.array([50.0]), ahead
    )
    assert seen.gap_m.tolist() == pytest.approx([gap], abs=1e-9)
    assert seen.lead_mps.tolist() == pytest.approx([speed])


def test_ways_through_junctions_conflict_where_their_middles_come_close(network: RoadNetwork) -> None:
    inside = [lane for lane in network.lanes.values() if lane.in_junction]
    lines = {lane.key: LineString(lane.table[:, :2]) for lane in inside}
    sources = {lane.key: {k for k, other in network.lanes.items() if lane.key in other.successors} for lane in inside}
    known = {(lane.key, conflict.other) for lane in inside for conflict in lane.conflicts}
    pairs = 0
    for i, lane in enumerate(inside):
        for other in inside[i + 1 :]:
            apart = lines[lane.key].distance(lines[other.key])
            linked = other.key in lane.successors or lane.key in other.successors
            linked = linked or sources[lane.key] & sources[other.key]
            if linked or CLEARANCE_M - 0.5 < apart < CLEARANCE_M:  # points are 1 m apart
                continue
            assert ((lane.key, other.key) in known) == (apart < CLEARANCE_M)
            assert ((other.key, lane.key) in known) == (apart < CLEARANCE_M)
            pairs += apart < CLEARANCE_M
    assert pairs > 100


def test_every_signal_marks_the_lanes_that_it_stops(town: Town, network: RoadNetwork) -> None:
    for spec in town.signals:
        for stop in spec.stops:
            place = town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
            lane = network.lanes[place.road_id, place.section_id, place.lane_id]
            assert lane.hold is not None
            assert spec in lane.hold.specs
            x, y = (np.interp(lane.hold.arc_m, lane.table[:, ARC], lane.table[:, k]) for k in (0, 1))
            assert math.hypot(x - place.transform.location.x, y - place.transform.location.y) < 0.2
    assert {spec.kind for spec in town.signals} == {SignalKind.TRAFFIC_LIGHT, SignalKind.STOP, SignalKind.YIELD}


def test_limit_in_a_curve_keeps_the_sideways_acceleration(network: RoadNetwork) -> None:
    radius = 12.0
    angle = np.arange(0.0, 1.5, 1.0 / radius)
    table = with_directions(radius * np.stack([np.sin(angle), 1 - np.cos(angle)], axis=1), np.full(len(angle), 13.9))
    assert table[len(table) // 2, LIMIT] ** 2 / radius == pytest.approx(2.2, rel=0.02)
    straight = with_directions(np.stack([np.arange(30.0), np.zeros(30)], axis=1), np.full(30, 13.9))
    assert straight[:, LIMIT].tolist() == [13.9] * 30


def test_routes_go_on_without_gaps_and_turn_back_nowhere(network: RoadNetwork) -> None:
    for key in sorted(network.live)[::9]:
        route, row = Route(network, key, 0, random.Random(1)), 0
        seen = []
        for _ in range(6):
            table = route.table[: route.count]
            steps = np.diff(table[:, :2], axis=0)
            apart = np.hypot(steps[:, 0], steps[:, 1])
            assert apart.max() < 1.6
            assert np.allclose(np.diff(table[:, ARC]), apart, atol=0.1)
            turned = table[1:, COS] * table[:-1, COS] + table[1:, SIN] * table[:-1, SIN]
            assert turned.min() > 0.9
            seen += [leg.key for leg in route.legs]
            row = route.extend(150)
            route.pass_by(float(route.table[row, ARC]))
        assert len(set(seen)) > 3
        holds = [c.hold_m for c in route.crossings]
        assert holds == sorted(holds)
        assert all(c.hold_m <= c.leave_m for c in route.crossings)


def test_sidewalks_and_crosswalks_are_one_net(town: Town, paths: Footpaths) -> None:
    # a ring of five points each, two directions; the one over the fast road has no sidewalk at its ends
    assert len(paths.crosswalks) == 2 * (len(town.map.get_crosswalks()) // 5 - 1)
    for crosswalk in paths.crosswalks.values():
        assert len(crosswalk.sign_ids) == 1
        assert 6.0 < crosswalk.length_m < 22.0
        middle = paths.xyz_m[[crosswalk.start, crosswalk.end]].mean(axis=0)
        import carla

        waypoint = town.map.get_waypoint(carla.Location(*middle.tolist()))
        yaw = math.radians(waypoint.transform.rotation.yaw)
        step = paths.xyz_m[crosswalk.end] - paths.xyz_m[crosswalk.start]
        assert abs(step[0] * math.cos(yaw) + step[1] * math.sin(yaw)) < 0.2 * crosswalk.length_m  # across the road
    assert all(a in paths.links[b] for a, ways in enumerate(paths.links) for b in ways)


@pytest.mark.parametrize(("height_m", "walks"), [(0.0, False), (6.0, True), (-6.0, True)])
def test_who_crosses_waits_for_a_vehicle_on_the_same_level_only(height_m: float, walks: bool) -> None:
    crosswalk = Crosswalk(0, 1, 20.0, ())
    paths = Footpaths(
        np.array([[0.0, 0.0, 0.0], [20.0, 0.0, 0.0]]), np.zeros(2), [[1], [0]], {(0, 1): crosswalk, (1, 0): crosswalk}
    )
    walker = make_actor(1, [0, "walker.pedestrian.0001", []], Pose(8.0, 0.0, 0.93), random.Random(0))
    car = make_actor(2, [0, "vehicle.lincoln.mkz_2020", []], Pose(9.7, 0.0, height_m, yaw=90.0), random.Random(0))
    assert isinstance(walker, Walker)
    assert isinstance(car, Vehicle)
    strollers = Strollers(paths, None, 0)
    strollers.take_on([walker])
    (stroller,) = strollers._strollers.values()
    stroller.here, stroller.goal = 0, 1
    strollers.step([car], set(), 0.05)
    assert (walker.speed_mps > 0.0) is walks
