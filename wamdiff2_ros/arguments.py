"""Command lines of nodes: ROS arguments, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.utilities import remove_ros_args

from wamdiff2_core.errors import UserError, did_you_mean


def refuse_all_but_ros(arguments: Sequence[str], options: Sequence[str] = ()) -> None:
    """Refuse what rclpy would pass over in silence.

    Args:
        arguments: command line behind the program's name, without the options that the program has taken for itself.
        options: those options, for a suggestion.

    Raises:
        UserError: something stands outside of `--ros-args`; malformed ROS arguments raise rclpy's own errors.
    """
    unknown = remove_ros_args(["", *arguments])[1:]
    if unknown:
        raise UserError("arguments", "options of the command, and ROS arguments behind --ros-args", " ".join(unknown),
                        did_you_mean(unknown[0].partition("=")[0], [*options, "--ros-args"]))
