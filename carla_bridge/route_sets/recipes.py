"""How scenarios are laid into a town: for each type, the places where it fits, and how its parameters are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from carla_bridge.route_sets.town_survey import Stretch, SurveyedMovement, TownSurvey
from carla_bridge.routes.lane_graph import LaneKey
from wamdiff2_core.frames import wrap_angle

END_GAP_M = 8.0
LEAD_IN_M = 20.0  # from the route's start to the trigger
ROAD_AFTER_M = 100.0  # from an obstacle to the goal
APPROACH_M, AFTER_JUNCTION_M = 55.0, 70.0
Parameters = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Layout:
    """A route that a scenario fits into.

    Attributes:
        stops: lane and arc length of each place that the route must pass.
        trigger_m: arc length of the trigger point along the route.
        parameters: elements that follow from the place.
    """

    stops: tuple[tuple[LaneKey, float], ...]
    trigger_m: float
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a scenario is laid into a town.

    Attributes:
        type: of the scenario.
        layouts: all places where it fits.
        parameters: draws its other elements.
    """

    type: str
    layouts: Callable[[TownSurvey], Iterator[Layout]]
    parameters: Callable[[np.random.Generator], Parameters] = lambda rng: {}


def value(text: object) -> dict[str, str]:
    """An element with one `value`."""
    return {"value": f"{text:g}" if isinstance(text, float) else str(text)}


