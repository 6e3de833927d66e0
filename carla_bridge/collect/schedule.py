"""Which episodes a set is made of, from its seed alone: town, route, weathers, and the seed of everything else.

Episodes come in blocks. A block is driven in one server, from its start, so what it holds does not depend on which
process drives it, nor on what was driven before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from carla_bridge.collect.weather import Weather, draw_weather
from carla_bridge.routes.route_file import RouteSpec, WeatherSpec

EPISODES_PER_BLOCK = 4
PLAIN_WEIGHT = 0.25  # of a route without scenarios, in a town's share of blocks
GOLDEN_RATIO = (5**0.5 - 1) / 2
SPELL_S = 20.0  # simulated time between two weathers
_TOWN, _ORDER, _EPISODE = 1, 2, 3  # what is drawn


@dataclass(frozen=True)
class Episode:
    """One drive of a fleet.

    Attributes:
        index: in the set, from 0.
        spec: route of the first vehicle, whose scenarios are played.
        seed: of all that is drawn in it.
        weathers: one after the other, `SPELL_S` each.
    """

    index: int
    spec: RouteSpec
    seed: int
    weathers: tuple[Weather, ...]


@dataclass(frozen=True)
class Block:
    """Episodes of one town, driven one after another in one server.

    Attributes:
        index: in the set, from 0.
        town: of all its routes.
        seed: of the server.
        episodes: in order.
    """

    index: int
    town: str
    seed: int
    episodes: tuple[Episode, ...]


class Schedule:
    """Blocks without end.

    Args:
        specs: routes of all files; a town has blocks in proportion to its routes, of which one with scenarios counts as
            four without, and all routes of a town have their turn before one comes again.
        seed: of the set.
        seconds: simulated length of an episode.
        scenarios: whether those of the routes are played.
    """

    def __init__(self, specs: Sequence[RouteSpec], seed: int, seconds: float, scenarios: bool = True) -> None:
        self._specs, self._seed, self._seconds, self._scenarios = list(specs), seed, seconds, scenarios

    @cached_property
    def towns(self) -> dict[str, list[RouteSpec]]:
        """Routes by town."""
        found: dict[str, list[RouteSpec]] = {}
        for spec in self._specs:
            found.setdefault(spec.town, []).append(spec)
        return found

    def block(self, index: int) -> Block:
        """A block by its number."""
        town = self._town(index)
        turn = sum(self._town(earlier) == town for earlier in range(index)) * EPISODES_PER_BLOCK
        first = index * EPISODES_PER_BLOCK
        episodes = tuple(self._episode(first + k, self._route(town, turn + k)) for k in range(EPISODES_PER_BLOCK))
        return Block(index, town, int(np.random.default_rng([self._seed, _TOWN, index, 1]).integers(2**31)), episodes)

    @cached_property
    def _shares(self) -> np.ndarray:
        """Where the share of each town ends, from 0 to 1."""
        ends = np.cumsum([
            sum(1.0 if spec.scenarios else PLAIN_WEIGHT for spec in specs) for specs in self.towns.values()
        ])
        return ends / ends[-1]

    @cached_property
    def _start(self) -> float:
        return float(np.random.default_rng([self._seed, _TOWN]).random())

    def _town(self, block: int) -> str:
        # steps of the golden ratio fall evenly: every run of blocks has close to its share of each town
        point = (self._start + block * GOLDEN_RATIO) % 1.0
        return list(self.towns)[int(np.searchsorted(self._shares, point, side="right"))]

    def _route(self, town: str, turn: int) -> RouteSpec:
        routes = self.towns[town]
        around, place = divmod(turn, len(routes))
        order = np.random.default_rng([self._seed, _ORDER, around]).permutation(len(routes))
        return routes[int(order[place])]

    def _episode(self, index: int, spec: RouteSpec) -> Episode:
        rng = np.random.default_rng([self._seed, _EPISODE, index])
        seed = int(rng.integers(2**31))
        weathers = tuple(draw_weather(rng) for _ in range(max(1, int(np.ceil(self._seconds / SPELL_S)))))
        spec = replace(spec, weathers=(WeatherSpec(0.0, weathers[0].values),))
        return Episode(index, spec if self._scenarios else replace(spec, scenarios=()), seed, weathers)
