"""The privileged expert on roads with others on them. Oracles: the geometry of the meeting, and physics."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

import carla

from carla_bridge.agents.agent import View
from carla_bridge.agents.expert.agent import PrivilegedExpert, horizon_s
from carla_bridge.agents.expert.idm import Ahead, IdmConfig, roll_speeds
from carla_bridge.agents.expert.others import TIMES_S, OthersReader, follows, forecast
from carla_bridge.agents.expert.road import Road
from carla_bridge.agents.expert.rules import BROKEN_LIGHT_S, RouteRules
from carla_bridge.client.surroundings import Actor, LightState, StopLine, StopSign, Surroundings, TrafficLight
from carla_bridge.drive.route_run import RouteRun, RouteSetup
from carla_bridge.leaderboard.criteria import RouteCriteria
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import read_ticks
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.route_file import load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.server.town.town import Town
from tests.carla_bridge.drive_doubles import (
    STRAIGHT_ROAD,
    TICK_NS,
    FakeWorld,
    drive_route,
    straight_map,
    straight_route,
)
from wamdiff2_core.frames import transform_points
from wamdiff2_core.types import EgoState, Pose2D

pytestmark = pytest.mark.carla
HALF_M, HALF_WIDTH_M = 2.45, 1.08


class BusyWorld(FakeWorld):
    """A plane with others, each a function from seconds since the first tick to (x, y, yaw, speed)."""

    def __init__(self, others=(), light=None, sign=None):
        super().__init__()
        self.others, self.light, self.sign = others, light, sign
        self.closest_m = math.inf

    def surroundings(self):
        alone = super().surroundings()
        t_s = self.ticks * TICK_NS * 1e-9
        actors = []
        for number, (kind, extent, path) in enumerate(self.others):
            x, y, yaw, speed = path(t_s)
            velocity = speed * np.array([math.cos(yaw), math.sin(yaw)])
            actors.append(Actor(10 + number, kind, "scenario", Pose2D(x, y, yaw), 0.0, velocity, 0.0,
                                (*extent, 0.8), np.zeros(2)))
            self.closest_m = min(self.closest_m, gap_m(alone.ego, actors[-1]))
        lights = () if self.light is None else (self.light(t_s),)
        signs = () if self.sign is None else (self.sign,)
        return Surroundings(self.ticks, self.ticks * TICK_NS, alone.ego, tuple(actors), lights, signs)


def gap_m(a, b):
    """Distance of two boxes: the oracle is shapely's."""
    from shapely.geometry import Polygon

    return Polygon(a.corners_m()).distance(Polygon(b.corners_m()))


CAR, WALKER, CONE = (2.3, 0.95), (0.2, 0.2), (0.17, 0.17)


def standing(x, y, kind="vehicle.audi.tt", extent=CAR, yaw=0.0):
    return kind, extent, lambda t_s: (x, y, yaw, 0.0)


def drive(tmp_path, world, length_m=120.0):
    route = straight_route(length_m)
    result = drive_route(tmp_path, PrivilegedExpert(), world, route, RouteSetup(route))
    return result, read_ticks(tmp_path)


LEFT_LANE = """<left><lane id="1" type="driving"><width sOffset="0" a="3.5" b="0" c="0" d="0"/></lane></left><center>"""


def two_way_map():
    """As `straight_map`, with a lane of the opposite direction to the left of the route's."""
    return carla.Map("Nowhere", STRAIGHT_ROAD.replace("<center>", LEFT_LANE))


def drive_two_ways(tmp_path, world, length_m=120.0):
    route, agent, there = straight_route(length_m), PrivilegedExpert(), two_way_map()
    agent.start(route, there)
    with RouteRecorder(tmp_path, route) as recorder:
        result = RouteRun(RouteSetup(route), world, agent, RouteCriteria(route, there), recorder).drive()
    return result, read_ticks(tmp_path)


def test_a_free_road_is_driven_at_cruise_speed_on_its_line(tmp_path):
    result, ticks = drive(tmp_path, BusyWorld())
    assert result.outcome is Outcome.COMPLETED
    assert max(tick.speed_mps for tick in ticks) == pytest.approx(8.0, abs=0.4)
    assert result.max_deviation_m < 0.05


