"""Agents that plan in this very process: a `Planner`, and whatever is a function of the moment."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from carla_bridge.agents.agent import Answer, Frame, Needs, View
from carla_bridge.agents.route_follower import RouteFollower
from carla_bridge.navigation import RoutePlan
from wamdiff2_core.planner import Planner
from wamdiff2_core.types import Observation, Plan, Waypoints


class InProcessAgent:
    """Base of agents whose answer is one call, and which therefore always answer.

    Attributes:
        name, needs: see `Agent`.
    """

    def __init__(self, name: str, needs: Needs) -> None:
        self.name, self.needs = name, needs

    def start(self, route: RoutePlan, carla_map: Any) -> None:
        """Nothing to begin."""

    def watch(self, frame: Frame) -> None:
        """Steps between plans do not matter."""

    def act(self, view: View) -> Answer | None:
        """The plan of `plan`, timed."""
        began_ns = time.perf_counter_ns()
        plan = self.plan(view)
        return Answer(plan, time.perf_counter_ns() - began_ns)

    def plan(self, view: View) -> Plan:
        """The plan for a moment."""
        raise NotImplementedError

    def silence(self) -> str:
        """Nothing: it always answers."""
        return ""

    def fault(self) -> str:
        """Nothing: there is no other process."""
        return ""

    def close(self) -> None:
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

    def act(self, view: View) -> Answer | None:
        """No answer, ever."""
        return None
