"""Bench2Drive's junction rule for traffic signs, on maps from files.

A route that failed still counts for traffic signs when it got past its first junction: its completion must exceed
(hops up to and including the first one in a junction + 8) / all hops, and no red light or stop sign may have been run.
Source: `ability_benchmark.py` of Bench2Drive 0.0.4.
"""

from __future__ import annotations

from pathlib import Path

from carla_bridge.leaderboard.results import InfractionKind, RouteRecord
from carla_bridge.routes.route_file import load_routes
from carla_bridge.score.hop_graph import HopGraph, NoHops
from carla_bridge.score.problems import Problem, ProblemKind, listing
from wamdiff2_core.errors import UserError

HOPS_BEYOND = 8


class JunctionRule:
    """Decides routes of one route file.

    Args:
        maps: folder with `TownXX.xodr`; files further down are found too, as CARLA keeps them.
        routes: route file with the key points.

    Raises:
        UserError: no OpenDRIVE file in the folder, or a malformed route file.
    """

    def __init__(self, maps: Path, routes: Path) -> None:
        self._files = {path.stem: path for path in sorted(maps.rglob("*.xodr"), reverse=True)}
        if not self._files:
            raise UserError("--maps", "a folder with TownXX.xodr files", str(maps))
        self._routes = {route.id: route for route in load_routes(routes)}
        self._graphs: dict[str, HopGraph] = {}
        self._thresholds: dict[str, float] = {}
        self._undecided: dict[str, str] = {}

    def passed(self, record: RouteRecord) -> bool | None:
        """Whether a failed route counts; None when its map does not tell (`problems` then says why)."""
        if record.entries(InfractionKind.RED_LIGHT) or record.entries(InfractionKind.STOP):
            return False
        threshold = self.threshold(record.route_id)
        return None if threshold is None else record.score_route / 100.0 > threshold

    def threshold(self, route_id: str) -> float | None:
        """Share of the route that must be exceeded; None when the map does not tell."""
        if route_id not in self._thresholds and route_id not in self._undecided:
            try:
                flags = self.junction_flags(route_id)
                if True not in flags:
                    raise NoHops("no junction on the route")
                self._thresholds[route_id] = (flags.index(True) + 1 + HOPS_BEYOND) / len(flags)
            except NoHops as error:
                self._undecided[route_id] = str(error)
        return self._thresholds.get(route_id)

    def junction_flags(self, route_id: str) -> list[bool]:
        """Whether each planner hop of a route lies in a junction.

        Raises:
            NoHops: there is no map of its town, or its key points do not lie on the map's lanes.
        """
        import carla

        route = self._routes[route_id]
        graph = self.graph(route.town)
        return graph.junction_flags([carla.Location(*map(float, xyz)) for xyz in route.keypoints_carla])

    def graph(self, town: str) -> HopGraph:
        """The lanes of a town, read when they are first needed.

        Raises:
            NoHops: there is no map of it.
            UserError: the file is no OpenDRIVE map.
        """
        import carla

        if town not in self._files:
            raise NoHops(f"no {town}.xodr")
        if town not in self._graphs:
            try:
                carla_map = carla.Map(town, self._files[town].read_text(encoding="utf-8"))
            except (RuntimeError, UnicodeDecodeError) as error:
                raise UserError("--maps", "OpenDRIVE files", f"{self._files[town]} ({error})") from None
            self._graphs[town] = HopGraph(carla_map)
        return self._graphs[town]

    def problems(self) -> list[Problem]:
        """Routes that were asked for and could not be decided, by reason."""
        reasons: dict[str, list[str]] = {}
        for route_id, reason in self._undecided.items():
            reasons.setdefault(reason, []).append(route_id)
        return [
            Problem(ProblemKind.MAPS, f"junction rule, {reason}: {listing(ids)} left open", forbids_headline=False)
            for reason, ids in reasons.items()
        ]
