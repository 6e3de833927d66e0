"""Ordinary traffic near the route, beside what the scenarios do.

Its vehicles have the role `background`, which is what the minimum speed is measured against. On the embedded server
each is driven by the server itself; on CARLA, by the library's traffic manager.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import carla
import numpy as np

from carla_bridge.leases import TRAFFIC_MANAGER, Lease, lease_ports
from carla_bridge.scenarios.behaviours import Track
from carla_bridge.scenarios.places import Place, ScenarioError
from carla_bridge.scenarios.stage import Stage
from wamdiff2_core.errors import InfrastructureError

if TYPE_CHECKING:
    from carla_bridge.client.client import Simulation
    from carla_bridge.routes.navigation import RoutePlan

REACH_M = 150.0  # from the route
CLEAR_AHEAD_M, CLEAR_BEHIND_M = 60.0, 15.0  # of the route's start, along it
LANE_M = 2.5
CARS = {"base_type": "car", "special_type": "", "has_lights": "true"}
SPAWN_CHOICES = 4  # places tried for each vehicle


class BackgroundTraffic:
    """Vehicles that drive about near one route.

    Args:
        simulation: the world.
        plan: the route.
        vehicles: how many.
        seed: of their kinds and places.

    Attributes:
        ids: of the vehicles.
    """

    def __init__(self, simulation: Simulation, plan: RoutePlan, vehicles: int, seed: int = 0) -> None:
        self._simulation, self._plan, self._wanted = simulation, plan, vehicles
        self._stage = Stage(simulation, np.random.default_rng([seed, 8]))
        self._manager: Any = None
        self._ports: Lease | None = None
        self.ids: list[int] = []

    def put(self) -> None:
        """Put the vehicles; call once the ego vehicle stands at the start.

        Raises:
            ScenarioError: there is no room for half of them.
            InfrastructureError: the server or its traffic manager does not take them.
        """
        places = self._places()
        order = self._stage.rng.permutation(len(places))[: SPAWN_CHOICES * self._wanted]
        for index in order:
            if len(self.ids) == self._wanted:
                break
            kind = self._stage.pick("vehicle.*", **CARS)
            actor_id = self._stage.try_spawn(kind, places[index].spot, role="background", by_server=True)
            if actor_id is not None:
                self.ids.append(actor_id)
        if len(self.ids) < self._wanted / 2:
            raise ScenarioError(f"room for {len(self.ids)} of {self._wanted} background vehicles near the route")
        if not self._stage.server_drives(kind):
            self._manage()

    def close(self) -> None:
        """Take the vehicles away; never raises."""
        self._stage.close()
        if self._manager is not None and not self._simulation.lost:
            with suppress(RuntimeError):
                self._manager.set_synchronous_mode(False)
        if self._ports is not None:
            self._ports.close()

    def _places(self) -> list[Place]:
        """Spawn points near the route, but not where the ego vehicle begins."""
        carla_map, track = self._simulation.map, Track(self._plan.xy_m)
        found = []
        for transform in carla_map.get_spawn_points():
            place = Place(carla_map.get_waypoint(transform.location))
            arcs, sides = track.project(place.spot.xy_m[None])
            in_the_way = abs(float(sides[0])) < LANE_M and float(arcs[0]) < CLEAR_AHEAD_M
            near_start = np.hypot(*(place.spot.xy_m - self._plan.xy_m[0])) < CLEAR_BEHIND_M
            if abs(float(sides[0])) < REACH_M and not in_the_way and not near_start:
                found.append(place)
        return found

    def _manage(self) -> None:
        """Hand the vehicles to a traffic manager, on a port that no other drive of this machine uses."""
        client, seed = self._simulation.client, int(self._stage.rng.integers(2**31))
        self._ports = lease_ports()
        port = self._ports.number + TRAFFIC_MANAGER

        def hand_over() -> list[Any]:
            self._manager = client.get_trafficmanager(port)
            self._manager.set_synchronous_mode(True)
            self._manager.set_random_device_seed(seed)
            batch = [carla.command.SetAutopilot(actor_id, True, port) for actor_id in self.ids]
            return list(client.apply_batch_sync(batch, False))

        answers = self._simulation.call(hand_over, "handing the background vehicles to the traffic manager")
        refused = [f"{answer.actor_id}: {answer.error}" for answer in answers if answer.error]
        if refused:
            raise InfrastructureError(f"the traffic manager on port {port} did not take vehicle {refused[0]}")