def test_a_slow_leader_is_followed_at_its_speed_with_a_gap(tmp_path):
    world = BusyWorld([("vehicle.audi.tt", CAR, lambda t_s: (20.0 + 3.0 * t_s, 0.0, 0.0, 3.0))])
    result, ticks = drive(tmp_path, world)
    assert result.outcome is Outcome.COMPLETED
    assert np.mean([tick.speed_mps for tick in ticks[-100:]]) == pytest.approx(3.0, abs=0.3)
    assert 2.0 < world.closest_m < 9.0


def test_it_stops_before_a_red_light_and_goes_on_green(tmp_path):
    def light(t_s):
        line = StopLine((1, -1), Pose2D(50.0, 0.0, 0.0), 0.0, 3.5)
        state = LightState.RED if t_s < 20.0 else LightState.GREEN
        return TrafficLight(5, state, Pose2D(52.0, -4.0, 0.0), 0.0, np.array([49.0, 0.0]), (line,))

    result, ticks = drive(tmp_path, BusyWorld(light=light))
    assert result.outcome is Outcome.COMPLETED
    waiting = [tick for tick in ticks if tick.t_ns > 10e9 and tick.speed_mps < 0.05]
    assert waiting
    assert 1.0 < 50.0 - (waiting[-1].x_m + HALF_M) < 3.0
    assert ticks[-1].t_ns > 18e9


@pytest.mark.parametrize("state", [LightState.OFF, LightState.UNKNOWN])
def test_a_light_that_says_nothing_is_a_stop_sign(tmp_path, state):
    line = StopLine((1, -1), Pose2D(50.0, 0.0, 0.0), 0.0, 3.5)
    light = TrafficLight(5, state, Pose2D(52.0, -4.0, 0.0), 0.0, np.array([49.0, 0.0]), (line,))
    result, ticks = drive(tmp_path, BusyWorld(light=lambda t_s: light))
    assert result.outcome is Outcome.COMPLETED
    stood = [tick.x_m for tick in ticks if tick.speed_mps < 0.08 and tick.x_m > 5.0]
    assert all(1.0 < 50.0 - (x + HALF_M) < 4.0 for x in stood)
    assert 0 < len(stood) < 40  # 2 s


def test_a_light_that_stays_red_for_longer_than_any_cycle_does_not_hold_it_for_ever():
    line = StopLine((1, -1), Pose2D(50.0, 0.0, 0.0), 0.0, 3.5)
    rules, ego = RouteRules(Road(straight_route().xy_m), HALF_M), BusyWorld().surroundings().ego

    def asks(t_s, state=LightState.RED, speed_mps=0.0):
        light = TrafficLight(5, state, Pose2D(52.0, -4.0, 0.0), 0.0, np.array([49.0, 0.0]), (line,))
        return rules.stops(Surroundings(0, round(t_s * 1e9), ego, (), (light,), ()), 46.0, speed_mps)

    assert asks(0.0)
    assert asks(BROKEN_LIGHT_S - 1.0)
    assert not asks(BROKEN_LIGHT_S + 1.0)
    assert not asks(BROKEN_LIGHT_S + 2.0, speed_mps=1.0)
    assert not asks(BROKEN_LIGHT_S + 3.0, LightState.GREEN)
    assert asks(BROKEN_LIGHT_S + 20.0)  # it works again


def test_it_stands_at_a_stop_sign_within_its_reach_and_goes_on(tmp_path):
    sign = StopSign(5, Pose2D(50.0, -4.0, 0.0), 0.0, Pose2D(50.0, 0.0, 0.0), (1.0, 1.5, 1.0))
    result, ticks = drive(tmp_path, BusyWorld(sign=sign))
    assert result.outcome is Outcome.COMPLETED
    assert result.infractions == ()
    stood = [tick.x_m for tick in ticks if tick.speed_mps < 0.08 and tick.x_m > 5.0]
    assert stood
    assert all(46.0 < x < 50.0 for x in stood)


