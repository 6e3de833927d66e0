"""Motion of everybody in one tick: pedals, ground and collisions.

Bodies that are near nothing they could touch move by the whole tick at once. The others move in steps so short that no
contact is passed over or found deep inside a body, and contacts are resolved after each of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.spawning import FrictionTrigger
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.contact.contacts import Close, ContactSolver, Hit, Scenery
from carla_bridge.server.dynamics.terrain import Terrain

LONGEST_PART_S = 0.05  # longer ticks are moved in parts
STEP_M = 0.15  # two bodies close in by no more than this in one step
STEPS = (1, 5, 10, 20)  # multiples of what the vehicle model does in a tick of 50 ms anyhow, so that it stays the same


class Physics:
    """Motion in one town.

    Args:
        scenery: things that can be hit.
        height_m: height of the ground, as `Terrain` takes it.
    """

    def __init__(
        self, scenery: Scenery, height_m: Callable[[float, float, float], float] | None = None
    ) -> None:
        self.contacts = ContactSolver(scenery)
        self.terrain = Terrain(height_m)

    def step(self, actors: Mapping[int, Actor], dt_s: float, time_s: float) -> list[Hit]:
        """Move everybody by one tick that ends at `time_s`; returns the collisions that began in it."""
        loose = [actor for actor in actors.values() if actor.parent is None]
        self.terrain.patches = tuple(actor for actor in loose if isinstance(actor, FrictionTrigger))
        for actor in loose:
            actor.begin_tick()
            if isinstance(actor, Walker) and actor.recovered and not self.contacts.blocked(actor, loose):
                actor.rise()
        parts = max(1, math.ceil(dt_s / LONGEST_PART_S - 1e-9))
        hits: list[Hit] = []
        for part in range(1, parts + 1):
            hits += self._move(actors, loose, dt_s / parts, time_s - dt_s * (1 - part / parts))
        for actor in loose:
            actor.end_tick(dt_s)
        for actor in actors.values():
            actor.follow_parent()
        return hits

    def _move(self, actors: Mapping[int, Actor], loose: Sequence[Actor], dt_s: float, time_s: float) -> list[Hit]:
        pairs = self.contacts.close_pairs(actors, dt_s)
        engaged = {close.actor.id: close.actor for close in pairs}
        engaged.update((close.other.id, close.other) for close in pairs if close.other is not None)
        for actor in loose:
            if actor.id not in engaged:
                actor.step(dt_s, self.terrain)
        if engaged:
            steps = _steps(pairs, dt_s)
            for _ in range(steps):
                for actor in engaged.values():
                    actor.step(dt_s / steps, self.terrain)
                self.contacts.resolve(pairs)
        return self.contacts.hits(pairs, time_s)


def _steps(pairs: Sequence[Close], dt_s: float) -> int:
    travel_m = max(close.closing_mps for close in pairs) * dt_s
    return next((n for n in STEPS if travel_m <= n * STEP_M), STEPS[-1])
