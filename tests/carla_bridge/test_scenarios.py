"""Scenarios on the embedded server through the real client. Oracles: their parameters, and the route's own geometry."""

from __future__ import annotations

import itertools
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.client import Simulation  # noqa: E402
from carla_bridge.client.server_watch import Watchdog  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.scenarios import obstacles, traffic_flows  # noqa: E402
from carla_bridge.scenarios.engine import ScenarioEngine  # noqa: E402
from carla_bridge.scenarios.errors import ScenarioError  # noqa: E402
from carla_bridge.scenarios.places import Spot  # noqa: E402
from carla_bridge.scenarios.registry import SCENARIOS  # noqa: E402
from carla_bridge.scenarios.stage import Stage  # noqa: E402
from tests.carla_bridge.scenario_drive import Drive, Rails  # noqa: E402
from wamdiff2_core.errors import InfrastructureError  # noqa: E402
from wamdiff2_core.frames import inverse, transform_points  # noqa: E402
from wamdiff2_core.types import Pose2D, VehicleCommand  # noqa: E402

pytestmark = pytest.mark.carla


@pytest.fixture(scope="module")
def rails(server_port: int) -> Rails:
    return Rails(server_port)


def seen_from(rails: Rails, arc_m: float, actor) -> tuple[float, float]:
    """(ahead, left) of an actor from a point of the route, metres."""
    place = np.array([[actor.pose.x_m, actor.pose.y_m]])
    ahead, left = transform_points(inverse(rails.pose(arc_m)), place)[0]
    return float(ahead), float(left)


def test_every_type_of_bench2drive_is_known(shared_data):
    used = {
        scenario.type for name in ("bench2drive220.xml", "bench2drive_0.0.4_val.xml")
        for route in load_routes(shared_data / "bench2drive" / name) for scenario in route.scenarios
    }
    assert used <= set(SCENARIOS)


def test_an_accident_stands_where_the_file_says_and_blocks_the_lane(rails: Rails):
    spec = rails.scenario("Accident", distance="30", direction="right")
    drive = rails.drive(spec, to_m=20.0)
    cars = {k: t[-1][1] for k, t in drive.tracks("vehicle.").items()}
    places = sorted(seen_from(rails, 8.0, car) for car in cars.values())
    assert [ahead for ahead, _ in places] == pytest.approx([30.0, 40.0, 46.0], abs=1.5)
    assert [left for _, left in places] == pytest.approx([-0.6 * 3.5 / 2] * 3, abs=0.1)
    assert min(cars.values(), key=lambda car: seen_from(rails, 8.0, car)).type_id.endswith("police_2020")
    assert drive.ticks[-1].waiting
    assert drive.ids_after == drive.ids_before


@pytest.mark.timeout(60)
def test_a_warning_sign_beyond_the_oncoming_lanes_is_refused(rails: Rails):
    with pytest.raises(ScenarioError, match="no roadside to the left"):
        rails.drive(rails.scenario("Accident", distance="30", direction="left"), to_m=5.0)


def test_an_obstacle_is_hit_by_who_keeps_the_lane_and_passed_by_who_leaves_it(rails: Rails):
    spec = rails.scenario("ParkedObstacle", distance="30")
    stubborn = rails.drive(spec)
    assert "collisions_vehicle" in stubborn.kinds()
    aside = rails.drive(spec, left_m=lambda arc_m: 3.4 if 20.0 < arc_m < 60.0 else 0.0)
    assert "collisions_vehicle" not in aside.kinds()
    assert aside.ids_after == aside.ids_before


def test_oncoming_traffic_comes_in_gaps_on_the_other_lane(rails: Rails):
    spec = rails.scenario("ParkedObstacleTwoWays", distance="30", frequency={"from": "20", "to": "30"})
    drive = rails.drive(spec, speed_mps=lambda seen: 8.0 if seen.arc_m < 20.0 else 0.0, max_s=25.0)
    allowed = [seen.wrong_way for seen in drive.ticks]
    notice = allowed.index(True)
    assert all(allowed[notice:])
    assert drive.ticks[notice].t_s - drive.ticks[0].t_s == pytest.approx(5.0 + 6.0 / 8.0, abs=0.5)
    parked_id = min(drive.tracks("vehicle."))
    oncoming = [track for key, track in drive.tracks("vehicle.").items() if key != parked_id]
    assert len(oncoming) >= 3
    for track in oncoming:
        for _, car in track:
            ahead, left = seen_from(rails, 38.0, car)
            if abs(ahead) < 20.0:
                assert left == pytest.approx(3.5, abs=0.6)
                assert math.cos(car.pose.yaw_rad - rails.pose(38.0).yaw_rad) < -0.95
    for before, after in itertools.pairwise(sorted(oncoming, key=lambda track: track[0][0])):
        first = after[0]
        ahead = next(actor for t, actor in before if t == first[0])
        gap = math.hypot(ahead.pose.x_m - first[1].pose.x_m, ahead.pose.y_m - first[1].pose.y_m)
        assert 19.5 < gap < 31.5


