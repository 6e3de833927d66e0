"""Traffic lights and signs as actors, and the clock that switches the lights.

Each junction runs through its phases: green, yellow, then red for all, then the next phase. Where in that cycle a
junction starts is drawn from the seed, so an episode repeats exactly. As in CARLA, a state that a client sets holds
until the cycle switches that light the next time, times belong to the light's phase, and a freeze holds the clock.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import LampColor, RenderSignal, SignalKind
from carla_bridge.server.protocol.wire import TrafficLightState, Vector
from carla_bridge.server.town.road_signals import ACTOR_TYPES, SignalSpec

GREEN_S, YELLOW_S, RED_S = 10.0, 3.0, 2.0
ROUNDING_S = 1e-6  # 80 ticks of 0.05 s add up to a little less than 4 s
MOST_SWITCHES = 12  # in one tick; a client may set all times to nothing
FOLLOWING = {
    TrafficLightState.GREEN: TrafficLightState.YELLOW,
    TrafficLightState.YELLOW: TrafficLightState.RED,
    TrafficLightState.RED: TrafficLightState.GREEN,
}
CELL_M = 16.0
SIDEWAYS_COS = 0.5  # a light governs a vehicle that heads within 60 degrees of its lanes
LEVEL_M = 4.0  # a road that runs above or below is further away than that; the ground before a light is not
LAMP_HALF_M = (0.2, 0.42, 0.9)  # of a head as it is drawn, with its back plate
LAMPS = {
    TrafficLightState.RED: LampColor.RED,
    TrafficLightState.YELLOW: LampColor.YELLOW,
    TrafficLightState.GREEN: LampColor.GREEN,
    TrafficLightState.OFF: LampColor.OFF,
    TrafficLightState.UNKNOWN: LampColor.OFF,
}
_LIGHT = struct.Struct("<32s4fI?B")
_SIGN = struct.Struct("<32s")


class Signal(Actor):
    """A light or sign; it stands where the town's file has it, and no client can move or destroy it."""

    def __init__(self, actor_id: int, spec: SignalSpec) -> None:
        kind = ACTOR_TYPES[spec.kind]
        super().__init__(actor_id, Blueprint(kind), [0, kind, []], replace(spec.pose))
        self.spec = spec
        self.simulated = self.gravity = False
        self._drawn: dict[LampColor, tuple[RenderSignal, ...]] = {}

    @property
    def sign_id(self) -> str:
        """Id of the OpenDRIVE signal."""
        return self.spec.sign_id

    @property
    def junction_id(self) -> int:
        """The junction behind it; -1 for none."""
        return self.spec.junction_id

    def bounding_box(self) -> list:
        """The trigger volume, which is what the protocol has in this place."""
        middle, extent = self.spec.trigger
        return [list(middle), list(extent), [0.0, 0.0, 0.0], self.id]

    def detail(self) -> bytes:
        return _SIGN.pack(self.sign_id.encode()[:31])

    def render_signals(self) -> Sequence[RenderSignal]:
        return self._looks(LampColor.OFF)

    def _looks(self, lamp: LampColor) -> tuple[RenderSignal, ...]:
        if lamp not in self._drawn:
            self._drawn[lamp] = tuple(
                RenderSignal(self.spec.kind, *post.foot_m, post.yaw_deg, *post.head_m, lamp) for post in self.spec.posts
            )
        return self._drawn[lamp]

    def place(self, pose: Pose) -> None:
        """Stays where it is."""

    def covers(self, x_m: float, y_m: float) -> bool:
        """Whether a point lies in the trigger volume, seen from above."""
        (cx, cy, _), (ex, ey, _) = self.spec.trigger
        dx, dy = x_m - self.pose.x, y_m - self.pose.y
        c, s = math.cos(math.radians(self.pose.yaw)), math.sin(math.radians(self.pose.yaw))
        return abs(c * dx + s * dy - cx) <= ex and abs(c * dy - s * dx - cy) <= ey


class StopSign(Signal):
    """A stop sign, or with the type `traffic.yield` a yield sign."""


