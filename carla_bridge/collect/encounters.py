"""What a fleet's vehicles meet: somebody who crosses, or something that stands in their lane.

A route's scenarios happen to its first vehicle alone, and on an ordinary road hardly anything does. Here every other
vehicle has encounters of its own, one after another, on its route and a little ahead. What it does about them is up to
the expert.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.client.surroundings import Surroundings
from carla_bridge.collect.fleet import rest_of
from carla_bridge.collect.pilot import TICK_S
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.scenarios.behaviours import Crossing
from carla_bridge.scenarios.crossings import WALKERS, towards_road
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Place, Spot
from carla_bridge.scenarios.scenario import SIDES
from carla_bridge.scenarios.stage import Stage
from wamdiff2_core.frames import wrap_angle
from wamdiff2_core.types import EgoState, Pose2D

if TYPE_CHECKING:
    from carla_bridge.client.client import Simulation

LOG = logging.getLogger(__name__)
CROSSING_SHARE = 0.65  # of encounters; in the others something stands in the lane
CROSSING_M, OBSTACLE_M = (14.0, 50.0), (11.0, 45.0)  # from the start of a stretch to the middle of what is met
MARGIN_S, NEAREST_M = (-0.6, 1.2), (7.0, 12.0)  # they set off to meet the vehicle, or when it is this near
WALK_MPS, SIDE_M, STAYS_SHARE = (1.1, 2.3), 0.7, 0.2  # who stays looks like who goes
BRAKES_MPS2, REACTION_S, SPARE_M = 2.5, 0.5, 4.0  # nothing is put nearer than comfortable braking asks for
ASIDE_M, SHOULDER_SHARE, SHOULDER_M = 0.5, 0.15, 2.6  # a car at the roadside is no obstacle
SAME_WAY_RAD = math.radians(20.0)
PASSING_M = 25.0  # of straight lane behind an obstacle, without a junction: it can be passed there
PASSED_M, CLEAR_M = 12.0, 13.0
AGAIN_S = 4.0
PATIENCE_S, BEFORE_M = 8.0, 20.0  # a vehicle that has stood for so long, so near, learns nothing more here
ROLE = "scenario no lights"


@dataclass
class _Encounter:
    """One vehicle's: everybody in it, where it is met, and who is still waiting to cross."""

    actors: list[int]
    meeting: Spot
    crossing: Crossing | None = None
    arrival_s: float = 0.0
    nearest_m: float = 0.0
    sets_off: bool = False


