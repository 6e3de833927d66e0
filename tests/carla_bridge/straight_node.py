"""The real planner node around a planner that drives straight on at 6 m/s."""

from __future__ import annotations

import sys

from tests.carla_bridge.drive_doubles import straight_plan
from wamdiff2_core.types import Observation, Plan
from wamdiff2_ros.planner_node import run


class StraightPlanner:
    """Answers every observation alike."""

    record = None
    rig = ()

    def warm_up(self) -> None:
        """Nothing to warm."""

    def plan(self, observation: Observation) -> Plan:
        """Straight on."""
        return straight_plan(observation.stamp_ns)


if __name__ == "__main__":
    sys.exit(run(make=lambda settings: StraightPlanner()))
