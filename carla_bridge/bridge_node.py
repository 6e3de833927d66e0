"""Executable `bridge_node`: a drive as its ROS parameters say, with a planner node that is started by somebody else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import rclpy

from carla_bridge.agents.bridge_node import BridgeNode, start_ros
from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.linked import Patience
from carla_bridge.closed_loop import default_out
from carla_bridge.drive.drive import Drive
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.routes import DEMO_ROUTES
from carla_bridge.routes.route_file import load_routes
from wamdiff2_core.cli.main import exit_code_of
from wamdiff2_ros.shutdown import end_process


def drive_from_parameters(arguments: Sequence[str]) -> int:
    """Drive as the ROS parameters of the bridge node say, with a planner node that somebody else has started.

    Args:
        arguments: command line after the program, with ROS arguments.
    """
    start_ros(arguments)
    try:
        node = BridgeNode()
        values = {
            name: node.declare_parameter(name, default).value
            for name, default in (("routes", str(DEMO_ROUTES)), ("checkpoint", "random"), ("latency", "lockstep"),
                                  ("out", str(default_out())), ("carla", ""), ("seed", 0), ("plan_wait_s", 5.0))
        }
        choice = replace(AgentChoice.parse(values["checkpoint"], "ros"), kind="external")
        config = DriveConfig(
            routes=Path(values["routes"]), agent=choice, out=Path(values["out"]),
            latency=LatencyMode.parse(values["latency"]), carla=values["carla"], seed=values["seed"],
            patience=Patience(wait_s=values["plan_wait_s"]),
        )
        return int(Drive(config, load_routes(config.routes)).run(node).exit_code)
    finally:
        rclpy.try_shutdown()


def main() -> int:
    """Drive; the exit code is that of `wamdiff2 closed-loop`."""
    return exit_code_of(lambda: drive_from_parameters(sys.argv[1:]))


if __name__ == "__main__":
    end_process(main())
