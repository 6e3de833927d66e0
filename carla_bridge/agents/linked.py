"""A planner at the end of a link, such as ROS topics: it may be slow, silent for a while, or gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from carla_bridge.agents.agent import Answer, Frame, Needs, View
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.types import Navigation

STANDING_MPS = 0.1


class PlannerLink(Protocol):
    """The way to the planner and back; `bridge_node.BridgeNode` is one, over ROS topics."""

    def show_route(self, route: RoutePlan) -> None:
        """Show the whole route to whoever displays it."""

    def publish_tick(self, frame: Frame) -> None:
        """Show a step to whoever listens: clock, odometry and inertial sensors."""

    def send(self, frame: Frame, navigation: Navigation) -> None:
        """Give the planner a camera frame and what belongs to it."""

    def wait(self, stamp_ns: int, timeout_s: float) -> Answer | None:
        """The plan made from the frame of `stamp_ns`, or None when it did not come within `timeout_s` of wall time."""

    def heard(self) -> int:
        """How many plans have come so far, late ones included."""

    def fault(self) -> str:
        """What is known about the planner's failure, such as the signal that ended it; empty when nothing is."""


@dataclass(frozen=True)
class Patience:
    """How long a plan is waited for, wall clock.

    Attributes:
        wait_s: for the plan of a frame, while plans come.
        lost_wait_s: for the plan of a frame after one was missed, until a plan comes again, while the vehicle brakes.
        standing_wait_s: the same once it stands: nothing is lost by giving a slow planner time to come back.
    """

    wait_s: float = 5.0
    lost_wait_s: float = 0.05
    standing_wait_s: float = 1.0


class LinkedPlanner:
    """Asks a planner over a link, and knows whether it still answers.

    Attributes:
        name, needs: see `Agent`.
    """

    def __init__(self, link: PlannerLink, needs: Needs, patience: Patience, name: str = "planner") -> None:
        """Use `link`, which the caller keeps and closes."""
        self.name, self.needs = name, needs
        self._link, self._patience = link, patience
        self._lost = False
        self._heard_at_loss = 0
        self._waited_s = 0.0

    def start(self, route: RoutePlan, carla_map: Any) -> None:
        """Show the route to displays; the planner never gets it."""
        self._lost = False
        self._link.show_route(route)

    def watch(self, frame: Frame) -> None:
        """Publish a step."""
        self._link.publish_tick(frame)

    def act(self, view: View) -> Answer | None:
        """Send the moment and wait for its plan as long as `Patience` says."""
        patience, link = self._patience, self._link
        link.send(view.frame, view.navigation)
        # A plan for an older frame is of no use, but tells that the planner lives.
        given_up = self._lost and link.heard() == self._heard_at_loss
        standing = abs(view.frame.ego.speed_mps) < STANDING_MPS
        lost_wait_s = patience.standing_wait_s if standing and not link.fault() else patience.lost_wait_s
        self._waited_s = lost_wait_s if given_up else patience.wait_s
        answer = link.wait(view.frame.stamp_ns, self._waited_s)
        if answer is None and not given_up:
            self._heard_at_loss = link.heard()
        self._lost = answer is None
        return answer

    def silence(self) -> str:
        """Why there is no plan, with the wait; empty after an answer."""
        if not self._lost:
            return ""
        fault = self._link.fault()
        return f"no plan within {self._waited_s:g} s of wall time" + (f" ({fault})" if fault else "")

    def fault(self) -> str:
        """How the planner's process ended, when it is known to have ended."""
        return self._link.fault()

    def close(self) -> None:
        """Nothing: the link is the caller's."""
