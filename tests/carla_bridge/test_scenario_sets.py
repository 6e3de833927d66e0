"""The embedded route sets. Oracles: the towns' own maps, Bench2Drive's abilities, and the planner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

carla = pytest.importorskip("carla")

from carla_bridge.route_sets import scenario_sets  # noqa: E402
from carla_bridge.routes import ROUTES_FOLDER  # noqa: E402
from carla_bridge.routes.route_file import RouteSpec, load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from carla_bridge.scenarios.registry import SCENARIOS  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from wamdiff2_core.frames import flip_y  # noqa: E402

pytestmark = pytest.mark.carla

ABILITIES = {
    "overtaking": {"Accident", "AccidentTwoWays", "ConstructionObstacle", "ConstructionObstacleTwoWays",
                   "HazardAtSideLane", "ParkedObstacle", "ParkedObstacleTwoWays"},
    "merging": {"EnterActorFlow", "HighwayCutIn", "MergerIntoSlowTraffic", "NonSignalizedJunctionLeftTurn",
                "NonSignalizedJunctionRightTurn", "ParkingExit", "SequentialLaneChange", "SignalizedJunctionLeftTurn",
                "SignalizedJunctionRightTurn"},
    "emergency brake": {"BlockedIntersection", "ControlLoss", "DynamicObjectCrossing", "HardBreakRoute",
                        "OppositeVehicleRunningRedLight", "ParkingCrossingPedestrian", "ParkingCutIn",
                        "PedestrianCrossing", "StaticCutIn", "VehicleTurningRoute"},
    "give way": {"InvadingTurn", "YieldToEmergencyVehicle"},
    "traffic signs": {"SignalizedJunctionLeftTurn", "SignalizedJunctionRightTurn", "T_Junction",
                      "VanillaNonSignalizedTurn", "VanillaNonSignalizedTurnEncounterStopsign",
                      "VanillaSignalizedTurnEncounterGreenLight", "VanillaSignalizedTurnEncounterRedLight"},
}  # fmt: skip


@pytest.fixture(scope="module", params=["embedded-40", "embedded-20"])
def route_set(request: pytest.FixtureRequest) -> tuple[str, list[RouteSpec]]:
    return request.param, load_routes(ROUTES_FOLDER / f"{request.param}.xml")


def test_the_sets_are_what_the_generator_writes(tmp_path: Path) -> None:
    for name, text in scenario_sets.build_sets().items():
        assert (ROUTES_FOLDER / name).read_text(encoding="utf-8") == text


def test_a_set_has_its_size_one_town_and_one_scenario_a_route(route_set) -> None:
    name, specs = route_set
    assert len(specs) == int(name.split("-")[1])
    assert len({spec.town for spec in specs}) == 1
    assert all(len(spec.scenarios) == 1 and len(spec.weathers) == 2 for spec in specs)
    assert {spec.scenarios[0].type for spec in specs} <= set(SCENARIOS)


def test_the_sets_lie_in_different_towns() -> None:
    towns = [load_routes(ROUTES_FOLDER / f"{name}.xml")[0].town for name in ("embedded-40", "embedded-20")]
    assert len(set(towns)) == 2


@pytest.mark.parametrize("ability", sorted(ABILITIES))
def test_every_ability_is_there_with_two_types(route_set, ability: str) -> None:
    types = {spec.scenarios[0].type for spec in route_set[1]} & ABILITIES[ability]
    assert len(types) >= 2


def test_routes_are_drivable_and_their_triggers_lie_on_them(route_set) -> None:
    _, specs = route_set
    carla_map = Town.load(specs[0].town).map
    planner = RoutePlanner(carla_map)
    starts = []
    for spec in specs:
        plan = planner.plan(spec)
        assert 60.0 < plan.length_m < 320.0
        keypoints = flip_y(spec.keypoints_carla[:, :2])
        gaps = np.linalg.norm(np.diff(keypoints, axis=0), axis=1)
        assert (gaps > 2.6).sum() <= 1  # the junction
        assert np.hypot(*(plan.xy_m[None] - keypoints[:, None]).transpose(2, 0, 1)).min(axis=1).max() < 0.6
        trigger = spec.scenarios[0].trigger
        away = np.hypot(plan.xy_m[:, 0] - trigger.x_m, plan.xy_m[:, 1] + trigger.y_m)
        assert away.min() < 1.0
        assert plan.arc_m[int(away.argmin())] < plan.length_m - 40.0
        starts.append(tuple(np.round(keypoints[0], 0)))
    assert len(set(starts)) >= 0.6 * len(specs)
