"""Collisions: who may touch whom in a tick, impulses, pushing apart, and which events that makes.

A pair makes one event when it first touches; it must have been apart for a while before it can make another. A car that
leans on a wall, or scrapes along it, is one collision, not twenty a second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from carla_bridge.server.actors import Actor, Walker
from carla_bridge.server.collisions import Body, Box, Contact, contact_impulse, gaps, overlap, touch_point
from carla_bridge.server.scene import BoxKind, StaticBox
from carla_bridge.server.wire import Vector

SLOP_M = 0.005  # bodies that rest against each other keep this overlap, and so their contact
REACH_M = 0.1  # pairs this close, beyond what their speeds carry them, are looked at in a tick
PARTED_M, PARTED_S = 0.3, 0.5  # apart by this much for this long: the next touch is a new collision
ROUNDS = 4
CELL_M = 8.0
WIDEST_MOVER_M = 8.0  # radius of the longest vehicle, and what it travels in a tick
SCENERY_TYPES = {
    BoxKind.BUILDING: "static.building",
    BoxKind.TREE: "static.vegetation",
    BoxKind.HEDGE: "static.vegetation",
    BoxKind.LAMP: "static.pole",
}

_Thing = tuple[int, float, float, float]  # index of scenery, its middle x, y, and the radius around it
Pair = tuple[int, int]  # actor id, other actor's id; scenery is -1 - its index


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


class ContactSolver:
    """Finds and resolves contacts; remembers which pairs touch.

    Args:
        scenery: immovable boxes of the town.
    """

    def __init__(self, scenery: Sequence[StaticBox] = ()) -> None:
        self._scenery = [Box(b.x, b.y, b.z, b.yaw, b.extent_x, b.extent_y, b.extent_z) for b in scenery]
        self._scenery_types = [SCENERY_TYPES[b.kind] for b in scenery]
        self._cells = _cells(self._scenery)
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
        if any(overlap(box, self._scenery[i]) for i, *_ in self._cells.get(self._cell(box.x, box.y), ())):
            return True
        return any(other.collides and other is not actor and overlap(box, other.box()) for other in others)

    def close_pairs(self, actors: Mapping[int, Actor], dt_s: float) -> list[Close]:
        """Pairs that may touch within `dt_s`, in a fixed order; of each two, one at least can move."""
        bodies = [a for a in actors.values() if a.collides and a.parent is None]
        movers = [i for i, a in enumerate(bodies) if a.moves]
        if not movers:
            return []
        boxes = [a.box() for a in bodies]
        table = np.array([(b.x, b.y, b.yaw, b.extent_x, b.extent_y, b.z, b.extent_z) for b in boxes])
        speeds = np.array([a.planar_velocity() for a in bodies])
        walks = np.array([isinstance(a, Walker) for a in bodies])
        up = np.array([not (isinstance(a, Walker) and a.down) for a in bodies])
        yaw = np.radians(table[:, 2])
        flat = np.column_stack([table[:, 0:2], np.cos(yaw), np.sin(yaw), table[:, 3:5]])
        radius = np.hypot(table[:, 3], table[:, 4])
        travel = (np.hypot(speeds[:, 0], speeds[:, 1]) + np.abs(speeds[:, 2]) * radius) * dt_s
        reach = radius + travel + REACH_M
        rows = np.array(movers)
        dx, dy = table[rows, None, 0] - table[None, :, 0], table[rows, None, 1] - table[None, :, 1]
        limit = reach[rows, None] + reach[None, :]
        high = np.abs(table[rows, None, 5] - table[None, :, 5]) < table[rows, None, 6] + table[None, :, 6] + REACH_M
        moves = np.zeros(len(bodies), bool)
        moves[rows] = True
        columns = np.arange(len(bodies))
        # Of two movers, the one that comes first in the order of the actors is the first of the pair.
        once = ~(moves[None, :] & (columns[None, :] <= rows[:, None])) & ~(walks[rows, None] & walks[None, :])
        once &= up[rows, None] & up[None, :]
        first, second = np.nonzero((dx * dx + dy * dy < limit * limit) & high & once)
        first = rows[first]
        drift = speeds[first, 0:2] - speeds[second, 0:2]
        margin = np.hypot(drift[:, 0], drift[:, 1]) * dt_s + REACH_M
        margin += (np.abs(speeds[first, 2]) * radius[first] + np.abs(speeds[second, 2]) * radius[second]) * dt_s
        near = gaps(flat[first], flat[second]) < margin
        closing = np.hypot(drift[near, 0], drift[near, 1])
        pairs = [
            Close((bodies[i].id, bodies[j].id), bodies[i], bodies[j], None, float(speed))
            for i, j, speed in zip(first[near].tolist(), second[near].tolist(), closing, strict=True)
        ]
        reaches, radii = reach.tolist(), radius.tolist()
        for i in movers:
            box = boxes[i]
            for index, x, y, around in self._cells.get(self._cell(box.x, box.y), ()):
                if (box.x - x) ** 2 + (box.y - y) ** 2 >= (around + reaches[i]) ** 2:
                    continue
                thing = self._scenery[index]
                if overlap(_grown(box, reaches[i] - radii[i]), thing):
                    speed = math.hypot(speeds[i, 0], speeds[i, 1])
                    pairs.append(Close((bodies[i].id, -1 - index), bodies[i], None, thing, speed))
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
            if near is not None and overlap(_grown(near.actor.box(), PARTED_M), near.other_box()):
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

    @staticmethod
    def _cell(x: float, y: float) -> tuple[int, int]:
        return math.floor(x / CELL_M), math.floor(y / CELL_M)


def _cells(scenery: Sequence[Box]) -> dict[tuple[int, int], tuple[_Thing, ...]]:
    """For every square of the ground, the things that a body whose middle is in it may touch."""
    cells: dict[tuple[int, int], list[_Thing]] = defaultdict(list)
    for index, box in enumerate(scenery):
        reach = box.radius + WIDEST_MOVER_M
        for i in range(math.floor((box.x - reach) / CELL_M), math.floor((box.x + reach) / CELL_M) + 1):
            for j in range(math.floor((box.y - reach) / CELL_M), math.floor((box.y + reach) / CELL_M) + 1):
                square = Box((i + 0.5) * CELL_M, (j + 0.5) * CELL_M, box.z, 0.0, CELL_M / 2, CELL_M / 2, 1.0)
                if overlap(_grown(square, WIDEST_MOVER_M), box):
                    cells[i, j].append((index, box.x, box.y, box.radius))
    return {cell: tuple(found) for cell, found in cells.items()}


def _grown(box: Box, by_m: float) -> Box:
    return box._replace(extent_x=box.extent_x + by_m, extent_y=box.extent_y + by_m)


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
