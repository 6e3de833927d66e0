"""Agents that plan in this very process: a `Planner`, and whatever is a function of the moment."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from carla_bridge.agents.agent import Answer, Frame, Needs, View
from carla_bridge.agents.route_follower import RouteFollower
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.planner import Planner
from wamdiff2_core.types import Observation, Plan, Waypoints


class InProcessAgent(ABC):
    """Base of agents whose answer is one call in this process.

    Attributes:
        name, needs: see `Agent`.
    """

    def __init__(self, name: str, needs: Needs) -> None:
        self.name, self.needs = name, needs

    def start(self, route: RoutePlan, carla_map: Any) -> None:  # noqa: B027 (most have nothing to do)
        """Nothing to begin."""

    def watch(self, frame: Frame) -> None:  # noqa: B027 (most have nothing to do)
        """Steps between plans do not matter."""

    def act(self, view: View) -> Answer | None:
        """The plan of `plan`, timed."""
        began_ns = time.perf_counter_ns()
        plan = self.plan(view)
        return None if plan is None else Answer(plan, time.perf_counter_ns() - began_ns)

    @abstractmethod
    def plan(self, view: View) -> Plan | None:
        """The plan for a moment, or None for no answer."""

    def silence(self) -> str:
        """Nothing: who answers in the same call is never waited for."""
        return ""

    def fault(self) -> str:
        """Nothing: there is no other process."""
        return ""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Nothing is held."""


class InProcessPlanner(InProcessAgent):
    """`Planner.plan(Observation)`, without ROS."""

    def __init__(self, planner: Planner, needs: Needs, name: str) -> None:
        """Warm the planner up.

        Args:
            planner: any planner.
            needs: with the planner's cameras, in the order of its rig.
            name: of the planner.
        """
        super().__init__(name, needs)
        self._planner = planner
        planner.warm_up()

    def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        frames = tuple(view.frame.images[camera.name] for camera in self.needs.cameras)
        return self._planner.plan(Observation(frames, view.frame.ego, view.navigation))


class RouteOnly(InProcessAgent):
    """Baseline: follows the route at a careful speed, and sees nothing of what is on it."""

    def __init__(self) -> None:
        super().__init__("route-only", Needs())

    def start(self, route: RoutePlan, carla_map: Any) -> None:
        """Take the route."""
        self._follower = RouteFollower(route)

    def plan(self, view: View) -> Plan:
        """Where the route leads."""
        return Plan(view.frame.stamp_ns, self._follower.plan(view.frame.ego), source=self.name)


class ConstantVelocity(InProcessAgent):
    """Baseline: straight on at one speed, whatever the road does."""

    speed_mps, waypoints, dt_s = 6.0, 6, 0.5

    def __init__(self) -> None:
        super().__init__("constant-velocity", Needs())
        along = self.speed_mps * self.dt_s * np.arange(1, self.waypoints + 1)
        self._waypoints = Waypoints(np.stack([along, 0.0 * along], axis=1), self.dt_s)

    def plan(self, view: View) -> Plan:
        """The same six points ahead, always."""
        return Plan(view.frame.stamp_ns, self._waypoints, source=self.name)


class NoPlanner(InProcessAgent):
    """Negative control: nobody plans, so the vehicle stands."""

    def __init__(self) -> None:
        super().__init__("none", Needs())

    def plan(self, view: View) -> None:
        """No answer, ever."""