@pytest.mark.parametrize("start_s", [3.0, 4.0, 5.0, 6.0])
@pytest.mark.parametrize("side", [-1, 1])
def test_it_does_not_touch_a_pedestrian_who_walks_across(tmp_path, start_s, side):
    def path(t_s):
        walked = 1.6 * max(0.0, t_s - start_s)
        return 35.0, side * (walked - 4.0), side * math.pi / 2, 1.6 if t_s > start_s else 0.0

    world = BusyWorld([("walker.pedestrian.0001", WALKER, path)])
    result, _ = drive(tmp_path, world)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.2


@pytest.mark.parametrize("delay_s", np.arange(0.0, 5.0, 0.5))
def test_crossing_cars_that_do_not_yield_are_let_through(tmp_path, delay_s):
    def path(t_s):
        return 45.0, -60.0 + 8.0 * (t_s - delay_s), math.pi / 2, 8.0

    world = BusyWorld([("vehicle.audi.tt", CAR, path)])
    result, _ = drive(tmp_path, world)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.2


def test_who_has_waited_for_long_pulls_out_before_traffic_that_can_still_slow_down_but_not_before_walkers():
    looks = [horizon_s(round(waited_s / 0.25), is_walker=False) for waited_s in (0.0, 7.0, 9.0, 13.0, 16.0)]
    assert looks == [math.inf, math.inf, 4.0, 4.0, 2.5]
    assert horizon_s(1000, is_walker=True) == 4.0


def test_who_has_pulled_out_after_a_long_wait_goes_through_with_it():
    """Timid again half-way, it would stop in the lane that it crosses, and the traffic there before it."""
    expert = PrivilegedExpert()
    expert.start(straight_route(), straight_map())
    for _ in range(60):
        expert._hold(True, 10.0, 0.0)
    assert expert._bold
    assert expert._hold(True, 14.0, 3.0) == expert._hold(False, 15.0, 3.0) == []
    assert expert._bold
    expert._hold(False, 30.0, 6.0)
    assert not expert._bold


def test_it_does_not_wait_for_cars_that_wait(tmp_path):
    result, ticks = drive(tmp_path, BusyWorld([standing(45.0, -6.0, yaw=math.pi / 2)]))
    assert result.outcome is Outcome.COMPLETED
    assert ticks[-1].t_ns < 22e9


def test_what_blocks_the_only_lane_is_waited_for(tmp_path):
    """The road has no lane beside: there is nothing to do but to stand, without touching it."""
    world = BusyWorld([standing(45.0, 0.0)])
    result, _ = drive(tmp_path, world)
    assert result.outcome is Outcome.BLOCKED
    assert 1.0 < world.closest_m < 12.0


def test_what_reaches_into_the_lane_a_little_is_passed_within_it(tmp_path):
    world = BusyWorld([standing(45.0, -1.4, "static.prop.constructioncone", CONE)])
    result, _ = drive(tmp_path, world)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.15


def test_oncoming_cars_over_the_middle_of_the_road_are_passed_at_the_right_edge_without_a_stop(tmp_path):
    def car(number):
        return "vehicle.audi.tt", (2.4, 1.0), lambda t_s: (90.0 + 40.0 * number - 8.0 * t_s, 1.9, math.pi, 8.0)

    world = BusyWorld([car(number) for number in range(6)])
    result, ticks = drive(tmp_path, world)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.4
    assert 3.5 < min(tick.speed_mps for tick in ticks if tick.x_m > 20.0) < 6.0
    assert ticks[-1].t_ns < 30e9
    assert min(tick.y_m for tick in ticks) - HALF_WIDTH_M > -1.85  # its lane ends at -1.75


def test_what_blocks_the_lane_is_passed_on_the_opposite_one_after_a_slow_look(tmp_path):
    world = BusyWorld([standing(70.0, -0.9)])
    result, ticks = drive_two_ways(tmp_path, world, 140.0)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.6
    assert max(tick.y_m for tick in ticks) > 1.5
    leaving = next(k for k, tick in enumerate(ticks) if tick.y_m > 0.3)
    assert ticks[leaving].speed_mps < 5.5
    assert max(tick.speed_mps for tick in ticks[leaving:]) > 7.0


