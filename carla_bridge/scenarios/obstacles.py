"""Something stands in the ego vehicle's lane, and it has to leave the lane to get on.

In the two-way forms the only way round is the oncoming lane, and oncoming traffic comes in gaps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from carla_bridge.scenarios.behaviours import Flow, LineDriver
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Place
from carla_bridge.scenarios.scenario import SIDES, Scenario, Script, heights

NOTICE_M, NOTICE_S = 50.0, 5.0
END_M = 50.0
BICYCLES = ("vehicle.bh.crossbike", "vehicle.diamondback.century", "vehicle.gazelle.omafiets")
DEFAULT_GAPS_M = (20.0, 100.0)


class LaneObstacle(Scenario):
    """Base of what blocks a lane: a sign at the trigger, the obstacle a distance on, the end 50 m behind it.

    Attributes:
        two_ways: whether the oncoming lane has to be used.
        sign: blueprint of the warning at the roadside, if any.
    """

    time_limit_s = 240.0
    two_ways: ClassVar[bool] = False
    sign: ClassVar[str] = "static.prop.warningaccident"

    def set_up(self) -> None:
        """Put sign and obstacle."""
        self.side = self.spec.choice("direction", SIDES, "right")
        self._gaps_m = self.spec.interval("frequency", DEFAULT_GAPS_M) if self.two_ways else DEFAULT_GAPS_M
        if self.sign:
            self._put_sign()
        distance_m = self.spec.number("distance", 120.0)
        self.first, self.last = self.block(self.trigger.up_to_junction(distance_m))
        self.end = self.last.up_to_junction(END_M)
        if self.two_ways:
            self.last.opposite_lane("oncoming traffic")

    @abstractmethod
    def block(self, place: Place) -> tuple[Place, Place]:
        """Put the obstacle from a place on; the places of its beginning and its end."""

    def script(self) -> Script:
        """Wait until the ego vehicle is past the end; meanwhile, let traffic come the other way."""
        self.clear(self.lane_track(self.trigger, self.spec.number("distance", 120.0) + 40.0), first_m=5.0)
        yield from self.first_of(
            self.until(lambda: self.end.spot.is_passed(self.ego_m)), self._meanwhile()
        )

    def _meanwhile(self) -> Script:
        yield from self.until(lambda: self.ego_near(self.first.spot, NOTICE_M))
        yield from self.wait(NOTICE_S)
        if self.two_ways:
            self.wrong_way = True
            self.start(self._oncoming())
        yield from self.forever()

    def _oncoming(self) -> Flow:
        """Traffic on the oncoming lane, from as far before the obstacle as the speed limit says to as far behind it."""
        reach_m = 1.5 * 3.6 * self.scene.speed_limit_mps + 30.0
        lane = self.last.opposite_lane("oncoming traffic")
        source, sink = lane.up_to_junction(reach_m, back=True), lane.up_to_junction(reach_m)
        line = self.lane_track(source, 2 * reach_m)
        track = line.up_to(sink.spot.xy_m)
        height = heights(self.stage.simulation.map, track, source.spot.z_m)
        return Flow(track, height, self.scene.speed_limit_mps, self._gaps_m, self.stage.car)

    def _put_sign(self) -> None:
        place, beside = self.trigger, self.trigger.beside(self.side)
        while beside is not None and (beside.is_driving or _is_parking(beside)):
            if beside.waypoint.lane_id * place.waypoint.lane_id < 0:  # there, this side is the middle of the road
                raise ScenarioError(f"the warning sign: no roadside to the {self.side} on this side of the road")
            place, beside = beside, beside.beside(self.side)
        outside = beside or place
        left_m = 0.3 * place.width_m * (1.0 if self.side == "left" else -1.0)
        self.put(self.sign, outside.spot.moved(left_m=left_m, turn_rad=-math.pi / 2))

    def offset_m(self, place: Place, share: float) -> float:
        """Leftward shift that is a share of half the lane's width, to the scenario's side."""
        return share * place.width_m / 2 * (1.0 if self.side == "left" else -1.0)


def _is_parking(place: Place) -> bool:
    return str(place.waypoint.lane_type) == "Parking"


class Accident(LaneObstacle):
    """A police car and two cars after an accident, 10 m and 6 m on."""

    def block(self, place: Place) -> tuple[Place, Place]:
        """Put the three vehicles."""
        police = self.put(
            "vehicle.dodge.charger_police_2020", place.spot.moved(left_m=self.offset_m(place, 0.6))
        )
        self.stage.lamps(police, "Special1", "Special2", "Position")
        first = place.up_to_junction(10.0)
        second = first.up_to_junction(6.0)
        for there in (first, second):
            self.put_car(there.spot.moved(left_m=self.offset_m(there, 0.6)), role="scenario no lights")
        return first, second


class AccidentTwoWays(Accident):
    """The same on a road with one lane each way."""

    two_ways = True


class ParkedObstacle(LaneObstacle):
    """A badly parked car with its hazard lights on."""

    def block(self, place: Place) -> tuple[Place, Place]:
        """Put the car."""
        car = self.put_car(place.spot.moved(left_m=self.offset_m(place, 0.7)), role="scenario no lights")
        self.stage.lamps(car, "LeftBlinker", "RightBlinker", "Position")
        return place, place


class ParkedObstacleTwoWays(ParkedObstacle):
    """The same on a road with one lane each way."""

    two_ways = True


class VehicleOpensDoorTwoWays(LaneObstacle):
    """A parked car opens a door when the ego vehicle is 2 s or 10 m away."""

    two_ways = True
    sign = ""

    def block(self, place: Place) -> tuple[Place, Place]:
        """Put the car; the door stays shut for now."""
        kind = self.stage.pick("vehicle.*", base_type="car", has_dynamic_doors="true")
        shift_m = place.width_m * 0.5 * (1.0 if self.side == "left" else -1.0)
        self._car = self.put(kind, place.spot.moved(left_m=shift_m), role="scenario no lights")
        return place, place

    def script(self) -> Script:
        """Open the door in time, then as every obstacle."""
        yield from self.until(lambda: self.ego_arrives(self.first.spot, 2.0, 10.0))
        self.stage.open_door(self._car, "FR" if self.side == "left" else "FL")
        self.wrong_way = True
        yield from super().script()


class ConstructionObstacle(LaneObstacle):
    """Road works: a warning trailer, debris and two rows of cones; they appear at the trigger.

    They follow the lane: on a bend a straight row would close the next lane, too.
    """

    sign = "static.prop.warningconstruction"

    def block(self, place: Place) -> tuple[Place, Place]:
        """Remember where the road works are; they must not stand there while traffic passes."""
        return place, place

    def script(self) -> Script:
        """Put the road works, then as every obstacle."""
        self.clear(self.lane_track(self.trigger, self.spec.number("distance", 100.0) + 30.0), first_m=5.0)
        half_m = 0.85 * self.first.width_m / 2
        towards = 1.0 if self.side == "right" else -1.0  # the open side: left of the works, unless they are at the left
        before = self.first.up_to_junction(5.0, back=True).spot
        self.put("static.prop.trafficwarning", before.moved(turn_rad=-math.pi / 2))
        self.put("static.prop.dirtdebris02", self.first.up_to_junction(2.0).spot.moved(turn_rad=-math.pi / 2))
        for ahead_m in (2.0, 4.0, 6.0, 8.0):
            on_lane = self.first.up_to_junction(ahead_m).spot
            self.put("static.prop.constructioncone", on_lane.moved(left_m=towards * half_m))
        for aside_m in (1.0, 2.0, 3.0):
            left_m = towards * (half_m - aside_m)
            self.put("static.prop.constructioncone", self.first.up_to_junction(8.0).spot.moved(left_m=left_m))
        yield from super().script()


class ConstructionObstacleTwoWays(ConstructionObstacle):
    """The same on a road with one lane each way."""

    two_ways = True


class HazardAtSideLane(Scenario):
    """Two bicycles ride slowly at the edge of the ego vehicle's lane."""

    time_limit_s = 240.0
    two_ways: ClassVar[bool] = False

    def set_up(self) -> None:
        """Put the bicycles, 9 m apart."""
        first = self.trigger.up_to_junction(self.spec.number("distance", 100.0))
        second = first.up_to_junction(9.0)
        if first.key == second.key and first.waypoint.s == second.waypoint.s:
            raise ScenarioError("no room for two bicycles before the junction")
        speed_mps = self.spec.number("bicycle_speed", 10.0) / 3.6
        way_m = self.spec.number("bicycle_drive_distance", 50.0)
        self._riders: list[tuple[LineDriver, float]] = []
        for place in (first, second):
            right_m = 0.55 * place.width_m / 2
            track = self.lane_track(place, way_m + 20.0, left_m=-right_m)
            kind = BICYCLES[int(self.stage.rng.integers(len(BICYCLES)))]
            rider = self.put(kind, place.spot.moved(left_m=-right_m))
            self._riders.append((LineDriver(rider, track, speed_mps), way_m))

    def script(self) -> Script:
        """Ride on; the end is 50 m after the ego vehicle has passed the second bicycle."""
        for driver, _ in self._riders:
            self.start(driver)
        if self.two_ways:
            self.wrong_way = True
        yield from self.first_of(self._passed(), self._ride())

    def _passed(self) -> Script:
        yield from self.until(self._is_ahead)
        yield from self.ego_drives(END_M)

    def _is_ahead(self) -> bool:
        last = self.scene.around.actor(self._riders[-1][0].actor_id)
        if last is None:
            return False
        yaw = last.pose.yaw_rad
        x, y = self.ego_m - [last.pose.x_m, last.pose.y_m]
        return bool(x * math.cos(yaw) + y * math.sin(yaw) > 0.0)

    def _ride(self) -> Script:
        while True:
            for driver, way_m in self._riders:
                if driver.arc_m is not None and driver.arc_m >= way_m:
                    driver.cruise_mps = 0.0
            yield


class HazardAtSideLaneTwoWays(HazardAtSideLane):
    """The same on a road with one lane each way; it leaves the oncoming lane to the background traffic."""

    two_ways = True


SCENARIOS: tuple[type[Scenario], ...] = (
    Accident, AccidentTwoWays, ConstructionObstacle, ConstructionObstacleTwoWays, HazardAtSideLane,
    HazardAtSideLaneTwoWays, ParkedObstacle, ParkedObstacleTwoWays, VehicleOpensDoorTwoWays,
)  # fmt: skip
