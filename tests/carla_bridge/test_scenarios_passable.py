"""That scenarios can be passed: flows heed who is there already, works follow the road, junctions are left clear."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.client import Simulation  # noqa: E402
from carla_bridge.client.surroundings import Actor, Surroundings  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from carla_bridge.scenarios.behaviours import LineDriver, Track  # noqa: E402
from carla_bridge.scenarios.engine import ScenarioEngine  # noqa: E402
from carla_bridge.scenarios.places import Place, Spot  # noqa: E402
from carla_bridge.scenarios.scenario import Scene  # noqa: E402
from carla_bridge.scenarios.stage import Stage  # noqa: E402
from carla_bridge.scenarios.traffic_flows import NonSignalizedJunctionRightTurn  # noqa: E402
from tests.carla_bridge.scenario_drive import Rails, distances  # noqa: E402
from wamdiff2_core.types import Pose2D  # noqa: E402

pytestmark = pytest.mark.carla


@pytest.fixture(scope="module")
def rails(server_port: int) -> Rails:
    return Rails(server_port)


@pytest.mark.parametrize("overtakes", [True, False])
def test_no_oncoming_vehicle_turns_into_a_lane_on_which_the_ego_vehicle_overtakes(rails: Rails, overtakes: bool):
    spec = rails.scenario("ParkedObstacleTwoWays", distance="30", frequency={"from": "20", "to": "30"})
    drive = rails.drive(spec, speed_mps=lambda seen: 8.0 if seen.arc_m < 20.0 else 0.0, max_s=14.0,
                        left_m=lambda arc_m: 3.5 if overtakes and arc_m > 10.0 else 0.0)
    assert drive.ticks[-1].wrong_way
    oncoming = len(drive.tracks("vehicle.")) - 1
    assert oncoming == 0 if overtakes else oncoming >= 1


def test_no_vehicle_of_a_flow_appears_just_before_the_ego_vehicle(rails: Rails):
    spec = rails.scenario("InvadingTurn", trigger_m=2.0, distance="26", offset="0.3")
    drive = rails.drive(spec, speed_mps=lambda seen: 4.0, left_m=lambda arc_m: -0.6, max_s=14.0)
    tracks = drive.tracks("vehicle.")
    assert tracks
    for key in tracks:
        first = distances(drive.ticks, drive.ego_id + key)[:2]
        assert min(first) > 20.0


def test_road_works_follow_the_bend_of_their_lane(server_port: int):
    rails = Rails(server_port, route_id="2")
    turned = np.abs(np.gradient(np.unwrap(rails.plan.yaw_rad), rails.plan.arc_m))
    fits = [
        float(arc) for arc in np.arange(15.0, rails.plan.length_m - 40.0, 2.0)
        if not any(Place.at(rails.map, rails.pose(float(arc) + ahead)).in_junction for ahead in range(-12, 30, 3))
        and float(np.interp(arc + np.array([2.0, 8.0]), rails.plan.arc_m, turned).min()) > 0.01
    ]
    works_m = fits[0]
    spec = rails.scenario("ConstructionObstacle", trigger_m=works_m - 12.0, distance="12")
    drive = rails.drive(spec, speed_mps=5.0, to_m=works_m - 8.0)
    cones = [track[-1][1] for track in drive.tracks("cone").values()]
    assert len(cones) == 7
    asides = []
    for cone in cones:
        place = Place.at(rails.map, cone.pose)
        yaw = place.spot.pose.yaw_rad
        x, y = np.array([cone.pose.x_m, cone.pose.y_m]) - place.spot.xy_m
        asides.append(math.cos(yaw) * y - math.sin(yaw) * x)
    assert sorted(asides)[-4:] == pytest.approx([0.85 * 1.75] * 4, abs=0.05)
    assert min(asides) > -1.75


def test_background_vehicles_leave_the_way_to_a_junction_and_the_junction(rails: Rails):
    """One that waits there for a gap in a scenario's flow would hold up the ego vehicle for ever."""
    spec = rails.scenario("VanillaNonSignalizedTurn")
    with Simulation(port=rails.port, ego_pose=rails.plan.start, cameras=[], inertial=False) as simulation, \
            ScenarioEngine(simulation, rails.plan, spec, rails.planner, 1) as engine:
        stage = Stage(simulation, np.random.default_rng(0))
        simulation.tick()
        engine.set_up(simulation.surroundings())
        junction_m = next(float(arc) for arc in np.arange(20.0, 120.0, 1.0)
                          if Place.at(simulation.map, rails.pose(float(arc))).in_junction)
        ids = [stage.spawn("vehicle.tesla.model3", Spot(rails.pose(arc_m, left_m), 0.0), role="background")
               for arc_m, left_m in ((junction_m - 6.0, 0.0), (junction_m + 8.0, 0.0), (junction_m - 6.0, 3.5))]
        for arc_m in np.arange(1.0, 12.0, 0.4):
            simulation.place_ego(rails.pose(float(arc_m)), 8.0)
            simulation.tick()
            engine.step(simulation.surroundings())
        simulation.tick()
        left = {actor.id for actor in simulation.surroundings().actors}
        stage.close()
    assert [actor_id in left for actor_id in ids] == [False, False, True]


