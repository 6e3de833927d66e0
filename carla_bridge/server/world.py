"""The world: who is in it, what time it is, and what happens in one tick.

A tick steps the signals and the traffic, moves everything, resolves collisions, publishes the world state, then takes
every measurement that is due; all of it carries the same frame number and is handed to the sockets before it returns.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.signals import SignalControl
from carla_bridge.server.actors.spawning import SPECTATOR, Sensor, has_stream, make_actor
from carla_bridge.server.contact.contacts import Hit
from carla_bridge.server.contact.physics import Physics
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import RenderCamera
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.dialect import DEFAULT_VERSION, DIALECTS, Dialect
from carla_bridge.server.protocol.streams import StreamHub
from carla_bridge.server.rendering import looks
from carla_bridge.server.rendering.town_renderers import MakeRenderer, RendererLike, TownLike, TownRenderers
from carla_bridge.server.sensors import sensing
from carla_bridge.server.sensors.ray_scene import RayScene
from carla_bridge.server.stage import Stage
from carla_bridge.server.weather import CLEAR_NOON, Weather

DEFAULT_DELTA_S = 0.05
FRESH_GRAVES = 256  # destroyed actors that are kept as they were


class TrafficLike(Protocol):
    """What the world needs of its traffic, which is made anew for every episode."""

    def step(self, dt_s: float) -> None:
        """Advance by one tick, before actors move."""

    def make_room(self, actor: Actor) -> None:
        """Move background traffic away from where an actor is about to appear."""


@dataclass
class Settings:
    """`EpisodeSettings` of the protocol; only the first three fields change anything here."""

    synchronous: bool = False
    no_rendering: bool = False
    fixed_delta_s: float | None = None
    rest: list = field(default_factory=lambda: [True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True])

    def as_wire(self) -> list:
        """Fields in protocol order."""
        delta = [False] if self.fixed_delta_s is None else [True, self.fixed_delta_s]
        return [self.synchronous, self.no_rendering, delta, *self.rest]


class World:
    """State of the embedded world. Not thread-safe: one thread calls it.

    Args:
        town: where it all happens.
        hub: takes stream payloads.
        load_town: makes a town from a name, for `load_world`; in any thread.
        parse_town: makes a town from a name and OpenDRIVE text, for `generate_opendrive_world`; in any thread.
        town_names: lists the towns that `load_town` knows.
        make_renderer: builds the renderer of a town, as `TownRenderers` wants it.
        prepare_traffic: reads in any thread what `make_traffic` will need of a town.
        make_signals, make_traffic: called in this order at the start of an episode, when only the spectator is there;
            they may add actors and return what is to be stepped at the head of each tick.
        seed: of every random choice the world makes.
        dialect: CARLA version of the clients.
    """

    def __init__(
        self,
        town: TownLike,
        hub: StreamHub,
        *,
        load_town: Callable[[str], TownLike],
        parse_town: Callable[[str, str], TownLike],
        make_renderer: MakeRenderer,
        town_names: Callable[[], Sequence[str]] = tuple,
        make_signals: Callable[[World], SignalControl | None] = lambda world: None,
        make_traffic: Callable[[World], TrafficLike | None] = lambda world: None,
        prepare_traffic: Callable[[TownLike], None] = lambda town: None,
        seed: int = 0,
        dialect: Dialect = DIALECTS[DEFAULT_VERSION],
    ) -> None:
        self.hub, self.seed, self.town_names, self.dialect = hub, seed, town_names, dialect
        self._load_town, self._parse_town = load_town, parse_town
        self._make_signals, self._make_traffic, self._prepare_traffic = make_signals, make_traffic, prepare_traffic
        self.signals: SignalControl | None = None
        self.traffic: TrafficLike | None = None
        self.frame, self.time_s, self.episode_id = 1, 0.0, 1
        self.settings = Settings()
        self.weather = CLEAR_NOON.as_protocol()
        self.actors: dict[int, Actor] = {}
        self.tombstones: dict[int, Actor] = {}
        self._fresh_graves: deque[int] = deque()
        self._ghosts: dict[str, Actor] = {}
        self.generated: Stage | None = None
        self.traffic_managers: dict[int, list] = {}
        self._next_actor_id = 1
        self.random = random.Random(seed)
        self._state_streams = [hub.open_stream()]
        self._last_state: bytes | None = None
        self._flags = wire.MAP_CHANGED
        self.spectator = self.add(Actor(self.take_id(), SPECTATOR, [0, SPECTATOR.id, []], Pose(z=20.0, pitch=-45.0)))
        self._renderers = TownRenderers(make_renderer)
        self._enter(self._staged(town))
        self._renderers.current()
        hub.on_subscribe = self._on_subscribe
        self._populate()
        self.step(DEFAULT_DELTA_S)

    # --- episodes

    @property
    def town(self) -> TownLike:
        """The present town."""
        return self.stage.town

    def stage_of(self, name: str) -> Stage:
        """A town by name, made ready for an episode; in any thread.

        Raises:
            UserError: no such town.
        """
        return self._staged(self._load_town(name))

    def stage_of_text(self, name: str, opendrive: str) -> Stage:
        """A town by its OpenDRIVE text, made ready for an episode; in any thread.

        Raises:
            UserError: it is none.
        """
        return self._staged(self._parse_town(name, opendrive))

    def _staged(self, town: TownLike) -> Stage:
        stage = Stage.of(town)
        self._prepare_traffic(town)
        return stage

    def _enter(self, stage: Stage) -> None:
        self.stage, self.physics = stage, Physics(stage.scenery, stage.height_m)
        self._renderers.enter(stage.town)

    def start_episode(self, stage: Stage, reset_settings: bool) -> None:
        """Replace the town and everybody in it but the spectator, and publish the first state of the new episode."""
        self._enter(stage)
        for actor in list(self.actors.values()):
            if actor is not self.spectator:
                self.destroy(actor.id)
        self.random = random.Random(self.seed)
        self.weather = CLEAR_NOON.as_protocol()
        self.episode_id += 1
        # A loading client drops its subscription and subscribes anew. With the same id it mixes the two up when a late
        # state is still in work, and dies of memory it has freed.
        self._state_streams.append(self.hub.open_stream())
        self.time_s = 0.0
        self._flags = wire.MAP_CHANGED
        if reset_settings:
            self.settings = Settings()
        self._populate()
        self.step(self.delta_s)

    def _populate(self) -> None:
        self.signals, self.traffic = None, None
        self.signals = self._make_signals(self)
        self.traffic = self._make_traffic(self)

    @property
    def state_stream(self) -> int:
        """World-state stream of this episode; those of earlier episodes go on for clients that did not load it."""
        return self._state_streams[-1]

    # --- actors

    def take_id(self) -> int:
        """An actor id that was never used."""
        actor_id, self._next_actor_id = self._next_actor_id, self._next_actor_id + 1
        return actor_id

    def add(self, actor: Actor) -> Actor:
        """Let an actor with an id from `take_id` take part in the world from now on."""
        self.actors[actor.id] = actor
        return actor

    def spawn(self, description: list, pose: Pose, parent_id: int | None = None) -> Actor:
        """Create an actor; with a parent, `pose` is relative to it.

        Raises:
            RpcError: unknown blueprint or parent, or a body would stand inside another.
        """
        actor = make_actor(self._next_actor_id, description, pose, self.random)
        if parent_id is not None:
            actor.parent, actor.attached = self.actor(parent_id), pose
            actor.follow_parent()
        elif actor.collides:
            if self.traffic is not None:
                self.traffic.make_room(actor)
            if self.physics.contacts.blocked(actor, self.actors.values()):
                raise RpcError("Spawn failed because of collision at spawn location")
        self.take_id()
        if has_stream(actor.blueprint):
            actor.stream_id = self.hub.open_stream()
        return self.add(actor)

    def destroy(self, actor_id: int) -> bool:
        """Remove an actor; False when it is gone already. Attached actors stay where they are.

        The id is remembered: worker threads of a client may still ask for it, and some die of an error.

        Raises:
            RpcError: there never was such an actor.
        """
        actor = self.actors.pop(actor_id, None)
        if actor is None:
            self.actor_or_tombstone(actor_id)
            return False
        self._bury(actor)
        for other in self.actors.values():
            if other.parent is actor:
                other.let_go()
        self.physics.contacts.forget(actor_id)
        return True

    def _bury(self, actor: Actor) -> None:
        """Remember a destroyed actor; of those long gone, one of each kind stands for all, so memory does not grow."""
        actor.parent = None
        self.tombstones[actor.id] = actor
        self._fresh_graves.append(actor.id)
        if len(self._fresh_graves) > FRESH_GRAVES:
            old = self._fresh_graves.popleft()
            self.tombstones[old] = self._ghosts.setdefault(self.tombstones[old].type_id, self.tombstones[old])

    def actor(self, actor_id: int) -> Actor:
        """A living actor.

        Raises:
            RpcError: none of this id.
        """
        actor = self.actors.get(actor_id) if isinstance(actor_id, int) else None
        if actor is None:
            raise RpcError(f"unable to find actor {actor_id!r}: actor not found")
        return actor

    def actor_or_tombstone(self, actor_id: int) -> Actor:
        """A living or destroyed actor."""
        gone = self.tombstones.get(actor_id) if isinstance(actor_id, int) else None
        return gone if gone is not None else self.actor(actor_id)

    def ray_scene(self) -> RayScene:
        """What rays can meet now."""
        return self.stage.rays.with_actors(self.actors.values())

    def describe(self, actor: Actor) -> list:
        """`Actor` of the protocol."""
        token = self.hub.token(actor.stream_id) if actor.stream_id else b""
        parent_id = actor.parent.id if actor.parent is not None else 0
        return [actor.id, parent_id, actor.description, actor.bounding_box(), b"", token]

    @property
    def weather(self) -> list[float]:
        """`WeatherParameters` of the protocol, as they were set."""
        return self._weather_numbers

    @weather.setter
    def weather(self, numbers: list[float]) -> None:
        self._weather_numbers, self._weather = numbers, Weather.from_protocol(numbers)

    # --- time

    @property
    def delta_s(self) -> float:
        """Length of a tick in simulated seconds."""
        return self.settings.fixed_delta_s or DEFAULT_DELTA_S

    def step(self, dt_s: float) -> int:
        """Advance by one tick; returns the new frame number."""
        self.frame += 1
        self.time_s += dt_s
        for part in (self.signals, self.traffic):
            if part is not None:
                part.step(dt_s)
        self.physics.terrain.wet(self._weather.wet)
        hits = self.physics.step(self.actors, dt_s, self.time_s)
        if self.signals is not None:
            self.signals.watch(self.actors.values())
        if self.stage.speed_limits is not None:
            self.stage.speed_limits.watch(self.actors.values())
        self._publish_state(dt_s)
        self._publish_measurements(dt_s, hits)
        return self.frame

    def _publish_state(self, dt_s: float) -> None:
        records = b"".join(actor.record() for actor in self.actors.values())
        head = wire.sensor_header(self.dialect.world_state_type, self.frame, self.time_s, ((0, 0, 0), (0, 0, 0)))
        self._last_state = head + wire.world_state_body(self.episode_id, time.time(), dt_s, self._flags, records)
        self._flags = 0
        for stream_id in self._state_streams:
            self.hub.send(stream_id, self._last_state)

    def _on_subscribe(self, stream_id: int) -> bytes | None:
        if stream_id in self._state_streams:
            return self._last_state  # else a client of a synchronous server would see an empty world until a tick
        return None

    # --- sensors

    def _publish_measurements(self, dt_s: float, hits: list[Hit]) -> None:
        measuring = [actor for actor in self.actors.values() if isinstance(actor, Sensor)]
        picture = None if self.settings.no_rendering else self._picture
        rays = cache(self.ray_scene)
        tick = sensing.Tick(self.frame, self.time_s, dt_s, self.stage.geo_reference, picture, rays, self.actors)
        sensing.publish(self.hub, tick, measuring, self.describe)
        sensing.publish_hits(self.hub, tick, measuring, hits, self.describe)

    def awaited_layout(self) -> Future[RendererLike] | None:
        """The renderer, where a camera needs it and it is still being built: a tick would wait for it."""
        layout = self._renderers.layout
        if layout.done() or self.settings.no_rendering:
            return None
        cameras = (a for a in self.actors.values() if isinstance(a, Sensor) and a.type_id.startswith("sensor.camera."))
        return layout if any(self.hub.listening(camera.stream_id) for camera in cameras) else None

    def _picture(self, camera: RenderCamera, sensor: Sensor) -> bytes:
        actors = self.actors.values()
        seen, signals = looks.bodies(actors, sensor), looks.signals(actors)
        renderer = self._renderers.current()
        if sensor.type_id == "sensor.camera.depth":
            return renderer.buffers(camera, seen, signals).depth_picture().tobytes()
        if sensor.type_id == "sensor.camera.semantic_segmentation":
            return renderer.buffers(camera, seen, signals).label_picture().tobytes()
        return renderer.render(camera, seen, signals, self._weather, self.time_s).tobytes()


def place_signals(world: World) -> SignalControl:
    """Put the lights and signs of the world's town into the world, as the first actors of an episode."""
    control = SignalControl(world.town.signals, world.take_id, world.seed)
    for actor in control.actors:
        world.add(actor)
    return control
