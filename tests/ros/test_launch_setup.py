"""Launch files, parameter files and remappings against the nodes they start.

ROS launch is not on the package index, so the launch files' data is checked here, with the real nodes started by
exactly the command lines that the data gives. Where launch is installed, the last test runs a launch file itself.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

import pytest
import yaml

from carla_bridge.launch_setup import CARLA
from wamdiff2_ros import launch_setup
from wamdiff2_ros.launch_setup import PLANNER, LaunchSetup, NodeSetup

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]
SETUPS = {"planner.launch.py": PLANNER, "carla.launch.py": CARLA}
ROS_PARAMETERS = {"use_sim_time", "start_type_description_service"}  # every node has them
EXECUTABLES = Path(sys.prefix) / "lib" / "wamdiff2"


@pytest.fixture(params=SETUPS)
def setup(request) -> LaunchSetup:
    return SETUPS[request.param]


def test_every_launch_file_hands_over_its_setup():
    files = sorted((ROOT / "launch").glob("*.launch.py"))
    assert {file.name for file in files} == set(SETUPS)
    for file in files:
        tree = ast.parse(file.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert [call.func.id for call in calls] == ["launch_description"]
        name = calls[0].args[0].id
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        (module,) = [node.module for node in imports if name in {alias.name for alias in node.names}]
        assert getattr(importlib.import_module(module), name) is SETUPS[file.name]
        assert "generate_launch_description" in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_every_argument_is_used_and_every_used_one_is_declared(setup):
    declared = [argument.name for argument in setup.arguments]
    assert len(declared) == len(set(declared))
    assert set(declared) == setup.used_arguments()
    assert all(argument.description for argument in setup.arguments)


def test_every_executable_is_installed(setup):
    for node in setup.nodes:
        program = EXECUTABLES / node.executable
        assert os.access(program, os.X_OK), program


def test_default_files_exist(setup):
    for name in ("params_file", "fastdds_profile"):
        assert Path(setup.defaults()[name]).is_file()


@pytest.fixture(scope="module")
def declared_parameters(ros_domain):
    """Parameters that the planner node declares, with their values in a node without overrides."""
    import rclpy

    from wamdiff2_ros import params

    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("probe", context=context)
    params.declare(node)
    declared = {name: parameter.value for name, parameter in node.get_parameters_by_prefix("").items()}
    descriptors = {name: node.describe_parameter(name) for name in declared}
    node.destroy_node()
    context.try_shutdown()
    return declared, descriptors


def test_parameters_file_sets_exactly_the_declared_parameters_to_their_defaults(declared_parameters):
    declared, _ = declared_parameters
    given = yaml.safe_load(launch_setup.PARAMETERS_FILE.read_text())["/**"]["ros__parameters"]
    ours = {name: value for name, value in declared.items() if name not in ROS_PARAMETERS}
    assert given == ours
    assert {n: type(v) for n, v in given.items()} == {n: type(v) for n, v in ours.items()}


def test_every_parameter_is_described_and_bounded(declared_parameters):
    import dataclasses

    from wamdiff2_ros.params import PlannerParameters

    _, descriptors = declared_parameters
    for field in dataclasses.fields(PlannerParameters):
        descriptor = descriptors[field.name]
        assert len(descriptor.description) > 10
        assert descriptor.read_only
        if isinstance(field.default, float):
            low, high = descriptor.floating_point_range[0].from_value, descriptor.floating_point_range[0].to_value
            assert low <= field.default <= high


def node_of(setup: LaunchSetup, executable: str = "planner_node") -> NodeSetup:
    return next(node for node in setup.nodes if node.executable == executable)


def test_planner_starts_from_the_exact_arguments_and_every_remapping_and_parameter_takes_hold(
    setup, start_node, peer, declared_parameters
):
    node_setup = node_of(setup)
    declared, _ = declared_parameters
    assert {*node_setup.parameters, *node_setup.flags} <= {*declared, "use_sim_time"}
    seen: set[str] = set()
    for transport in ("raw", "compressed"):
        given = {"checkpoint": "random", "image_transport": transport, "namespace": f"test_{transport}"}
        topics = ("image", "camera_info", "odometry", "navigation")
        values = setup.defaults() | given
        values |= {name: f"/vehicle/{name}" for name in topics if name in values}
        node = start_node(str(EXECUTABLES / "planner_node"), *node_setup.ros_arguments(values))
        namespace = f"/test_{transport}"
        found = {}

        def subscribed(namespace=namespace, found=found):
            try:
                topics = peer.node.get_subscriber_names_and_types_by_node("planner", namespace)
            except Exception:  # the node is not known yet
                return False
            found["topics"] = {name for name, _ in topics}
            return any("navigation" in name for name in found["topics"])

        assert peer.spin_until(subscribed), node.output
        peer.spin_for(0.3)
        subscribed()
        targets = {target.format_map(values) for _, target in node_setup.remappings}
        taken = targets & found["topics"]
        assert len(taken) == len(targets) - 1  # one of the two image topics
        assert not {name for name in found["topics"] if "/input/" in name}, "an input that no remapping reaches"
        seen |= {source for source, target in node_setup.remappings if target.format_map(values) in taken}
        assert node.end() == 0, node.output
        assert "none of that name" not in node.output
    assert seen == {source for source, _ in node_setup.remappings}


def test_default_topics_of_the_planner_are_its_own(start_node, peer):
    values = PLANNER.defaults() | {"checkpoint": "random"}
    node = start_node(str(EXECUTABLES / "planner_node"), *node_of(PLANNER).ros_arguments(values))
    peer.wait_ready()
    peer.send_partners(10**9)
    peer.send_image(10**9)
    assert peer.spin_until(lambda: peer.plans), node.output


def test_strings_of_any_form_reach_the_node_unchanged(ros_domain):
    import rclpy

    from wamdiff2_ros import params

    for text in ("123", "true", "a: b", 'quo"te', "back\\slash", "/with space/x"):
        values = PLANNER.defaults() | {"checkpoint": text, "namespace": "n"}
        context = rclpy.Context()
        rclpy.init(args=["probe", *node_of(PLANNER).ros_arguments(values)], context=context)
        node = rclpy.create_node("planner", context=context)
        assert params.declare(node).planner == text
        node.destroy_node()
        context.try_shutdown()


@pytest.mark.carla
@pytest.mark.slow
def test_bridge_starts_from_the_exact_arguments_and_is_wired_to_the_planner_both_ways(start_node, peer, tmp_path):
    pytest.importorskip("carla", reason="needs the [carla] extra")
    from rcl_interfaces.srv import ListParameters

    bridge = node_of(CARLA, "bridge_node")
    values = CARLA.defaults() | {"checkpoint": "random", "namespace": "test_bridge", "out": str(tmp_path / "run")}
    node = start_node(str(EXECUTABLES / "bridge_node"), *bridge.ros_arguments(values))
    client = peer.node.create_client(ListParameters, "/test_bridge/bridge/list_parameters")
    assert peer.spin_until(client.service_is_ready, 30.0), node.output
    answer = client.call_async(ListParameters.Request())
    assert peer.spin_until(answer.done, 60.0), node.output
    assert {*bridge.parameters, *bridge.flags} <= set(answer.result().result.names)

    wanted_in = {target.format_map(values) for _, target in bridge.remappings}
    wanted_out = {target.format_map(values) for _, target in node_of(CARLA).remappings}

    def wired() -> bool:
        try:
            subscribed = peer.node.get_subscriber_names_and_types_by_node("bridge", "/test_bridge")
            published = peer.node.get_publisher_names_and_types_by_node("bridge", "/test_bridge")
        except Exception:  # services are known before the node's own name is
            return False
        return wanted_in <= {name for name, _ in subscribed} and wanted_out <= {name for name, _ in published}

    assert peer.spin_until(wired), node.output
    node.end()


def test_images_of_megabytes_reach_the_planner_with_the_profile(start_scripted, start_node, peer):
    profile = {launch_setup.FASTDDS_VARIABLE: str(launch_setup.FASTDDS_PROFILE)}
    start_scripted(**profile)
    peer.wait_ready()
    start_node(sys.executable, str(Path(__file__).with_name("large_image_sender.py")), **profile)
    assert peer.spin_until(lambda: len(peer.plans) == 10, 30.0), f"{len(peer.plans)} of 10 images of 2.8 MB arrived"


def test_launch_files_run_under_ros_launch(ros_domain, tmp_path):
    pytest.importorskip("launch_ros", reason="ROS launch is not installed; it comes with a ROS installation only")
    from launch import LaunchDescription, LaunchService
    from launch.actions import EmitEvent, IncludeLaunchDescription, TimerAction
    from launch.events import Shutdown
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    include = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(ROOT / "launch" / "planner.launch.py")),
        launch_arguments={"checkpoint": "random"}.items(),
    )
    service = LaunchService()
    service.include_launch_description(
        LaunchDescription([include, TimerAction(period=5.0, actions=[EmitEvent(event=Shutdown(reason="done"))])])
    )
    assert service.run() == 0
