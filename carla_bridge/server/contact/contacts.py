"""Collisions: impulses, pushing apart, and which events that makes.

A pair makes one event when it first touches; it must have been apart for a while before it can make another. A car that
leans on a wall, or scrapes along it, is one collision, not twenty a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.contact.broad_phase import REACH_M, SceneryGrid, near_pairs, travel_m
from carla_bridge.server.dynamics.collisions import Body, Box, Contact, contact_impulse, overlap, touch_point
from carla_bridge.server.geometry.scene import BoxKind, StaticBox
from carla_bridge.server.protocol.wire import Vector

SLOP_M = 0.005  # bodies that rest against each other keep this overlap, and so their contact
PARTED_S = 0.5  # apart by more than `REACH_M` for this long: the next touch is a new collision
ROUNDS = 4
SCENERY_TYPES = {
    BoxKind.BUILDING: "static.building",
    BoxKind.TREE: "static.vegetation",
    BoxKind.HEDGE: "static.vegetation",
    BoxKind.LAMP: "static.pole",
    BoxKind.POLE: "static.pole",
}

Pair = tuple[int, int]  # ids of two actors, the lower one first, or of an actor and -1 - the index of scenery


@dataclass(frozen=True)
class Hit:
    """A collision as one of its two parties sees it.

    Attributes:
        actor: the party.
        other: the other one, or None for scenery, which is then named by `other_type`.
        impulse_ns: impulse on `actor` over the tick, N s, world axes.
    """

    actor: Actor
    other: Actor | None
    other_type: str
    impulse_ns: Vector


@dataclass(slots=True)
class Close:
    """A pair that may touch in this tick; `other` is None for scenery."""

    pair: Pair
    actor: Actor
    other: Actor | None
    scenery: Box | None
    closing_mps: float

    def other_box(self) -> Box:
        """Box of the second one."""
        if self.other is not None:
            return self.other.box()
        assert self.scenery is not None
        return self.scenery


class Scenery:
    """Immovable boxes of a town.

    Attributes:
        grid: finds them.
        types: what a client is told of each.
    """

    def __init__(self, boxes: Sequence[StaticBox] = ()) -> None:
        self.grid = SceneryGrid([Box(b.x, b.y, b.z, b.yaw, b.extent_x, b.extent_y, b.extent_z) for b in boxes])
        self.types = [SCENERY_TYPES[b.kind] for b in boxes]


class ContactSolver:
    """Finds and resolves contacts; remembers which pairs touch.

    Args:
        scenery: of the town.
    """

    def __init__(self, scenery: Scenery) -> None:
        self._grid, self._scenery_types = scenery.grid, scenery.types
        self._touched_s: dict[Pair, float] = {}  # when each touching pair was last found together
        self._impulses: dict[Pair, list[float]] = {}

    def reset(self) -> None:
        """Drop all memory."""
        self._touched_s.clear()

    def forget(self, actor_id: int) -> None:
        """Drop all memory of an actor."""
        self._touched_s = {pair: t for pair, t in self._touched_s.items() if actor_id not in pair}

    def blocked(self, actor: Actor, others: Iterable[Actor]) -> bool:
        """Whether the actor would stand inside a body or scenery."""
        box = actor.box()
        if any(True for _ in self._grid.near(box, 0.0)):
            return True
        return any(other.collides and other is not actor and overlap(box, other.box()) for other in others)

    def close_pairs(self, actors: Mapping[int, Actor], dt_s: float) -> list[Close]:
        """Pairs that may touch within `dt_s`, in a fixed order; of each two, one at least can move."""
        bodies = [actor for actor in actors.values() if actor.collides and actor.parent is None]
        boxes = [body.box() for body in bodies]
        pairs = [
            Close(_pair(bodies[i], bodies[j]), bodies[i], bodies[j], None, speed)
            for i, j, speed in near_pairs(bodies, boxes, dt_s)
        ]
        for body, box in zip(bodies, boxes, strict=True):
            if body.moves:
                velocity = body.planar_velocity()
                speed = math.hypot(velocity[0], velocity[1])
                for index in self._grid.near(box, travel_m(box, velocity, dt_s) + REACH_M):
                    pairs.append(Close((body.id, -1 - index), body, None, self._grid.boxes[index], speed))
        return pairs

    def resolve(self, pairs: Sequence[Close]) -> None:
        """Take away the speed at which overlapping bodies close, and push them apart."""
        met: list[tuple[Close, Contact, tuple[float, float]]] = []
        for close in pairs:
            box, other_box = close.actor.box(), close.other_box()
            contact = overlap(box, other_box)
            if contact is not None:
                met.append((close, contact, touch_point(box, other_box)))
                self._impulses.setdefault(close.pair, [0.0, 0.0])
        for _ in range(ROUNDS if len(met) > 1 else min(len(met), 2)):
            for close, contact, point in met:
                self._strike(close, contact, point)
        for close, contact, _ in met:
            _push_apart(close, contact)

    def hits(self, pairs: Sequence[Close], time_s: float) -> list[Hit]:
        """New collisions of the tick that ends at `time_s`, after the last `resolve` of the tick."""
        found: list[Hit] = []
        known = {close.pair: close for close in pairs}
        for pair, (jx, jy) in self._impulses.items():
            if pair not in self._touched_s:
                close = known[pair]
                other_type = close.other.type_id if close.other is not None else self._scenery_types[-1 - pair[1]]
                found.append(Hit(close.actor, close.other, other_type, (jx, jy, 0.0)))
                if close.other is not None:
                    found.append(Hit(close.other, close.actor, close.actor.type_id, (-jx, -jy, 0.0)))
            self._touched_s[pair] = time_s
        self._impulses.clear()
        for pair, last_s in list(self._touched_s.items()):
            near = known.get(pair)
            if near is not None and overlap(near.actor.box().grown(REACH_M), near.other_box()):
                self._touched_s[pair] = time_s
            elif time_s - last_s > PARTED_S:
                del self._touched_s[pair]
        return found

    def _strike(self, close: Close, contact: Contact, point: tuple[float, float]) -> None:
        actor, other = close.actor, close.other
        nx, ny = contact.normal_x, contact.normal_y
        a, b = _body(actor, point), _body(other, point)
        if a.inverse_mass + b.inverse_mass == 0:
            # A held speed against a wall: it is a hit, but nobody gives way.
            speed = max(b.point_speed(nx, ny) - a.point_speed(nx, ny), 0.0)
            mass = actor.mass_kg or (other.mass_kg if other is not None else 0.0)
            self._impulses[close.pair] = [speed * mass * nx, speed * mass * ny]
            return
        jx, jy = contact_impulse(a, b, nx, ny)
        if jx == 0.0 and jy == 0.0:
            return
        impulse = self._impulses[close.pair]
        impulse[0] += jx
        impulse[1] += jy
        if a.inverse_mass:
            actor.kick(jx * a.inverse_mass, jy * a.inverse_mass, (a.arm_x * jy - a.arm_y * jx) * a.inverse_inertia)
        if other is not None and b.inverse_mass:
            spin = (b.arm_y * jx - b.arm_x * jy) * b.inverse_inertia
            other.kick(-jx * b.inverse_mass, -jy * b.inverse_mass, spin)


def _pair(a: Actor, b: Actor) -> Pair:
    return min(a.id, b.id), max(a.id, b.id)


def _body(actor: Actor | None, point: tuple[float, float]) -> Body:
    if actor is None:
        return Body(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    vx, vy, rate = actor.planar_velocity()
    inverse_mass, inverse_inertia = actor.inverse_mass()
    return Body(vx, vy, rate, point[0] - actor.pose.x, point[1] - actor.pose.y, inverse_mass, inverse_inertia)


def _push_apart(close: Close, contact: Contact) -> None:
    depth = contact.depth_m - SLOP_M
    if depth <= 0:
        return
    a = close.actor.inverse_mass()[0]
    b = close.other.inverse_mass()[0] if close.other is not None else 0.0
    if a + b == 0:
        return
    dx, dy = contact.normal_x * depth / (a + b), contact.normal_y * depth / (a + b)
    if a:
        close.actor.shift(dx * a, dy * a)
    if close.other is not None and b:
        close.other.shift(-dx * b, -dy * b)
