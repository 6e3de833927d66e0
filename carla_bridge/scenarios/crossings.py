"""Someone crosses the road in front of the ego vehicle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from carla_bridge.scenarios.behaviours import Crossing, LineDriver, Manner, Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Junction, Place, Spot
from carla_bridge.scenarios.scenario import SIDES, Scenario, Script

END_M = 40.0
ATTEMPTS, RETRY_M = 6, 0.4
WALKERS = "walker.pedestrian.*"


@dataclass(frozen=True)
class Crosser:
    """Somebody about to cross: from where, how fast and how far."""

    spot: Spot
    speed_mps: float
    distance_m: float
    wait_s: float = 0.0


def towards_road(side: str, angle_deg: float = 0.0) -> float:
    """Turn from the lane's direction to that of someone who crosses from a side, leaning towards oncoming traffic."""
    turn = math.pi / 2 + math.radians(angle_deg)
    return turn if side == "right" else -turn


class CrossingScenario(Scenario):
    """Base: walkers cross when the ego vehicle is about to arrive where their ways meet.

    They are put at the trigger; upstream keeps them below the ground until then.
    """

    reaction_s = 2.1
    nearest_m = 6.0
    meeting: Spot
    crossers: list[Crosser]

    def script(self) -> Script:
        """Wait, cross, and end 40 m on."""
        walkers = [(self.put(self.stage.pick(WALKERS), crosser.spot), crosser) for crosser in self.crossers]
        yield from self.until(lambda: self.ego_arrives(self.meeting, self.reaction_s, self.nearest_m))
        crossings = [Crossing(walker, c.spot, c.speed_mps, c.distance_m, c.wait_s) for walker, c in walkers]
        for crossing in crossings:
            self.start(crossing)
        yield from self.until(lambda: all(crossing.done for crossing in crossings))
        self.after_crossing()
        yield from self.ego_drives(END_M)

    def after_crossing(self) -> None:
        """Take away what hid the walkers."""


class DynamicObjectCrossing(CrossingScenario):
    """A walker steps out from behind an object at the roadside."""

    def set_up(self) -> None:
        """Put the object; when there is no room, up to five times 0.4 m on."""
        side = self.spec.choice("direction", SIDES, "right")
        angle_deg = self.spec.number("crossing_angle", 0.0)
        if abs(angle_deg) > 90.0:
            raise ScenarioError(f"crossing_angle: expected -90 to 90 degrees, got {angle_deg:g}")
        kind = self.spec.text("blocker_model", "static.prop.vendingmachine")
        self.reaction_s = 2.1 + 0.1 * math.floor(angle_deg / 5)
        outwards = 1.0 if side == "left" else -1.0
        place = self.place_ahead(self.spec.number("distance", 12.0), "the crossing")
        facing = 0.0 if kind.startswith("vehicle.") else -math.pi / 2
        for _ in range(ATTEMPTS):
            edge, on_sidewalk = place.roadside(side)
            spot = edge.moved(left_m=0.0 if on_sidewalk else 1.5 * outwards, turn_rad=facing)
            blocker = self.stage.try_spawn(kind, spot, role="scenario no lights")
            if blocker is not None:
                break
            place = place.ahead(RETRY_M, "the crossing", self.scene.plan.xy_m)
        else:
            raise ScenarioError(f"no room for a {kind} at the roadside")
        self._mine.append(blocker)
        self._blocker = blocker
        start = edge.moved(
            ahead_m=self.stage.half_length_m(blocker) + 0.5, left_m=0.0 if on_sidewalk else 1.2 * outwards,
            turn_rad=towards_road(side, angle_deg),
        )
        self.meeting = place.spot
        self.crossers = [Crosser(start, 2.0, 2 * math.hypot(*(start.xy_m - place.spot.xy_m)))]

    def after_crossing(self) -> None:
        """Take the object away."""
        self.stage.remove([self._blocker])


class ParkingCrossingPedestrian(CrossingScenario):
    """A walker steps out from behind a parked car."""

    def set_up(self) -> None:
        """Put the car beside the lane."""
        side = self.spec.choice("direction", SIDES, "right")
        angle_deg = self.spec.number("crossing_angle", 0.0)
        if abs(angle_deg) > 90.0:
            raise ScenarioError(f"crossing_angle: expected -90 to 90 degrees, got {angle_deg:g}")
        self.reaction_s = 2.15 + 0.1 * math.floor(angle_deg / 5)
        place = self.place_ahead(self.spec.number("distance", 12.0), "the parked car")
        left_m = place.width_m * (1.0 if side == "left" else -1.0)
        self._car = self.put_car(place.spot.moved(left_m=left_m), role="scenario no lights")
        beyond = place.ahead(self.stage.half_length_m(self._car) + 0.5, "the walker")
        left_m = beyond.width_m * (1.0 if side == "left" else -1.0)
        self.meeting = beyond.spot
        self.crossers = [Crosser(beyond.spot.moved(left_m=left_m, turn_rad=towards_road(side, angle_deg)), 2.0, 8.0)]

    def after_crossing(self) -> None:
        """Take the car away."""
        self.stage.remove([self._car])


