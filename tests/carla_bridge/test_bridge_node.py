"""The bridge node, seen by another ROS participant."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs the [ros] extra")
pytest.importorskip("wamdiff2.msg", reason="needs the built messages: WAMDIFF2_ROS=1 pip install")
pytest.importorskip("carla", reason="needs the carla client library")

import rclpy
from nav_msgs.msg import Odometry, Path
from rclpy.executors import SingleThreadedExecutor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, NavSatFix
from std_msgs.msg import Bool
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg

from carla_bridge.agents.bridge_node import BridgeNode, start_ros
from carla_bridge.client.measurements import GnssReading, ImuReading, SimulationFrame
from carla_bridge.drive.run_setup import choose_ros_domain
from tests.carla_bridge.drive_doubles import straight_plan, straight_route
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Pose2D
from wamdiff2_ros import conversions, qos

pytestmark = [pytest.mark.ros, pytest.mark.carla]

T0_NS = 3_250_000_000
BRIDGE, PLANNER = "/wamdiff2/bridge", "/wamdiff2/planner"


@pytest.fixture
def domain(monkeypatch):
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_DOMAIN_ID", "")  # so that whatever is chosen is undone
    monkeypatch.delenv("ROS_DOMAIN_ID")
    choose_ros_domain(keep=False)


@pytest.fixture
def start_bridge(domain):
    nodes = []

    def start(*arguments):
        start_ros(arguments)
        nodes.append(BridgeNode())
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()
    rclpy.try_shutdown()


class Listener:
    """Another participant, spun by a thread of its own, in the planner's place."""

    TOPICS = (
        (Image, "front/image"), (CompressedImage, "front/image/compressed"), (CameraInfo, "front/camera_info"),
        (Odometry, "odometry"), (Imu, "imu"), (NavSatFix, "gnss"), (NavigationMsg, "navigation"),
    )

    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node("listener", context=self.context)
        self.got = []
        for kind, name in self.TOPICS:
            self.node.create_subscription(kind, f"{BRIDGE}/{name}", self.keep(name), qos.RELIABLE)
        self.node.create_subscription(Clock, "/clock", self.keep("clock"), qos.RELIABLE)
        self.node.create_subscription(Path, f"{BRIDGE}/route", self.keep("route"), qos.LATCHED)
        self.node.create_subscription(Path, "/nowhere", self.keep("nowhere"), qos.LATCHED)
        self.plan = self.node.create_publisher(PlanMsg, f"{PLANNER}/output/plan", qos.RELIABLE)
        self.ready = self.node.create_publisher(Bool, f"{PLANNER}/output/ready", qos.LATCHED)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()

    def keep(self, name):
        return lambda message: self.got.append((name, message))

    def names(self):
        return [name for name, _ in list(self.got)]

    def last(self, name):
        return next(message for other, message in reversed(list(self.got)) if other == name)

    def wait_for(self, condition, timeout_s=10.0):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def close(self):
        self.executor.shutdown()
        self.context.try_shutdown()
        self.thread.join(5.0)


@pytest.fixture
def listener(domain):
    listener = Listener()
    yield listener
    listener.close()


def frame(stamp_ns=T0_NS):
    rgb = np.arange(128 * 256 * 3, dtype=np.uint32).astype(np.uint8).reshape(128, 256, 3)
    return SimulationFrame(
        frame=65, stamp_ns=stamp_ns,
        ego=EgoState(np.array([5.0, 0.25]), np.zeros(2), 0.3, Pose2D(12.0, -7.0, 0.5), stamp_ns),
        images={"front": CameraFrame(rgb, stamp_ns)},
        imu=ImuReading(np.array([0.1, 0.2, 9.8]), np.array([0.0, 0.0, 0.3]), 0.5),
        gnss=GnssReading(48.5, 9.25, 310.0),
    )


NAVIGATION = Navigation(np.array([[10.0, 1.0], [18.0, 5.0]]), NavCommand.LEFT)


def matched(bridge, listener):
    """Wait until both sides see each other, as a drive does."""
    listener.ready.publish(Bool(data=True))
    bridge.wait_for_planner(lambda: True, 20.0)
    assert listener.wait_for(lambda: listener.node.count_publishers(f"{BRIDGE}/front/image") > 0
                             and listener.plan.get_subscription_count() > 0)


