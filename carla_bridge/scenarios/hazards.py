"""The vehicle ahead, a parked one or the road itself makes the ego vehicle brake."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from carla_bridge.client.surroundings import LightState
from carla_bridge.scenarios.behaviours import LineDriver, Manner, Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Place, Spot
from carla_bridge.scenarios.scenario import SIDES, Scenario, Script
from carla_bridge.scenarios.signs import JunctionScenario
from wamdiff2_core.types import VehicleCommand


class HardBreakRoute(Scenario):
    """The vehicle ahead brakes hard, stands for 10 s and drives on.

    Upstream brakes the background traffic ahead. Here one vehicle drives ahead of the ego vehicle from the route's
    start, at a distance that grows with the speed, so that there always is one.
    """

    stop_s: ClassVar[float] = 10.0
    end_m: ClassVar[float] = 15.0
    gap_m: ClassVar[float] = 10.0
    headway_s: ClassVar[float] = 1.2

    def set_up(self) -> None:
        """Put the vehicle on the route ahead of its start."""
        plan = self.scene.plan
        self._track = Track(plan.xy_m)
        ego = self.ego
        arcs, _ = self._track.project(self.ego_m[None])
        start_m = float(arcs[0]) + ego.extent_m[0] + 2.5 + self.gap_m
        if start_m > self._track.length_m - 20.0:
            raise ScenarioError("the route is too short for a vehicle ahead")
        z_m = float(np.interp(start_m, plan.arc_m, plan.z_m))
        self._lead = self.put_car(Spot(self._track.pose(start_m), z_m))
        self._driver = LineDriver(self._lead, self._track, 0.0, Manner(heeds_ego=False, max_decel_mps2=9.0))
        self._driver.arc_m = start_m

    def approach(self) -> None:
        """Keep the vehicle ahead of the ego vehicle."""
        lead = self.scene.around.actor(self._lead)
        if lead is None or self._driver.arc_m is None:
            return
        arcs, _ = self._track.project(self.ego_m[None], self._driver.arc_m - 40.0)
        gap_m = self._driver.arc_m - float(arcs[0]) - lead.extent_m[0] - self.ego.extent_m[0]
        wish_m = self.gap_m + self.headway_s * self.ego.speed_mps
        speed = self.ego.speed_mps + 0.5 * (wish_m - gap_m)
        self._driver.cruise_mps = min(max(speed, 0.0), self.scene.speed_limit_mps * 1.2)
        self._driver.step(self.stage, self.scene.around)

    def script(self) -> Script:
        """Brake, stand, drive on."""
        begun_ns = self.scene.around.stamp_ns
        while self.scene.around.stamp_ns - begun_ns < self.stop_s * 1e9:
            self._driver.cruise_mps = 0.0
            self._driver.step(self.stage, self.scene.around)
            yield
        end = self.ego_drives(self.end_m)
        self._driver.cruise_mps = self.scene.speed_limit_mps
        self.start(self._driver)
        yield from end
        # it leaves once it is out of sight
        yield from self.until(lambda: self._is_far())

    def _is_far(self) -> bool:
        lead = self.scene.around.actor(self._lead)
        at_end = self._driver.arc_m is not None and self._driver.arc_m > self._track.length_m - 5.0
        return lead is None or at_end or math.hypot(*(self.ego_m - [lead.pose.x_m, lead.pose.y_m])) > 60.0


class ParkingCutIn(Scenario):
    """A parked car pulls out in front of the ego vehicle; another one behind it hides it."""

    reaction_s, nearest_m = 2.35, 10.0

    def set_up(self) -> None:
        """Put both cars into the lane beside, at its far edge."""
        self._side = self.spec.choice("direction", SIDES, "right")
        self.put_car(self._parked(28.0), role="scenario no lights")
        self._start = self._parked(35.0)
        self._car = self.put_car(self._start)
        self._meeting = self.place_ahead(35.0, "the parked car")

    def _parked(self, distance_m: float) -> Spot:
        lane = self.place_ahead(distance_m, "the parked car").side_lane(self._side, "the parked car")
        outwards = 1.0 if self._side == "left" else -1.0
        return lane.spot.moved(left_m=outwards * (lane.width_m - 1.0) / 4)

    def script(self) -> Script:
        """Pull out, drive 30 m and leave."""
        yield from self.until(lambda: self.ego_arrives(self._meeting.spot, self.reaction_s, self.nearest_m))
        target = self._meeting.ahead(8.0, "the way of the parked car")
        lane = self.lane_track(target, 40.0)
        track = Track(np.concatenate([self._start.xy_m[None], lane.xy_m]))
        driver = LineDriver(self._car, track, 20.0 / 3.6, Manner(heeds_ego=False))
        self.start(driver)
        yield from self.first_of(
            self.until(lambda: driver.arc_m is not None and driver.arc_m > 30.0), self.wait(30.0)
        )


class StaticCutIn(Scenario):
    """One car of a queue in the lane beside pulls into the ego vehicle's lane; the queue appears at the trigger."""

    reaction_s, nearest_m = 2.7, 15.0
    gap_m: ClassVar[float] = 11.0
    before: ClassVar[int] = 2
    after: ClassVar[int] = 3

    def set_up(self) -> None:
        """Find the places of the queue."""
        self._side = self.spec.choice("direction", SIDES, "right")
        place = self.place_ahead(self.spec.number("distance", 100.0), "the queue")
        self._lane: list[Place] = []
        self._queue: list[Spot] = []
        for _ in range(self.before + 1 + self.after):
            self._lane.append(place)
            self._queue.append(place.side_lane(self._side, "the queue").spot)
            place = place.ahead(self.gap_m, "the queue", self.scene.plan.xy_m)
        self._meeting = self._lane[self.before]

    def script(self) -> Script:
        """Queue, pull out when the ego vehicle comes, and drive away at 60 km/h."""
        self.clear(self.lane_track(self.trigger, 120.0), first_m=5.0)
        cars = [self.put_car(spot) for spot in self._queue]
        yield from self.until(lambda: self.ego_arrives(self._meeting.spot, self.reaction_s, self.nearest_m))
        start = self._queue[self.before]
        lane = self.lane_track(self._meeting.ahead(12.0, "the cut in"), 80.0)
        track = Track(np.concatenate([start.xy_m[None], lane.xy_m]))
        driver = LineDriver(cars[self.before], track, 60.0 / 3.6, Manner(heeds_ego=False))
        self.start(driver)
        yield from self.first_of(
            self.until(lambda: driver.arc_m is not None and driver.arc_m > 70.0), self.wait(30.0)
        )


