"""The route-following expert as a node, in the planner's place: `PLANNER=expert`.

Same topics as the planner node, except that it reads the route itself and needs no image. It tells what the world,
the bridge and the controller can do at their best; it is not a planner, as it knows the route.

    ~/input/route        latched Path, map frame
    ~/input/odometry, ~/input/navigation   paired by equal stamps; a navigation message asks for a plan
    ~/output/plan, ~/output/ready
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import rclpy
from nav_msgs.msg import Odometry, Path
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Bool
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg

from carla_bridge.expert import Expert
from wamdiff2_core.types import Check, Plan
from wamdiff2_ros import conversions, qos
from wamdiff2_ros.shutdown import signals_end_well
from wamdiff2_ros.sync import Synchronizer

NODE_NAME, NAMESPACE = "planner", "wamdiff2"


@dataclass(frozen=True)
class PathRoute:
    """A route as it came over the topic: (N, 2) points in the map frame."""

    xy_m: np.ndarray


class ExpertNode(Node):
    """Answers every navigation message with the expert's plan."""

    def __init__(self) -> None:
        super().__init__(NODE_NAME, namespace=NAMESPACE)
        self._expert: Expert | None = None
        self._sync = Synchronizer(("odometry",), tolerance_ns=0)
        self.create_subscription(Path, "~/input/route", self._on_route, qos.LATCHED)
        self.create_subscription(Odometry, "~/input/odometry", self._on_odometry, qos.RELIABLE)
        self.create_subscription(NavigationMsg, "~/input/navigation", self._on_navigation, qos.RELIABLE)
        self._plan_out = self.create_publisher(PlanMsg, "~/output/plan", qos.RELIABLE)
        self._ready_out = self.create_publisher(Bool, "~/output/ready", qos.LATCHED)
        self._ready_out.publish(Bool(data=True))

    def _on_route(self, message: Path) -> None:
        points = [(pose.pose.position.x, pose.pose.position.y) for pose in message.poses]
        self._expert = Expert(PathRoute(np.array(points))) if len(points) > 1 else None

    def _on_odometry(self, message: Odometry) -> None:
        ego = conversions.ego_from_msg(message)
        self._answer(self._sync.add("odometry", ego.stamp_ns, ego))

    def _on_navigation(self, message: NavigationMsg) -> None:
        self._answer(self._sync.add_image(conversions.stamp_to_ns(message.header.stamp), None))

    def _answer(self, matched: tuple[object, dict[str, object]] | None) -> None:
        if matched is None:
            return
        ego = matched[1]["odometry"]
        if self._expert is None:
            plan = Plan(ego.stamp_ns, None, check=Check(False, "no route yet"), source="expert")
        else:
            plan = Plan(ego.stamp_ns, self._expert.plan(ego), source="expert")
        self._plan_out.publish(conversions.plan_to_msg(plan))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM."""
    rclpy.init(args=arguments)
    node, executor = ExpertNode(), SingleThreadedExecutor()
    executor.add_node(node)
    try:
        with signals_end_well():
            executor.spin()
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
