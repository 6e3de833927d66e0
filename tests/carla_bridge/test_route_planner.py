"""Route files and planned routes. Oracles: CARLA's map, the key points themselves, and headings of the lanes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

carla = pytest.importorskip("carla")

from carla_bridge.route_sets.__main__ import write_sets  # noqa: E402
from carla_bridge.routes import ROUTES_FOLDER  # noqa: E402
from carla_bridge.routes.navigation import ANNOUNCE_M  # noqa: E402
from carla_bridge.routes.route_file import RouteSpec, load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from wamdiff2_core.errors import UserError  # noqa: E402
from wamdiff2_core.frames import flip_y, pose_to_carla  # noqa: E402
from wamdiff2_core.types import NavCommand  # noqa: E402

pytestmark = pytest.mark.carla


TURNS = {NavCommand.LEFT, NavCommand.RIGHT, NavCommand.STRAIGHT}


@pytest.fixture(scope="module")
def town() -> Town:
    return Town.load()


@pytest.fixture(scope="module")
def planner(town) -> RoutePlanner:
    return RoutePlanner(town.map)


@pytest.fixture(scope="module")
def demo(planner):
    return [planner.plan(spec) for spec in load_routes(ROUTES_FOLDER / "demo.xml")]


@pytest.fixture(scope="module")
def train(planner):
    return [planner.plan(spec) for spec in load_routes(ROUTES_FOLDER / "train.xml")]


def wrapped(angle_rad):
    return (np.asarray(angle_rad) + np.pi) % (2 * np.pi) - np.pi


def movements(plan) -> list[tuple]:
    """(road, lane) pairs before and after each junction of a Wamtown route; connecting roads have ids from 100."""
    roads = [lane for lane in plan.lanes if lane[0] < 100]
    return list(itertools.pairwise(roads))


def runs(plan) -> list[tuple[NavCommand, float, float]]:
    """(command, first arc, last arc) of every stretch with one command."""
    found: list[tuple[NavCommand, float, float]] = []
    for command, arc in zip(plan.commands, plan.arc_m, strict=True):
        if found and found[-1][0] is command:
            found[-1] = (command, found[-1][1], arc)
        else:
            found.append((command, arc, arc))
    return found


def test_route_files_are_what_the_generator_writes(tmp_path):
    write_sets(tmp_path)
    for name in ("demo.xml", "train.xml"):
        assert (tmp_path / name).read_bytes() == (ROUTES_FOLDER / name).read_bytes()


def test_demo_covers_left_right_straight_and_a_curve(demo):
    assert len(demo) == 3
    for plan in demo:
        assert 200 <= plan.length_m <= 350
        assert any(command in (NavCommand.LEFT, NavCommand.RIGHT) for command in plan.commands)
    to_goal = {c for plan in demo for c, arc in zip(plan.commands, plan.arc_m, strict=True) if arc < plan.length_m}
    assert to_goal == TURNS | {NavCommand.FOLLOW}
    bends = [
        abs(wrapped(plan.yaw_rad[i + 10] - plan.yaw_rad[i]))
        for plan in demo
        for i in range(int(plan.length_m) - 10)
        if set(plan.commands[i : i + 10]) == {NavCommand.FOLLOW}
    ]
    assert max(bends) > math.radians(8)


def test_training_has_every_movement_but_no_demo_drive(demo, train, town):
    assert len(train) >= 40
    connecting = {(a.road_id, a.lane_id) for a, _ in town.map.get_topology() if a.is_junction}
    assert connecting == {lane for plan in train for lane in plan.lanes if lane[0] >= 100}
    for plan in demo:
        held_out = movements(plan)
        assert len(held_out) >= 2
        for other in train:
            seen = movements(other)
            assert not any(seen[i : i + len(held_out)] == held_out for i in range(len(seen)))
            assert (
                np.linalg.norm(other.start.x_m - plan.start.x_m) > 1 or np.linalg.norm(other.goal_m - plan.goal_m) > 1
            )


def test_paths_are_even_smooth_and_go_on_beyond_the_goal(demo, train):
    for plan in [*demo, *train]:
        np.testing.assert_allclose(np.diff(plan.arc_m), 1.0, atol=0.01)
        assert np.abs(wrapped(np.diff(plan.yaw_rad))).max() < 0.15
        assert plan.arc_m[-1] - plan.length_m >= 30
        assert len(plan.xy_m) == len(plan.yaw_rad) == len(plan.commands) == len(plan.z_m)


def test_path_stays_on_driving_lanes_in_their_direction(demo, town):
    for plan in demo:
        for (x, y), yaw in zip(plan.xy_m, plan.yaw_rad, strict=True):
            waypoint = town.map.get_waypoint(carla.Location(float(x), float(-y), 0.0), project_to_road=False)
            assert waypoint is not None
            if not waypoint.is_junction:
                assert abs(wrapped(np.deg2rad(waypoint.transform.rotation.yaw) + yaw)) < 0.1


def test_start_is_a_pose_in_the_map_frame(demo, town):
    x, y, yaw_deg = pose_to_carla(demo[0].start)
    waypoint = town.map.get_waypoint(carla.Location(x, y, 0))
    assert waypoint.transform.location.distance(carla.Location(x, y, 0)) < 0.1
    assert abs(math.remainder(waypoint.transform.rotation.yaw - yaw_deg, 360)) < 2


def test_command_names_the_turn_that_the_path_makes(demo, train):
    checked = 0
    for plan in [*demo, *train]:
        for command, start, end in runs(plan):
            if command is NavCommand.FOLLOW or start < 1 or end > plan.arc_m[-1] - 2 or end - start < 30:
                continue
            turn = wrapped(plan.yaw_rad[int(end)] - plan.yaw_rad[int(end) - 18])
            if command is NavCommand.LEFT:
                assert turn > math.radians(35)
            elif command is NavCommand.RIGHT:
                assert turn < -math.radians(35)
            else:
                assert abs(turn) < math.radians(35)
            checked += 1
    assert checked > 100


def test_command_holds_from_25_m_before_the_junction_until_its_exit(planner, town):
    start = town.map.get_waypoint_xodr(6, -1, 20.0)  # 96 m from b0 to b1, then straight on or a turn
    crossing = start.next_until_lane_end(1.0)[-1].next(3.0)[0]
    goal = crossing.next_until_lane_end(1.0)[-1].next(30.0)[0]
    spec = RouteSpec(
        "r", town.name, np.array([[w.transform.location.x, w.transform.location.y, 0] for w in (start, goal)])
    )
    plan = planner.plan(spec)
    inside = []
    for x, y in plan.xy_m[:140]:
        waypoint = town.map.get_waypoint(carla.Location(float(x), float(-y), 0.0))
        inside.append(waypoint.is_junction)
    entry, exit_ = inside.index(True), len(inside) - 1 - inside[::-1].index(True)
    announced = [i for i, command in enumerate(plan.commands[:140]) if command in TURNS]
    assert announced[0] == pytest.approx(entry - ANNOUNCE_M, abs=1.5)
    assert announced[-1] == pytest.approx(exit_, abs=1.5)
    assert announced == list(range(announced[0], announced[-1] + 1))


@pytest.mark.parametrize("name", ["Town01", "Town02", "Town03", "Town05"])
def test_bench2drive_routes_are_filled_in(shared_data, name):
    carla_map = carla.Map(name, (shared_data / "opendrive" / f"{name}.xodr").read_text())
    planner = RoutePlanner(carla_map)
    specs = [s for s in load_routes(shared_data / "bench2drive" / "bench2drive220.xml") if s.town == name]
    assert len(specs) >= 4
    gaps = []
    for spec in specs:
        plan = planner.plan(spec)
        assert np.linalg.norm(np.diff(plan.xy_m, axis=0), axis=1).max() < 2.0
        keypoints = flip_y(spec.keypoints_carla[:, :2])
        distances = np.linalg.norm(keypoints[:, None] - plan.xy_m[None], axis=2)
        assert distances.min(axis=1).max() < 1.5
        nearest = distances.argmin(axis=1)
        assert (np.diff(nearest) >= 0).all()
        straight = np.linalg.norm(np.diff(keypoints, axis=0), axis=1)
        gaps.append(straight.max())
        assert straight.sum() - 1 <= plan.length_m <= 1.35 * straight.sum() + 2
        assert np.abs(wrapped(np.diff(plan.yaw_rad))).max() < 0.25
    assert max(gaps) > 10 or name == "Town05" or name == "Town02"


def test_whole_bench2drive_file_can_be_read(shared_data):
    specs = load_routes(shared_data / "bench2drive" / "bench2drive220.xml")
    assert len(specs) == 220
    assert specs[0].id == "1711"
    assert specs[0].town == "Town12"
    np.testing.assert_allclose(specs[0].keypoints_carla[0], (-497.6, 3672.9, 364.9))


def test_lane_change_is_spread_out_and_announced(shared_data):
    carla_map = carla.Map("Town05", (shared_data / "opendrive" / "Town05.xodr").read_text())
    planner = RoutePlanner(carla_map)
    checked = {NavCommand.CHANGE_LEFT: 0, NavCommand.CHANGE_RIGHT: 0}
    for begin, _ in carla_map.get_topology():
        for side, command in (("left", NavCommand.CHANGE_LEFT), ("right", NavCommand.CHANGE_RIGHT)):
            if checked[command] >= 3 or begin.is_junction:
                continue
            ahead = begin.next(70.0)
            if not ahead or ahead[0].road_id != begin.road_id or ahead[0].lane_id != begin.lane_id:
                continue
            goal = ahead[0].get_left_lane() if side == "left" else ahead[0].get_right_lane()
            if goal is None or goal.lane_type != carla.LaneType.Driving or goal.lane_id * begin.lane_id < 0:
                continue
            points = [(w.transform.location.x, w.transform.location.y, w.transform.location.z) for w in (begin, goal)]
            plan = planner.plan(RouteSpec("r", "Town05", np.array(points)))
            announced = [i for i, c in enumerate(plan.commands) if c is command]
            assert 15 <= len(announced) <= 30
            assert plan.length_m < 80
            assert np.abs(wrapped(np.diff(plan.yaw_rad))).max() < 0.2
            np.testing.assert_allclose(
                plan.at(np.array([plan.length_m]))[0], flip_y(np.array(points)[1:, :2])[0], atol=0.3
            )
            checked[command] += 1
    assert min(checked.values()) >= 1


XML = '<routes><route id="7" town="T"><waypoints>{}</waypoints></route></routes>'
POINT = '<position x="{}" y="0" z="0"/>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<routes>", "well-formed"),
        ("<route/>", "<routes>"),
        ("<routes/>", "at least one"),
        ('<routes><route town="T"/></routes>', "number 1: expected an attribute id"),
        ('<routes><route id="7"/></routes>', "attribute town"),
        (XML.format(POINT.format(1)), "at least two"),
        (XML.format(POINT.format(1) + POINT.format("one")), "position 2: expected a number x, got one"),
        (XML.format(POINT.format(1) + '<position x="1" z="0"/>'), "position 2: expected a number y, got none"),
        (XML.format(POINT.format(1) + POINT.format("nan")), "route 7: position 2: expected a finite x, got nan"),
        ("<routes>" + 2 * (XML.format(POINT.format(1) + POINT.format(2))[8:-9]) + "</routes>", "id 7 twice"),
    ],
)
def test_malformed_file_is_refused_with_the_place(tmp_path, text, message):
    (tmp_path / "r.xml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_routes(tmp_path / "r.xml")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="readable"):
        load_routes(tmp_path / "none.xml")


def test_route_off_the_road_is_refused(planner):
    with pytest.raises(UserError, match=r"route 9.*off"):
        planner.plan(RouteSpec("9", "T", np.array([[60.0, -60.0, 0.0], [60.0, -70.0, 0.0]])))


ONE_WAY_ROAD = """
<road id="{id}" length="100" junction="-1"><link>{link}</link>
 <planView><geometry s="0" x="{x}" y="0" hdg="0" length="100"><line/></geometry></planView>
 <lanes><laneSection s="0"><center><lane id="0" type="none"/></center>
  <right><lane id="-1" type="driving"><link>{lane_link}</link>
   <width sOffset="0" a="3.5" b="0" c="0" d="0"/></lane></right>
 </laneSection></lanes></road>"""


def test_route_against_the_direction_of_travel_is_refused():
    to_second = '<successor elementType="road" elementId="2" contactPoint="start"/>'
    from_first = '<predecessor elementType="road" elementId="1" contactPoint="end"/>'
    roads = ONE_WAY_ROAD.format(id=1, x=0, link=to_second, lane_link='<successor id="-1"/>')
    roads += ONE_WAY_ROAD.format(id=2, x=100, link=from_first, lane_link='<predecessor id="-1"/>')
    planner = RoutePlanner(carla.Map("one", f'<OpenDRIVE><header revMajor="1" revMinor="4"/>{roads}</OpenDRIVE>'))
    forth = np.array([[20.0, 1.75, 0.0], [180.0, 1.75, 0.0]])
    plan = planner.plan(RouteSpec("1", "one", forth))
    assert plan.length_m == pytest.approx(160, abs=0.1)
    assert plan.lanes == ((1, -1), (2, -1))
    with pytest.raises(UserError, match="position 2"):
        planner.plan(RouteSpec("1", "one", forth[::-1]))


@pytest.mark.parametrize("route_id", ["../up", "/abs", "a/b", ".hidden"])
def test_route_ids_that_would_leave_the_run_folder_are_refused(tmp_path: Path, route_id: str) -> None:
    file = tmp_path / "routes.xml"
    file.write_text(
        f'<routes><route id="{route_id}" town="Wamtown01"><waypoints><position x="0" y="0" z="0"/>'
        '<position x="9" y="0" z="0"/></waypoints></route></routes>'
    )
    with pytest.raises(UserError, match="id: expected letters"):
        load_routes(file)