class PedestrianCrossing(CrossingScenario):
    """Three walkers cross in front of the junction ahead."""

    reaction_s = 3.5
    nearest_m = 12.0

    def set_up(self) -> None:
        """Find the sidewalk at the junction; the walkers' speeds and delays are drawn."""
        meeting = Junction.ahead_of(self.trigger).entry
        edge, on_sidewalk = meeting.roadside("right")
        if not on_sidewalk:
            raise ScenarioError("no sidewalk at the junction's entry")
        self.meeting = meeting.spot
        self.crossers = []
        rng = self.stage.rng
        for ahead_m, right_m in ((0.4, 1.5), (1.0, 2.5), (1.6, 0.5)):
            wait_s, speed_mps = float(rng.uniform(0.0, 1.5)), float(rng.uniform(1.3, 2.0))
            spot = edge.moved(ahead_m=ahead_m, left_m=-right_m, turn_rad=math.pi / 2)
            distance_m = 2.3 * math.hypot(*(spot.xy_m - meeting.spot.xy_m))
            self.crossers.append(Crosser(spot, speed_mps, distance_m, wait_s))


class _AfterTurn(CrossingScenario):
    """Base of those who cross the road that the route turns into."""

    def exit_place(self, distance_m: float) -> Place:
        """A place on the route behind the junction ahead.

        Raises:
            ScenarioError: the route ends before.
        """
        plan, carla_map = self.scene.plan, self.stage.simulation.map
        track = Track(plan.xy_m)
        arcs, _ = track.project(self.trigger.spot.xy_m[None])
        arc_m, inside = float(arcs[0]), False
        while arc_m < track.length_m:
            place = Place.at(carla_map, track.pose(arc_m), self.trigger.spot.z_m)
            if inside and not place.in_junction:
                return place.ahead(distance_m, "the crossing")
            inside = inside or place.in_junction
            arc_m += 1.0
        raise ScenarioError("the route meets no junction after the trigger point")


class VehicleTurningRoutePedestrian(_AfterTurn):
    """A walker crosses the road that the route turns into."""

    reaction_s = 2.2

    def set_up(self) -> None:
        """Find both sidewalks of that road; the walker starts at the one that the turn hides."""
        exit_ = self.exit_place(0.5)
        self.meeting = exit_.spot
        right, right_sidewalk = exit_.roadside("right")
        left, left_sidewalk = exit_.roadside("left")
        width_m = math.hypot(*(right.xy_m - left.xy_m))
        turned = exit_.spot.pose.yaw_rad - self.trigger.spot.pose.yaw_rad
        from_right = math.sin(turned) > 0  # a left turn
        edge, on_sidewalk = (right, right_sidewalk) if from_right else (left, left_sidewalk)
        outwards_m = 0.0 if on_sidewalk else (-1.5 if from_right else 1.5)
        start = edge.moved(left_m=outwards_m, turn_rad=towards_road("right" if from_right else "left"))
        self.crossers = [Crosser(start, 1.8, max(width_m, 4.0))]


class VehicleTurningRoute(_AfterTurn):
    """A bicycle crosses the road that the route turns into, 11 m behind the junction."""

    reaction_s = 1.8

    def set_up(self) -> None:
        """Put the bicycle at the right-hand roadside."""
        place = self.exit_place(11.0)
        for _ in range(ATTEMPTS):
            edge, on_sidewalk = place.roadside("right")
            start = edge.moved(left_m=0.0 if on_sidewalk else -1.5, turn_rad=math.pi / 2)
            bicycle = self.stage.try_spawn("vehicle.diamondback.century", start)
            if bicycle is not None:
                break
            place = place.ahead(RETRY_M, "the crossing")
        else:
            raise ScenarioError("no room for a bicycle at the roadside")
        self._mine.append(bicycle)
        self._bicycle, self._start, self.meeting = bicycle, start, place.spot

    def script(self) -> Script:
        """Ride across without looking, twice the way to the lane."""
        yield from self.until(lambda: self.ego_arrives(self.meeting, self.reaction_s, self.nearest_m))
        way_m = 2 * math.hypot(*(self._start.xy_m - self.meeting.xy_m))
        track = Track(np.stack([self._start.xy_m, self._start.moved(ahead_m=way_m + 5.0).xy_m]))
        driver = LineDriver(self._bicycle, track, 1.8, Manner(blind=True))
        self.start(driver)
        yield from self.first_of(
            self.until(lambda: driver.arc_m is not None and driver.arc_m >= way_m), self.wait(way_m / 1.8 + 2.0)
        )
        self.stop(driver)
        self.stage.remove([self._bicycle])
        yield from self.ego_drives(END_M)


SCENARIOS: tuple[type[Scenario], ...] = (
    DynamicObjectCrossing, ParkingCrossingPedestrian, PedestrianCrossing, VehicleTurningRoute,
    VehicleTurningRoutePedestrian,
)  # fmt: skip
