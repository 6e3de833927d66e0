"""Collisions of a tick: who touches whom, pushing them apart, and which events that makes.

A pair makes an event when it first touches, and again only when it is hit anew with some force: a car that leans on a
wall is one collision, not twenty a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from carla_bridge.server.actors import Actor, Vehicle, Walker
from carla_bridge.server.collisions import Box, Contact, normal_impulse, overlap
from carla_bridge.server.scene import BoxKind, StaticBox
from carla_bridge.server.wire import Vector

MARGIN_M = 0.02  # parted bodies stay this close; within it they still count as touching
RENEWED_HIT_MPS = 0.5
SCENERY_TYPES = {
    BoxKind.BUILDING: "static.building",
    BoxKind.TREE: "static.vegetation",
    BoxKind.HEDGE: "static.vegetation",
    BoxKind.LAMP: "static.pole",
}


@dataclass(frozen=True)
class Hit:
    """A collision as one of its two parties sees it.

    Attributes:
        actor: the party.
        other: the other one, or None for scenery, which is then named by `other_type`.
        impulse_ns: impulse on `actor`, N s, world axes.
    """

    actor: Actor
    other: Actor | None
    other_type: str
    impulse_ns: Vector


class ContactSolver:
    """Finds and resolves contacts; remembers which pairs touch.

    Args:
        scenery: immovable boxes of the town.
    """

    def __init__(self, scenery: Sequence[StaticBox] = ()) -> None:
        self._scenery = [Box(b.x, b.y, b.z, b.yaw, b.extent_x, b.extent_y, b.extent_z) for b in scenery]
        self._scenery_types = [SCENERY_TYPES[b.kind] for b in scenery]
        self._centers_m = np.array([(b.x, b.y) for b in self._scenery]).reshape(-1, 2)
        self._radii_m = np.array([b.radius for b in self._scenery])
        self._touching: set[tuple[int, int]] = set()  # (actor id, other id), scenery as -1 - index

    def reset(self) -> None:
        """Drop all memory."""
        self._touching.clear()

    def forget(self, actor_id: int) -> None:
        """Drop all memory of an actor."""
        self._touching = {pair for pair in self._touching if actor_id not in pair}

    def blocked(self, actor: Actor, others: Iterable[Actor]) -> bool:
        """Whether the actor would stand inside a body or scenery."""
        box = actor.box()
        if any(overlap(box, self._scenery[i]) for i in self._near_scenery(box)):
            return True
        return any(other.collides and other is not actor and overlap(box, other.box()) for other in others)

    def resolve(self, actors: Mapping[int, Actor]) -> list[Hit]:
        """Push overlapping bodies apart, take away the speed at which they close, and report new hits."""
        bodies = [a for a in actors.values() if a.collides and a.parent is None]
        movers = [a for a in bodies if isinstance(a, Vehicle | Walker)]
        touching: set[tuple[int, int]] = set()
        hits: list[Hit] = []
        for mover in movers:
            for other in bodies:
                if other is mover or (isinstance(other, Vehicle | Walker) and other.id < mover.id):
                    continue  # two movers meet once
                if isinstance(mover, Walker) and isinstance(other, Walker):
                    continue
                contact = _contact(mover.box(), other.box())
                if contact is not None:
                    pair = (mover.id, other.id)
                    impulse = self._part(mover, other, contact)
                    if impulse is not None and self._counts(pair, mover, impulse, touching):
                        hits.append(Hit(mover, other, other.type_id, impulse))
                        hits.append(Hit(other, mover, mover.type_id, (-impulse[0], -impulse[1], 0.0)))
            for index in self._near_scenery(mover.box()):
                contact = _contact(mover.box(), self._scenery[index])
                if contact is not None:
                    pair = (mover.id, -1 - index)
                    impulse = self._part(mover, None, contact)
                    if impulse is not None and self._counts(pair, mover, impulse, touching):
                        hits.append(Hit(mover, None, self._scenery_types[index], impulse))
                    elif pair in self._touching:
                        touching.add(pair)
        self._touching = touching | {pair for pair in self._touching if self._still(pair, actors)}
        return hits

    def _counts(
        self, pair: tuple[int, int], mover: Actor, impulse: Vector, touching: set[tuple[int, int]]
    ) -> bool:
        touching.add(pair)
        force = float(np.hypot(impulse[0], impulse[1]))
        return pair not in self._touching or force > RENEWED_HIT_MPS * mover.mass_kg

    def _still(self, pair: tuple[int, int], actors: Mapping[int, Actor]) -> bool:
        mover, other_id = actors.get(pair[0]), pair[1]
        if mover is None or (other_id > 0 and other_id not in actors):
            return False
        other = self._scenery[-1 - other_id] if other_id < 0 else actors[other_id].box()
        return _contact(mover.box(), other) is not None

    def _near_scenery(self, box: Box) -> list[int]:
        if not len(self._radii_m):
            return []
        reach = self._radii_m + box.radius + MARGIN_M
        dx, dy = self._centers_m[:, 0] - box.x, self._centers_m[:, 1] - box.y
        return np.flatnonzero(dx * dx + dy * dy < reach * reach).tolist()

    def _part(self, mover: Actor, other: Actor | None, contact: Contact) -> Vector | None:
        """Push the two apart; returns the impulse on `mover`, or None when they only touch."""
        depth = contact.depth_m - MARGIN_M
        if depth <= 0:
            return None
        nx, ny = contact.normal_x, contact.normal_y
        a, b = _inverse_mass(mover), _inverse_mass(other)
        vx, vy = _velocity(mover)
        ox, oy = _velocity(other)
        closing = -((vx - ox) * nx + (vy - oy) * ny)
        if a + b == 0:  # neither can be moved, a held speed against a wall: it is a hit, but nobody gives way
            push = max(closing, 0.0) * (mover.mass_kg or (other.mass_kg if other is not None else 0.0))
            return push * nx, push * ny, 0.0
        push = normal_impulse(closing, a, b)
        share = depth / (a + b)
        mover.push(nx * share * a, ny * share * a, push * a * nx, push * a * ny)
        if other is not None and b:
            other.push(-nx * share * b, -ny * share * b, -push * b * nx, -push * b * ny)
        return push * nx, push * ny, 0.0


def _contact(a: Box, b: Box) -> Contact | None:
    """Contact of two boxes when the second is grown by the margin."""
    return overlap(a, b._replace(extent_x=b.extent_x + MARGIN_M, extent_y=b.extent_y + MARGIN_M))


def _inverse_mass(actor: Actor | None) -> float:
    if actor is None or not actor.simulated or not actor.mass_kg:
        return 0.0
    if isinstance(actor, Vehicle) and actor.constant_velocity is not None:
        return 0.0
    return 1.0 / actor.mass_kg


def _velocity(actor: Actor | None) -> tuple[float, float]:
    if isinstance(actor, Vehicle):
        return actor.motion.velocity_mps(actor.model.wheelbase_m)
    return actor.velocity[:2] if actor is not None else (0.0, 0.0)