@dataclass
class Phase:
    """Lights that change together, and how long each part of their turn takes, seconds."""

    lights: list[TrafficLight] = field(default_factory=list)
    green_s: float = GREEN_S
    yellow_s: float = YELLOW_S
    red_s: float = RED_S


class TrafficLight(Signal):
    """A traffic light: what it shows, and the phase it belongs to."""

    def __init__(self, actor_id: int, spec: SignalSpec, pole_index: int) -> None:
        super().__init__(actor_id, spec)
        self.state = TrafficLightState.RED
        self.pole_index = pole_index
        self.phase = Phase()
        self.cycle: JunctionCycle | None = None

    @property
    def frozen(self) -> bool:
        """Whether its junction's clock is held."""
        return self.cycle is not None and self.cycle.frozen

    def detail(self) -> bytes:
        elapsed = self.cycle.elapsed_s if self.cycle is not None else 0.0
        times = (self.phase.green_s, self.phase.yellow_s, self.phase.red_s, elapsed)
        return _LIGHT.pack(self.sign_id.encode()[:31], *times, self.pole_index, self.frozen, self.state)

    def render_signals(self) -> Sequence[RenderSignal]:
        return self._looks(LAMPS[self.state])

    def lamp_boxes(self) -> list:
        """`BoundingBox` of each head, world coordinates."""
        return [[list(post.head_m), list(LAMP_HALF_M), [0.0, post.yaw_deg, 0.0], self.id] for post in self.spec.posts]


class JunctionCycle:
    """The clock of one junction.

    Attributes:
        phases: in the order in which they get green.
        elapsed_s: since the state of the current phase began.
        frozen: whether the clock is held.
    """

    def __init__(self, lights: Iterable[TrafficLight], seed: str) -> None:
        by_number: dict[int, Phase] = {}
        for light in sorted(lights, key=lambda light: light.spec.phase):
            light.phase, light.cycle = by_number.setdefault(light.spec.phase, Phase()), self
            light.phase.lights.append(light)
        self.phases = list(by_number.values())
        self.frozen = False
        chooser = random.Random(seed)
        self._first, self._start_s = chooser.randrange(len(self.phases)), chooser.uniform(0.0, GREEN_S)
        self.reset()

    @property
    def lights(self) -> list[TrafficLight]:
        """All lights of the junction."""
        return [light for phase in self.phases for light in phase.lights]

    def reset(self) -> None:
        """Start again where the episode started."""
        self._current, self._state, self.elapsed_s = self._first, TrafficLightState.GREEN, self._start_s
        for light in self.lights:
            light.state = TrafficLightState.RED
        self._show()

    def step(self, dt_s: float) -> None:
        """Let time pass. What a tick goes past a switch belongs to the next state."""
        if self.frozen:
            return
        self.elapsed_s += dt_s
        for _ in range(MOST_SWITCHES):
            phase = self.phases[self._current]
            lasts_s = {
                TrafficLightState.GREEN: phase.green_s,
                TrafficLightState.YELLOW: phase.yellow_s,
                TrafficLightState.RED: phase.red_s,
            }[self._state]
            if self.elapsed_s + ROUNDING_S < lasts_s:
                return
            self.elapsed_s = max(0.0, self.elapsed_s - lasts_s)
            if self._state is TrafficLightState.RED:
                self._current = (self._current + 1) % len(self.phases)
            self._state = FOLLOWING[self._state]
            self._show()

    def _show(self) -> None:
        for light in self.phases[self._current].lights:
            light.state = self._state