class Encounters:
    """The encounters of a fleet, by the number of the vehicle. Commands wait for `flush`, as those of a stage do.

    Args:
        simulation: the world.
        rng: of all that is drawn.
        share: of chances that are taken, 0 to 1. A vehicle has one when it begins a stretch, and another `AGAIN_S`
            after an encounter or a chance that was not taken.

    Attributes:
        note: why there are none any more, such as a server without the blueprints; empty while there are.
    """

    def __init__(self, simulation: Simulation, rng: np.random.Generator, share: float) -> None:
        self._simulation, self._rng, self._share = simulation, rng, share
        self._stage = Stage(simulation, rng)
        self._found: dict[int, _Encounter] = {}
        self._pauses_s: dict[int, float] = {}
        self.note = ""

    def begin(
        self, number: int, route: RoutePlan, speed_mps: float, around: Surroundings, keep_off: RoutePlan | None = None
    ) -> None:
        """Put what a vehicle may meet; nothing where there is no room, or no straight lane.

        Args:
            number: of the vehicle.
            route: of its stretch, from the vehicle on.
            speed_mps: of the vehicle.
            around: the world.
            keep_off: a route on which scenarios need the room.
        """
        self.end(number)
        self._pauses_s[number] = AGAIN_S
        if self._rng.random() >= self._share:
            return
        try:
            self._begin(number, route, speed_mps, around, keep_off)
        except ScenarioError as error:
            LOG.info("no more encounters: %s", error)
            self.note, self._share = str(error), 0.0

    def _begin(
        self, number: int, route: RoutePlan, speed_mps: float, around: Surroundings, keep_off: RoutePlan | None
    ) -> None:
        crosses = self._rng.random() < CROSSING_SHARE
        near_m, far_m = CROSSING_M if crosses else OBSTACLE_M
        braking_m = speed_mps * REACTION_S + speed_mps**2 / (2 * BRAKES_MPS2)
        ahead_m = float(self._rng.uniform(near_m, far_m))
        place = self._place(route, max(ahead_m, braking_m + SPARE_M) if crosses else ahead_m + braking_m)
        if place is None or not (crosses or _can_be_passed(place)) or self._gap_m(around, place) < CLEAR_M:
            return
        if keep_off is not None and np.hypot(*(keep_off.xy_m - place.spot.xy_m).T).min() < CLEAR_M:
            return
        encounter = self._crossing(place) if crosses else self._obstacle(place)
        if encounter.actors:
            self._found[number] = encounter

    def step(
        self, number: int, route: RoutePlan, progress_m: float, ego: EgoState, standing_s: float, around: Surroundings,
        keep_off: RoutePlan | None = None,
    ) -> None:
        """One tick of one vehicle: somebody sets off, what was met or cannot be got past is gone, or the next comes.

        Args:
            number: of the vehicle.
            route: of its stretch.
            progress_m: on the route.
            ego: state of the vehicle.
            standing_s: how long it has been standing.
            around: the world of the same tick.
            keep_off: see `begin`.
        """
        encounter = self._found.get(number)
        if encounter is None and standing_s > 0.0:
            return
        if encounter is None:
            self._pauses_s[number] = self._pauses_s.get(number, AGAIN_S) - TICK_S
            if self._pauses_s[number] <= 0.0:
                self.begin(number, rest_of(route, progress_m), max(0.0, ego.speed_mps), around, keep_off)
            return
        here = np.array([ego.map_from_base.x_m, ego.map_from_base.y_m])
        away_m = math.hypot(*(encounter.meeting.xy_m - here))
        passed = away_m > PASSED_M and encounter.meeting.is_passed(here)
        stuck = standing_s > PATIENCE_S and away_m < BEFORE_M
        if passed or stuck:
            self.end(number)
        elif encounter.crossing is not None:
            arrives_m = max(encounter.nearest_m, encounter.arrival_s * max(0.0, ego.speed_mps))
            encounter.sets_off = encounter.sets_off or away_m < arrives_m
            if encounter.sets_off and not encounter.crossing.done:
                encounter.crossing.step(self._stage, around)

    def end(self, number: int) -> None:
        """Take away what a vehicle has met."""
        encounter = self._found.pop(number, None)
        if encounter is not None:
            self._stage.remove(encounter.actors)

    def flush(self, around: Surroundings) -> None:
        """Send the commands of this tick."""
        self._stage.flush(around)

    def close(self) -> None:
        """Take everything away; never raises."""
        self._found.clear()
        self._stage.close()

    def _place(self, route: RoutePlan, ahead_m: float) -> Place | None:
        """The lane's middle on the route, outside junctions and where the route drives along that lane."""
        if ahead_m > route.length_m:
            return None
        index = int(np.searchsorted(route.arc_m, ahead_m))
        yaw_rad = float(route.yaw_rad[index])
        pose = Pose2D(float(route.xy_m[index, 0]), float(route.xy_m[index, 1]), yaw_rad)
        place = Place.at(self._simulation.map, pose, float(route.z_m[index]))
        if place.in_junction or abs(wrap_angle(place.spot.pose.yaw_rad - yaw_rad)) > SAME_WAY_RAD:
            return None
        return place

    def _gap_m(self, around: Surroundings, place: Place) -> float:
        """Distance to the nearest vehicle's middle, or to what another vehicle meets: `around` lacks this tick's."""
        vehicles = [(actor.pose.x_m, actor.pose.y_m) for actor in (around.ego, *around.actors)
                    if actor.type_id.startswith("vehicle.")]
        taken = [*vehicles, *(encounter.meeting.xy_m for encounter in self._found.values())]
        return min((math.hypot(*(place.spot.xy_m - there)) for there in taken), default=math.inf)

    def _crossing(self, place: Place) -> _Encounter:
        side = SIDES[int(self._rng.integers(len(SIDES)))]
        edge, on_sidewalk = place.roadside(side)
        outwards_m = 0.0 if on_sidewalk else 1.5
        left_m = (outwards_m + float(self._rng.uniform(-SIDE_M, SIDE_M))) * (1.0 if side == "left" else -1.0)
        turn_rad = towards_road(side, float(self._rng.uniform(-25.0, 25.0)))
        start = edge.moved(left_m=left_m, turn_rad=turn_rad)
        walker = self._stage.try_spawn(self._stage.pick(WALKERS), start)
        if walker is None:
            return _Encounter([], place.spot)
        way_m, speed_mps = math.hypot(*(start.xy_m - place.spot.xy_m)), float(self._rng.uniform(*WALK_MPS))
        crossing = Crossing(walker, start, speed_mps, 2.0 * way_m)
        return _Encounter(
            [walker], place.spot, None if self._rng.random() < STAYS_SHARE else crossing,
            way_m / speed_mps + float(self._rng.uniform(*MARGIN_S)), float(self._rng.uniform(*NEAREST_M)),
        )

    def _obstacle(self, place: Place) -> _Encounter:
        drawn = self._rng.random()
        beside = place.beside("right")
        if drawn < SHOULDER_SHARE and (beside is None or not beside.is_driving):
            return self._cars(place, 1, -SHOULDER_M)
        if drawn < 0.5:
            return self._cars(place, 1, float(self._rng.uniform(-ASIDE_M, ASIDE_M)))
        if drawn < 0.7:
            return self._cars(place, 2, float(self._rng.uniform(-ASIDE_M, ASIDE_M)))
        return self._road_works(place)

    def _cars(self, place: Place, count: int, left_m: float) -> _Encounter:
        """Cars with their hazard lights on, one behind the other."""
        cars: list[int] = []
        for k in range(count):
            there = place.up_to_junction(7.0 * k).spot
            car = self._stage.try_spawn(self._stage.car(), there.moved(left_m=left_m), role=ROLE)
            if car is None:
                break
            self._stage.lamps(car, "LeftBlinker", "RightBlinker", "Position")
            cars.append(car)
        return _Encounter(cars, place.spot)

    def _road_works(self, place: Place) -> _Encounter:
        """A warning trailer and cones behind it."""
        props = [("static.prop.trafficwarning", place.spot.moved(turn_rad=-math.pi / 2))]
        behind = place.up_to_junction(3.0).spot
        props += [("static.prop.constructioncone", behind.moved(left_m=left_m)) for left_m in (-1.2, 0.0, 1.2)]
        found = [self._stage.try_spawn(kind, spot) for kind, spot in props]
        return _Encounter([actor for actor in found if actor is not None], place.spot)


def _can_be_passed(place: Place) -> bool:
    """Whether the lane goes on straight, far enough to get past something on it."""
    return math.hypot(*(place.up_to_junction(PASSING_M).spot.xy_m - place.spot.xy_m)) > 0.95 * PASSING_M
