"""The privileged expert on a straight road with others on it. Oracles: the geometry of the meeting, and physics."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.expert.agent import PrivilegedExpert
from carla_bridge.agents.expert.idm import Ahead, IdmConfig, roll_speeds
from carla_bridge.agents.expert.road import Road
from carla_bridge.client.surroundings import Actor, LightState, StopLine, StopSign, Surroundings, TrafficLight
from carla_bridge.drive.route_run import RouteSetup
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.results import read_ticks
from tests.carla_bridge.drive_doubles import TICK_NS, FakeWorld, drive_route, straight_route
from wamdiff2_core.types import Pose2D

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
    assert 0.2 < 50.0 - (waiting[-1].x_m + HALF_M) < 2.5
    assert ticks[-1].t_ns > 18e9


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
