"""The ego vehicle has to make room: for an emergency vehicle, for one that cuts a bend, for merging traffic."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.scenarios.behaviours import Flow, LineDriver, Manner, Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Spot
from carla_bridge.scenarios.scenario import SIDES, Scenario, Script, heights


class YieldToEmergencyVehicle(Scenario):
    """An emergency vehicle comes up from behind in the ego vehicle's lane.

    It wants to be 25 m/s faster than the ego vehicle and stops behind it when it cannot pass. The scenario ends 10 s
    after it has come within 50 m, or 50 m after it has passed; if it is then still behind, the ego vehicle has not
    yielded. It begins at the ego vehicle's speed, as it has been on its way; upstream begins it at a standstill.
    """

    near_m: ClassVar[float] = 50.0
    patience_s: ClassVar[float] = 10.0
    end_m: ClassVar[float] = 50.0
    faster_mps: ClassVar[float] = 25.0

    def set_up(self) -> None:
        """Find where it comes from."""
        self._start = self.trigger.behind(self.spec.number("distance", 140.0), "the emergency vehicle")
        self._vehicle: int | None = None

    def script(self) -> Script:
        """Come up and pass."""
        kind = self.stage.pick("vehicle.*", special_type="emergency")
        track = self.lane_track(self._start, 600.0)
        self._vehicle = self.put(kind, self._start.spot, speed_mps=max(self.ego.speed_mps, 1.0))
        self.stage.lamps(self._vehicle, "Special1", "Special2")
        driver = LineDriver(
            self._vehicle, track, self.faster_mps,
            Manner(max_accel_mps2=4.0, comfort_decel_mps2=4.0, headway_s=0.3, standstill_m=2.0),
        )
        self.start(driver)
        yield
        yield from self.first_of(self._held_up(), self._passed(), self._hurry(driver))

    def _hurry(self, driver: LineDriver) -> Script:
        while True:
            driver.cruise_mps = self.ego.speed_mps + self.faster_mps
            yield

    def _held_up(self) -> Script:
        yield from self.until(lambda: self._distance_m() < self.near_m)
        yield from self.wait(self.patience_s)

    def _passed(self) -> Script:
        yield from self.until(self._is_ahead)
        yield from self.until(lambda: self._is_ahead() and self._distance_m() > self.end_m)

    def _distance_m(self) -> float:
        actor = self.scene.around.actor(self._vehicle or 0)
        return math.inf if actor is None else math.hypot(*(self.ego_m - [actor.pose.x_m, actor.pose.y_m]))

    def _is_ahead(self) -> bool:
        actor = self.scene.around.actor(self._vehicle or 0)
        if actor is None:
            return False
        ahead = [math.cos(actor.pose.yaw_rad), math.sin(actor.pose.yaw_rad)]
        return float((self.ego_m - [actor.pose.x_m, actor.pose.y_m]) @ ahead) <= 0.0

    def verdicts(self) -> list[Infraction]:
        """A failure while the emergency vehicle is behind."""
        seen = self._distance_m() < math.inf
        return [Infraction.yield_to_emergency()] if seen and not self._is_ahead() else []


class InvadingTurn(Scenario):
    """Oncoming vehicles drive partly on the ego vehicle's side, round cones on their own, and do not stop for it."""

    time_limit_s = 240.0
    beyond_m: ClassVar[float] = 30.0
    gap_m: ClassVar[float] = 40.0
    half_car_m: ClassVar[float] = 0.7

    def set_up(self) -> None:
        """Find the oncoming lane, its line, and the places of the cones."""
        self._distance_m = self.spec.number("distance", 100.0)
        offset_m = self.spec.number("offset", 0.25)
        self._end = self.place_ahead(self._distance_m + self.beyond_m, "the source of the oncoming vehicles")
        source, sink = self._end.opposite_lane("the oncoming lane"), self.trigger.opposite_lane("the oncoming lane")
        line = self.route_track(source.carla_xyz_m, sink.carla_xyz_m, "the oncoming lane")
        self._line = Track(line.xy_m, offset_m + sink.width_m / 2 - self.half_car_m)
        self._z_m = source.spot.z_m
        place, self._cones = source.ahead(10.0, "the cones"), []
        for _ in range(math.ceil(0.5 * self._distance_m / 5.0)):
            place = place.ahead(5.0, "the cones")
            self._cones.append(place.spot.moved(left_m=-0.8 * place.width_m / 2))

    def script(self) -> Script:
        """Put the cones, let the vehicles come, and end when the ego vehicle is past their source."""
        self.clear(self._line)
        for spot in self._cones:
            self.put("static.prop.constructioncone", spot)
        height = heights(self.stage.simulation.map, self._line, self._z_m)
        self.start(Flow(
            self._line, height, self.scene.speed_limit_mps, (self.gap_m, self.gap_m), self.stage.car,
            manner=Manner(headway_s=0.2, heeds_ego=False),
        ))
        yield from self.until(lambda: self._end.spot.is_passed(self.ego_m) and self.ego_near(self._end.spot, 50.0))