def _draw(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _interval(rng: np.random.Generator, low: tuple[int, int], width: tuple[int, int]) -> dict[str, str]:
    first = _draw(rng, *low)
    return {"from": str(first), "to": str(first + _draw(rng, *width))}


# Places


def along_road(
    fits: Callable[[TownSurvey, Stretch], bool], *, needs_m: float, to_m: float = ROAD_AFTER_M
) -> Callable[[TownSurvey], Iterator[Layout]]:
    """Routes along one lane that has room for the lead-in and `needs_m` after the trigger."""

    def layouts(survey: TownSurvey) -> Iterator[Layout]:
        for stretch in survey.stretches.values():
            if fits(survey, stretch) and stretch.length_m >= 2 * END_GAP_M + LEAD_IN_M + needs_m:
                end_m = min(stretch.length_m - END_GAP_M, END_GAP_M + LEAD_IN_M + needs_m + to_m)
                yield Layout(((stretch.key, END_GAP_M), (stretch.key, end_m)), LEAD_IN_M)

    return layouts


def through_junction(
    fits: Callable[[TownSurvey, SurveyedMovement], bool | Parameters], *, approach_m: float = APPROACH_M
) -> Callable[[TownSurvey], Iterator[Layout]]:
    """Routes through a junction, triggered `approach_m` before it at most."""

    def layouts(survey: TownSurvey) -> Iterator[Layout]:
        for movement in survey.movements:
            found = fits(survey, movement)
            if found is False or movement.entry.length_m < 50.0 or movement.exit.length_m < 40.0:
                continue
            start_m = max(END_GAP_M, movement.entry.length_m - approach_m - LEAD_IN_M)
            end_m = min(movement.exit.length_m - END_GAP_M, AFTER_JUNCTION_M)
            before_m = movement.entry.length_m - 0.5
            trigger_m = max(2.0, min(LEAD_IN_M, movement.entry.length_m - start_m - 30.0))
            stops = ((movement.entry.key, start_m), (movement.entry.key, before_m), (movement.exit.key, 1.0),
                     (movement.exit.key, end_m))
            yield Layout(stops, trigger_m, found if isinstance(found, dict) else {})

    return layouts


def two_lanes(survey: TownSurvey, stretch: Stretch) -> bool:
    """The right one of several lanes."""
    return stretch.lanes > 1 and stretch.is_outermost


def single_lane(survey: TownSurvey, stretch: Stretch) -> bool:
    """One lane each way."""
    return stretch.lanes == 1 and stretch.oncoming


def with_sidewalk(survey: TownSurvey, stretch: Stretch) -> bool:
    """The outermost lane beside a sidewalk."""
    return stretch.sidewalk and stretch.is_outermost


def beside_parking(ahead_m: Sequence[float]) -> Callable[[TownSurvey, Stretch], bool]:
    """Lanes with a parking lane to their right at these distances from the trigger."""

    def fits(survey: TownSurvey, stretch: Stretch) -> bool:
        first_m = END_GAP_M + LEAD_IN_M
        return stretch.is_outermost and stretch.length_m > first_m + max(ahead_m) and all(
            survey.side_kind(stretch.key, first_m + d, "right") == "Parking" for d in ahead_m
        )

    return fits


def parking_exit(survey: TownSurvey) -> Iterator[Layout]:
    """Routes that begin beside a parking lane."""
    for stretch in survey.stretches.values():
        for start_m in np.arange(25.0, stretch.length_m - 80.0, 10.0):
            places = (start_m - 10.0, start_m, start_m + 10.0)
            if all(survey.side_kind(stretch.key, float(m), "right") == "Parking" for m in places):
                end_m = stretch.length_m - END_GAP_M
                yield Layout(((stretch.key, float(start_m)), (stretch.key, end_m)), 0.0)
                break


def lane_changes(survey: TownSurvey) -> Iterator[Layout]:
    """Routes from the right lane of an avenue through a junction to its left lane, and back."""
    for movement in survey.movements:
        entry, exit_ = movement.entry, movement.exit
        if not (movement.is_straight and two_lanes(survey, entry) and exit_.lanes > 1 and entry.length_m > 90.0):
            continue
        road, section, lane = entry.key
        left = (road, section, lane + (1 if lane < 0 else -1))
        if left in survey.stretches and exit_.length_m > 80.0:
            yield Layout(
                ((entry.key, END_GAP_M), (left, entry.length_m * 0.7), (exit_.key, exit_.length_m - END_GAP_M)), 4.0
            )


def others(survey: TownSurvey, movement: SurveyedMovement) -> list[SurveyedMovement]:
    """Straight movements that end on the same lane as a turn, or as a merge."""
    return [
        other for other in survey.into(movement.exit)
        if other.entry.key != movement.entry.key and other.is_straight and other.entry.length_m > 60.0
    ]


def into_flow(survey: TownSurvey, movement: SurveyedMovement) -> bool | Parameters:
    """Turns onto a lane that straight traffic has, with the flow's ends."""
    found = others(survey, movement)
    if not movement.is_right or not found or movement.control == "light":
        return False
    return flow_ends(survey, found[0])


def merge(survey: TownSurvey, movement: SurveyedMovement) -> bool | Parameters:
    """The end of a ramp, with the ends of the flow on the main road."""
    found = others(survey, movement)
    return flow_ends(survey, found[0]) if movement.entry.one_way and found else False


def beside_ramp(survey: TownSurvey, movement: SurveyedMovement) -> bool | Parameters:
    """Straight on where a ramp merges into the same lane, with the way of the vehicle on the ramp."""
    ramps = [other for other in survey.into(movement.exit) if other.entry.one_way]
    if not movement.is_straight or movement.entry.one_way or not ramps:
        return False
    ramp = ramps[0]
    return {
        "other_actor_location": _xyz(survey, ramp.entry.key, max(ramp.entry.length_m - 45.0, 5.0)),
        "end_location": _xyz(survey, movement.exit.key, 15.0),
    }


def flow_ends(survey: TownSurvey, movement: SurveyedMovement) -> Parameters:
    """Beginning and end of a flow along a movement."""
    return {
        "start_actor_flow": _xyz(survey, movement.entry.key, max(movement.entry.length_m - 70.0, 5.0)),
        "end_actor_flow": _xyz(survey, movement.exit.key, min(movement.exit.length_m - 5.0, 50.0)),
    }


def turn(
    side: str, control: str, flow: str = ""
) -> Callable[[TownSurvey, SurveyedMovement], bool]:
    """Turns of a side under a control (`light`, `stop`, or `free`: nothing or a yield), with straight traffic from
    `flow` if given."""

    def fits(survey: TownSurvey, movement: SurveyedMovement) -> bool:
        if not (movement.is_left if side == "left" else movement.is_right) or movement.entry.one_way:
            return False
        rule = "free" if movement.control in ("none", "yield") else movement.control
        if rule != control or (control == "free" and movement.signed and movement.control == "none"):
            return False
        if not flow:
            return True
        nominal = {"opposite": math.pi, "left": -math.pi / 2}[flow]
        return any(
            abs(wrap_angle(other.heading_rad - movement.heading_rad - nominal)) < math.radians(40.0)
            and other.entry.length_m > 45.0 and other.is_straight and _same_junction(survey, movement, other)
            for other in survey.movements
        )

    return fits


def _same_junction(survey: TownSurvey, one: SurveyedMovement, other: SurveyedMovement) -> bool:
    ids = [
        survey.place(m.through, survey.graph.lanes[m.through].length_m / 2).waypoint.junction_id for m in (one, other)
    ]
    return bool(ids[0] == ids[1])


def straight(control: str) -> Callable[[TownSurvey, SurveyedMovement], bool]:
    """Straight on under a control, where four roads meet."""
    return lambda survey, m: m.is_straight and m.control == control and m.arms == 4 and not m.entry.one_way


def free_road(survey: TownSurvey, movement: SurveyedMovement) -> bool:
    """Straight on, on the right one of several lanes, where the way is free."""
    entry, exit_ = movement.entry, movement.exit
    return movement.is_straight and movement.control == "none" and two_lanes(survey, entry) and exit_.lanes > 1


def t_junction(survey: TownSurvey, movement: SurveyedMovement) -> bool:
    """A turn where three roads meet."""
    return movement.arms == 3 and (movement.is_left or movement.is_right) and not movement.entry.one_way


def walkable(survey: TownSurvey, movement: SurveyedMovement) -> bool:
    """A turn at a light from and onto lanes beside sidewalks."""
    return movement.entry.sidewalk and movement.exit.sidewalk and not movement.is_straight


def _xyz(survey: TownSurvey, key: LaneKey, arc_m: float) -> dict[str, str]:
    x, y, z = survey.graph.lanes[key].at(np.array([arc_m]))[0]
    return {axis: f"{number + 0.0:.1f}" for axis, number in zip("xyz", (x, y, z), strict=True)}


# Recipes


def _obstacle(rng: np.random.Generator) -> Parameters:
    return {"distance": value(_draw(rng, 40, 45)), "direction": value("right"), "speed": value(_draw(rng, 43, 59))}


def _two_ways(rng: np.random.Generator) -> Parameters:
    return {"distance": value(_draw(rng, 40, 45)), "frequency": _interval(rng, (45, 70), (40, 60))}


def _bicycles(rng: np.random.Generator) -> Parameters:
    return {
        "distance": value(_draw(rng, 40, 45)), "speed": value(_draw(rng, 44, 59)),
        "bicycle_drive_distance": value(_draw(rng, 60, 75)), "bicycle_speed": value(_draw(rng, 6, 11)),
    }


def _walker(rng: np.random.Generator) -> Parameters:
    blocker = ("static.prop.vendingmachine", "static.prop.container", "static.prop.advertisement")
    return {
        "distance": value(_draw(rng, 40, 44)), "direction": value("right"),
        "blocker_model": value(blocker[_draw(rng, 0, 2)]), "crossing_angle": value(_draw(rng, 0, 10)),
    }


def _parked_walker(rng: np.random.Generator) -> Parameters:
    return {"distance": value(_draw(rng, 40, 44)), "direction": value("right"),
            "crossing_angle": value(_draw(rng, 0, 10))}


def _flow(low: tuple[int, int], width: tuple[int, int], speed: tuple[int, int]) -> Callable[..., Parameters]:
    return lambda rng: {"flow_speed": value(_draw(rng, *speed)), "source_dist_interval": _interval(rng, low, width)}


_JUNCTION_FLOW = _flow((22, 28), (6, 12), (7, 9))
_RIGHT: Callable[..., Parameters] = lambda rng: {"direction": value("right")}  # noqa: E731
_SLOTS: Callable[..., Parameters] = lambda rng: {  # noqa: E731
    "direction": value("right"), "front_vehicle_distance": value(9), "behind_vehicle_distance": value(9)
}
RECIPES = {
    recipe.type: recipe for recipe in (
        Recipe("Accident", along_road(two_lanes, needs_m=70.0), _obstacle),
        Recipe("AccidentTwoWays", along_road(single_lane, needs_m=75.0), _two_ways),
        Recipe("ConstructionObstacle", along_road(two_lanes, needs_m=65.0), _obstacle),
        Recipe("ConstructionObstacleTwoWays", along_road(single_lane, needs_m=75.0), _two_ways),
        Recipe("HazardAtSideLane", along_road(two_lanes, needs_m=65.0), _bicycles),
        Recipe("ParkedObstacle", along_road(two_lanes, needs_m=65.0), _obstacle),
        Recipe("ParkedObstacleTwoWays", along_road(single_lane, needs_m=75.0), _two_ways),
        Recipe("DynamicObjectCrossing", along_road(with_sidewalk, needs_m=60.0), _walker),
        Recipe("ParkingCrossingPedestrian", along_road(beside_parking((38.0, 48.0)), needs_m=60.0), _parked_walker),
        Recipe("PedestrianCrossing", through_junction(
            lambda survey, m: m.entry.sidewalk and m.entry.is_outermost and m.control != "light")),
        Recipe("HardBreakRoute", along_road(single_lane, needs_m=70.0)),
        Recipe("ParkingCutIn", along_road(beside_parking((28.0, 35.0)), needs_m=60.0), _RIGHT),
        Recipe("StaticCutIn", along_road(
            lambda survey, s: s.lanes > 1 and not s.is_outermost, needs_m=75.0, to_m=40.0),
            lambda rng: {"distance": value(12), "direction": value("right")}),
        Recipe("ControlLoss", along_road(lambda survey, s: s.lanes == 1 and not s.one_way, needs_m=80.0)),
        Recipe("BlockedIntersection", through_junction(turn("right", "free"))),
        Recipe("VehicleTurningRoute", through_junction(walkable)),
        Recipe("VehicleTurningRoutePedestrian", through_junction(walkable)),
        Recipe("OppositeVehicleRunningRedLight", through_junction(straight("light")), _RIGHT),
        Recipe("MergerIntoSlowTraffic", through_junction(merge), _flow((24, 30), (6, 12), (7, 9))),
        Recipe("EnterActorFlow", through_junction(into_flow), _flow((28, 34), (6, 12), (8, 10))),
        Recipe("HighwayCutIn", through_junction(beside_ramp)),
        Recipe("ParkingExit", parking_exit, _SLOTS),
        Recipe("SequentialLaneChange", lane_changes),
        Recipe("NonSignalizedJunctionLeftTurn", through_junction(turn("left", "stop", "opposite")), _JUNCTION_FLOW),
        Recipe("NonSignalizedJunctionRightTurn", through_junction(turn("right", "stop", "left")), _JUNCTION_FLOW),
        Recipe("SignalizedJunctionLeftTurn", through_junction(turn("left", "light", "opposite")), _JUNCTION_FLOW),
        Recipe("SignalizedJunctionRightTurn", through_junction(turn("right", "light", "left")), _JUNCTION_FLOW),
        Recipe("YieldToEmergencyVehicle", through_junction(free_road, approach_m=80.0),
               lambda rng: {"distance": value(27)}),
        Recipe("InvadingTurn", along_road(single_lane, needs_m=95.0), lambda rng: {
            "distance": value(_draw(rng, 51, 60)), "offset": value(_draw(rng, 25, 35) / 100)}),
        Recipe("T_Junction", through_junction(t_junction)),
        Recipe("VanillaNonSignalizedTurn", through_junction(turn("left", "free"))),
        Recipe("VanillaNonSignalizedTurnEncounterStopsign", through_junction(turn("right", "stop"))),
        Recipe("VanillaSignalizedTurnEncounterGreenLight", through_junction(turn("left", "light"))),
        Recipe("VanillaSignalizedTurnEncounterRedLight", through_junction(turn("right", "light"))),
    )
}  # fmt: skip
