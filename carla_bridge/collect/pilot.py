"""One vehicle of the fleet: the expert drives it along one stretch of a route after another, and moments are noted.

A planner in training may drive instead, while the expert says at every moment what it would do (DAgger, Ross et al.
2011, arXiv 1011.0686): so it learns the way out of what it gets itself into.

A stretch ends with its route, when the vehicle touches something, leaves its path or stands too long. The label of a
moment is what the expert plans there, which is what it drives by. What was driven afterwards is no label: it depends on
what could not be foreseen, such as a light that changes or somebody who turns back, and on disturbances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from carla_bridge.agents.agent import View
from carla_bridge.agents.expert.agent import PrivilegedExpert
from carla_bridge.agents.expert.road import Road
from carla_bridge.client.surroundings import Surroundings
from carla_bridge.client.vehicle_control import HOLD
from carla_bridge.collect.perturbation import NOWHERE, STALLED_MPS, Aside, NoiseBursts, Stalls, rejoined
from carla_bridge.collect.sight import Seen
from carla_bridge.collect.situation import STANDING_MPS, Situation, read_situation
from carla_bridge.nano import NANO_TASK
from carla_bridge.routes.navigation import Navigator, RoutePlan
from wamdiff2_core.control.controller import Controller, PlanInMap
from wamdiff2_core.types import EgoState, Navigation, Plan, VehicleCommand, Waypoints

TICK_S = 0.05
CONTACT_S = 3.0  # before a contact, in which the expert's plans are not to be learnt
MAX_DEVIATION_M, LONGEST_STAND_S, LEARNER_STAND_S = 6.0, 40.0, 15.0
END_GAP_M = 3.0


@dataclass(frozen=True)
class State:
    """The vehicle in one tick."""

    stamp_ns: int
    ego: EgoState
    images: Mapping[str, Any]
    collisions: tuple[Any, ...] = ()
    pictured: None = None


@dataclass(frozen=True)
class Moment:
    """What one sample is made of.

    Attributes:
        tick: of the stretch.
        ego: motion and true pose.
        aside: from where the picture was taken.
        navigation: from there.
        plan: of the expert, in base_link.
        situation, tag: what goes on.
        jpeg: the picture; None without.
        seen: what the picture shows.
        progress_m, deviation_m: on the route.
        extra: further keys of the sample.
    """

    tick: int
    ego: EgoState
    aside: Aside
    navigation: Navigation
    plan: Waypoints
    situation: Situation
    tag: str
    jpeg: bytes | None
    seen: tuple[Seen, ...]
    progress_m: float
    deviation_m: float
    extra: dict[str, Any]

    @property
    def label(self) -> Waypoints:
        """The expert's plan, from where the picture was taken."""
        return self.plan if self.aside == NOWHERE else rejoined(self.plan, self.aside)


class Pilot:
    """Drives one vehicle.

    Args:
        name: `hero`, or `fleet` with a number.
        actor_id: of the vehicle.
        rng: of all that is drawn for it.
        carla_map: the town's map.

    Attributes:
        route: of the present stretch; None while the vehicle waits for a free place.
        situation: of the latest plan.
        plan_now: the latest plan's waypoints.
        standing_s: how long it has been standing.
        tick: number of the present tick in the stretch.
        aside: from where the next picture is taken.
        camera_at: where the camera is; None while it looks away.
        quiet: whether nobody is so near that a disturbance may hit.
        wanted: whether the next moment is kept.
        learner_drives: whether a planner in training drives the present stretch.
    """

    def __init__(self, name: str, actor_id: int, rng: np.random.Generator, carla_map: Any) -> None:
        self.name, self.actor_id, self.rng, self._map = name, actor_id, rng, carla_map
        self.route: RoutePlan | None = None
        self.aside = NOWHERE
        self.camera_at: Aside | None = NOWHERE
        self.quiet = self.wanted = self.learner_drives = False
        self.situation: Situation | None = None
        self.plan_now: Waypoints | None = None
        self.standing_s = 0.0
        self._expert = PrivilegedExpert()
        self.tick = -1
        self._moments: list[Moment] = []

    def begin(self, route: RoutePlan, *, learner_drives: bool = False) -> None:
        """Take a route, at whose start the vehicle is."""
        self.route, self.learner_drives = route, learner_drives
        self._road = Road(route.xy_m)
        self._expert.start(route, self._map)
        self.navigator = Navigator(route, NANO_TASK.target_rule)
        self._controller, self._in_force = Controller(), None
        self._noise, self._stalls = NoiseBursts(self.rng), Stalls(self.rng)
        self.tick, self._moments = -1, []
        self.situation, self.plan_now, self.standing_s = None, None, 0.0

    def see(self, ego: EgoState) -> None:
        """Take the state of a tick."""
        self.tick += 1
        self.standing_s = self.standing_s + TICK_S if abs(ego.speed_mps) < STANDING_MPS else 0.0

    def replan(self, ego: EgoState, around: Surroundings) -> Navigation:
        """Let the expert plan for this tick."""
        navigation = self.navigator.update(ego.map_from_base)
        state = State(ego.stamp_ns, ego, {})
        plan = self._expert.plan(View(state, navigation, around))
        assert plan.waypoints is not None
        assert self._expert.noticed is not None
        self.plan_now = plan.waypoints
        if not self.learner_drives or self._in_force is None:
            self._in_force = PlanInMap(Plan(ego.stamp_ns, plan.waypoints), ego.map_from_base)
        self.situation = read_situation(self._expert.noticed, self._road, around, max(0.0, ego.speed_mps))
        return navigation

    def follow(self, plan: Plan, ego: EgoState) -> None:
        """Drive by a learner's plan, if it may be driven, until the next one."""
        if plan.waypoints is not None and plan.check.ok:
            self._in_force = PlanInMap(plan, ego.map_from_base)

    def command(self, ego: EgoState, noise_allowed: bool) -> VehicleCommand:
        """What the vehicle is asked for in this tick; noise and stalls included, unless a learner drives.

        A stretch that begins at rest begins with a stall: the cameras fire too seldom to catch it setting off.
        """
        if self.route is None:
            return HOLD
        if self.tick == 0 and abs(ego.speed_mps) < STALLED_MPS:
            self._stalls.begin()
        wanted = self._controller.step(self._in_force, ego, ego.stamp_ns)
        if self.learner_drives:
            return wanted
        noisy = self._noise.disturb(wanted, ego.speed_mps, noise_allowed)
        return self._stalls.disturb(noisy, ego.speed_mps, noise_allowed)

    def note(self, moment: Moment) -> None:
        """Keep a moment until the stretch ends."""
        self._moments.append(moment)

    @property
    def at_end(self) -> bool:
        """Whether the stretch is over."""
        assert self.route is not None
        navigator = self.navigator
        return (navigator.progress_m > self.route.length_m - END_GAP_M or navigator.deviation_m > MAX_DEVIATION_M
                or self.standing_s > (LEARNER_STAND_S if self.learner_drives else LONGEST_STAND_S))

    def end(self, *, touched: bool = False) -> list[Moment]:
        """End the stretch.

        Args:
            touched: whether it ends with a contact; what led there is not to be learnt, if the expert drove.

        Returns:
            Its moments.
        """
        last = self.tick - (round(CONTACT_S / TICK_S) if touched and not self.learner_drives else 0)
        found = [moment for moment in self._moments if moment.tick <= last]
        self.route, self._moments, self.learner_drives = None, [], False
        return found
