"""A flow of vehicles that the ego vehicle has to join, cross or leave."""

from __future__ import annotations

import math
from typing import ClassVar

from carla_bridge.client.surroundings import LightState
from carla_bridge.scenarios.behaviours import Flow
from carla_bridge.scenarios.places import Place
from carla_bridge.scenarios.scenario import Scenario, Script, heights
from carla_bridge.scenarios.signs import BEHIND_JUNCTION_M, GREEN_DELAY_S, JunctionScenario

SINK_M = 2.0
DEFAULT_GAPS_M = (20.0, 50.0)
THROUGH_M = 30.0  # way through a junction


class GivenFlow(Scenario):
    """Base: a flow between two places that the route file gives.

    The line is full of vehicles from the trigger on. `flow_speed` is in m/s, `source_dist_interval` in metres.

    Attributes:
        all_lanes: whether every lane beside the first place gets a flow.
        bicycles: whether the flow is of bicycles; else of ordinary cars.
    """

    time_limit_s = 240.0
    all_lanes: ClassVar[bool] = False
    bicycles: ClassVar[bool] = False

    def set_up(self) -> None:
        """Find the lines."""
        speed_mps = self.spec.number("flow_speed", 10.0)
        gaps_m = self.spec.interval("source_dist_interval", DEFAULT_GAPS_M)
        start, end = self.spec.location("start_actor_flow"), self.spec.location("end_actor_flow")
        carla_map = self.stage.simulation.map
        source, sink = Place.at_point(carla_map, start), Place.at_point(carla_map, end)
        self.sinks = sink.same_direction()
        lines = zip(source.same_direction(), self.sinks, strict=False) if self.all_lanes else [(source, sink)]
        self._flows = []
        for first, last in lines:
            track = self.route_track(first.carla_xyz_m, last.carla_xyz_m, "the flow's line")
            height = heights(carla_map, track, first.spot.z_m)
            self._flows.append(Flow(track, height, speed_mps, gaps_m, self._kind, populated=True))

    def script(self) -> Script:
        """Run the flows until the ego vehicle has done what the scenario is about."""
        for flow in self._flows:
            self.clear(flow.track)
            self.start(flow)
        yield from self.done()

    def done(self) -> Script:
        """Wait until the ego vehicle drives over an end of the flow, on any lane."""
        yield from self.until(lambda: any(self.ego_near(sink.spot, SINK_M) for sink in self.sinks))

    def _kind(self) -> str:
        return self.stage.pick("vehicle.*", base_type="bicycle") if self.bicycles else self.stage.car()


class EnterActorFlow(GivenFlow):
    """A flow in each lane of the road that the ego vehicle turns into."""

    all_lanes = True


class MergerIntoSlowTraffic(GivenFlow):
    """Slow traffic where the ego vehicle merges."""


class LeavingFlow(GivenFlow):
    """Base: it ends behind the junction."""

    def done(self) -> Script:
        """Wait until the ego vehicle has come through the junction, and 10 m on."""
        yield from self.through_junction()
        yield from self.ego_drives(BEHIND_JUNCTION_M)


class HighwayExit(LeavingFlow):
    """Fast traffic between the ego vehicle and its exit."""


class InterurbanActorFlow(LeavingFlow):
    """Traffic on the road that the ego vehicle crosses or turns into by a lane of its own."""


class CrossingBicycleFlow(LeavingFlow):
    """Bicycles on a lane that the ego vehicle's turn crosses."""

    bicycles = True


