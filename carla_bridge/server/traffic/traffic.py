"""The traffic of an episode."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.traffic.drivers import Fleet
from carla_bridge.server.traffic.footpaths import Footpaths, read_footpaths
from carla_bridge.server.traffic.network import RoadNetwork
from carla_bridge.server.traffic.population import Population
from carla_bridge.server.traffic.sight import look_around
from carla_bridge.server.traffic.strollers import Strollers

if TYPE_CHECKING:
    from carla_bridge.server.rendering.town_renderers import TownLike
    from carla_bridge.server.town.town import Town
    from carla_bridge.server.world import World

LOG = logging.getLogger(__name__)
KEPT_WAYS = 3


class Ways:
    """Where traffic can go in a town; read when it is first asked for, which takes up to a second or two.

    Args:
        town: the town.
    """

    def __init__(self, town: Town) -> None:
        self.town = town

    @cached_property
    def roads(self) -> RoadNetwork:
        """For vehicles."""
        return RoadNetwork(self.town.map, self.town.opendrive, self.town.signals)

    @cached_property
    def footpaths(self) -> Footpaths:
        """For walkers."""
        town = self.town
        return read_footpaths(town.lanes, town.crosswalks, town.map, town.signals)


class Traffic:
    """Moves all actors whose attribute `driver` is `server`; steps before anybody moves.

    Args:
        world: where they live.
        ways: of its town.
        vehicles, walkers: how many to put there in the background.
    """

    def __init__(self, world: World, ways: Ways, vehicles: int = 0, walkers: int = 0) -> None:
        self._world, self._ways = world, ways
        self._population: Population | None = None
        if vehicles or walkers:
            self._population = Population(world, ways.roads, ways.footpaths)
            found = self._population.fill(vehicles, walkers)
            if found != (vehicles, walkers):
                LOG.warning(
                    "%s has room for %d of %d vehicles and %d of %d walkers",
                    world.town.name, found[0], vehicles, found[1], walkers,
                )  # fmt: skip

    @cached_property
    def _fleet(self) -> Fleet:
        return Fleet(self._ways.roads, self._world.signals, self._world.seed)

    @cached_property
    def _strollers(self) -> Strollers:
        return Strollers(self._ways.footpaths, self._world.signals, self._world.seed)

    def step(self, dt_s: float) -> None:
        """Set pedals and directions for the next tick."""
        actors = list(self._world.actors.values())
        ours = [a for a in actors if isinstance(a, (Vehicle, Walker)) and a.attributes.get("driver") == "server"]
        if not ours:
            return
        driven = [a for a in ours if isinstance(a, Vehicle) and a.simulated]
        walkers = [a for a in ours if isinstance(a, Walker) and a.simulated]
        trusted = {vehicle.id for vehicle in driven}
        ahead_m: dict[int, float] = {}
        if walkers:
            self._strollers.take_on(walkers)
            ahead_m = self._strollers.step([a for a in actors if isinstance(a, Vehicle)], trusted, dt_s)
        if driven:
            self._fleet.take_on(driven)
            self._fleet.step(actors, look_around(actors, trusted, ahead_m), dt_s)

    def make_room(self, actor: Actor) -> None:
        """Move background traffic away from where an actor is about to be spawned."""
        if self._population is not None:
            self._population.make_room(actor)


class Background:
    """Makes the traffic of each episode, with so many vehicles and walkers in the background.

    Args:
        vehicles, walkers: how many.
    """

    def __init__(self, vehicles: int, walkers: int) -> None:
        self._vehicles, self._walkers = vehicles, walkers
        self._known: tuple[Ways, ...] = ()  # of the last towns, as episodes often go back to one

    def prepare(self, town: TownLike) -> None:
        """Read the ways of a town, where an episode will need them at once; in any thread."""
        if self._vehicles or self._walkers:
            ways = self._ways(town)
            _ = ways.roads, ways.footpaths

    def make(self, world: World) -> Traffic:
        """Traffic for an episode that begins."""
        return Traffic(world, self._ways(world.town), self._vehicles, self._walkers)

    def _ways(self, town: TownLike) -> Ways:
        ways = next((known for known in self._known if known.town is town), None) or Ways(town)  # type: ignore[arg-type]
        self._known = (*(known for known in self._known if known is not ways), ways)[-KEPT_WAYS:]
        return ways