def test_everything_of_a_frame_carries_its_stamp_and_its_values(start_bridge, listener):
    bridge = start_bridge()
    matched(bridge, listener)
    bridge.publish_tick(frame())
    bridge.send(frame(), NAVIGATION)
    wanted = {name for _, name in Listener.TOPICS} | {"clock"}
    assert listener.wait_for(lambda: wanted <= set(listener.names())), wanted - set(listener.names())
    for _, name in Listener.TOPICS:
        assert conversions.stamp_to_ns(listener.last(name).header.stamp) == T0_NS, name
    assert conversions.stamp_to_ns(listener.last("clock").clock) == T0_NS
    odometry = listener.last("odometry")
    assert (odometry.header.frame_id, odometry.child_frame_id) == ("map", "base_link")
    pose = conversions.ego_from_msg(odometry).map_from_base
    assert (pose.x_m, pose.y_m, pose.yaw_rad) == pytest.approx((12.0, -7.0, 0.5))
    assert conversions.ego_from_msg(odometry).velocity_mps.tolist() == [5.0, 0.25]
    assert np.array_equal(conversions.image_from_msg(listener.last("front/image")).rgb, frame().images["front"].rgb)
    assert conversions.compressed_from_msg(listener.last("front/image/compressed")).rgb.shape == (128, 256, 3)
    assert listener.last("front/camera_info").k[0] == pytest.approx(128.0)
    navigation = conversions.navigation_from_msg(listener.last("navigation"))
    assert navigation.command is NavCommand.LEFT
    assert navigation.targets_m.tolist() == NAVIGATION.targets_m.tolist()
    imu, gnss = listener.last("imu"), listener.last("gnss")
    assert imu.linear_acceleration.z == 9.8
    assert imu.angular_velocity.z == 0.3
    assert conversions.yaw_from_quaternion(imu.orientation) == pytest.approx(0.5)
    assert (gnss.latitude, gnss.longitude, gnss.altitude) == (48.5, 9.25, 310.0)


def test_only_the_plan_of_the_frame_ends_the_wait_and_its_latency_counts_from_sending(start_bridge, listener):
    bridge = start_bridge()
    matched(bridge, listener)
    bridge.send(frame(), NAVIGATION)
    for after_s, stamp_ns in ((0.2, T0_NS - 250_000_000), (0.6, T0_NS)):
        message = conversions.plan_to_msg(straight_plan(stamp_ns))
        threading.Timer(after_s, listener.plan.publish, [message]).start()
    answer = bridge.wait(T0_NS, 20.0)
    assert answer is not None
    assert answer.plan.stamp_ns == T0_NS
    assert answer.plan.waypoints.xy_m[0].tolist() == [3.0, 0.0]
    assert 0.55e9 < answer.wall_ns < 10e9
    assert bridge.heard() == 2


@pytest.mark.parametrize("line", [["--bogus"], ["--ros-args", "-r", "/a:=/b", "--", "--bogus"]])
def test_what_is_no_ros_argument_is_refused(domain, line):
    with pytest.raises(UserError, match="got --bogus"):
        start_ros(line)


def test_no_plan_is_awaited_once_the_server_has_ended(start_bridge):
    bridge = start_bridge()
    bridge.server_fault = lambda: "embedded server was ended by SIGKILL"
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="embedded server was ended by SIGKILL"):
        bridge.wait(T0_NS, 20.0)
    assert time.monotonic() - began < 2.0


def test_wait_for_a_silent_planner_lasts_as_long_as_told(start_bridge, listener):
    bridge = start_bridge()
    bridge.send(frame(), NAVIGATION)
    started = time.monotonic()
    assert bridge.wait(T0_NS, 0.5) is None
    assert 0.5 <= time.monotonic() - started < 3.0


def test_plan_that_cannot_be_understood_is_dropped(start_bridge, listener):
    bridge = start_bridge()
    matched(bridge, listener)
    broken = conversions.plan_to_msg(straight_plan(T0_NS))
    broken.dt_s = 0.0
    bridge.send(frame(), NAVIGATION)
    listener.plan.publish(broken)
    assert bridge.wait(T0_NS, 1.5) is None
    assert bridge.heard() == 1


def test_route_is_latched_for_late_listeners(start_bridge):
    bridge = start_bridge()
    bridge.show_route(straight_route())
    late = Listener()
    try:
        assert late.wait_for(lambda: "route" in late.names())
        path = late.last("route")
    finally:
        late.close()
    assert path.header.frame_id == "map"
    assert [pose.pose.position.x for pose in path.poses[:3]] == [0.0, 1.0, 2.0]


def test_user_can_remap_the_route_away(start_bridge, listener):
    bridge = start_bridge("--ros-args", "-r", f"{BRIDGE}/route:=/nowhere")
    bridge.show_route(straight_route())
    assert listener.wait_for(lambda: "nowhere" in listener.names())
    assert "route" not in listener.names()


def test_planner_that_ends_or_never_gets_ready_is_reported(start_bridge, domain):
    bridge = start_bridge()
    with pytest.raises(InfrastructureError, match="ended before it was ready"):
        bridge.wait_for_planner(lambda: False, 20.0)
    with pytest.raises(InfrastructureError, match=r"not ready after 0\.3 s"):
        bridge.wait_for_planner(lambda: True, 0.3)


def test_wrong_ros_arguments_are_the_users_error(domain):
    with pytest.raises(UserError, match="ROS arguments"):
        start_ros(["--ros-args", "-r", "no rule"])
    assert not rclpy.ok()