class ControlLoss(Scenario):
    """Three patches of dirt on which the vehicle does not do quite what it is told."""

    places_m: ClassVar[tuple[float, ...]] = (14.0, 48.0, 74.0)
    end_m: ClassVar[float] = 110.0
    # scenario_runner adds these to throttle and wheel in 0..1; here they are on the command, for a car with a
    # wheel of 70 degrees and 4 m/s2 at full throttle
    accel_mean_mps2, accel_std_mps2 = 0.03 * 4.0, 0.01 * 4.0
    steer_mean_rad, steer_std_rad = 0.055 * math.radians(70.0), 0.015 * math.radians(70.0)
    reach_m: ClassVar[float] = 2.0

    def set_up(self) -> None:
        """Put the dirt; which way each patch pulls is drawn."""
        rng = self.stage.rng
        self._patches = []
        for distance_m in self.places_m:
            place = self.trigger.up_to_junction(distance_m)
            self.put("static.prop.dirtdebris01", place.spot, role="prop")
            signs = rng.choice([-1.0, 1.0], size=2)
            self._patches.append((place.spot, signs[0] * self.accel_mean_mps2, signs[1] * self.steer_mean_rad))

    def script(self) -> Script:
        """Wait until all of it is behind."""
        yield from self.ego_drives(self.end_m)

    def disturb(self, command: VehicleCommand) -> VehicleCommand:
        """Add a push and a pull while on a patch."""
        rng = self.stage.rng
        for spot, push, pull in self._patches:
            if self.ego_near(spot, self.reach_m):
                accel = command.accel_mps2 + rng.normal(push, self.accel_std_mps2)
                return VehicleCommand(command.steer_rad + rng.normal(pull, self.steer_std_rad), accel)
        return command


