"""What the launch files start, as plain data.

Launch files only hand this to ROS launch, so what can be wrong in them is checked by tests that need no launch package:
the same data gives the exact command line of each node. Values are templates: `{image}` stands for the value of the
launch argument `image`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

PACKAGE = "wamdiff2"
CONFIG = Path(__file__).resolve().parent / "config"
PARAMETERS_FILE = CONFIG / "planner.yaml"
FASTDDS_PROFILE = CONFIG / "fastdds_large_images.xml"
FASTDDS_VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"


@dataclass(frozen=True)
class Argument:
    """An argument of a launch file."""

    name: str
    default: str
    description: str


@dataclass(frozen=True)
class NodeSetup:
    """One node of a launch file; every text is a template over the arguments.

    Attributes:
        executable: program in lib/wamdiff2, also the default name of the node.
        name: name of the node.
        namespace: its namespace.
        parameters: parameter name -> value; strings stay strings, whatever they look like.
        flags: parameter name -> value that ROS reads as YAML (numbers, booleans).
        parameters_file: YAML file, read before `parameters`; empty for none.
        remappings: (name in the node, name in the graph).
        ends_launch: whether everything ends when this node ends.
    """

    executable: str
    name: str
    namespace: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    parameters_file: str = ""
    remappings: tuple[tuple[str, str], ...] = ()
    ends_launch: bool = False

    def templates(self) -> list[str]:
        """All texts that may name arguments."""
        return [self.name, self.namespace, self.parameters_file, *self.parameters.values(), *self.flags.values(),
                *(target for _, target in self.remappings)]

    def ros_arguments(self, values: Mapping[str, str]) -> list[str]:
        """The node's command line after the program, for these argument values."""
        arguments = ["--ros-args", "-r", f"__node:={self.name.format_map(values)}",
                     "-r", f"__ns:=/{self.namespace.format_map(values).strip('/')}"]
        for source, target in self.remappings:
            arguments += ["-r", f"{source}:={target.format_map(values)}"]
        if self.parameters_file:
            arguments += ["--params-file", self.parameters_file.format_map(values)]
        for name, value in self.parameters.items():
            quoted = value.format_map(values).replace("\\", "\\\\").replace('"', '\\"')
            arguments += ["-p", f'{name}:="{quoted}"']
        for name, value in self.flags.items():
            arguments += ["-p", f"{name}:={value.format_map(values)}"]
        return arguments


@dataclass(frozen=True)
class LaunchSetup:
    """A launch file: its arguments, its environment variables and its nodes."""

    arguments: tuple[Argument, ...]
    nodes: tuple[NodeSetup, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def defaults(self) -> dict[str, str]:
        """Argument values when none are given."""
        return {argument.name: argument.default for argument in self.arguments}

    def used_arguments(self) -> set[str]:
        """Names of the arguments that some template takes."""
        texts = [text for node in self.nodes for text in node.templates()] + list(self.environment.values())
        return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


PLANNER_ARGUMENTS = (
    Argument("checkpoint", "", "checkpoint folder, or 'random'"),
    Argument("params_file", str(PARAMETERS_FILE), "parameters of the planner node, YAML"),
    Argument("namespace", "wamdiff2", "namespace of the nodes"),
    Argument("device", "cpu", "torch device of the model"),
    Argument("image_transport", "raw", "'raw' or 'compressed'"),
)
FASTDDS_ARGUMENT = Argument("fastdds_profile", str(FASTDDS_PROFILE), "Fast DDS profile; this one carries large images")

_PLANNER_PARAMETERS = {"planner": "{checkpoint}", "device": "{device}", "image_transport": "{image_transport}"}

PLANNER = LaunchSetup(
    arguments=(
        *PLANNER_ARGUMENTS,
        Argument("use_sim_time", "false", "take time from /clock"),
        Argument("image", "~/input/image", "camera topic; with compressed transport, the part before /compressed"),
        Argument("camera_info", "~/input/camera_info", "camera information topic"),
        Argument("odometry", "~/input/odometry", "odometry topic (twist in base_link)"),
        Argument("navigation", "~/input/navigation", "navigation topic (targets and command)"),
        FASTDDS_ARGUMENT,
    ),
    nodes=(
        NodeSetup(
            executable="planner_node",
            name="planner",
            namespace="{namespace}",
            parameters_file="{params_file}",
            parameters=_PLANNER_PARAMETERS,
            flags={"use_sim_time": "{use_sim_time}"},
            remappings=(
                ("~/input/image", "{image}"),
                ("~/input/image/compressed", "{image}/compressed"),
                ("~/input/camera_info", "{camera_info}"),
                ("~/input/odometry", "{odometry}"),
                ("~/input/navigation", "{navigation}"),
            ),
        ),
    ),
    environment={FASTDDS_VARIABLE: "{fastdds_profile}"},
)

# The planner fed by the bridge: equal stamps and no lost sample, so that a lockstep drive does not depend on timing.
PLANNER_ON_BRIDGE = NodeSetup(
    executable="planner_node",
    name="planner",
    namespace="{namespace}",
    parameters_file="{params_file}",
    parameters=_PLANNER_PARAMETERS,
    flags={"use_sim_time": "true", "reliable_inputs": "true", "sync_tolerance_s": "0.0"},
    remappings=(
        ("~/input/image", "/{namespace}/bridge/front/image"),
        ("~/input/image/compressed", "/{namespace}/bridge/front/image/compressed"),
        ("~/input/camera_info", "/{namespace}/bridge/front/camera_info"),
        ("~/input/odometry", "/{namespace}/bridge/odometry"),
        ("~/input/navigation", "/{namespace}/bridge/navigation"),
    ),
)


def launch_description(setup: LaunchSetup) -> Any:
    """The `launch.LaunchDescription` of a setup; needs the launch and launch_ros packages of a ROS installation."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, SetEnvironmentVariable, Shutdown
    from launch.substitutions import LaunchConfiguration, TextSubstitution
    from launch_ros.actions import Node
    from launch_ros.parameter_descriptions import ParameterValue

    def substitute(template: str) -> list[Any]:
        parts: list[Any] = []
        for text, name, _, _ in Formatter().parse(template):
            parts += [TextSubstitution(text=text)] if text else []
            parts += [LaunchConfiguration(name)] if name else []
        return parts

    def node(spec: NodeSetup) -> Node:
        values = {name: ParameterValue(substitute(text), value_type=str) for name, text in spec.parameters.items()}
        values |= {name: ParameterValue(substitute(text)) for name, text in spec.flags.items()}
        files = [substitute(spec.parameters_file)] if spec.parameters_file else []
        return Node(
            package=PACKAGE,
            executable=spec.executable,
            name=substitute(spec.name),
            namespace=substitute(spec.namespace),
            parameters=[*files, values] if values else files,
            remappings=[(source, substitute(target)) for source, target in spec.remappings],
            on_exit=Shutdown() if spec.ends_launch else None,
            output="screen",
        )

    return LaunchDescription(
        [DeclareLaunchArgument(a.name, default_value=a.default, description=a.description) for a in setup.arguments]
        + [SetEnvironmentVariable(name, substitute(value)) for name, value in setup.environment.items()]
        + [node(spec) for spec in setup.nodes]
    )
