"""What a fleet's vehicle meets: put with room to react, crossing in time, and taken away again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.client import Simulation
from carla_bridge.collect.encounters import AGAIN_S, BRAKES_MPS2, CLEAR_M, PATIENCE_S, Encounters
from carla_bridge.collect.pilot import TICK_S
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_file import load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.errors import ScenarioError
from wamdiff2_core.types import EgoState, Pose2D

pytestmark = pytest.mark.carla
VEHICLE = 7


@pytest.fixture(scope="module")
def simulation(server_port: int, demo_start: Pose2D) -> Iterator[Simulation]:
    with Simulation(port=server_port, ego_pose=demo_start, cameras=(), inertial=False, timeout_s=20.0) as simulation:
        simulation.tick()
        yield simulation


@pytest.fixture(scope="module")
def route(simulation: Simulation) -> RoutePlan:
    return RoutePlanner(simulation.map).plan(load_routes(ROUTES_FOLDER / "demo.xml")[0])


class Meeting:
    """One vehicle's encounter, stepped with the ego vehicle as that vehicle."""

    def __init__(self, simulation: Simulation, route: RoutePlan, seed: int, share: float = 1.0) -> None:
        self.simulation, self.route = simulation, route
        self.encounters = Encounters(simulation, np.random.default_rng(seed), share)

    def begin(self, speed_mps: float = 0.0) -> dict[int, str]:
        """Kinds of what is there after it has begun and was not before, by actor."""
        before = {actor.id for actor in self.simulation.surroundings().actors}
        around = self.simulation.surroundings()
        self.encounters.begin(VEHICLE, self.route, speed_mps, around)
        self.encounters.flush(around)
        self.simulation.tick()
        return {a.id: a.type_id for a in self.simulation.surroundings().actors if a.id not in before}

    def step(self, ego: EgoState, standing_s: float = 0.0, progress_m: float = 0.0) -> None:
        around = self.simulation.surroundings()
        self.encounters.step(VEHICLE, self.route, progress_m, ego, standing_s, around)
        self.encounters.flush(around)
        self.simulation.tick()

    def there(self, actor_id: int) -> bool:
        return self.simulation.surroundings().actor(actor_id) is not None

    def place(self, actor_id: int) -> np.ndarray:
        actor = self.simulation.surroundings().actor(actor_id)
        assert actor is not None
        return np.array([actor.pose.x_m, actor.pose.y_m])


def ego_at(simulation: Simulation, xy_m: np.ndarray, yaw_rad: float, speed_mps: float) -> EgoState:
    ego = simulation.tick().ego
    return replace(ego, map_from_base=Pose2D(float(xy_m[0]), float(xy_m[1]), yaw_rad),
                   velocity_mps=np.array([speed_mps, 0.0]))


def test_everything_is_put_with_room_to_react_and_is_gone_after_the_end(
    simulation: Simulation, route: RoutePlan
) -> None:
    kinds, nearest_m = set(), math.inf
    for seed in range(25):
        meeting = Meeting(simulation, route, seed)
        speed_mps = 7.0 if seed % 2 else 0.0
        found = meeting.begin(speed_mps)
        for actor_id, kind in found.items():
            kinds.add(kind.split(".")[0])
            away_m = float(np.hypot(*(meeting.place(actor_id) - route.xy_m[0])))
            braking_m = speed_mps**2 / (2 * BRAKES_MPS2)
            assert away_m > (braking_m if kind.startswith("walker.") else CLEAR_M - 3.0 + braking_m)
            nearest_m = min(nearest_m, away_m)
        meeting.encounters.close()
        simulation.tick()
        assert not any(meeting.there(actor_id) for actor_id in found)
    assert kinds == {"walker", "vehicle", "static"}
    assert 8.0 < nearest_m < 25.0


def test_two_vehicles_at_one_tick_meet_nothing_in_the_same_place(simulation: Simulation, route: RoutePlan) -> None:
    gaps_m = []
    for seed in range(12):
        encounters = Meeting(simulation, route, seed).encounters
        around = simulation.surroundings()
        for number in range(6):
            encounters.begin(number, route, 0.0, around)
        places = [encounter.meeting.xy_m for encounter in encounters._found.values()]
        gaps_m += [float(np.hypot(*(a - b))) for i, a in enumerate(places) for b in places[:i]]
        encounters.close()
        simulation.tick()
    assert len(gaps_m) > 5
    assert min(gaps_m) >= CLEAR_M


