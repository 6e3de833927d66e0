"""The pip side of a tree that is also an ament_cmake package.

`pip install .` is pure Python. With WAMDIFF2_ROS=1 the same CMakeLists.txt that colcon runs also builds msg/ and srv/
against the ROS 2 wheels, and everything it installs goes under `sys.prefix`, where those wheels have their own tree.
colcon never runs this file; it reads package.xml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Distribution, find_packages, setup

ROOT = Path(__file__).resolve().parent
# A wheel may go to any environment: the nodes are in its lib/wamdiff2, beside its bin.
NODE_PYTHON = '$(dirname "$(readlink -f "$0")")/../../bin/python3'
WITH_ROS = os.environ.get("WAMDIFF2_ROS") == "1"
BUILDING = not {"bdist_wheel", "editable_wheel", "build", "install"}.isdisjoint(sys.argv)


def ros_prefix() -> Path:
    """Prefix of the ROS 2 wheels: the virtual environment, or pip's overlay under build isolation."""
    import rosidl_generator_py

    for folder in Path(rosidl_generator_py.__file__).resolve().parents:
        if (folder / "share" / "ament_cmake").is_dir():
            return folder
    raise SystemExit("ROS 2 build wheels: no share/ament_cmake above rosidl_generator_py; install the [rosbuild] extra")


def build_ros_tree() -> list[tuple[str, list[str]]]:
    """Configure, build and install with CMake; return the installed files as setuptools `data_files`."""
    work = ROOT / "build" / f"pip-{sysconfig.get_python_version()}"
    stage = work / "install"
    prefix = str(ros_prefix())
    environment = os.environ | {
        "CMAKE_PREFIX_PATH": prefix,
        "AMENT_PREFIX_PATH": prefix,
        # make starts the generators as programs of their own: they need this process's packages, not a re-exec.
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1",
    }

    def cmake(*arguments: str) -> None:
        subprocess.run(["cmake", *arguments], check=True, env=environment, stdout=sys.stderr)

    shutil.rmtree(stage, ignore_errors=True)
    cmake("-S", str(ROOT), "-B", str(work), f"-DCMAKE_INSTALL_PREFIX={stage}", "-DCMAKE_BUILD_TYPE=Release",
          "-DBUILD_TESTING=OFF", "-DWAMDIFF2_INSTALL_PYTHON=OFF", f"-DWAMDIFF2_NODE_PYTHON={NODE_PYTHON}",
          f"-DPython3_EXECUTABLE={sys.executable}")
    cmake("--build", str(work), "--parallel", str(os.cpu_count() or 1))
    cmake("--install", str(work))

    # The generator's own egg-info would stand beside pip's dist-info under the same project name.
    unwanted = (".egg-info", "__pycache__")
    files = [path.relative_to(stage) for path in sorted(stage.rglob("*")) if path.is_file()]
    kept = [path for path in files if path.parts[0] != "include" and not any(p.endswith(unwanted) for p in path.parts)]
    return [(str(path.parent), [os.path.relpath(stage / path, ROOT)]) for path in kept]


class RosDistribution(Distribution):
    """A distribution that is bound to a platform when it holds the compiled messages."""

    def has_ext_modules(self) -> bool:
        return WITH_ROS

    def has_data(self) -> bool:
        """Make an editable install put `data_files` in place too: setuptools asks for this name there."""
        return bool(self.data_files)


extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
setup(
    packages=find_packages(include=["wamdiff2_core*", "wamdiff2_ros*", "training*", "carla_bridge*"]),
    data_files=build_ros_tree() if WITH_ROS and BUILDING else [],
    distclass=RosDistribution,
    # pip asks for these under build isolation, so that a plain install never pulls ROS.
    setup_requires=extras["rosbuild"] if WITH_ROS else [],
)
