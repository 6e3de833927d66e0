"""One episode: a fleet of experts drives for a minute among traffic, and what is worth keeping is kept.

The first vehicle drives a route of the file with its scenarios, the others parts of other routes of the same town. They
share the world, which is what costs time; each has its own pictures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg

from carla_bridge.client.client import Simulation
from carla_bridge.client.server_watch import Fault
from carla_bridge.client.surroundings import Surroundings
from carla_bridge.collect.encounters import Encounters
from carla_bridge.collect.fleet import Fleet, Picture, seen_by
from carla_bridge.collect.perturbation import NOWHERE, beside, draw_camera, draw_push
from carla_bridge.collect.pilot import TICK_S, Moment, Pilot
from carla_bridge.collect.records import Record, record_of
from carla_bridge.collect.schedule import SPELL_S, Episode
from carla_bridge.collect.sight import look
from carla_bridge.collect.situation import keep_rate, tag_of
from carla_bridge.rectangles import boxes_touch
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.scenarios.engine import ScenarioEngine
from carla_bridge.scenarios.errors import ScenarioError
from wamdiff2_core.dataset import JPEG_QUALITY
from wamdiff2_core.planner import Planner
from wamdiff2_core.types import CameraFrame, EgoState, Observation

LOG = logging.getLogger(__name__)
PLAN_EVERY_TICKS, SAMPLE_EVERY_TICKS = 5, 10
PUSH_RATE_PER_PLAN = 0.008  # every 30 s
QUIET_M = 6.0  # no disturbance begins with somebody this near
FASTEST_START_MPS = 7.0
TIMEOUT_S = 60.0
TOUCH_M = 0.03  # boxes that overlap by less are taken as side by side


@dataclass(frozen=True)
class World:
    """Where episodes are driven.

    Attributes:
        address: of the server.
        fault: what is known of its end.
        embedded: whether it is the embedded one: it repeats exactly, and turns cameras relative to their vehicle.
        subscribe_s: wall clock that subscriptions are given.
    """

    address: tuple[str, int]
    fault: Fault
    embedded: bool
    subscribe_s: float = 0.15


@dataclass(frozen=True)
class Wishes:
    """What an episode is asked for.

    Attributes:
        fleet: vehicles beside the first.
        seconds: simulated, in which samples are taken.
        images: whether there are cameras.
        background: vehicles of ordinary traffic that the client puts.
        encounters: share of chances at which the fleet meets somebody who crosses, or an obstacle.
        learner: drives some stretches in the expert's place; None for none.
        learner_share: of stretches that it drives.
    """

    fleet: int
    seconds: float
    images: bool
    background: int = 0
    encounters: float = 0.0
    learner: Planner | None = None
    learner_share: float = 0.0


@dataclass(frozen=True)
class Driven:
    """What has come of an episode.

    Attributes:
        index: of the episode.
        records: in the order of time, then of vehicles.
        note: why its scenarios were not played; empty otherwise.
        simulated_s: that were driven.
    """

    index: int
    records: tuple[Record, ...]
    note: str
    simulated_s: float


def drive(world: World, episode: Episode, planner: RoutePlanner, plans: Sequence[RoutePlan], wishes: Wishes) -> Driven:
    """Drive an episode.

    Args:
        world: the server; the town is loaded anew.
        episode: what to drive.
        planner: of the town.
        plans: the routes of the town.
        wishes: how.

    Raises:
        InfrastructureError: the server is lost.
        UnsteadyError: a camera was subscribed to too late; the episode must be begun anew.
    """
    plan = planner.plan(episode.spec)
    rng = np.random.default_rng([episode.seed, 0])
    with Simulation(
        *world.address, ego_pose=plan.start, cameras=(), town=plan.town, inertial=False, timeout_s=TIMEOUT_S,
        fault=world.fault, fresh=True,
    ) as simulation, Fleet(simulation, rng, plan, plans) as fleet:
        return _Drive(world, episode, planner, plan, wishes, simulation, fleet, rng).run()


class _Drive:
    """An episode while it is driven."""

    def __init__(
        self, world: World, episode: Episode, planner: RoutePlanner, plan: RoutePlan, wishes: Wishes,
        simulation: Simulation, fleet: Fleet, rng: np.random.Generator,
    ) -> None:
        self._world, self._episode, self._wishes, self._rng = world, episode, wishes, rng
        self._simulation, self._fleet, self._plan = simulation, fleet, plan
        self._note = ""
        self._found: list[tuple[float, int, Record]] = []
        self._encounters = Encounters(simulation, np.random.default_rng([episode.seed, 3]), wishes.encounters)
        around = simulation.surroundings()
        self._engine: ScenarioEngine | None = ScenarioEngine(
            simulation, plan, episode.spec, planner, episode.seed, wishes.background
        )
        self._scenario(lambda engine: engine.set_up(around))
        simulation.set_weather(episode.weathers[0].values)
        self._pilots = {0: self._pilot(0, simulation.ego_id, "hero")}
        self._pilots[0].begin(plan, learner_drives=self._learner_drives(self._pilots[0]))
        for number in range(1, wishes.fleet + 1):
            # A snapshot knows of an actor only from the tick after it was spawned.
            simulation.tick()
            added = fleet.add(simulation.surroundings())
            if added is not None:
                pilot = self._pilot(number, added[0], "fleet")
                pilot.begin(added[1], learner_drives=self._learner_drives(pilot))
                self._pilots[number] = pilot

    def run(self) -> Driven:
        ticks = round(self._wishes.seconds / TICK_S)
        try:
            if self._wishes.images:
                self._start_cameras()
            around = self._simulation.surroundings()
            for number, pilot in self._pilots.items():
                assert pilot.route is not None
                self._place(number, pilot, pilot.route, around)
            self._fleet.flush()
            self._encounters.flush(around)
            frame = self._simulation.tick()
            for tick in range(1, ticks + 1):  # the cameras have fired just before
                self._tick(tick, frame)
                frame = self._simulation.tick()
            for number, pilot in self._pilots.items():
                if pilot.route is not None:
                    self._take(number, pilot.end())
        finally:
            self._encounters.close()
            if self._engine is not None:
                self._engine.close()
        self._found.sort(key=lambda item: item[:2])
        note = self._note or self._encounters.note
        return Driven(self._episode.index, tuple(item[2] for item in self._found), note, ticks * TICK_S)

    def _start_cameras(self) -> None:
        self._fleet.mount_cameras(self._world.subscribe_s)
        while not self._fleet.learn_phases(self._simulation.tick().frame, strict=self._world.embedded):
            pass

    def _tick(self, tick: int, frame: Any) -> None:
        snapshot = self._simulation.world.get_snapshot()
        around = self._simulation.surroundings()
        if tick % round(SPELL_S / TICK_S) == 0 and tick > 0:
            self._simulation.set_weather(self._weather(tick + 1).values)
        self._scenario(lambda engine: engine.step(around))
        self._drop_lost(snapshot)
        pictures = self._fleet.pictures(frame.frame) if self._wishes.images else {}
        egos = {n: self._fleet.state(snapshot, p.actor_id, frame.stamp_ns) for n, p in self._pilots.items()}
        planning = tick % PLAN_EVERY_TICKS == 0
        due = tick % SAMPLE_EVERY_TICKS == 0 and not self._wishes.images
        for number, pilot in self._pilots.items():
            if number and pilot.route is not None:
                progress_m = pilot.navigator.progress_m
                self._encounters.step(
                    number, pilot.route, progress_m, egos[number], pilot.standing_s, around, self._kept_off
                )
        sight = None
        if pictures:
            places = np.array([[ego.map_from_base.x_m, ego.map_from_base.y_m] for ego in egos.values()])
            sight = self._fleet.things(snapshot, around, places)
        for number, pilot in self._pilots.items():
            ego = egos[number]
            own = seen_by(around, pilot.actor_id) if planning or pilot.actor_id in pictures else around
            if pilot.route is not None:
                pilot.see(ego)
            if pilot.route is None and planning:
                self._begin(number, pilot, around)
            elif pilot.route is not None and (planning or pilot.actor_id in pictures):
                self._think(tick, number, pilot, ego, own, pictures.get(pilot.actor_id), sight,
                            pilot.wanted and (due or pilot.actor_id in pictures))
            quiet = planning and _gap_m(own) > QUIET_M
            if planning:
                pilot.quiet = quiet
            command = pilot.command(ego, pilot.quiet)
            if number == 0 and self._engine is not None:
                command = self._engine.disturb(command)
            self._fleet.drive(pilot.actor_id, command)
            if (tick + 1) % SAMPLE_EVERY_TICKS == 0:
                self._decide(pilot, ego)
        self._fleet.flush()
        self._encounters.flush(around)

    @property
    def _kept_off(self) -> RoutePlan | None:
        """The route whose scenarios are still being played."""
        return None if self._engine is None else self._plan

    def _drop_lost(self, snapshot: Any) -> None:
        """Go on without vehicles that a scenario has taken away to make room, as it does with background traffic."""
        for number, pilot in list(self._pilots.items()):
            if number and snapshot.find(pilot.actor_id) is None:
                if pilot.route is not None:
                    self._take(number, pilot.end())
                self._fleet.forget(pilot.actor_id)
                del self._pilots[number]

    def _think(
        self, tick: int, number: int, pilot: Pilot, ego: EgoState, around: Surroundings, picture: Picture | None,
        sight: Any, wanted: bool,
    ) -> None:
        """Plan, note the moment if it is to be kept, and see whether the stretch goes on."""
        if _touches(around):
            self._leave(number, pilot, touched=True)
            return
        navigation = pilot.replan(ego, around)
        if pilot.at_end:
            self._leave(number, pilot)
            return
        if wanted:
            self._note_moment(tick, number, pilot, ego, navigation, picture, sight)
        if pilot.learner_drives:
            if picture is not None and pilot.camera_at == NOWHERE:
                assert self._wishes.learner is not None
                frame = CameraFrame(picture.rgb, ego.stamp_ns)
                pilot.follow(self._wishes.learner.plan(Observation((frame,), ego, navigation)), ego)
            return
        if pilot.rng.random() < PUSH_RATE_PER_PLAN:
            aside, factor = draw_push(pilot.rng)
            there = self._fleet.pushed(around, pilot.actor_id, ego.map_from_base, aside)
            if there is not None and abs(ego.speed_mps) > 1.0:
                self._fleet.place(pilot.actor_id, there, ego.speed_mps * factor)

    def _note_moment(
        self, tick: int, number: int, pilot: Pilot, ego: EgoState, navigation: Any, picture: Picture | None, sight: Any
    ) -> None:
        assert pilot.situation is not None
        assert pilot.plan_now is not None
        tag = tag_of(pilot.situation, max(0.0, ego.speed_mps), navigation.command, pilot.plan_now)
        seen, jpeg = (), None
        if picture is not None:
            things, boxes, scenery = sight
            seen = tuple(look(picture.camera, picture.rgb, things, boxes, scenery, pilot.actor_id))
            jpeg = simplejpeg.encode_jpeg(picture.rgb, quality=JPEG_QUALITY, colorsubsampling="444")
        if pilot.aside != NOWHERE:
            navigation = pilot.navigator.update(beside(ego.map_from_base, pilot.aside))
        assert pilot.route is not None
        extra = {
            "source": "drive", "driver": pilot.name, "town": pilot.route.town, "route": pilot.route.route_id,
            "episode": self._episode.index, "t_s": round(tick * TICK_S, 2), "vehicle": number,
            **({"driven_by": "learner"} if pilot.learner_drives else {}),
        }
        pilot.note(Moment(
            pilot.tick, ego, pilot.aside, navigation, pilot.plan_now, pilot.situation, tag, jpeg, seen,
            pilot.navigator.progress_m, pilot.navigator.deviation_m, extra,
        ))

    def _decide(self, pilot: Pilot, ego: EgoState) -> None:
        """Whether the next moment is kept, from what the last plan was made from, and from where it is pictured."""
        pilot.wanted = False
        if pilot.route is not None and pilot.situation is not None and pilot.plan_now is not None:
            tag = tag_of(pilot.situation, max(0.0, ego.speed_mps), pilot.navigator.command, pilot.plan_now)
            pilot.wanted = pilot.rng.random() < keep_rate(tag, pilot.plan_now, pilot.standing_s)
        if not self._wishes.images or not self._world.embedded:
            return
        aside = NOWHERE if pilot.learner_drives else draw_camera(pilot.rng) if pilot.wanted else None
        if aside != pilot.camera_at:
            self._fleet.turn_camera(pilot.actor_id, aside)
            pilot.camera_at = aside
        pilot.aside = aside or NOWHERE

    def _begin(self, number: int, pilot: Pilot, around: Surroundings) -> None:
        """Put a vehicle on a free place of a route."""
        found = self._fleet.free_start(around, pilot.rng)
        if found is not None:
            self._place(number, pilot, found, around)
            pilot.begin(found, learner_drives=self._learner_drives(pilot))

    def _learner_drives(self, pilot: Pilot) -> bool:
        """Whether the next stretch of a vehicle is its."""
        return self._wishes.learner is not None and pilot.rng.random() < self._wishes.learner_share

    def _place(self, number: int, pilot: Pilot, route: RoutePlan, around: Surroundings) -> None:
        """Put a vehicle at a route's start, off its line and at some speed, and what it may meet on it."""
        aside, _ = draw_push(pilot.rng)
        speed = pilot.rng.uniform(0.0, FASTEST_START_MPS) if pilot.rng.random() < 0.7 else 0.0
        self._fleet.place(pilot.actor_id, beside(route.start, aside), speed)
        if number:
            self._encounters.begin(number, route, speed, around, self._kept_off)

    def _leave(self, number: int, pilot: Pilot, *, touched: bool = False) -> None:
        self._take(number, pilot.end(touched=touched))
        if number == 0 and self._engine is not None:
            self._engine.close()
            self._engine = None

    def _take(self, number: int, moments: Sequence[Moment]) -> None:
        self._encounters.end(number)
        for moment in moments:
            t_s = moment.extra["t_s"]
            draws = np.random.default_rng([self._episode.seed, 1, number, round(t_s / TICK_S)])
            record_id = f"{self._episode.index:05d}-{round(t_s / TICK_S):04d}-{number:02d}"
            record = record_of(record_id, moment, self._weather(round(t_s / TICK_S)), draws)
            self._found.append((t_s, number, record))

    def _weather(self, tick: int) -> Any:
        """The weather in a tick; the one set in a tick is seen from the next on."""
        spell = max(0, tick - 1) // round(SPELL_S / TICK_S)
        return self._episode.weathers[min(spell, len(self._episode.weathers) - 1)]

    def _scenario(self, act: Any) -> None:
        """Let the scenarios act; those that cannot be played are left out."""
        if self._engine is None:
            return
        try:
            act(self._engine)
        except ScenarioError as error:
            LOG.info("episode %d: %s", self._episode.index, error)
            self._note = str(error)
            self._engine.close()
            self._engine = None

    def _pilot(self, number: int, actor_id: int, name: str) -> Pilot:
        return Pilot(name, actor_id, np.random.default_rng([self._episode.seed, 2, number]), self._simulation.map)


def _gap_m(around: Surroundings) -> float:
    """Distance from the vehicle's middle to the nearest other's, less half their lengths."""
    ego = around.ego
    gaps = [math.hypot(a.pose.x_m - ego.pose.x_m, a.pose.y_m - ego.pose.y_m) - a.extent_m[0] - ego.extent_m[0]
            for a in around.actors]
    return min(gaps, default=math.inf)


def _touches(around: Surroundings) -> bool:
    """Whether the vehicle's box overlaps another solid one."""
    ego = around.ego
    reach = math.hypot(*ego.extent_m[:2])
    for actor in around.actors:
        near = math.hypot(actor.pose.x_m - ego.pose.x_m, actor.pose.y_m - ego.pose.y_m)
        low = actor.extent_m[2] < 0.1 or abs(actor.z_m - ego.z_m) > 3.0
        if low or near >= reach + math.hypot(*actor.extent_m[:2]):
            continue
        if boxes_touch(ego.corners_m(), actor.corners_m(), TOUCH_M):
            return True
    return False
