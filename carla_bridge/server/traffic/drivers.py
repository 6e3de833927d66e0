"""Vehicles that the server drives: eyes on the road, hands on the wheel, feet on the pedals."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.signals import SignalControl
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.dynamics.ackermann import LEAST_STEER_RAD
from carla_bridge.server.dynamics.motion import GRAVITY_MPS2, Pedals
from carla_bridge.server.geometry.scene import Lamp
from carla_bridge.server.rendering.looks import BRAKE_LAMP_FROM
from carla_bridge.server.traffic import lane_change
from carla_bridge.server.traffic.following import Idm, stop_at
from carla_bridge.server.traffic.network import ARC, COS, LIMIT, SIN, RoadNetwork, X, Y
from carla_bridge.server.traffic.right_of_way import Approaching, RightOfWay
from carla_bridge.server.traffic.routes import ROWS, Route
from carla_bridge.server.traffic.sight import Bodies, bodies_ahead

WINDOW = 80  # points that a driver looks at
LOST_M, LOST_COS = 2.5, 0.4  # further from the route, or turned away more than this: look for a new one
FIND_M = 4.0
TRACK = 8  # points among which the nearest one is looked for, from the last one on
CURVE_MPS2 = 1.6  # braking before a curve or a lower limit
STANDING_MPS = 0.05
HOLDING_BRAKE = 0.5
BLINK_M = 35.0
THINK_S = 1.0  # between two thoughts about changing lanes
BLINKERS = {-1: int(Lamp.LEFT_BLINKER), 1: int(Lamp.RIGHT_BLINKER), 0: 0}
BRAKE_LAMP = int(Lamp.BRAKE)


@dataclass
class Driver:
    """Who drives a vehicle, and what it remembers.

    Attributes:
        vehicle: the vehicle.
        route: where it goes; None while it is lost.
        row: point of the route beside it.
        chooser: its own random choices.
        haste: share of the speed limit that it likes to drive at.
        waited_s: how long it has been standing.
        think_s: until it thinks about changing lanes again.
        swing: -1 or 1 while it changes to the left or right; swing_end_m: where it will have done so.
    """

    vehicle: Vehicle
    chooser: random.Random
    route: Route | None = None
    row: int = 0
    haste: float = 1.0
    waited_s: float = 0.0
    think_s: float = 0.0
    swing: int = 0
    swing_end_m: float = 0.0

    def __post_init__(self) -> None:
        model, (length, width, _) = self.vehicle.model, self.vehicle.blueprint.extent_m
        self.constants = (
            self.vehicle.id, length, width, self.haste, model.wheelbase_m, max(model.max_steer_rad, LEAST_STEER_RAD),
            model.full_throttle_mps2, model.full_brake_mps2, model.rolling_mps2, model.drag_per_m,
        )  # fmt: skip

    @property
    def on_route_m(self) -> float:
        """Arc length of the route's point beside it."""
        assert self.route is not None
        return float(self.route.table[self.row, ARC])


@dataclass
class Fleet:
    """All vehicles that the server drives.

    Args:
        network: the roads.
        signals: lights and signs.
        seed: of the world.
        idm: how they keep their distance.
    """

    network: RoadNetwork
    signals: SignalControl | None
    seed: int = 0
    idm: Idm = field(default_factory=Idm)

    def __post_init__(self) -> None:
        self._drivers: dict[int, Driver] = {}
        self._hired = 0
        self._rules = RightOfWay(self.network, self.signals)

    def take_on(self, vehicles: Iterable[Vehicle]) -> None:
        """Drive these vehicles, and no others, from now on."""
        self._drivers = {v.id: self._drivers.get(v.id) or self._hire(v) for v in vehicles}

    def _hire(self, vehicle: Vehicle) -> Driver:
        self._hired += 1  # actor ids differ from one episode to the next
        chooser = random.Random(f"{self.seed}/driver {self._hired}")
        return Driver(vehicle, chooser, haste=chooser.uniform(0.85, 1.0), think_s=chooser.uniform(0.0, THINK_S))

    def step(self, actors: Sequence[Actor], bodies: Bodies, dt_s: float) -> None:
        """Set everybody's pedals for the next tick.

        Args:
            actors: everybody in the world.
            bodies: their bodies.
            dt_s: length of the tick.
        """
        drivers = self._on_route()
        if drivers:
            clients = [a for a in actors if isinstance(a, Vehicle) and a.id not in self._drivers]
            _Tick(self, drivers, bodies, clients, self._rules, dt_s).run()

    def _on_route(self) -> list[Driver]:
        """Note how far everybody has come, and give a route to who has none; who cannot have one brakes."""
        found = [driver for driver in self._drivers.values() if driver.route is not None]
        if found:
            near = np.stack([d.route.table[d.row : d.row + TRACK] for d in found])  # type: ignore[union-attr]
            motions = [driver.vehicle.motion for driver in found]
            x, y, yaw = np.array([(m.x_m, m.y_m, m.yaw_rad) for m in motions]).T
            gaps = (near[:, :, X] - x[:, None]) ** 2 + (near[:, :, Y] - y[:, None]) ** 2
            best = gaps.argmin(axis=1)
            n = np.arange(len(found))
            along = near[n, best, COS] * np.cos(yaw) + near[n, best, SIN] * np.sin(yaw)
            astray = (gaps[n, best] > LOST_M**2) | (along < LOST_COS)
            for driver, step, lost in zip(found, best.tolist(), astray.tolist(), strict=True):
                assert driver.route is not None
                driver.row += step
                if lost:
                    driver.route = None
                elif driver.row > ROWS - WINDOW - 2:
                    driver.row = driver.route.extend(driver.row)
        for driver in self._drivers.values():
            if driver.route is None:
                self._find_route(driver)
        return [driver for driver in self._drivers.values() if driver.route is not None]

    def _find_route(self, driver: Driver) -> None:
        motion = driver.vehicle.motion
        found = self.network.locate(motion.x_m, motion.y_m, driver.vehicle.pose.z, motion.yaw_rad, FIND_M)
        if found:
            driver.route, driver.row, driver.swing = Route(self.network, *found[0], driver.chooser), 0, 0
        else:
            driver.vehicle.pedals = Pedals(brake=1.0)


