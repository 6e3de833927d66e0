"""Weather along a route: against values computed by hand, and in a running world."""

from __future__ import annotations

from types import MappingProxyType

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

import carla

from carla_bridge.client.client import Simulation
from carla_bridge.leaderboard.route_weather import BASE_WEATHER, RouteWeather
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.route_file import RouteSpec, WeatherSpec, load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.engine import ScenarioEngine
from carla_bridge.weather_fields import WEATHER_FIELDS
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.types import Pose2D


def spec(share: float, **values: float) -> WeatherSpec:
    return WeatherSpec(share, MappingProxyType(values))


def drive(weather: RouteWeather, to_m: float, step_m: float = 0.5) -> list[dict]:
    """What is set on the way along x, a step a tick, from the start until a place."""
    places = [step_m * k for k in range(int(to_m / step_m) + 1)]
    return [dict(said) for x_m in places if (said := weather.update(Pose2D(x_m, 0.3, 0.0))) is not None]


def test_fields_change_linearly_with_the_share_of_the_route_that_is_passed() -> None:
    # 60 m, a point each metre: point 15 is passed at 15.5 m, a quarter of the way.
    weather = RouteWeather(straight_route(60.0), [
        spec(0.0, cloudiness=20.0, sun_altitude_angle=45.0, precipitation=8.0),
        spec(100.0, cloudiness=100.0, sun_altitude_angle=-15.0, fog_density=40.0),
    ])
    assert dict(weather.start) == dict(BASE_WEATHER) | {
        "cloudiness": 20.0, "sun_altitude_angle": 45.0, "precipitation": 8.0,
    }
    last = drive(weather, 15.5)[-1]
    expected = {"cloudiness": 40.0, "sun_altitude_angle": 30.0, "precipitation": 6.0, "fog_density": 10.0}
    assert last == pytest.approx(dict(BASE_WEATHER) | expected)
    assert drive(weather, 60.5)[-1]["cloudiness"] == pytest.approx(100.0)


def test_each_point_is_set_once_and_a_standing_vehicle_changes_nothing() -> None:
    weather = RouteWeather(straight_route(60.0), [spec(0.0, wetness=0.0), spec(100.0, wetness=60.0)])
    said = drive(weather, 10.5)
    assert [item["wetness"] for item in said] == pytest.approx([float(k) for k in range(1, 11)])
    assert [weather.update(Pose2D(10.5, 0.0, 0.0)) for _ in range(5)] == [None] * 5
    assert weather.update(Pose2D(3.0, 0.0, 0.0)) is None


def test_a_vehicle_is_looked_for_three_points_ahead_at_most() -> None:
    weather = RouteWeather(straight_route(60.0), [spec(0.0, wetness=0.0), spec(100.0, wetness=60.0)])
    said = weather.update(Pose2D(30.0, 0.0, 0.0))
    assert said is not None
    assert said["wetness"] == pytest.approx(3.0)


def test_the_nearest_key_point_holds_outside_of_them() -> None:
    weather = RouteWeather(straight_route(100.0), [spec(20.0, wetness=10.0), spec(60.0, wetness=50.0)])
    assert weather.start["wetness"] == 10.0
    assert [weather.at(share)["wetness"] for share in (0.0, 20.0, 40.0, 60.0, 90.0)] == [10.0, 10.0, 30.0, 50.0, 50.0]


@pytest.mark.parametrize("weathers", [[], [spec(0.0, fog_density=9.0)],
                                      [spec(0.0, fog_density=9.0), spec(100.0, fog_density=9.0)]])
def test_nothing_is_set_again_where_the_weather_is_one(weathers: list[WeatherSpec]) -> None:
    weather = RouteWeather(straight_route(60.0), weathers)
    assert dict(weather.start) == dict(BASE_WEATHER) | (weathers[0].values if weathers else {})
    assert drive(weather, 60.5) == []


def test_climbs_count_as_length() -> None:
    plan = straight_route(60.0)
    plan.z_m[31:] = 40.0  # the step from point 30 to 31 is 40.01 m long: 30 + 40.01 + 29 m in all
    weather = RouteWeather(plan, [spec(0.0, wetness=0.0), spec(100.0, wetness=100.0)])
    assert drive(weather, 30.5)[-1]["wetness"] == pytest.approx(100.0 * 30.0 / 99.0125, abs=1e-3)


def test_base_weather_is_that_of_the_leaderboards_parser() -> None:
    base = carla.WeatherParameters(sun_altitude_angle=70.0, cloudiness=50.0)
    assert {name: getattr(base, name) for name in WEATHER_FIELDS} == pytest.approx(dict(BASE_WEATHER))


@pytest.mark.carla
def test_a_running_world_has_the_weather_of_the_place(server_port: int, demo_start: Pose2D) -> None:
    first = load_routes(ROUTES_FOLDER / "demo.xml")[0]
    weathers = (spec(0.0, cloudiness=10.0, fog_density=0.0), spec(100.0, cloudiness=90.0, fog_density=40.0))
    route = RouteSpec(first.id, first.town, first.keypoints_carla, weathers=weathers)
    with Simulation(port=server_port, ego_pose=demo_start, cameras=[], inertial=False) as simulation:
        planner = RoutePlanner(simulation.map)
        plan = planner.plan(route)
        with ScenarioEngine(simulation, plan, route, planner) as engine:
            engine.set_up(simulation.surroundings())
            simulation.tick()
            assert simulation.world.get_weather().cloudiness == pytest.approx(10.0)
            for arc_m in range(1, int(plan.length_m / 2) + 1):
                x_m, y_m = plan.at(plan.arc_m[arc_m : arc_m + 1] + 0.4)[0]
                simulation.place_ego(Pose2D(float(x_m), float(y_m), float(plan.yaw_rad[arc_m])))
                simulation.tick()
                engine.step(simulation.surroundings())
            simulation.tick()
            here = simulation.world.get_weather()
        share = int(plan.length_m / 2) / plan.length_m
        assert here.cloudiness == pytest.approx(10.0 + 80.0 * share, abs=0.5)
        assert here.fog_density == pytest.approx(40.0 * share, abs=0.5)
        assert here.sun_altitude_angle == pytest.approx(70.0)
