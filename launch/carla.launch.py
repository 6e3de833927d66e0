"""The planner and the bridge to a CARLA server, wired to each other."""

from wamdiff2_ros.launch_setup import CARLA, launch_description


def generate_launch_description():
    return launch_description(CARLA)