class BlockedIntersection(JunctionScenario):
    """A car stands where the ego vehicle comes out of its turn; it leaves after 10 s."""

    time_limit_s = 240.0

    def set_up(self) -> None:
        """Find the exit of the junction on the route."""
        super().set_up()
        track = Track(self.scene.plan.xy_m)
        arcs, _ = track.project(self.crossing.entry.spot.xy_m[None])
        arc_m = float(arcs[0]) + 2.0
        place = Place.at(self.stage.simulation.map, track.pose(arc_m), self.trigger.spot.z_m)
        while place.in_junction or arc_m - float(arcs[0]) < 4.0:
            arc_m += 1.0
            if arc_m > track.length_m:
                raise ScenarioError("the route ends inside the junction")
            place = Place.at(self.stage.simulation.map, track.pose(arc_m), place.spot.z_m)
        self._exit = place.ahead(5.0, "the blocking car")

    def script(self) -> Script:
        """Block, wait until the ego vehicle has seen it for 10 s, and go."""
        car = self.put_car(self._exit.spot)
        self.stage.lamps(car, "Brake")
        yield from self.until(lambda: self.ego_near(self._exit.spot, 13.0))
        yield from self.wait(10.0)


class OppositeVehicle(JunctionScenario):
    """Base: an emergency vehicle drives through the junction at 60 km/h when the ego vehicle gets there."""

    reaction_s, nearest_m = 2.2, 12.0
    speed_mps: ClassVar[float] = 60.0 / 3.6
    signalised: ClassVar[bool] = False

    def set_up(self) -> None:
        """Find its line and where it meets the ego vehicle's."""
        super().set_up()
        self._arm = self.crossing.arm(self.spec.choice("direction", ("left", "right", "opposite"), "right"))
        self._source = self._arm.up_to_junction(30.0, back=True)
        before_m = math.hypot(*(self._source.spot.xy_m - self._arm.spot.xy_m))
        self._line = self.lane_track(self._source, before_m + 40.0)
        entry = self.crossing.entry.spot
        ahead = Track(np.stack([entry.xy_m, entry.moved(ahead_m=40.0).xy_m]))
        arcs, sides = ahead.project(self._line.xy_m)
        meeting_m = float(arcs[int(np.abs(sides).argmin())])
        self._meeting = entry.moved(ahead_m=min(meeting_m, 20.0))
        if self.signalised:
            self.need_lights()

    def script(self) -> Script:
        """Wait beside the junction, rush through, and end when the ego vehicle is through too."""
        if self.signalised:
            self.hold(LightState.GREEN)
        self.clear(self._line)
        rusher = self.put(self.stage.pick("vehicle.*", special_type="emergency"), self._source.spot)
        self.stage.lamps(rusher, "Special1", "Special2")
        yield from self.until(lambda: self.ego_arrives(self._meeting, self.reaction_s, self.nearest_m))
        driver = LineDriver(rusher, self._line, self.speed_mps, Manner(max_accel_mps2=8.0, blind=True))
        self.start(driver)
        time_s = self._line.length_m / self.speed_mps + 4.0
        yield from self.first_of(
            self.until(lambda: driver.arc_m is not None and driver.arc_m > self._line.length_m - 3.0),
            self.wait(time_s),
        )
        self.stop(driver)
        self.stage.remove([rusher])
        yield from self.until(lambda: not self._ego_place().in_junction and self._ego_is_through())

    def _ego_is_through(self) -> bool:
        return self.crossing.entry.spot.moved(ahead_m=8.0).is_passed(self.ego_m)


class OppositeVehicleTakingPriority(OppositeVehicle):
    """Without lights."""


class OppositeVehicleRunningRedLight(OppositeVehicle):
    """The ego vehicle has green."""

    signalised = True


SCENARIOS: tuple[type[Scenario], ...] = (
    BlockedIntersection, ControlLoss, HardBreakRoute, OppositeVehicleRunningRedLight, OppositeVehicleTakingPriority,
    ParkingCutIn, StaticCutIn,
)  # fmt: skip