def test_a_flow_across_a_junction_leads_straight_on_through_all_sections_of_its_lanes(shared_data):
    """Bench2Drive's route 26966: Town05's ways through a junction begin with a straight section, turning or not."""
    routes = load_routes(shared_data / "bench2drive" / "bench2drive220.xml")
    spec = next(route for route in routes if route.id == "26966")
    town = carla.Map("Town05", (shared_data / "opendrive" / "Town05.xodr").read_text(encoding="utf-8"))
    planner = RoutePlanner(town)
    stage = SimpleNamespace(simulation=SimpleNamespace(map=town))
    scenario = NonSignalizedJunctionRightTurn(spec.scenarios[0], Scene(stage, planner.plan(spec), planner, None))
    scenario.set_up()
    line = scenario._line
    yaws = np.array([line.pose(float(arc)).yaw_rad for arc in np.arange(0.0, line.length_m, 1.0)])
    assert np.abs(np.unwrap(yaws) - yaws[0]).max() < math.radians(20.0)


class Hill:
    """A stage with one vehicle on a slope that pulls it back."""

    def __init__(self, pull_mps2: float) -> None:
        self.pull_mps2, self.accel_mps2 = pull_mps2, 0.0

    def owns(self, actor_id: int) -> bool:
        return True

    def wheelbase_m(self, actor_id: int) -> float:
        return 1.2

    def drive(self, actor_id: int, command) -> None:
        self.accel_mps2 = command.accel_mps2 - self.pull_mps2


@pytest.mark.parametrize("pull_mps2", [0.0, 3.5])
def test_a_vehicle_of_a_scenario_gets_going_uphill(pull_mps2: float):
    driver, stage = LineDriver(9, Track(np.array([[0.0, 0.0], [200.0, 0.0]])), 3.0), Hill(pull_mps2)
    ego = Actor(1, "vehicle.lincoln.mkz_2020", "hero", Pose2D(0.0, 90.0, 0.0), 0.0, np.zeros(2), 0.0,
                (2.4, 1.0, 0.7), np.zeros(2))
    x_m, v = 10.0, 0.0
    for tick in range(600):
        bike = Actor(9, "vehicle.gazelle.omafiets", "scenario", Pose2D(x_m, 0.0, 0.0), 0.0, np.array([v, 0.0]), 0.0,
                     (0.9, 0.3, 0.8), np.zeros(2))
        driver.step(stage, Surroundings(tick, tick * 50_000_000, ego, (bike,), (), ()))
        v += 0.05 * stage.accel_mps2
        x_m += 0.05 * v
        assert v < 4.5
    assert v == pytest.approx(3.0, abs=0.8)


def test_a_vehicle_of_a_scenario_slows_down_for_a_bend():
    angle = np.linspace(0.0, math.pi / 2, 20)
    bend = np.stack([60.0 + 10.0 * np.sin(angle), 10.0 * (1.0 - np.cos(angle))], axis=1)
    track = Track(np.concatenate([[[x, 0.0] for x in np.arange(0.0, 60.0)], bend,
                                  [[70.0, y] for y in np.arange(11.0, 60.0)]]))
    assert track.bend_mps(0.0) > 15.0
    assert track.bend_mps(68.0) == pytest.approx(math.sqrt(4.5 * 10.0), rel=0.1)
    assert 9.0 < track.bend_mps(50.0) < 11.5  # it can brake in time, with 2.5 m/s^2