def test_a_walker_steps_out_in_time_for_a_driver_who_brakes(rails: Rails):
    spec = rails.scenario("DynamicObjectCrossing", distance="35", direction="right", crossing_angle="5",
                          blocker_model="static.prop.vendingmachine")
    ignorant = rails.drive(spec)
    assert "collisions_pedestrian" in ignorant.kinds()
    walker = next(iter(ignorant.tracks("walker.").values()))
    start = walker[0][1]
    moving = next(t for t, actor in walker if actor.speed_mps > 0.5)
    seen = next(seen for seen in ignorant.ticks if seen.t_s >= moving)
    assert (43.0 - seen.arc_m) / 8.0 == pytest.approx(2.2, abs=0.3)
    ahead, left = seen_from(rails, 43.0, start)
    assert left < -2.9
    assert 0.3 < ahead < 1.5
    careful = rails.drive(spec, speed_mps=lambda seen: 0.0 if 34.0 < seen.arc_m < 40.0 and seen.around.actors else 8.0)
    assert careful.kinds() == []
    crossed = [seen_from(rails, 43.0, actor)[1] for _, actor in next(iter(careful.tracks("walker.").values()))]
    assert max(crossed) > 2.0
    assert careful.ids_after == careful.ids_before


def test_three_walkers_cross_at_the_junction(rails: Rails):
    spec = rails.scenario("PedestrianCrossing")
    stop_m = 50.0
    drive = rails.drive(spec, speed_mps=lambda seen: 8.0 if seen.arc_m < stop_m or not seen.around.actors else 0.0)
    walkers = drive.tracks("walker.")
    assert len(walkers) == 3
    assert drive.kinds() == []
    for track in walkers.values():
        sides = [seen_from(rails, 60.0, actor)[1] for _, actor in track]
        assert sides[0] < -2.0
        assert max(sides) > 1.0
        assert 1.2 < max(actor.speed_mps for _, actor in track) < 2.1


def test_the_vehicle_ahead_brakes_hard_and_goes_on(rails: Rails):
    spec = rails.scenario("HardBreakRoute", trigger_m=60.0)
    gaps = []

    def follow(seen) -> float:
        lead = seen.around.actors[0] if seen.around.actors else None
        if lead is None:
            return 6.0
        ego = seen.around.ego.pose
        gap = math.hypot(lead.pose.x_m - ego.x_m, lead.pose.y_m - ego.y_m) - 5.0
        gaps.append(gap)
        return min(6.0, max(0.0, gap - 4.0))

    drive = rails.drive(spec, speed_mps=follow)
    (lead,) = drive.tracks("vehicle.").values()
    speeds = np.array([actor.forward_mps for _, actor in lead])
    times = np.array([t for t, _ in lead])
    began = next(seen.t_s for seen in drive.ticks if seen.running)
    assert speeds[times <= began].max() > 4.0
    assert np.diff(speeds).min() / 0.05 < -5.0
    standing = times[(speeds < 0.05) & (times > began)]
    assert standing.max() - began == pytest.approx(10.0, abs=0.5)
    assert speeds[-1] > 3.0
    assert drive.kinds() == []


def test_a_flow_keeps_its_speed_and_gaps_and_ends_where_the_file_says(rails: Rails):
    spec = rails.scenario(
        "MergerIntoSlowTraffic", start_actor_flow=rails.point(40.0), end_actor_flow=rails.point(150.0),
        flow_speed="7", source_dist_interval={"from": "15", "to": "25"},
    )
    drive = rails.drive(spec, speed_mps=6.0, max_s=45.0)
    tracks = drive.tracks("vehicle.")
    assert len(tracks) >= 5
    for track in tracks.values():
        speeds = [actor.forward_mps for _, actor in track[20:]]
        if speeds:
            assert max(speeds) < 7.7
    middle = drive.ticks[120].around
    xs = sorted(rails_arc(rails, actor) for actor in middle.actors)
    assert all(8.0 < gap < 30.0 for gap in np.diff(xs))
    assert max(xs) <= 151.0
    assert drive.ticks[-1].arc_m == pytest.approx(150.0, abs=3.0)
    assert drive.kinds() == []