class JunctionTurn(JunctionScenario):
    """Base: a flow that goes through the junction where the ego vehicle turns; signalised or not.

    With lights, the ego vehicle's is red for 5 s and then green, like the flow's from the beginning.

    Attributes:
        side: where the flow comes from.
        flow_turn: what the flow does in the junction.
        source_s, sink_s: seconds of the flow's speed that it begins before and ends behind the junction.
        populated: whether the line is full of vehicles from the trigger on.
        signalised: whether the junction has lights.
    """

    time_limit_s = 240.0
    side: ClassVar[str]
    flow_turn: ClassVar[str] = "straight"
    source_s: ClassVar[float] = 4.0
    sink_s: ClassVar[float] = 2.5
    populated: ClassVar[bool] = False
    signalised: ClassVar[bool] = False

    def set_up(self) -> None:
        """Find junction, line of the flow, and lights."""
        super().set_up()
        self._speed_mps = self.spec.number("flow_speed", 20.0)
        self._gaps_m = self.spec.interval("source_dist_interval", (25.0, 50.0))
        arm = self.crossing.arm(self.side)
        self._arm = arm.same_direction()[-1] if self.side == "left" else arm
        source = self._arm.up_to_junction(self.source_s * self._speed_mps, back=True)
        before_m = math.hypot(*(source.spot.xy_m - self._arm.spot.xy_m))
        length_m = before_m + THROUGH_M + self.sink_s * self._speed_mps
        self._line = self.lane_track(source, length_m, turn=self.flow_turn)
        self._heights = heights(self.stage.simulation.map, self._line, source.spot.z_m)
        if self.signalised:
            self.need_lights()

    def script(self) -> Script:
        """Run the flow until the ego vehicle is 10 m behind the junction."""
        self.clear(self._line)
        self.start(Flow(
            self._line, self._heights, self._speed_mps, self._gaps_m, self.stage.car, populated=self.populated
        ))
        if self.signalised:
            yield from self.first_of(self.behind_junction(), self._switch())
        else:
            yield from self.behind_junction()

    def _switch(self) -> Script:
        self.hold(LightState.RED, (self._arm, LightState.GREEN))
        yield from self.wait(GREEN_DELAY_S)
        self.hold(LightState.GREEN, (self._arm, LightState.GREEN))
        yield from self.forever()


class NonSignalizedJunctionLeftTurn(JunctionTurn):
    """Left turn across oncoming traffic without lights."""

    side = "opposite"


class NonSignalizedJunctionRightTurn(JunctionTurn):
    """Right turn into traffic from the left without lights."""

    side = "left"
    source_s, sink_s, populated = 5.0, 3.0, True


class NonSignalizedJunctionLeftTurnEnterFlow(JunctionTurn):
    """Left turn into the road that oncoming traffic turns right into."""

    side, flow_turn = "opposite", "right"


class SignalizedJunctionLeftTurn(NonSignalizedJunctionLeftTurn):
    """The same with lights."""

    signalised = True


class SignalizedJunctionRightTurn(NonSignalizedJunctionRightTurn):
    """The same with lights."""

    signalised = True


class SignalizedJunctionLeftTurnEnterFlow(NonSignalizedJunctionLeftTurnEnterFlow):
    """The same with lights."""

    signalised = True


class RouteStretch(Scenario):
    """Nothing but the road: it ends after 200 m. The route itself is the task."""

    time_limit_s = 240.0

    def script(self) -> Script:
        """Wait."""
        yield from self.ego_drives(200.0)


class T_Junction(RouteStretch):  # noqa: N801 (the name in the route files)
    """A T-junction on the way."""


class SequentialLaneChange(RouteStretch):
    """Several lane changes in a row."""


SCENARIOS: tuple[type[Scenario], ...] = (
    CrossingBicycleFlow, EnterActorFlow, HighwayExit, InterurbanActorFlow, MergerIntoSlowTraffic,
    NonSignalizedJunctionLeftTurn, NonSignalizedJunctionLeftTurnEnterFlow, NonSignalizedJunctionRightTurn,
    SequentialLaneChange, SignalizedJunctionLeftTurn, SignalizedJunctionLeftTurnEnterFlow, SignalizedJunctionRightTurn,
    T_Junction,
)  # fmt: skip
ALIASES: dict[str, type[Scenario]] = {
    "EnterActorFlowV2": EnterActorFlow,
    "InterurbanAdvancedActorFlow": InterurbanActorFlow,
    "MergerIntoSlowTrafficV2": MergerIntoSlowTraffic,
}
