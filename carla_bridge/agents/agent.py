"""The protocol of everything that drives a route.

An agent answers a moment with a plan; the same controller drives every plan, so agents differ in what they see and
think, and in nothing else. What an agent may see is said by its `Needs`: sensors are mounted and surroundings are read
only for those that want them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Plan

if TYPE_CHECKING:
    from carla_bridge.leaderboard.criteria_rules import Contact
    from carla_bridge.routes.navigation import RoutePlan


class Frame(Protocol):
    """One simulation step; `measurements.SimulationFrame` is one."""

    @property
    def stamp_ns(self) -> int: ...
    @property
    def ego(self) -> EgoState: ...
    @property
    def images(self) -> Mapping[str, CameraFrame]: ...
    @property
    def collisions(self) -> Sequence[Contact]: ...
    @property
    def pictured(self) -> Frame | None:
        """An earlier step whose pictures have come only now; None in a world that waits for its pictures."""


@dataclass(frozen=True)
class Needs:
    """What an agent must be given.

    Attributes:
        cameras: its rig; the first one's pictures set the pace of planning.
        inertial: whether IMU and GNSS are to be mounted.
        surroundings: whether it is privileged to see other actors, lights and signs as they are.
        target_rule: which points of the route it is shown.
    """

    cameras: tuple[CameraSpec, ...] = ()
    inertial: bool = False
    surroundings: bool = False
    target_rule: TargetRule = field(default_factory=lambda: TargetRule("arc_length", (10.0, 20.0)))


@dataclass(frozen=True)
class View:
    """A moment that a plan is wanted for.

    Attributes:
        frame: the step, with the pictures of the agent's cameras.
        navigation: target points and command.
        surroundings: a `surroundings.Surroundings`, for agents that need it; None for all others.
    """

    frame: Frame
    navigation: Navigation
    surroundings: Any = None


@dataclass(frozen=True)
class Answer:
    """A plan and the wall time it took from showing its moment to having it."""

    plan: Plan
    wall_ns: int


class Agent(Protocol):
    """Drives one route after another.

    Attributes:
        name: what signs plans that nothing else signs.
        needs: what it must be given.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Needs: ...

    def start(self, route: RoutePlan, carla_map: Any) -> None:
        """Begin a route.

        Args:
            route: the path, for agents that are privileged to know it.
            carla_map: the town's `carla.Map`.
        """

    def watch(self, frame: Frame) -> None:
        """See a step; called on every tick, before `act`."""

    def act(self, view: View) -> Answer | None:
        """Plan for a moment; None when no answer came, and `silence` tells why."""

    def silence(self) -> str:
        """Why the last `act` gave no answer; empty when it gave one, and for an agent that is not waited for."""

    def fault(self) -> str:
        """What is known of a process that the agent depends on and that has ended; empty when none has."""

    def close(self) -> None:
        """Give back what it holds."""