def crossing(simulation: Simulation, route: RoutePlan) -> tuple[Meeting, int, np.ndarray]:
    """A meeting in which somebody sets off when the vehicle is near: it, the walker, and the place on the route."""
    for seed in range(40):
        meeting = Meeting(simulation, route, seed)
        found = meeting.begin()
        walkers = [actor_id for actor_id, kind in found.items() if kind.startswith("walker.")]
        if walkers and meeting.encounters._found[VEHICLE].crossing is not None:
            return meeting, walkers[0], meeting.encounters._found[VEHICLE].meeting.xy_m
        meeting.encounters.close()
        simulation.tick()
    raise AssertionError("nobody crosses in 40 draws")


def test_somebody_waits_until_the_vehicle_is_near_then_crosses_its_path(
    simulation: Simulation, route: RoutePlan
) -> None:
    meeting, walker, where = crossing(simulation, route)
    along = meeting.encounters._found[VEHICLE].meeting.pose.yaw_rad
    forward, left = np.array([math.cos(along), math.sin(along)]), np.array([-math.sin(along), math.cos(along)])
    start = meeting.place(walker)
    far, near = where - 60.0 * forward, where - 6.0 * forward
    for _ in range(40):
        meeting.step(ego_at(simulation, far, along, 4.0))
    assert np.hypot(*(meeting.place(walker) - start)) < 0.3
    before = float((start - where) @ left)
    assert not -2.0 < before < 5.0  # at the roadside: to the left, beyond the oncoming lane
    lateral = [before]
    for _ in range(400):
        meeting.step(ego_at(simulation, near, along, 2.0))
        if not meeting.there(walker):
            break
        lateral.append(float((meeting.place(walker) - where) @ left))
    assert before * lateral[-1] < 0  # on the other side
    assert not meeting.there(walker)
    meeting.encounters.close()


@pytest.mark.parametrize("how", ["passed", "stuck"])
def test_what_was_met_or_cannot_be_got_past_is_taken_away(simulation: Simulation, route: RoutePlan, how: str) -> None:
    meeting, walker, where = crossing(simulation, route)
    along = meeting.encounters._found[VEHICLE].meeting.pose.yaw_rad
    forward = np.array([math.cos(along), math.sin(along)])
    meeting.step(ego_at(simulation, where + 9.0 * forward, along, 0.0), standing_s=PATIENCE_S - 0.1)
    assert meeting.there(walker)
    if how == "passed":
        meeting.step(ego_at(simulation, where + 14.0 * forward, along, 8.0))
    else:
        meeting.step(ego_at(simulation, where - 40.0 * forward, along, 0.0), standing_s=PATIENCE_S + 0.1)
        assert meeting.there(walker), "it stands for another reason"
        meeting.step(ego_at(simulation, where - 15.0 * forward, along, 0.0), standing_s=PATIENCE_S + 0.1)
    simulation.tick()
    assert not meeting.there(walker)
    meeting.encounters.close()


def test_nothing_is_put_on_a_route_that_scenarios_need_nor_before_who_stands(
    simulation: Simulation, route: RoutePlan
) -> None:
    for seed in range(15):
        meeting = Meeting(simulation, route, seed)
        around = simulation.surroundings()
        meeting.encounters.begin(VEHICLE, route, 0.0, around, keep_off=route)
        ego = ego_at(simulation, route.xy_m[0], float(route.yaw_rad[0]), 0.0)
        for _ in range(round(3 * AGAIN_S / TICK_S)):
            meeting.encounters.step(VEHICLE, route, 0.0, ego, 1.0, around)
        assert not meeting.encounters._found
        meeting.encounters.close()


def test_a_server_without_the_blueprints_has_no_encounters_and_says_why(
    simulation: Simulation, route: RoutePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ScenarioError("the server has none")

    monkeypatch.setattr("carla_bridge.scenarios.stage.Stage.try_spawn", missing)
    monkeypatch.setattr("carla_bridge.scenarios.stage.Stage.pick", missing)
    meeting = Meeting(simulation, route, 0)
    for _ in range(20):
        meeting.encounters.begin(VEHICLE, route, 0.0, simulation.surroundings())
    assert meeting.encounters.note == "the server has none"
    meeting.encounters.close()


def test_the_next_one_comes_after_a_pause(simulation: Simulation, route: RoutePlan) -> None:
    meeting = Meeting(simulation, route, 3)
    meeting.begin()
    meeting.encounters.end(VEHICLE)
    ego = ego_at(simulation, route.xy_m[0], float(route.yaw_rad[0]), 3.0)
    steps = 0
    while VEHICLE not in meeting.encounters._found and steps < 20 * AGAIN_S / TICK_S:
        meeting.step(ego)
        steps += 1
    assert AGAIN_S / TICK_S <= steps + 1 < 20 * AGAIN_S / TICK_S
    meeting.encounters.close()


def test_without_a_share_nothing_is_met(simulation: Simulation, route: RoutePlan) -> None:
    for seed in range(10):
        meeting = Meeting(simulation, route, seed, share=0.0)
        assert not meeting.begin()
        meeting.encounters.close()