class _Tick:
    """One tick of all drivers; N of them."""

    def __init__(
        self,
        fleet: Fleet,
        drivers: list[Driver],
        bodies: Bodies,
        clients: list[Vehicle],
        rules: RightOfWay,
        dt_s: float,
    ) -> None:
        self._fleet, self._drivers, self._bodies, self._clients = fleet, drivers, bodies, clients
        self._rules, self._dt_s = rules, dt_s
        (
            self.ids, self.half_length, self.half_width, self.haste, self.wheelbase, self.max_steer,
            self.full_throttle, self.full_brake, self.rolling, self.drag,
        ) = np.array([driver.constants for driver in drivers]).T  # fmt: skip
        states = [(driver.vehicle.motion, driver.vehicle.pose) for driver in drivers]
        self.x, self.y, self.yaw, self.speed, self.z, self.pitch = np.array(
            [(motion.x_m, motion.y_m, motion.yaw_rad, motion.speed_mps, pose.z, pose.pitch) for motion, pose in states]
        ).T
        self.forward = np.maximum(self.speed, 0.0)
        self.points = np.stack([d.route.table[d.row : d.row + WINDOW] for d in drivers])  # type: ignore[union-attr]
        here = self.points[:, 0]
        self.arc = here[:, ARC] + (self.x - here[:, X]) * here[:, COS] + (self.y - here[:, Y]) * here[:, SIN]
        self.ahead = self.points[:, :, ARC] - (self.arc + self.half_length)[:, None]  # before the bumper

    def run(self) -> None:
        """Think and act."""
        idm, speed = self._fleet.idm, self.forward
        self.desired = self._desired_mps()
        self.gap, self.lead, taken = self._leaders()
        free = idm.free(speed, self.desired)
        wanted = free - taken
        lines = self._rules.decide(self._approaching(wanted), self._clients, self._dt_s)
        end = np.array([d.route.end_m for d in self._drivers]) - self.arc - self.half_length  # type: ignore[union-attr]
        wanted = np.minimum(wanted, stop_at(speed, np.minimum(np.array(lines), end)))
        self._consider_lanes(wanted)
        self._act(wanted)

    def _desired_mps(self) -> np.ndarray:
        from_here = np.maximum(self.points[:, :, ARC] - self.arc[:, None], 0.0)
        limits = (self.haste[:, None] * self.points[:, :, LIMIT]) ** 2 + 2.0 * CURVE_MPS2 * from_here
        return np.sqrt(limits.min(axis=1))

    def _leaders(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gap to and speed of what matters most of what is in the way, and the acceleration that it takes away."""
        n = len(self._drivers)
        horizon = np.clip(12.0 + 1.5 * self.forward + self.forward**2 / 4.0, 0.0, WINDOW - 4.0)
        half = np.stack([self.half_length, self.half_width], axis=1)
        seen = bodies_ahead(self.ids, self.z, half, self.points, self.ahead, horizon, self._bodies)
        taken = self._fleet.idm.interaction(self.forward[seen.row], seen.gap_m, seen.lead_mps)
        gap, lead, most = np.full(n, np.inf), np.full(n, np.inf), np.zeros(n)
        order = np.lexsort((-seen.body, taken))  # of several, the last one written stays: the one that takes most
        gap[seen.row[order]], lead[seen.row[order]] = seen.gap_m[order], seen.lead_mps[order]
        most[seen.row[order]] = taken[order]
        return gap, lead, most

    def _approaching(self, wanted: np.ndarray) -> list[Approaching]:
        found = []
        values = zip(
            self._drivers, (self.arc + self.half_length).tolist(), self.forward.tolist(), self.half_length.tolist(),
            self.gap.tolist(), self.lead.tolist(), (wanted < 0.0).tolist(), strict=True,
        )  # fmt: skip
        for driver, front, speed, half, gap, lead, braking in values:
            assert driver.route is not None
            driver.waited_s = driver.waited_s + self._dt_s if speed < 0.3 else 0.0
            found.append(
                Approaching(
                    driver.vehicle.id, front, front - 2 * half, speed, 2 * half, driver.route.crossings, gap, lead,
                    braking, driver.waited_s,
                )
            )  # fmt: skip
        return found

    def _consider_lanes(self, wanted: np.ndarray) -> None:
        bound_for = {d.vehicle.id: d.route.lane for d in self._drivers if d.swing}  # type: ignore[union-attr]
        for i, driver in enumerate(self._drivers):
            driver.think_s -= self._dt_s
            if driver.swing and self.arc[i] > driver.swing_end_m:
                driver.swing = 0
            if driver.think_s > 0 or driver.swing:
                continue
            driver.think_s = THINK_S
            assert driver.route is not None
            driver.route.pass_by(float(self.arc[i]))
            mover = lane_change.Mover(
                driver.vehicle.id, *(float(v[i]) for v in (self.forward, self.desired, self.half_length, wanted))
            )
            network, idm = self._fleet.network, self._fleet.idm
            change = lane_change.consider(network, driver.route, driver.row, mover, self._bodies, idm, bound_for)
            if change is not None:
                driver.row = driver.route.change_to(change.key, change.index, driver.row, change.length_m)
                driver.swing, driver.swing_end_m = change.side, driver.on_route_m + change.length_m
                bound_for[driver.vehicle.id] = change.key

    def _act(self, wanted: np.ndarray) -> None:
        climb = GRAVITY_MPS2 * np.sin(np.radians(self.pitch))
        push = wanted + self.rolling + self.drag * self.speed**2 + climb
        throttle = np.clip(push / self.full_throttle, 0.0, 1.0)
        brake = np.clip(-push / self.full_brake, 0.0, 1.0)
        stands = (wanted <= 0.05) & (self.speed < STANDING_MPS)
        throttle, brake = np.where(stands, 0.0, throttle), np.where(stands, HOLDING_BRAKE, brake)
        steer = self._steer()
        values = zip(self._drivers, throttle.tolist(), steer.tolist(), brake.tolist(), self.arc.tolist(), strict=True)
        for driver, t, s, b, arc in values:
            driver.vehicle.pedals = Pedals(t, s, b)
            driver.vehicle.light_flags = _lamps(driver, arc) | (BRAKE_LAMP if b >= BRAKE_LAMP_FROM else 0)

    def _steer(self) -> np.ndarray:
        """Pure pursuit of a point on the route, from the rear axle."""
        cos, sin, half_base = np.cos(self.yaw), np.sin(self.yaw), self.wheelbase / 2
        reach = np.clip(0.5 * self.forward + 2.0, 3.5, 14.0)
        target = (self.arc - half_base + reach)[:, None]
        arcs = self.points[:, :, ARC]
        after = np.clip((arcs < target).sum(axis=1), 1, WINDOW - 1)
        n = np.arange(len(self._drivers))
        a, b = self.points[n, after - 1], self.points[n, after]
        share = np.clip((target[:, 0] - a[:, ARC]) / np.maximum(b[:, ARC] - a[:, ARC], 1e-6), 0.0, 1.0)[:, None]
        goal = a[:, :2] + share * (b[:, :2] - a[:, :2])
        dx, dy = goal[:, 0] - (self.x - half_base * cos), goal[:, 1] - (self.y - half_base * sin)
        across = dy * cos - dx * sin
        angle = np.arctan(2.0 * self.wheelbase * across / np.maximum(dx * dx + dy * dy, 1.0))
        return np.clip(angle / self.max_steer, -1.0, 1.0)


def _lamps(driver: Driver, arc_m: float) -> int:
    """Blinkers for the next turn or lane change."""
    if driver.swing:
        return BLINKERS[driver.swing]
    crossings = driver.route.crossings  # type: ignore[union-attr]
    return BLINKERS[crossings[0].turn] if crossings and crossings[0].hold_m - arc_m < BLINK_M else 0
