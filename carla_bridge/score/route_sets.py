"""The routes that a score is over: id, town and first scenario type of each.

The sets of Bench2Drive come with the package as a table of these facts; any route file gives another set, and the
route files of the embedded world are known by their names too. Key points of Bench2Drive's routes are not in the table:
who needs them names the route file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.subset import chosen_ids
from carla_bridge.score.problems import counted
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
        file: the route file, None for a set of the table.
        left_out: ids that a subset leaves out: their records are no strangers, and do not count.
    """

    name: str
    routes: Mapping[str, RouteFacts]
    label: str = ""
    file: Path | None = None
    left_out: frozenset[str] = frozenset()

    def only(self, subset: str | None) -> RouteSet:
        """The routes that `--routes-subset` names; None for all of them.

        Raises:
            UserError: not of its form, no such route, or a range in a set of the table, which has no order.
        """
        if subset is None:
            return self
        chosen = chosen_ids(list(self.routes), subset, in_file_order=self.file is not None)
        routes = {route_id: self.routes[route_id] for route_id in chosen}
        name = f"{self.name}, {len(routes)} of its {counted(len(self.routes), 'route')}"
        return RouteSet(name, routes, _label(routes), self.file, frozenset(self.routes.keys() - routes.keys()))


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


def embedded_files() -> Mapping[str, Path]:
    """The route files of the embedded world, by name."""
    return {path.stem: path for path in sorted(ROUTES_FOLDER.glob("*.xml"))}


def set_of(ids: Set[str]) -> str:
    """The name under which `--routes` finds routes of these ids, or an empty text."""
    tables = [name for name, one in shipped_sets().items() if ids <= one.routes.keys()]
    return next(iter(tables), "") or next(
        (name for name, path in embedded_files().items() if ids <= read_route_file(path).keys()), ""
    )


def load_route_set(name_or_file: str) -> RouteSet:
    """A set by its name, or the routes of an XML file in Bench2Drive's form.

    Raises:
        UserError: neither; or a malformed route file.
    """
    shipped, embedded = shipped_sets(), embedded_files()
    if name_or_file in shipped:
        return shipped[name_or_file]
    path = embedded.get(name_or_file, Path(name_or_file))
    if not path.exists():
        raise UserError("--routes", "a route file or the name of a shipped set", name_or_file,
                        did_you_mean(name_or_file, [*shipped, *embedded]))
    routes = read_route_file(path)
    return RouteSet(path.name, routes, _label(routes), path)


def read_route_file(path: Path) -> dict[str, RouteFacts]:
    """The facts of the routes in a file, by id and in its order.

    Raises:
        UserError: a malformed route file.
    """
    from carla_bridge.routes.route_file import load_routes  # brings numpy, which a set of the table does not need

    return {
        route.id: RouteFacts(route.town, route.scenarios[0].type if route.scenarios else "")
        for route in load_routes(path)
    }


def _label(routes: Mapping[str, RouteFacts]) -> str:
    """What a score over these routes may be called, by Bench2Drive's sets; the order of routes does not matter."""
    return next((one.label for one in shipped_sets().values() if one.routes == routes), "")
