"""Lights and stop signs: junctions whose lights a scenario holds, and turns where nothing but the sign matters."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from carla_bridge.client.surroundings import LightState
from carla_bridge.scenarios.behaviours import Track
from carla_bridge.scenarios.errors import ScenarioError
from carla_bridge.scenarios.places import Junction, Place
from carla_bridge.scenarios.scenario import Scenario, Script

GREEN_DELAY_S = 5.0
BEHIND_JUNCTION_M = 10.0
SIGN_REACH_M = 12.0
ENTRY_M = 5.0


class JunctionScenario(Scenario):
    """Base of what happens at the junction ahead of the trigger: it ends 10 m behind it.

    Background vehicles leave junction and way there, as upstream: one that waits for a gap in the scenario's own
    traffic would wait as long as that lasts, and the ego vehicle behind it.
    """

    def set_up(self) -> None:
        """Find the junction."""
        self.crossing = Junction.ahead_of(self.trigger)

    def begin(self) -> None:
        """Clear the way, and start the script."""
        track = Track(self.scene.plan.xy_m)
        ends = np.stack([self.trigger.spot.xy_m, self.crossing.entry.spot.xy_m])
        (first_m, last_m), _ = track.project(ends)
        self.clear(track, float(first_m), float(last_m) + ENTRY_M)
        self.clear_junction()
        super().begin()

    def clear_junction(self) -> None:
        """Take background vehicles out of the junction."""
        entry = self.crossing.entry
        junction = entry.waypoint.next(ENTRY_M)[0].junction_id
        inside = []
        for actor in self.scene.around.actors:
            if actor.role_name == "background" and actor.type_id.startswith("vehicle."):
                place = Place.at(self.stage.simulation.map, actor.pose, actor.z_m)
                if place.in_junction and place.waypoint.junction_id == junction:
                    inside.append(actor.id)
        self.stage.remove_background(inside)

    def behind_junction(self) -> Script:
        """Wait until the ego vehicle has come out of the junction, and 10 m on."""
        yield from self.through_junction()
        yield from self.ego_drives(BEHIND_JUNCTION_M)

    def lights_of(self, lane: Place) -> set[int]:
        """Ids of the lights that rule a lane."""
        road, _, lane_id = lane.key
        return {
            light.id for light in self.scene.around.lights
            if any(line.lane == (road, lane_id) for line in light.stop_lines)
        }

    def need_lights(self) -> None:
        """Check that the ego vehicle's lane has a light.

        Raises:
            ScenarioError: it has none.
        """
        if not self.lights_of(self.crossing.entry):
            road, _, lane = self.crossing.entry.key
            raise ScenarioError(f"no traffic light rules lane {lane} of road {road}, which leads into the junction")

    def hold(self, ego: LightState, *others: tuple[Place, LightState]) -> None:
        """Hold all lights of the junction: one state for the ego vehicle's lane, given ones for others, else red."""
        states = {light: LightState.RED for arm in self.crossing.arms for light in self.lights_of(arm)}
        for arm, state in others:
            states.update(dict.fromkeys(self.lights_of(arm), state))
        states.update(dict.fromkeys(self.lights_of(self.crossing.entry), ego))
        self.stage.hold_lights(states)

    def close(self) -> None:
        """Give the lights their own times back, too."""
        self.stage.release_lights()
        super().close()


class VanillaSignalized(JunctionScenario):
    """Base of a turn at a light that shows `first` for 5 s and then the other one.

    Attributes:
        first, then: what the ego vehicle's light shows.
    """

    first: ClassVar[LightState]
    then: ClassVar[LightState]

    def set_up(self) -> None:
        """Find the junction and its lights."""
        super().set_up()
        self.need_lights()

    def script(self) -> Script:
        """Switch the lights."""
        yield from self.first_of(self.behind_junction(), self._switch())

    def _switch(self) -> Script:
        self.hold(self.first)
        yield from self.wait(GREEN_DELAY_S)
        self.hold(self.then)
        if self.then is LightState.RED:  # as long again, then the junction's own cycle
            yield from self.wait(GREEN_DELAY_S)
            self.stage.release_lights()
        yield from self.forever()


class VanillaSignalizedTurnEncounterGreenLight(VanillaSignalized):
    """The light is green, and turns red after 5 s."""

    first, then = LightState.GREEN, LightState.RED


class VanillaSignalizedTurnEncounterRedLight(VanillaSignalized):
    """The light is red, and turns green after 5 s."""

    first, then = LightState.RED, LightState.GREEN


class VanillaNonSignalizedTurn(JunctionScenario):
    """A turn without lights."""

    def script(self) -> Script:
        """Wait until it is done."""
        yield from self.behind_junction()


class VanillaNonSignalizedTurnEncounterStopsign(VanillaNonSignalizedTurn):
    """A turn at a stop sign."""

    def script(self) -> Script:
        """Check that there is a sign where the lane ends, then wait until the turn is done.

        Raises:
            ScenarioError: without one, the route would test something else.
        """
        entry = self.crossing.entry.spot
        if not any(
            abs(sign.area.x_m - entry.pose.x_m) + abs(sign.area.y_m - entry.pose.y_m) < SIGN_REACH_M
            for sign in self.scene.around.stop_signs
        ):
            raise ScenarioError("no stop sign at the junction's entry")
        yield from super().script()


SCENARIOS: tuple[type[Scenario], ...] = (
    VanillaNonSignalizedTurn, VanillaNonSignalizedTurnEncounterStopsign, VanillaSignalizedTurnEncounterGreenLight,
    VanillaSignalizedTurnEncounterRedLight,
)  # fmt: skip
