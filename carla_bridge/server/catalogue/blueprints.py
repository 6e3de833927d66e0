"""The blueprint library: what a client can look up and spawn, by id.

Ids and attribute names are CARLA's, so that filters such as `base_type == car` work.
"""

from __future__ import annotations

from functools import cache

from carla_bridge.server.catalogue.blueprint import Blueprint
from carla_bridge.server.catalogue.props import CONTROLLER, PROPS, WALKERS
from carla_bridge.server.catalogue.sensors import SENSORS
from carla_bridge.server.catalogue.vehicles import VEHICLES
from carla_bridge.server.protocol.dialect import Dialect

LIBRARY: dict[str, Blueprint] = {
    blueprint.id: blueprint for blueprint in (*VEHICLES, *WALKERS, *PROPS, CONTROLLER, *SENSORS)
}


@cache
def definitions(dialect: Dialect) -> list:
    """`ActorDefinition` of every blueprint, as `get_actor_definitions` returns them."""
    return [blueprint.as_wire(uid, dialect) for uid, blueprint in enumerate(LIBRARY.values(), start=1)]