def rails_arc(rails: Rails, actor) -> float:
    offset = rails.plan.xy_m - [actor.pose.x_m, actor.pose.y_m]
    return float(rails.plan.arc_m[int(np.hypot(*offset.T).argmin())])


@pytest.mark.parametrize(
    ("kind", "heading_deg"),
    [("NonSignalizedJunctionLeftTurn", 180.0), ("NonSignalizedJunctionRightTurn", -90.0)],
)
def test_the_flow_at_a_junction_comes_from_the_right_side(rails: Rails, kind: str, heading_deg: float):
    spec = rails.scenario(kind, flow_speed="8", source_dist_interval={"from": "15", "to": "20"})
    drive = rails.drive(spec, speed_mps=lambda seen: 8.0 if seen.arc_m < 55.0 else 0.0, max_s=15.0)
    tracks = drive.tracks("vehicle.")
    assert len(tracks) >= 2
    ego_yaw = rails.pose(60.0).yaw_rad
    for track in tracks.values():
        first = track[0][1]
        assert math.degrees(first.pose.yaw_rad - ego_yaw) % 360 == pytest.approx(heading_deg % 360, abs=12.0)
    passed = [seen_from(rails, 68.0, actor) for track in tracks.values() for _, actor in track]
    assert any(2.0 < ahead < 25.0 and abs(left) < 12.0 for ahead, left in passed)  # they go through it
    assert drive.kinds() == []


@pytest.mark.parametrize("yields", [True, False])
def test_an_emergency_vehicle_wants_to_pass(rails: Rails, yields: bool):
    spec = rails.scenario("YieldToEmergencyVehicle", trigger_m=30.0, distance="27")
    drive = rails.drive(
        spec, speed_mps=lambda seen: 4.0, left_m=lambda arc_m: -3.6 if yields and arc_m > 34.0 else 0.0
    )
    assert drive.kinds().count("yield_emergency_vehicle_infractions") == (0 if yields else 1)
    (track,) = drive.tracks("vehicle.").values()
    assert "collisions_vehicle" not in drive.kinds()
    assert seen_from(rails, 30.0, track[0][1])[0] == pytest.approx(-27.0, abs=2.0)


def test_oncoming_vehicles_cut_into_the_ego_lane(rails: Rails):
    spec = rails.scenario("InvadingTurn", trigger_m=2.0, distance="26", offset="0.4")
    drive = rails.drive(spec, speed_mps=lambda seen: 1.0, max_s=15.0)
    assert len(drive.tracks("cone")) == 3
    sides = [
        seen_from(rails, 20.0, actor)[1] for track in drive.tracks("vehicle.").values() for _, actor in track[10:]
        if abs(seen_from(rails, 20.0, actor)[0]) < 10.0
    ]
    # its middle is half a lane and the offset less 0.7 m beyond the middle of its lane, 3.5 m to our left
    assert min(sides) == pytest.approx(3.5 - (0.4 + 1.75 - 0.7), abs=0.35)


def test_dirt_disturbs_the_steering_only_where_it_lies(rails: Rails):
    spec = rails.scenario("ControlLoss")

    def disturbances() -> list[tuple[float, float]]:
        found = []
        with Simulation(port=rails.port, ego_pose=rails.plan.start, cameras=[], inertial=False) as simulation, \
                ScenarioEngine(simulation, rails.plan, spec, rails.planner, 5) as engine:
            simulation.tick()
            engine.set_up(simulation.surroundings())
            simulation.tick()
            dirt.update(
                round(seen_from(rails, 8.0, actor)[0], 1) for actor in simulation.surroundings().actors
                if "dirt" in actor.type_id
            )
            for arc_m in np.arange(0.5, 90.0, 0.5):
                simulation.place_ego(rails.pose(float(arc_m)), 10.0)
                simulation.tick()
                engine.step(simulation.surroundings())
                found.append((float(arc_m), engine.disturb(VehicleCommand(0.0, 0.0)).steer_rad))
        return found

    dirt: set[float] = set()
    first = disturbances()
    assert sorted(dirt)[:2] == pytest.approx([14.0, 48.0], abs=0.5)
    assert len(dirt) == 3
    disturbed = [arc for arc, steer in first if steer != 0.0]
    assert all(min(abs(arc - 8.0 - place) for place in dirt) < 2.6 for arc in disturbed)
    assert all(any(abs(arc - 8.0 - place) < 1.0 for arc in disturbed) for place in dirt)
    assert 0.03 < np.mean([abs(steer) for _, steer in first if steer != 0.0]) < 0.11
    assert disturbances() == first


