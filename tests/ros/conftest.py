"""Real ROS 2 nodes in processes of their own, on a domain that no other test run uses."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Pose2D

SCRIPTED_NODE = Path(__file__).with_name("scripted_node.py")


@pytest.fixture(scope="session")
def ros_domain() -> Iterator[int]:
    """A domain id, held by a file lock against other test runs on this machine; discovery stays on this machine."""
    pytest.importorskip("rclpy", reason="needs the [ros] extra")
    pytest.importorskip("wamdiff2.msg", reason="needs the built messages: WAMDIFF2_ROS=1 pip install")
    for domain in random.SystemRandom().sample(range(1, 102), 101):
        lock = (Path(tempfile.gettempdir()) / f"ros_domain_{domain}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        with lock, pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROS_DOMAIN_ID", str(domain))
            patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
            yield domain
        return
    pytest.fail("no free ROS domain")


def ros_child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for a child that starts Python anew: without what the ROS wheels set for this process only."""
    private = ("_ROS_WHEELS_BOOTSTRAP_COMPLETE", "LD_LIBRARY_PATH")
    return {k: v for k, v in os.environ.items() if k not in private} | {"OMP_NUM_THREADS": "1"} | dict(extra or {})


class NodeProcess:
    """A node under test; its output is kept."""

    def __init__(self, command: Sequence[str], extra_environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(command), env=ros_child_environment(extra_environment), cwd=tempfile.gettempdir(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait(self, timeout_s: float = 30.0) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(5.0)
        return code

    def end(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        return self.wait()


@pytest.fixture
def start_node(ros_domain: int) -> Iterator[Callable[..., NodeProcess]]:
    """Start a command line as a node; what still runs at the end is killed."""
    nodes: list[NodeProcess] = []

    def start(*command: str, **environment: str) -> NodeProcess:
        nodes.append(NodeProcess(command, environment))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.wait()


@pytest.fixture
def start_scripted(start_node: Callable[..., NodeProcess]) -> Callable[..., NodeProcess]:
    """Start the real planner node around a planner whose answers and delays the environment sets."""

    def start(*ros_arguments: str, **environment: str) -> NodeProcess:
        arguments = ros_arguments or ("--ros-args", "-p", "planner:=scripted")
        return start_node(sys.executable, str(SCRIPTED_NODE), *arguments, **environment)

    return start


class Peer:
    """The other side of a planner node's topics."""

    def __init__(self, domain: int, planner: str = "/wamdiff2/planner") -> None:
        import rclpy
        from diagnostic_msgs.msg import DiagnosticArray
        from nav_msgs.msg import Odometry, Path
        from rclpy.executors import SingleThreadedExecutor
        from sensor_msgs.msg import CameraInfo, CompressedImage, Image
        from std_msgs.msg import Bool
        from wamdiff2.msg import Navigation, Plan

        from wamdiff2_ros import qos

        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("peer", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.plans: list[Plan] = []
        self.paths: list[Path] = []
        self.ready: list[bool] = []
        self.diagnostics: list[DiagnosticArray] = []
        inputs = f"{planner}/input"
        self.image = self.node.create_publisher(Image, f"{inputs}/image", qos.RELIABLE)
        self.compressed = self.node.create_publisher(CompressedImage, f"{inputs}/image/compressed", qos.RELIABLE)
        self.camera_info = self.node.create_publisher(CameraInfo, f"{inputs}/camera_info", qos.RELIABLE)
        self.odometry = self.node.create_publisher(Odometry, f"{inputs}/odometry", qos.RELIABLE)
        self.navigation = self.node.create_publisher(Navigation, f"{inputs}/navigation", qos.RELIABLE)
        self.node.create_subscription(Plan, f"{planner}/output/plan", self.plans.append, qos.RELIABLE)
        self.node.create_subscription(Path, f"{planner}/output/path", self.paths.append, qos.RELIABLE)
        self.node.create_subscription(Bool, f"{planner}/output/ready", lambda m: self.ready.append(m.data), qos.LATCHED)
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self.diagnostics.append, qos.RELIABLE)

    def spin_until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return True
            self.executor.spin_once(timeout_sec=0.02)
        return bool(condition())

    def spin_for(self, seconds: float) -> None:
        self.spin_until(lambda: False, seconds)

    def wait_ready(self, image_topic: str = "image") -> None:
        publishers = (getattr(self, image_topic), self.odometry, self.navigation)
        assert self.spin_until(
            lambda: self.ready[-1:] == [True] and all(p.get_subscription_count() for p in publishers)
        ), "node never became ready"

    def send_partners(self, stamp_ns: int, speed_mps: float = 5.0) -> None:
        from wamdiff2_ros import conversions

        ego = EgoState(np.array([speed_mps, 0.0]), map_from_base=Pose2D(10.0, -3.0, 0.4), stamp_ns=stamp_ns)
        self.odometry.publish(conversions.ego_to_msg(ego))
        targets = Navigation(np.array([[10.0, 0.5], [20.0, 2.0]]))
        self.navigation.publish(conversions.navigation_to_msg(targets, stamp_ns))

    def send_image(self, stamp_ns: int, width: int = 64, height: int = 32) -> None:
        from wamdiff2_ros import conversions

        frame = CameraFrame(np.full((height, width, 3), 90, np.uint8), stamp_ns)
        self.image.publish(conversions.image_to_msg(frame, "front_optical"))

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture
def peer(ros_domain: int) -> Iterator[Peer]:
    """Publishes the planner's inputs and collects its outputs."""
    peer = Peer(ros_domain)
    yield peer
    peer.close()
