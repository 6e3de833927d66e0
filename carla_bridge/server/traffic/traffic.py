"""The traffic of an episode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from carla_bridge.server.actors import Actor, Vehicle, Walker
from carla_bridge.server.traffic.drivers import Fleet
from carla_bridge.server.traffic.footpaths import read_footpaths
from carla_bridge.server.traffic.network import RoadNetwork
from carla_bridge.server.traffic.population import Population
from carla_bridge.server.traffic.sight import look_around
from carla_bridge.server.traffic.strollers import Strollers

if TYPE_CHECKING:
    from carla_bridge.server.world import World


class Traffic:
    """Moves all actors whose attribute `driver` is `server`; steps before anybody moves.

    Args:
        world: where they live. Its town is read when the first of them appears.
        vehicles, walkers: how many to put there in the background.
    """

    def __init__(self, world: World, vehicles: int = 0, walkers: int = 0) -> None:
        self._world = world
        self._population = (
            Population(world, self._network, self._paths, vehicles, walkers) if vehicles or walkers else None
        )

    @cached_property
    def _network(self) -> RoadNetwork:
        town = self._world.town
        return RoadNetwork(town.map, town.opendrive, town.signals)

    @cached_property
    def _paths(self):
        town = self._world.town
        return read_footpaths(town.lanes, town.map, town.signals)

    @cached_property
    def _fleet(self) -> Fleet:
        return Fleet(self._network, self._world.signals, self._world.seed)

    @cached_property
    def _strollers(self) -> Strollers:
        return Strollers(self._paths, self._world.signals, self._world.seed)

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


def background(vehicles: int, walkers: int) -> Callable[[World], Traffic]:
    """Makes the traffic of each episode, with so many vehicles and walkers in the background."""
    return lambda world: Traffic(world, vehicles, walkers)
