"""The route sets of the embedded world: `embedded-40` to learn from, in Wamtown02, `embedded-20` to be tested on.

The test set lies in another town, Wamtown03, and is drawn with another seed. Both cover Bench2Drive's five abilities in
its route format: one scenario a route, key points about 2 m apart with a gap over the junction, two weathers. Run
`python -m carla_bridge.route_sets carla_bridge/routes` to write them again; they come out the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import carla
import numpy as np

from carla_bridge.route_sets.recipes import RECIPES, Layout, Parameters
from carla_bridge.route_sets.town_survey import TownSurvey
from carla_bridge.routes.lane_graph import LaneKey
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_file import RouteSpec
from carla_bridge.weather_fields import WEATHER_FIELDS
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import xy_to_carla, yaw_to_carla

KEYPOINT_STEP_M = 2.0
WEATHERS = (
    "ClearNoon", "CloudyNoon", "WetNoon", "WetCloudyNoon", "SoftRainNoon", "MidRainyNoon", "HardRainNoon",
    "ClearSunset", "CloudySunset", "WetSunset", "WetCloudySunset", "SoftRainSunset", "MidRainSunset",
    "HardRainSunset", "ClearNight", "CloudyNight", "WetNight", "HardRainNight",
)  # fmt: skip


@dataclass(frozen=True)
class RouteSet:
    """A set of routes to be written.

    Attributes:
        name: of the file.
        town: where.
        seed: of all draws.
        first_id: of the first route.
        types: scenario of each route.
    """

    name: str
    town: str
    seed: int
    first_id: int
    types: tuple[str, ...]


SETS = (
    RouteSet("embedded-40", "Wamtown02", 40, 40001, (
        "Accident", "AccidentTwoWays", "ConstructionObstacle", "ConstructionObstacleTwoWays", "HazardAtSideLane",
        "ParkedObstacle", "ParkedObstacle", "ParkedObstacleTwoWays",
        "ControlLoss", "DynamicObjectCrossing", "DynamicObjectCrossing", "HardBreakRoute", "ParkingCrossingPedestrian",
        "ParkingCutIn", "PedestrianCrossing", "PedestrianCrossing", "StaticCutIn", "BlockedIntersection",
        "VehicleTurningRoute", "OppositeVehicleRunningRedLight",
        "EnterActorFlow", "EnterActorFlow", "HighwayCutIn", "MergerIntoSlowTraffic", "MergerIntoSlowTraffic",
        "ParkingExit", "SequentialLaneChange", "SequentialLaneChange",
        "YieldToEmergencyVehicle", "YieldToEmergencyVehicle", "InvadingTurn", "InvadingTurn",
        "NonSignalizedJunctionLeftTurn", "SignalizedJunctionLeftTurn", "SignalizedJunctionRightTurn", "T_Junction",
        "VanillaNonSignalizedTurn", "VanillaNonSignalizedTurnEncounterStopsign",
        "VanillaSignalizedTurnEncounterGreenLight", "VanillaSignalizedTurnEncounterRedLight",
    )),
    RouteSet("embedded-20", "Wamtown03", 20, 20001, (
        "Accident", "ParkedObstacleTwoWays", "ConstructionObstacle", "ParkedObstacle",
        "DynamicObjectCrossing", "PedestrianCrossing", "HardBreakRoute", "ParkingCutIn", "VehicleTurningRoute",
        "EnterActorFlow", "MergerIntoSlowTraffic", "SequentialLaneChange", "ParkingExit",
        "YieldToEmergencyVehicle", "InvadingTurn",
        "SignalizedJunctionLeftTurn", "SignalizedJunctionRightTurn", "NonSignalizedJunctionRightTurn",
        "VanillaNonSignalizedTurnEncounterStopsign", "VanillaSignalizedTurnEncounterRedLight",
    )),
)  # fmt: skip


def set_xml(survey: TownSurvey, wanted: RouteSet) -> str:
    """The route file of a set.

    Raises:
        UserError: the town has no place for one of its scenarios.
    """
    rng = np.random.default_rng(wanted.seed)
    root = ElementTree.Element("routes")
    places: dict[str, list[Layout]] = {}
    taken: dict[LaneKey, int] = {}
    for number, kind in enumerate(wanted.types):
        recipe = RECIPES[kind]
        if not places.get(kind):  # a town may have one ramp only: its routes then differ in their parameters
            places[kind] = list(recipe.layouts(survey))
        # the road used least so far, drawn among those
        found = sorted(places[kind], key=lambda layout: (taken.get(layout.stops[0][0], 0), rng.random()))
        plan, layout = _first_plan(survey, found, wanted, wanted.first_id + number)
        places[kind].remove(layout)
        taken[layout.stops[0][0]] = taken.get(layout.stops[0][0], 0) + 1
        parameters = {**recipe.parameters(rng), **layout.parameters}
        weather = WEATHERS[int(rng.integers(len(WEATHERS)))]
        root.append(_route(survey, wanted, plan, layout, f"{wanted.first_id + number}", kind, parameters, weather))
    ElementTree.indent(root, space="   ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _first_plan(
    survey: TownSurvey, layouts: Sequence[Layout], wanted: RouteSet, route_id: int
) -> tuple[RoutePlan, Layout]:
    """The first layout whose route the planner takes as it was meant."""
    for layout in layouts:
        points = np.array([survey.graph.lanes[key].at(np.array([arc]))[0] for key, arc in layout.stops])
        plan = survey.planner.plan(RouteSpec(str(route_id), wanted.town, points))
        direct_m = sum(float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(points))
        if plan.length_m < 1.4 * direct_m + 20.0:
            return plan, layout
    raise UserError(f"route set {wanted.name}", f"a place for {wanted.types[route_id - wanted.first_id]}", "none",
                    "change the town or the set")


def _route(
    survey: TownSurvey, wanted: RouteSet, plan: RoutePlan, layout: Layout, route_id: str, kind: str,
    parameters: Parameters, weather: str,
) -> ElementTree.Element:
    route = ElementTree.Element("route", {"id": route_id, "town": wanted.town})
    waypoints = ElementTree.SubElement(route, "waypoints")
    for arc_m in _keypoint_arcs_m(survey, plan):
        ElementTree.SubElement(waypoints, "position", _position(plan, arc_m))
    scenario = ElementTree.SubElement(
        ElementTree.SubElement(route, "scenarios"), "scenario", {"name": f"{kind}_1", "type": kind}
    )
    for tag, attributes in parameters.items():
        ElementTree.SubElement(scenario, tag, attributes)
    yaw_deg = yaw_to_carla(float(np.interp(layout.trigger_m, plan.arc_m, np.unwrap(plan.yaw_rad))))
    ElementTree.SubElement(
        scenario, "trigger_point", {**_position(plan, layout.trigger_m), "yaw": f"{yaw_deg % 360 + 0.0:.1f}"}
    )
    weathers = ElementTree.SubElement(route, "weathers")
    preset = getattr(carla.WeatherParameters, weather)
    for share in ("0", "100"):
        values = {
            name: f"{getattr(preset, name):g}" for name in WEATHER_FIELDS
            if not name.endswith(("scale", "scattering_intensity", "dust_storm"))
        }
        ElementTree.SubElement(weathers, "weather", {"route_percentage": share, **values})
    return route


def _keypoint_arcs_m(survey: TownSurvey, plan: RoutePlan) -> list[float]:
    """Every 2 m from start to goal, but none inside a junction."""
    arcs = [float(arc) for arc in np.arange(0.0, plan.length_m - 0.5, KEYPOINT_STEP_M)] + [plan.length_m]

    def outside(arc_m: float) -> bool:
        return not survey.map.get_waypoint(carla.Location(*_carla_xyz_m(plan, arc_m))).is_junction

    return [arc for arc in arcs if outside(arc)]


def _position(plan: RoutePlan, arc_m: float) -> dict[str, str]:
    return {axis: f"{number + 0.0:.1f}" for axis, number in zip("xyz", _carla_xyz_m(plan, arc_m), strict=True)}


def _carla_xyz_m(plan: RoutePlan, arc_m: float) -> tuple[float, float, float]:
    x, y = plan.at(np.array([arc_m]))[0]
    return *xy_to_carla(x, y), float(np.interp(arc_m, plan.arc_m, plan.z_m))


def build_sets() -> dict[str, str]:
    """Text of all sets by file name."""
    from carla_bridge.server.town.town import Town

    return {f"{wanted.name}.xml": set_xml(TownSurvey(Town.load(wanted.town)), wanted) for wanted in SETS}
