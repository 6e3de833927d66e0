"""Walkers that the server moves: they stroll along sidewalks and cross at crosswalks when it is safe."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carla_bridge.server.actors.signals import SignalControl, TrafficLight
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.traffic.footpaths import Crosswalk, Footpaths

REACHED_M = 0.4
LOST_M = 6.0
CROSS_CHANCE = 0.5
RED_AGE_S = 3.0  # who comes later waits for the next red of the traffic
PATIENCE_S = 90.0  # then a light that never stops the traffic is taken for broken
BRAKING_MPS2, REACTION_S = 2.5, 1.0  # what a driver is trusted to do for a walker
FOOT_M = 3.0  # and where it stops short of the crosswalk
ASIDE_S, CROSSING_S = 0.4, 4.0  # how far ahead drivers should look at a walker beside and on the road
BUMPER_M = 0.7
CHECK_S = 2.0
STUCK_M = 0.3
LEVEL_M = 4.0  # what is higher or lower by more is on another road


@dataclass
class Stroller:
    """A walker and where it goes.

    Attributes:
        here, goal: nodes that it walks between; None while it is lost.
        chooser: its own random choices.
        speed_mps: that it likes to walk at.
        side: where it walks, as a share of the room to its right; negative to its left.
        waited_s: at a crosswalk.
        check_s: until it looks whether it gets on; checked, moving: where it was, and whether it walked, the last time.
    """

    walker: Walker
    chooser: random.Random
    speed_mps: float
    side: float
    here: int | None = None
    goal: int | None = None
    waited_s: float = 0.0
    check_s: float = CHECK_S
    checked: tuple[float, float] = (0.0, 0.0)
    moving: bool = False


class Strollers:
    """All walkers that the server moves.

    Args:
        paths: where they can walk.
        signals: lights; None for none.
        seed: of the world.
    """

    def __init__(self, paths: Footpaths, signals: SignalControl | None, seed: int) -> None:
        self._paths, self._seed = paths, seed
        self._strollers: dict[int, Stroller] = {}
        self._met = 0
        lights = {light.sign_id: light for light in signals.lights} if signals is not None else {}
        self._lights: dict[tuple[int, int], list[TrafficLight]] = {
            ends: [lights[sign] for sign in crosswalk.sign_ids if sign in lights]
            for ends, crosswalk in paths.crosswalks.items()
        }
        self._red_age_s = dict.fromkeys(paths.crosswalks, math.inf)
        self._vehicles: Sequence[Vehicle] = ()
        self._trusted: set[int] = set()

    def take_on(self, walkers: Iterable[Walker]) -> None:
        """Move these walkers, and no others, from now on."""
        self._strollers = {w.id: self._strollers.get(w.id) or self._meet(w) for w in walkers}

    def _meet(self, walker: Walker) -> Stroller:
        self._met += 1  # actor ids differ from one episode to the next
        chooser = random.Random(f"{self._seed}/walker {self._met}")
        try:
            speed = max(0.0, float(walker.attributes.get("speed", "1.4")))
        except ValueError:
            speed = 1.4
        return Stroller(walker, chooser, speed * chooser.uniform(0.85, 1.1), chooser.uniform(0.1, 0.9))

    def step(self, vehicles: Sequence[Vehicle], trusted: set[int], dt_s: float) -> dict[int, float]:
        """Set everybody's direction and speed for the next tick.

        Args:
            vehicles: all of them.
            trusted: ids of those that the server drives: they brake for walkers.
            dt_s: length of the tick.

        Returns:
            By actor id: how much of the way ahead each is about to take, metres.
        """
        self._vehicles, self._trusted = vehicles, trusted
        for ends, lights in self._lights.items():
            if lights:
                red = all(light.state is TrafficLightState.RED for light in lights)
                self._red_age_s[ends] = self._red_age_s[ends] + dt_s if red else -dt_s
        return {stroller.walker.id: self._move(stroller, dt_s) for stroller in self._strollers.values()}

    def _move(self, stroller: Stroller, dt_s: float) -> float:
        walker = stroller.walker
        if walker.down:
            stroller.here = None
            return 0.0
        if stroller.here is None and not self._find(stroller):
            walker.speed_mps = 0.0
            return 0.0
        x, y = self._target(stroller)
        gap = math.hypot(x - walker.pose.x, y - walker.pose.y)
        if gap < REACHED_M:
            if not self._go_on(stroller, dt_s):
                walker.speed_mps, stroller.moving = 0.0, False
                return 0.0
            x, y = self._target(stroller)
            gap = math.hypot(x - walker.pose.x, y - walker.pose.y)
        if gap > 1e-6:
            walker.direction = ((x - walker.pose.x) / gap, (y - walker.pose.y) / gap, 0.0)
        crossing = (stroller.here, stroller.goal) in self._paths.crosswalks
        walker.speed_mps = 0.0 if crossing and self._blocked(walker) else stroller.speed_mps
        self._notice_obstacle(stroller, crossing, dt_s)
        return min(gap, CROSSING_S * walker.speed_mps) if crossing else ASIDE_S * walker.speed_mps

    def _find(self, stroller: Stroller) -> bool:
        pose = stroller.walker.pose
        found = self._paths.nearest(*pose.location)
        if found is None or found[1] > LOST_M or not self._paths.links[found[0]]:
            return False
        node = found[0]
        yaw = math.radians(pose.yaw)
        ways = [n for n in self._paths.links[node] if (node, n) not in self._paths.crosswalks]
        if not ways:
            return False
        stroller.here = node
        stroller.goal = max(ways, key=lambda n: self._along(node, n, math.cos(yaw), math.sin(yaw)))
        stroller.checked = (pose.x, pose.y)
        return True

    def _along(self, a: int, b: int, cos: float, sin: float) -> float:
        """How well the way from one node to another fits a direction."""
        step = self._paths.xyz_m[b] - self._paths.xyz_m[a]
        length = math.hypot(step[0], step[1])
        return (step[0] * cos + step[1] * sin) / length if length > 0 else -1.0

    def _target(self, stroller: Stroller) -> tuple[float, float]:
        """Where it is heading: beside the node, on its own side of the way."""
        a, b = self._paths.xyz_m[stroller.here], self._paths.xyz_m[stroller.goal]
        dx, dy = float(b[0] - a[0]), float(b[1] - a[1])
        length = math.hypot(dx, dy)
        aside = stroller.side * float(self._paths.room_m[stroller.goal]) / length if length > 0.1 else 0.0
        return float(b[0]) - aside * dy, float(b[1]) + aside * dx

    def _go_on(self, stroller: Stroller, dt_s: float) -> bool:
        """Choose where to go from a node that has been reached; False while it has to wait there."""
        here, goal = stroller.here, stroller.goal
        assert here is not None
        assert goal is not None
        ways = [n for n in self._paths.links[goal] if n != here]
        start = [n for n in ways if (goal, n) in self._paths.crosswalks]
        if start:
            crosswalk = self._paths.crosswalks[goal, start[0]]
            stroller.waited_s += dt_s
            if not self._may_cross(crosswalk, stroller):
                return False
            stroller.waited_s = 0.0
            stroller.here, stroller.goal = goal, start[0]
            return True
        kerbs = [n for n in ways if any((n, m) in self._paths.crosswalks for m in self._paths.links[n])]
        plain = [n for n in ways if n not in kerbs]
        if (here, goal) not in self._paths.crosswalks and kerbs and stroller.chooser.random() < CROSS_CHANCE:
            plain = kerbs
        stroller.here, stroller.goal = goal, stroller.chooser.choice(plain or kerbs or [here])
        return True

    def _may_cross(self, crosswalk: Crosswalk, stroller: Stroller) -> bool:
        ends = crosswalk.start, crosswalk.end
        if self._lights[ends] and stroller.waited_s < PATIENCE_S and not 0.0 <= self._red_age_s[ends] <= RED_AGE_S:
            return False
        seconds = crosswalk.length_m / max(stroller.speed_mps, 0.5)
        a, b = self._paths.xyz_m[crosswalk.start], self._paths.xyz_m[crosswalk.end]
        return not any(self._threatens(v, a.tolist(), b.tolist(), seconds) for v in self._vehicles)

    def _threatens(self, vehicle: Vehicle, a: list[float], b: list[float], seconds: float) -> bool:
        """Whether a vehicle could not, or might not, let somebody cross from a to b."""
        pose, speed = vehicle.pose, abs(vehicle.motion.speed_mps)
        sx, sy = b[0] - a[0], b[1] - a[1]
        share = ((pose.x - a[0]) * sx + (pose.y - a[1]) * sy) / (sx * sx + sy * sy)
        share = min(max(share, 0.0), 1.0)
        dx, dy = a[0] + share * sx - pose.x, a[1] + share * sy - pose.y
        gap = math.hypot(dx, dy)
        if gap > 80.0 or abs(pose.z - a[2]) > LEVEL_M:
            return False
        room = gap - vehicle.blueprint.extent_m[0]
        if room < 1.0:
            return True
        yaw = vehicle.motion.yaw_rad
        if speed < 0.5 or dx * math.cos(yaw) + dy * math.sin(yaw) < 0.0:
            return False
        if vehicle.id in self._trusted:
            return room < speed * speed / (2 * BRAKING_MPS2) + REACTION_S * speed + FOOT_M
        return room < speed * (seconds + REACTION_S) + FOOT_M

    def _blocked(self, walker: Walker) -> bool:
        """Whether a vehicle is right in front of it."""
        px = walker.pose.x + BUMPER_M * walker.direction[0]
        py = walker.pose.y + BUMPER_M * walker.direction[1]
        for vehicle in self._vehicles:
            dx, dy = px - vehicle.pose.x, py - vehicle.pose.y
            if dx * dx + dy * dy > 64.0 or abs(vehicle.pose.z - walker.pose.z) > LEVEL_M:
                continue
            cos, sin = math.cos(vehicle.motion.yaw_rad), math.sin(vehicle.motion.yaw_rad)
            length, width, _ = vehicle.blueprint.extent_m
            if abs(dx * cos + dy * sin) < length + 0.4 and abs(dy * cos - dx * sin) < width + 0.4:
                return True
        return False

    def _notice_obstacle(self, stroller: Stroller, crossing: bool, dt_s: float) -> None:
        """Something stands on the sidewalk: try the other side of it, and turn back if that is no way either."""
        stroller.check_s -= dt_s
        if stroller.check_s > 0:
            return
        pose, stroller.check_s = stroller.walker.pose, CHECK_S
        moved = math.hypot(pose.x - stroller.checked[0], pose.y - stroller.checked[1])
        stroller.checked = (pose.x, pose.y)
        walks = stroller.walker.speed_mps > 0.3 and stroller.moving
        stroller.moving = stroller.walker.speed_mps > 0.3
        if walks and moved < STUCK_M and not crossing:
            if stroller.side < 0:
                stroller.here, stroller.goal = stroller.goal, stroller.here
            stroller.side = -stroller.side