def test_it_lets_oncoming_traffic_by_before_it_leaves_its_lane(tmp_path):
    def oncoming(t_s):
        return 160.0 - 8.0 * t_s, 3.5, math.pi, 8.0

    world = BusyWorld([standing(70.0, -0.9), ("vehicle.audi.tt", CAR, oncoming)])
    result, ticks = drive_two_ways(tmp_path, world, 140.0)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.5
    beyond = [oncoming(tick.t_ns * 1e-9 + 0.4)[0] for tick in ticks if tick.y_m > 0.8]
    assert max(beyond) < 70.0


def test_it_comes_back_when_somebody_turns_into_the_opposite_lane_while_it_pulls_out(tmp_path):
    """The oncoming car is there only once the vehicle has decided to pass."""
    def oncoming(t_s):
        return (5000.0, 3.5, math.pi, 0.0) if t_s < 9.0 else (125.0 - 8.0 * (t_s - 9.0), 3.5, math.pi, 8.0)

    world = BusyWorld([standing(70.0, -0.9), ("vehicle.audi.tt", CAR, oncoming)])
    result, _ = drive_two_ways(tmp_path, world, 140.0)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.5


@pytest.mark.parametrize("behind_m", [8.0, 12.0])
def test_two_that_have_stopped_one_behind_the_other_are_passed_in_one_go(tmp_path, behind_m):
    """The one in front has stood for longer, and counts as standing before the nearer one does."""
    def rider(x_m, stops_s):
        def path(t_s):
            return x_m - 2.0 * max(0.0, stops_s - t_s), -1.0, 0.0, 2.0 if t_s < stops_s else 0.0

        return "vehicle.gazelle.omafiets", (0.9, 0.33), path

    world = BusyWorld([rider(60.0, 16.0), rider(60.0 - behind_m, 20.0)])
    result, _ = drive_two_ways(tmp_path, world, 120.0)
    assert result.outcome is Outcome.COMPLETED
    assert world.closest_m > 0.25


def test_a_car_that_has_stopped_too_close_to_be_steered_around_is_not_touched(tmp_path):
    def path(t_s):
        return 50.0 - 2.0 * max(0.0, 19.0 - t_s), -0.9, 0.0, 2.0 if t_s < 19.0 else 0.0

    world = BusyWorld([("vehicle.audi.tt", CAR, path)])
    result, _ = drive_two_ways(tmp_path, world, 120.0)
    assert result.outcome is Outcome.BLOCKED
    assert world.closest_m > 1.0


def s_bend():
    """90 degrees left and 90 degrees right, each of 26 m radius, after 40 m of straight road."""
    heading = np.concatenate([np.zeros(80), np.linspace(0.0, math.pi / 2, 82), np.linspace(math.pi / 2, 0.0, 82),
                              np.zeros(80)])
    steps = 0.5 * np.stack([np.cos(heading), np.sin(heading)], axis=1)
    return Road(np.concatenate([[[0.0, 0.0]], np.cumsum(steps, axis=0)]))


def along_the_road(road, at_m, lane_m):
    """A car at 8 m/s in the lane of the route or in the opposite one, that already turns for what is 0.3 s ahead."""
    speed = 8.0 if lane_m == 0.0 else -8.0
    place, = road.places(np.array([at_m]), np.array([lane_m]))
    yaw = float(road.headings(np.array([at_m]))[0]) + (math.pi if speed < 0 else 0.0)
    pace = speed / (1.0 - float(road.bends(np.array([at_m]))[0]) * lane_m)
    turning = float(road.bends(np.array([at_m + 0.3 * pace]))[0]) * pace
    actor = Actor(9, "vehicle.audi.tt", "", Pose2D(place[0], place[1], yaw), 0.0,
                  abs(speed) * np.array([math.cos(yaw), math.sin(yaw)]), turning, (*CAR, 0.8), np.zeros(2))
    ego = Actor(1, "vehicle.lincoln.mkz_2020", "hero", Pose2D(*road.xy_m[120], 0.0), 0.0, np.zeros(2), 0.0,
                (HALF_M, HALF_WIDTH_M, 0.7), np.zeros(2))
    other, = OthersReader(road).read(Surroundings(1, 0, ego, (actor,), (), ()), 60.0)
    return other


