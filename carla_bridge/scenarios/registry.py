"""All scenarios by their names in route files. A new one is added to the tuple of its module."""

from __future__ import annotations

from collections.abc import Mapping

from carla_bridge.scenarios import crossings, giving_way, hazards, obstacles, signs, traffic_flows
from carla_bridge.scenarios.scenario import Scenario

SCENARIOS: Mapping[str, type[Scenario]] = {
    **{kind.__name__: kind for module in (crossings, giving_way, hazards, obstacles, signs, traffic_flows)
       for kind in module.SCENARIOS},
    **traffic_flows.ALIASES,
}  # fmt: skip
