"""Background vehicles that the library's traffic manager drives, where the server does not drive them itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.client import Simulation
from carla_bridge.client.server_watch import Watchdog
from carla_bridge.leases import TRAFFIC_MANAGER
from carla_bridge.routes import DEMO_ROUTES
from carla_bridge.routes.route_file import load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.background import BackgroundTraffic
from carla_bridge.scenarios.stage import Stage
from carla_bridge.server.town.town import Town
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.errors import InfrastructureError

pytestmark = pytest.mark.carla


class ManagedClient:
    """A client whose traffic managers stand on the ports that they are asked for."""

    def __init__(self, *errors: str, busy: bool = False) -> None:
        self.ports: list[int] = []
        self._errors, self._busy = errors, busy

    def get_trafficmanager(self, port: int) -> SimpleNamespace:
        if self._busy:
            raise RuntimeError("trying to create rpc server for traffic manager; but the port is in use")
        self.ports.append(port)
        return SimpleNamespace(set_synchronous_mode=lambda on: None, set_random_device_seed=lambda seed: None)

    def apply_batch_sync(self, batch: list[Any], tick: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(actor_id=7, error=error) for error in self._errors]


def managed(client: ManagedClient) -> BackgroundTraffic:
    simulation = SimpleNamespace(client=client, call=Watchdog().call, lost=False, limit_calls=lambda *_: None)
    traffic = BackgroundTraffic(simulation, straight_route(100.0), 1)  # type: ignore[arg-type]
    traffic.ids = [7]
    traffic._manage()
    return traffic


def test_two_drives_side_by_side_have_traffic_managers_of_their_own() -> None:
    client = ManagedClient("")
    both = [managed(client), managed(client)]
    assert len(set(client.ports)) == 2
    for traffic in both:
        traffic.close()


@pytest.mark.parametrize("client", [
    lambda: ManagedClient("", "unable to set autopilot: actor not found"), lambda: ManagedClient(busy=True),
])
def test_a_traffic_manager_that_does_not_take_the_vehicles_is_an_infrastructure_error(
    client: Callable[[], ManagedClient],
) -> None:
    with pytest.raises(InfrastructureError, match="traffic manager"):
        managed(client())


def test_the_embedded_server_serves_a_traffic_manager_on_the_leased_port(
    server_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "server_drives", lambda self, kind: False)
    spec = load_routes(DEMO_ROUTES)[0]
    plan = RoutePlanner(Town.load(spec.town).map).plan(spec)
    with Simulation(port=server_port, ego_pose=plan.start, cameras=(), town=spec.town, timeout_s=20.0) as simulation:
        traffic = BackgroundTraffic(simulation, plan, 2)
        traffic.put()
        try:
            assert traffic._ports is not None
            assert traffic._manager.get_port() == traffic._ports.number + TRAFFIC_MANAGER
            for _ in range(3):
                simulation.tick()
        finally:
            traffic.close()