def trajectories(drive: Drive) -> list[tuple]:
    return [
        tuple((actor.id - drive.ego_id, actor.type_id, actor.pose, *actor.velocity_mps) for actor in seen.around.actors)
        for seen in drive.ticks
    ]


@pytest.mark.parametrize("kind", ["AccidentTwoWays", "EnterActorFlow", "PedestrianCrossing", "HardBreakRoute"])
def test_the_same_seed_gives_the_same_scenario(rails: Rails, kind: str):
    spec = rails.scenario(
        kind, distance="30", frequency={"from": "20", "to": "60"}, start_actor_flow=rails.point(40.0),
        end_actor_flow=rails.point(150.0), flow_speed="7", source_dist_interval={"from": "15", "to": "25"},
    )
    seeds = (3, 3, 4) if kind == "EnterActorFlow" else (3, 3)
    first, again, *other = (trajectories(rails.drive(spec, seed=seed, max_s=6.0, speed_mps=5.0)) for seed in seeds)
    assert first == again
    assert first not in other


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("Acident", {}, "no such type; did you mean 'Accident'"),
        ("Accident", {"direction": "up"}, "direction: expected one of left, right, got up"),
        ("EnterActorFlow", {}, "expected an element <start_actor_flow"),
        ("DynamicObjectCrossing", {"crossing_angle": "100"}, "expected -90 to 90 degrees, got 100"),
        ("DynamicObjectCrossing", {"blocker_model": "static.prop.elephant"}, "the server has no static.prop.elephant"),
        ("StaticCutIn", {"distance": "20"}, "the queue: no lane to the right"),
        ("YieldToEmergencyVehicle", {"distance": "abc"}, "distance: expected a number value, got abc"),
        ("ParkingExit", {}, "must be the route's first point"),
    ],
)
def test_a_scenario_that_cannot_be_set_up_is_an_error_and_leaves_nothing(rails: Rails, kind, parameters, message):
    with pytest.raises(ScenarioError, match=message):
        rails.drive(rails.scenario(kind, **parameters), max_s=3.0)
    client = carla.Client("127.0.0.1", rails.port)
    client.set_timeout(20.0)
    kinds = [actor.type_id for actor in client.get_world().get_actors()]
    assert not [kind for kind in kinds if kind.startswith(("vehicle.", "walker.", "static."))]


def test_a_trigger_off_the_route_is_an_error(rails: Rails):
    spec = rails.scenario("ControlLoss")
    object.__setattr__(spec.scenarios[0].trigger, "yaw_deg", spec.scenarios[0].trigger.yaw_deg + 90.0)
    with pytest.raises(ScenarioError, match=r"not on the route: 0.* turned by 90 degrees"):
        rails.drive(spec)


def test_a_scenario_that_takes_too_long_ends_with_a_penalty(rails: Rails, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(obstacles.ParkedObstacle, "time_limit_s", 4.0)
    spec = rails.scenario("ParkedObstacle", distance="30")
    drive = rails.drive(spec, speed_mps=lambda seen: 8.0 if seen.arc_m < 12.0 else 0.0, max_s=10.0)
    assert drive.kinds() == ["scenario_timeouts"]
    assert drive.ticks[-1].t_s - drive.ticks[0].t_s == pytest.approx(4.0 + 0.8, abs=0.3)
    assert issubclass(traffic_flows.SignalizedJunctionLeftTurn, traffic_flows.JunctionTurn)


@pytest.mark.parametrize("does", [
    lambda stage: stage.flush(SimpleNamespace(lights=())),
    lambda stage: stage.try_spawn("vehicle.tesla.model3", Spot(Pose2D(0.0, 0.0, 0.0), 0.0)),
])
def test_a_server_that_ends_under_a_scenario_is_told_at_once_and_nothing_more_is_asked_of_it(does):
    ended = threading.Event()

    def hang(*_):
        ended.set()
        time.sleep(4.0)
        raise RuntimeError("time-out of 20000ms")

    class Ending(SimpleNamespace):
        lost = property(lambda self: ended.is_set())

    simulation = Ending(
        client=SimpleNamespace(apply_batch_sync=hang), world=SimpleNamespace(get_blueprint_library=hang),
        call=Watchdog(lambda: "server was ended by SIGKILL" if ended.is_set() else "").call,
    )
    stage = Stage(simulation, np.random.default_rng(0))
    stage.lamps(7, "Brake")
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"^server was ended by SIGKILL$"):
        does(stage)
    stage.lamps(7, "Brake")
    stage.close()
    assert time.monotonic() - began < 2.0
