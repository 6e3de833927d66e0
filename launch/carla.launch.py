"""The planner and the bridge to a CARLA server, wired to each other."""

from carla_bridge.launch_setup import CARLA
from wamdiff2_ros.launch_setup import launch_description


def generate_launch_description():
    return launch_description(CARLA)
