"""The routes that a score is over: id, town and first scenario type of each.

The sets of Bench2Drive come with the package as a table of these facts; any route file gives another set. Key points of
the routes are not in the table: who needs them names the route file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wamdiff2_core.errors import UserError, did_you_mean

DEFAULT_SET = "bench2drive220"
LABELS = {"bench2drive220": "Bench2Drive", "bench2drive-0.0.4": "Bench2Drive 0.0.4", "dev10": "Bench2Drive Dev10"}


@dataclass(frozen=True)
class RouteFacts:
    """Town of a route, and type of its first scenario (empty without one)."""

    town: str
    scenario_type: str


@dataclass(frozen=True)
class RouteSet:
    """The routes that are expected.

    Attributes:
        name: of a shipped set, or the name of the route file.
        routes: facts by route id.
        label: what a score over this set may be called; empty unless it is one of Bench2Drive's sets.
        file: the route file, None for a shipped set.
    """

    name: str
    routes: Mapping[str, RouteFacts]
    label: str = ""
    file: Path | None = None


@cache
def shipped_sets() -> Mapping[str, RouteSet]:
    """The sets in the package, by name."""
    table = json.loads(Path(__file__).with_name("route_sets.json").read_text())
    sets = {
        name: {
            route_id: RouteFacts(town, scenario_type)
            for scenario_type, towns in types.items()
            for town, ids in towns.items()
            for route_id in ids.split()
        }
        for name, types in table["sets"].items()
    }
    for name, part in table["subsets"].items():
        sets[name] = {route_id: sets[part["of"]][route_id] for route_id in part["ids"].split()}
    return {name: RouteSet(name, routes, LABELS[name]) for name, routes in sets.items()}


def load_route_set(name_or_file: str) -> RouteSet:
    """A shipped set by its name, or the routes of an XML file in Bench2Drive's form.

    Raises:
        UserError: neither; or a malformed route file.
    """
    shipped = shipped_sets()
    if name_or_file in shipped:
        return shipped[name_or_file]
    path = Path(name_or_file)
    if not path.exists():
        raise UserError("--routes", "a route file or the name of a shipped set", name_or_file,
                        did_you_mean(name_or_file, shipped))
    from carla_bridge.routes.route_file import load_routes  # brings numpy, which a shipped set does not need

    routes = {
        route.id: RouteFacts(route.town, route.scenarios[0].type if route.scenarios else "")
        for route in load_routes(path)
    }
    label = next((one.label for one in shipped.values() if one.routes == routes), "")
    return RouteSet(path.name, routes, label, path)
