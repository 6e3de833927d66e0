"""The planner alone: remap its inputs to the vehicle's topics, such as image:=/sensing/camera/front/image_raw."""

from wamdiff2_ros.launch_setup import PLANNER, launch_description


def generate_launch_description():
    return launch_description(PLANNER)
