"""`wamdiff2 node`: the planner node without a ROS installation or launch file."""

from __future__ import annotations

import json
from typing import Annotated

import typer

node = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@node.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_node(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint folder, or 'random'.")] = "",
) -> int:
    """Run the planner node until Ctrl-C; what follows --ros-args goes to ROS, such as --ros-args -r __ns:=/ego."""
    from wamdiff2_ros.planner_node import run

    arguments = ["wamdiff2", *context.args]
    if checkpoint:
        arguments += ["--ros-args", "-p", f"planner:={json.dumps(checkpoint)}"]  # ROS reads the value as YAML
    return run(arguments, options=["--checkpoint"])
