"""Scenarios at lights and signs, in parking lanes and in traffic, in a town that has them. Oracles: lights as they are
seen tick by tick, and the route's geometry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.surroundings import LightState  # noqa: E402
from carla_bridge.leases import lease_ports  # noqa: E402
from carla_bridge.ports import wait_for_port  # noqa: E402
from carla_bridge.routes import ROUTES_FOLDER  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.scenarios.places import Junction, Place  # noqa: E402
from tests.carla_bridge.scenario_drive import Drive, Rails  # noqa: E402
from wamdiff2_core.processes import ManagedProcess  # noqa: E402

pytestmark = pytest.mark.carla
FILE = ROUTES_FOLDER / "embedded-20.xml"


@pytest.fixture(scope="module")
def rails_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Rails]]:
    """Rails on the route of a scenario type in the evaluation set."""
    specs = load_routes(FILE)
    port = lease_ports().number
    command = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--town", specs[0].town]
    with ManagedProcess("embedded server", command, tmp_path_factory.mktemp("town") / "server.log") as process:
        wait_for_port(port, process.alive, 60.0)
        ids = {spec.scenarios[0].type: spec.id for spec in specs}
        yield lambda kind: Rails(port, FILE, ids[kind])


def light_states(rails: Rails, drive: Drive) -> tuple[list[LightState], list[set[LightState]]]:
    """What the light of the ego vehicle's lane, and what all other lights of the junction show, tick by tick."""
    trigger = rails.spec.scenarios[0].trigger
    junction = Junction.ahead_of(Place.at_carla(rails.map, trigger))
    road, _, lane = junction.entry.key
    arms = {(arm.key[0], arm.key[2]) for arm in junction.arms}
    own, others = [], []
    for seen in drive.ticks:
        if not seen.running:
            continue
        mine = [light for light in seen.around.lights if any(line.lane == (road, lane) for line in light.stop_lines)]
        rest = [
            light for light in seen.around.lights
            if light not in mine and any(line.lane in arms for line in light.stop_lines)
        ]
        assert len(mine) == 1
        own.append(mine[0].state)
        others.append({light.state for light in rest})
    return own, others


@pytest.mark.parametrize("kind", ["VanillaSignalizedTurnEncounterRedLight", "SignalizedJunctionLeftTurn"])
def test_the_light_is_red_for_five_seconds_and_then_green(rails_for, kind: str) -> None:
    rails = rails_for(kind)
    drive = rails.drive(rails.spec, speed_mps=4.0, max_s=22.0)
    own, others = light_states(rails, drive)
    changed = own.index(LightState.GREEN)
    assert changed * 0.05 == pytest.approx(5.0, abs=0.2)
    assert set(own[2:changed]) == {LightState.RED}
    assert set(own[changed:]) == {LightState.GREEN}
    flow = {LightState.GREEN} if kind.startswith("Signalized") else set()
    assert set().union(*others[2:]) == {LightState.RED} | flow


def test_a_light_goes_on_as_before_when_its_scenario_is_over(rails_for) -> None:
    rails = rails_for("VanillaSignalizedTurnEncounterRedLight")
    client = carla.Client("127.0.0.1", rails.port)
    client.set_timeout(20.0)

    def times() -> list[tuple[float, float, float]]:
        lights = sorted(client.get_world().get_actors().filter("traffic.traffic_light"), key=lambda light: light.id)
        return [(light.get_green_time(), light.get_yellow_time(), light.get_red_time()) for light in lights]

    before = np.array(times())
    assert before.max() < 100.0  # no earlier scenario has left one held
    drive = rails.drive(rails.spec, speed_mps=9.0, max_s=6.0)
    assert drive.ticks[-1].running
    client.get_world().wait_for_tick(10.0)
    assert np.array(times()) == pytest.approx(before)


def test_who_does_not_stop_runs_the_sign_and_who_stops_does_not(rails_for) -> None:
    rails = rails_for("VanillaNonSignalizedTurnEncounterStopsign")
    assert rails.drive(rails.spec, speed_mps=8.0).kinds() == ["stop_infraction"]
    trigger = Place.at_carla(rails.map, rails.spec.scenarios[0].trigger)
    entry = Junction.ahead_of(trigger).entry.spot
    stood = []

    def stop(seen) -> float:
        ego = seen.around.ego.pose
        ahead = entry.moved(ahead_m=-3.5).is_passed(np.array([ego.x_m, ego.y_m]))
        if ahead and len(stood) < 20:
            stood.append(seen.arc_m)
            return 0.0
        return 8.0

    assert rails.drive(rails.spec, speed_mps=stop).kinds() == []
    assert len(stood) == 20


def test_the_ego_vehicle_begins_between_parked_cars(rails_for) -> None:
    rails = rails_for("ParkingExit")
    drive = rails.drive(rails.spec, on_rails=False, speed_mps=0.0, max_s=8.0)
    last = drive.ticks[-1].around
    side = np.array([-np.sin(rails.plan.start.yaw_rad), np.cos(rails.plan.start.yaw_rad)])
    ahead = np.array([np.cos(rails.plan.start.yaw_rad), np.sin(rails.plan.start.yaw_rad)])
    offset = np.array([last.ego.pose.x_m, last.ego.pose.y_m]) - rails.plan.xy_m[0]
    assert offset @ side < -2.0
    parked = [
        (np.array([actor.pose.x_m, actor.pose.y_m]) - rails.plan.xy_m[0]) @ ahead for actor in last.actors
        if actor.speed_mps < 0.1
    ]
    assert sorted(parked) == pytest.approx([-9.0, 9.0], abs=0.6)
    assert drive.kinds() == []
    gone = [track for track in drive.tracks("vehicle.").values() if track[-1][1].speed_mps > 3.0]
    assert len(gone) == 1  # the car that stood beside has driven away


def test_background_traffic_drives_near_the_route_and_is_measured_against(rails_for) -> None:
    rails = rails_for("SequentialLaneChange")
    drive = rails.drive(rails.spec, speed_mps=5.0, max_s=15.0, background=8)
    tracks = [track for track in drive.tracks("vehicle.").values() if track[0][1].role_name == "background"]
    assert 4 <= len(tracks) <= 8
    moved = [np.hypot(t[-1][1].pose.x_m - t[0][1].pose.x_m, t[-1][1].pose.y_m - t[0][1].pose.y_m) for t in tracks]
    assert max(moved) > 20.0
    percentages = [i.percentage for i in drive.infractions if i.kind == "min_speed_infractions"]
    assert any(percentage != 100.0 for percentage in percentages)
    assert drive.ids_after == drive.ids_before
