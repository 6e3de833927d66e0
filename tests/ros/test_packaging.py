"""What pip and colcon make of a clean checkout."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wamdiff2_core", "wamdiff2_ros", "training", "carla_bridge")
BUILT_FROM = (*PACKAGES, "launch", "msg", "srv")
NODES = ("planner_node", "bridge_node")


def run(command, cwd, **environment):
    """Run to the end, in an environment that lets Python start anew."""
    private = ("_ROS_WHEELS_BOOTSTRAP_COMPLETE", "LD_LIBRARY_PATH")
    env = {k: v for k, v in os.environ.items() if k not in private} | environment
    done = subprocess.run(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Files under version control that a build reads, as they stand in the working tree."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    files = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return [name for name in files if "/" not in name or name.startswith(tuple(f"{folder}/" for folder in BUILT_FROM))]


@pytest.fixture
def checkout(tracked, tmp_path) -> Path:
    """A copy of the tracked files: what is only lying about is not there."""
    for name in tracked:
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return tmp_path / "checkout"


def build_wheel(checkout: Path, **environment: str) -> zipfile.ZipFile:
    folder = checkout.parent / "wheels"
    options = ("--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder))
    run([sys.executable, "-m", "pip", "wheel", *options, "."], checkout, **environment)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_wheel_holds_code_data_launch_files_parameters_messages_and_nodes(checkout, tracked):
    pytest.importorskip("rosidl_generator_py", reason="needs the [rosbuild] extra")
    wheel = build_wheel(checkout, WAMDIFF2_ROS="1")
    names = set(wheel.namelist())
    assert {name for name in tracked if name.startswith(PACKAGES)} - names == set()
    in_prefix = {name.partition(".data/data/")[2]: name for name in names}
    share = "share/wamdiff2"
    wanted = {f"{share}/{name}" for name in tracked if name.endswith((".launch.py", ".msg", ".srv"))}
    wanted |= {f"{share}/config/planner.yaml", f"{share}/config/fastdds_large_images.xml", f"{share}/package.xml"}
    wanted |= {f"lib/wamdiff2/{node}" for node in NODES}
    wanted.add("share/ament_index/resource_index/packages/wamdiff2")
    assert wanted - set(in_prefix) == set()
    for message in ("plan", "navigation", "waypoint"):
        assert any(name.endswith(f"site-packages/wamdiff2/msg/_{message}.py") for name in names)
    assert any(name.startswith("lib/libwamdiff2__rosidl_typesupport_fastrtps_c.so") for name in in_prefix)
    for node in NODES:
        assert wheel.getinfo(in_prefix[f"lib/wamdiff2/{node}"]).external_attr >> 16 & stat.S_IXUSR
    assert not any(".egg-info" in name for name in names)


@pytest.mark.slow
def test_plain_wheel_is_pure_python(checkout):
    wheel = build_wheel(checkout, WAMDIFF2_ROS="0")
    assert wheel.filename.endswith("py3-none-any.whl")
    assert not any(name.startswith("wamdiff2/") or name.endswith(".so") for name in wheel.namelist())


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_colcon_builds_the_checkout_and_its_planner_node_answers(checkout, tmp_path, start_node, peer):
    for tool in ("colcon_core", "colcon_ros", "colcon_cmake"):
        pytest.importorskip(tool, reason="needs the [dev] extra")
    install = tmp_path / "install"
    prefix = {"CMAKE_PREFIX_PATH": sys.prefix, "AMENT_PREFIX_PATH": sys.prefix}
    cmake = ("--cmake-args", "-DBUILD_TESTING=OFF", f"-DPython3_EXECUTABLE={sys.executable}")
    command = [sys.executable, "-c", "import sys; from colcon_core.command import main; sys.exit(main())"]
    command += ["--log-base", str(tmp_path / "log"), "build", "--merge-install", "--base-paths", str(checkout)]
    command += ["--build-base", str(tmp_path / "build"), "--install-base", str(install), *cmake]
    run(command, tmp_path, **prefix)

    setup = f'COLCON_CURRENT_PREFIX="{install}" . "{install}/local_setup.sh" && exec'
    probe = "import wamdiff2_ros, wamdiff2; print(wamdiff2_ros, wamdiff2)"
    where = run(["sh", "-c", f'{setup} "{sys.executable}" -P -c "{probe}"'], tmp_path)
    assert where.count(str(install)) == 2
    (entry_points,) = install.rglob("entry_points.txt")  # the prefix's own, not the environment's
    assert "closed-loop = carla_bridge.closed_loop:closed_loop" in entry_points.read_text()
    commands = run(["sh", "-c", f'{setup} "{install}/bin/wamdiff2" --help'], tmp_path)
    assert {"node", "predict", "train", "closed-loop"} <= set(commands.split())
    node = start_node("sh", "-c", f'{setup} "{install}/lib/wamdiff2/planner_node" --ros-args -p planner:=random')
    peer.wait_ready()
    peer.send_partners(10**9)
    peer.send_image(10**9)
    assert peer.spin_until(lambda: peer.plans), node.output
    assert node.end() == 0


def test_torchvision_is_absent():
    # transformers would prefer its image processor, whose resize gives other pixels than the weights were trained on.
    assert find_spec("torchvision") is None


def test_no_requirement_is_the_ros_1_cv_bridge_or_torchvision():
    names = {requirement.split(";")[0].strip().lower() for requirement in metadata.requires("wamdiff2") or []}
    assert not any(name.startswith(("cv-bridge", "cv_bridge", "torchvision")) for name in names)


def test_every_command_is_registered_and_can_be_loaded():
    commands = {entry.name: entry for entry in metadata.entry_points(group="wamdiff2.commands")}
    for name in ("predict", "doctor", "node", "server", "town", "collect", "closed-loop", "train", "tokenizer"):
        assert name in commands
    for entry in commands.values():
        assert find_spec(entry.module) is not None, entry


def test_package_xml_declares_what_the_nodes_import():
    import ast
    import re

    declared = set(re.findall(r"depend>([\w-]+)</", (ROOT / "package.xml").read_text()))
    messages = {f"{name}_msgs" for name in ("sensor", "nav", "geometry", "diagnostic", "visualization")}
    assert {"rclpy", "cv_bridge", *messages} <= declared
    for folder in ("wamdiff2_ros", "carla_bridge"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                for module in {name.partition(".")[0] for name in modules}:
                    if module.endswith(("_msgs", "_interfaces")) or module in ("rclpy", "launch", "launch_ros"):
                        assert module in declared, f"{file} imports {module}"