class HighwayCutIn(Scenario):
    """A vehicle on the ramp comes to the ego vehicle's lane together with the ego vehicle, and gets in front of it."""

    ahead_m: ClassVar[float] = 10.0

    def set_up(self) -> None:
        """Find its line."""
        start, end = self.spec.location("other_actor_location"), self.spec.location("end_location")
        self._line = self.route_track(start, end, "the line of the other vehicle")
        self._height = heights(self.stage.simulation.map, self._line, float(start[2]))

    def script(self) -> Script:
        """Drive so as to arrive together, then on at 80 % of the ego vehicle's speed for a while."""
        spot = Spot(self._line.pose(0.0), self._height(0.0))
        other = self.put(self.stage.car(), spot, speed_mps=max(self.ego.speed_mps, 5.0))
        driver = LineDriver(other, self._line, max(self.ego.speed_mps, 5.0), Manner(max_accel_mps2=4.0, blind=True))
        self.start(driver)
        meeting = self._line.pose(self._line.length_m)
        while driver.arc_m is None or driver.arc_m < self._line.length_m - self.ahead_m:
            gone_m = driver.arc_m or 0.0
            left_m = self._line.length_m - gone_m
            ego_left_m = max(math.hypot(*(self.ego_m - [meeting.x_m, meeting.y_m])) + self.ahead_m, 1.0)
            driver.cruise_mps = min(max(self.ego.speed_mps * left_m / ego_left_m, 3.0), 30.0)
            yield
        self.stop(driver)
        end = Track(np.concatenate([self._line.xy_m, self.scene.plan.at(self._route_beyond(meeting.x_m, meeting.y_m))]))
        slow = LineDriver(other, end, 0.8 * max(self.ego.speed_mps, 5.0), Manner(heeds_ego=False))
        slow.arc_m = driver.arc_m
        self.start(slow)
        yield from self.wait(5.0)

    def _route_beyond(self, x_m: float, y_m: float) -> np.ndarray:
        track = Track(self.scene.plan.xy_m)
        arcs, _ = track.project(np.array([[x_m, y_m]]))
        return np.arange(float(arcs[0]) + 20.0, float(arcs[0]) + 150.0, 2.0)


class ParkingExit(Scenario):
    """The ego vehicle begins in a parking lane between two cars, a third one beside it, and has to join the traffic.

    It must be the route's first scenario, triggered at its start.
    """

    time_limit_s = 240.0
    away_m: ClassVar[float] = 50.0

    def set_up(self) -> None:
        """Put the cars, and the ego vehicle between them."""
        side = self.spec.choice("direction", SIDES, "right")
        front_m = self.spec.number("front_vehicle_distance", 20.0)
        behind_m = self.spec.number("behind_vehicle_distance", 10.0)
        if math.hypot(*(self.trigger.spot.xy_m - self.scene.plan.xy_m[0])) > 5.0:
            raise ScenarioError("its trigger point must be the route's first point")
        slot = self.trigger.side_lane(side, "the parking lane")
        outwards = 1.0 if side == "left" else -1.0

        def parked(place_spot: Spot, width_m: float) -> Spot:
            return place_spot.moved(left_m=outwards * (width_m - 1.0) / 4)

        self.stage.place_ego(parked(slot.spot, slot.width_m).pose)
        front, behind = slot.ahead(front_m, "the car in front"), slot.behind(behind_m, "the car behind")
        self.put_car(parked(front.spot, front.width_m), role="scenario no lights")
        self.put_car(parked(behind.spot, behind.width_m), role="scenario no lights")
        self._beside = self.put_car(self.trigger.spot)
        self._end_m = front_m + 15.0

    def script(self) -> Script:
        """Let the car beside drive away, and wait until the ego vehicle is on its way."""
        yield from self.first_of(self.ego_drives(self._end_m), self._drive_away())

    def _drive_away(self) -> Script:
        driver = LineDriver(self._beside, self.lane_track(self.trigger, 120.0), self.scene.speed_limit_mps)
        self.start(driver)
        yield from self.until(lambda: driver.arc_m is not None and driver.arc_m > self.away_m)
        self.stop(driver)
        self.stage.remove([self._beside])
        yield from self.forever()


SCENARIOS: tuple[type[Scenario], ...] = (HighwayCutIn, InvadingTurn, ParkingExit, YieldToEmergencyVehicle)