@pytest.mark.parametrize("lane_m", [0.0, 3.5])
@pytest.mark.parametrize("at_m", np.arange(46.0, 118.0, 4.0))
def test_who_drives_along_the_road_is_expected_to_follow_its_bends(lane_m, at_m):
    road = s_bend()
    middles = forecast(along_the_road(road, at_m, lane_m), road).centres_m.mean(axis=1)[TIMES_S < 3.0]
    assert np.abs(road.project(middles, at_m)[:, 1] - lane_m).max() < 0.8


def test_nobody_in_a_junction_is_expected_to_go_where_the_route_goes():
    road = s_bend()
    assert follows(along_the_road(road, 60.0, 3.5), road)
    road.in_junction[80:110] = True  # from 40 m to 55 m
    assert not follows(along_the_road(road, 60.0, 3.5), road)
    assert follows(along_the_road(road, 60.0, 0.0), road)


def test_a_car_behind_a_junction_is_waited_for_before_the_opposite_lane_is_used(tmp_path):
    """The route of a blocked exit: nobody drives through a junction on the wrong side to get round who waits there."""
    town = Town.load("Wamtown02")
    spec = next(spec for spec in load_routes(ROUTES_FOLDER / "embedded-40.xml")
                if spec.scenarios[0].type == "BlockedIntersection")
    plan = RoutePlanner(town.map).plan(spec)
    road = Road(plan.xy_m)
    behind_m = next(float(s) for s in np.arange(40.0, plan.length_m, 1.0) if is_junction(town.map, road, s - 1.0)
                    and not is_junction(town.map, road, s)) + 5.0
    expert = PrivilegedExpert()
    expert.start(plan, town.map)

    def turns_out(t_s, at_m):
        def body(number, kind, s, extent):
            yaw = float(road.headings(np.array([s]))[0])
            return Actor(number, kind, "scenario", Pose2D(*road.places(np.array([s]), np.zeros(1))[0], yaw), 0.0,
                         np.zeros(2), 0.0, (*extent, 0.8), np.zeros(2))

        ego = body(1, "vehicle.lincoln.mkz_2020", at_m, (HALF_M, HALF_WIDTH_M))
        car = body(9, "vehicle.audi.tt", behind_m, CAR)
        stamp_ns = round(t_s * 1e9)
        state = EgoState(np.zeros(2), np.zeros(2), 0.0, ego.pose, stamp_ns)
        around = Surroundings(round(t_s * 20), stamp_ns, ego, (car,), (), ())
        waypoints = expert.plan(View(SimpleNamespace(stamp_ns=stamp_ns, ego=state), None, around)).waypoints
        assert waypoints is not None
        ends = road.project(transform_points(ego.pose, waypoints.xy_m), at_m)
        return float(np.abs(ends[:, 1]).max()) > 0.5

    near_m = behind_m - 5.5 - HALF_M - CAR[0]
    steps = [(0.25 * k, min(near_m, near_m - 60.0 + 4.0 * k)) for k in range(160)]
    out = [t_s for t_s, at_m in steps if turns_out(t_s, at_m)]
    assert out
    assert 29.0 < min(out) < 32.0


def is_junction(carla_map, road, s_m):
    x, y = road.xy_m[road.index(float(s_m))]
    return carla_map.get_waypoint(carla.Location(float(x), float(-y), 0.0)).is_junction


def test_idm_comes_to_rest_before_what_stands_and_never_backwards():
    accels, ways = roll_speeds(2.45, 8.0, lambda way: 8.0, [Ahead(40.0)], 200, 0.1, IdmConfig())
    assert np.all(np.diff(ways) >= 0)
    assert 40.0 - 2.45 - ways[-1] == pytest.approx(2.5, abs=0.7)
    assert min(accels) > -4.0


def test_places_of_a_road_project_to_where_they_came_from():
    angle = np.linspace(0.0, math.pi, 160)
    road = Road(np.stack([50.0 * np.sin(angle), 50.0 * (1.0 - np.cos(angle))], axis=1))
    s, d = np.linspace(5.0, 140.0, 40), np.linspace(-3.0, 3.0, 40)
    for k in range(len(s)):
        found = road.project(road.places(s[k : k + 1], d[k : k + 1]), float(s[k]))
        assert found[0] == pytest.approx([s[k], d[k]], abs=0.12)