class SignalControl:
    """All lights and signs of an episode.

    Args:
        specs: signals of the town.
        take_id: gives out actor ids.
        seed: decides where in its cycle each junction starts.

    Attributes:
        lights, stop_signs: in order of their OpenDRIVE ids.
    """

    def __init__(self, specs: Sequence[SignalSpec], take_id: Callable[[], int], seed: int = 0) -> None:
        self.lights: list[TrafficLight] = []
        self.stop_signs: list[StopSign] = []
        poles: dict[int, int] = {}
        for spec in specs:
            if spec.kind is SignalKind.TRAFFIC_LIGHT:
                pole = poles[spec.junction_id] = poles.get(spec.junction_id, -1) + 1
                self.lights.append(TrafficLight(take_id(), spec, pole))
            else:
                self.stop_signs.append(StopSign(take_id(), spec))
        groups: dict[tuple, list[TrafficLight]] = {}
        for light in self.lights:
            # a light that belongs to no junction has a clock of its own
            key = (light.junction_id, light.sign_id if light.junction_id < 0 else "")
            groups.setdefault(key, []).append(light)
        self._cycles = [JunctionCycle(lights, f"{seed}/{key}") for key, lights in groups.items()]
        self._light_of: dict[tuple[int, int], TrafficLight] = {}
        for light in self.lights:
            for stop in light.spec.stops:
                self._light_of.setdefault((stop.road_id, stop.end_lane_id), light)
        self._near = _grid(self.lights)

    @property
    def actors(self) -> list[Signal]:
        """Everything that stands beside the roads, in order of actor ids."""
        return sorted([*self.lights, *self.stop_signs], key=lambda actor: actor.id)

    def step(self, dt_s: float) -> None:
        """Advance all clocks."""
        for cycle in self._cycles:
            cycle.step(dt_s)

    def reset(self) -> None:
        """Start all junctions again as the episode did; frozen clocks stay held."""
        for cycle in self._cycles:
            cycle.reset()

    def freeze(self, frozen: bool) -> None:
        """Hold or release all clocks."""
        for cycle in self._cycles:
            cycle.frozen = frozen

    def light_for(self, road_id: int, lane_id: int) -> TrafficLight | None:
        """The light that governs the end of a lane, in its direction of travel."""
        return self._light_of.get((road_id, lane_id))

    def watch(self, actors: Iterable[Actor]) -> None:
        """Tell every vehicle which light it stands at or drives up to, by where its front is."""
        if not self._near:
            return
        for actor in actors:
            if isinstance(actor, Vehicle):
                pose, reach = actor.pose, actor.blueprint.extent_m[0]
                yaw = math.radians(pose.yaw)
                x, y = pose.x + reach * math.cos(yaw), pose.y + reach * math.sin(yaw)
                light = self.light_at(x, y, pose.z, pose.yaw)
                actor.light = None if light is None else (light.id, light.state)

    def light_at(self, x_m: float, y_m: float, z_m: float, yaw_deg: float) -> TrafficLight | None:
        """The light whose trigger volume holds a point that moves along its lanes, on their level."""
        for light in self._near.get((math.floor(x_m / CELL_M), math.floor(y_m / CELL_M)), ()):
            along = math.cos(math.radians(yaw_deg - light.spec.yaw_deg))
            if along > SIDEWAYS_COS and light.covers(x_m, y_m) and abs(z_m - light.pose.z) < LEVEL_M:
                return light
        return None

    @staticmethod
    def group(light: TrafficLight) -> list[TrafficLight]:
        """All lights of the same junction, the light itself among them."""
        return light.cycle.lights if light.cycle is not None else [light]


def trigger_middle(signal: Signal) -> Vector:
    """Middle of a signal's trigger volume in the world."""
    (x, y, z), _ = signal.spec.trigger
    c, s = math.cos(math.radians(signal.pose.yaw)), math.sin(math.radians(signal.pose.yaw))
    return signal.pose.x + c * x - s * y, signal.pose.y + s * x + c * y, signal.pose.z + z


def _grid(lights: Iterable[TrafficLight]) -> dict[tuple[int, int], list[TrafficLight]]:
    """Lights by the cells of a grid that their trigger volumes touch."""
    cells: dict[tuple[int, int], list[TrafficLight]] = {}
    for light in lights:
        x, y, _ = trigger_middle(light)
        reach = math.hypot(*light.spec.trigger[1][:2])
        for i in range(math.floor((x - reach) / CELL_M), math.floor((x + reach) / CELL_M) + 1):
            for j in range(math.floor((y - reach) / CELL_M), math.floor((y + reach) / CELL_M) + 1):
                cells.setdefault((i, j), []).append(light)
    return cells
