"""The bridge as a ROS 2 node: sensors and navigation out, plans in.

    ~/front/image, ~/front/image/compressed, ~/front/camera_info   the planner's camera, with every frame that a plan is
                      wanted for; the JPEG only while somebody listens
    ~/odometry        pose in `map`, velocity in base_link, every tick
    ~/imu, ~/gnss     every tick
    ~/navigation      target points and command, stamped like the image
    ~/route           latched Path of the whole route, for display; no planner and no controller reads it
    /clock            simulated time, every tick
    ~/plan            in: plans, matched to images by their stamp
    ~/planner_ready   in, latched: whether the planner is loaded and warm

Everything that belongs to one frame carries its stamp. The node has no thread of its own: it is spun while it waits for
a plan, so nothing arrives behind the drive's back.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import rclpy
from nav_msgs.msg import Odometry, Path
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, NavSatFix, NavSatStatus
from std_msgs.msg import Bool
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg

from carla_bridge.agents.agent import Answer
from carla_bridge.client.measurements import GnssReading, ImuReading, SimulationFrame
from carla_bridge.client.server_watch import Fault, no_fault
from carla_bridge.routes.navigation import RoutePlan
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.types import Navigation, Plan
from wamdiff2_ros import conversions, qos
from wamdiff2_ros.arguments import refuse_all_but_ros

NODE_NAME, NAMESPACE = "bridge", "wamdiff2"
OPTICAL_FRAME, GNSS_FRAME = "front_optical_frame", "gnss"
LONGEST_SPIN_S = 0.2  # Ctrl-C is noticed between spins only


class BridgeNode(Node):
    """Publishes what the simulation shows, and hands over the plans that come back. One per drive.

    Attributes:
        camera: the planner's camera.
        fault: tells what is known about a planner that does not answer.
        server_fault: tells of the simulation server's end, so that no plan is awaited any more.
    """

    def __init__(self, camera: CameraSpec | None = None, fault: Callable[[], str] = lambda: "") -> None:
        """Create the topics.

        Args:
            camera: the planner's camera.
            fault: tells what is known about a planner that does not answer.
        """
        super().__init__(NODE_NAME, namespace=NAMESPACE)
        self.fault = fault
        self.server_fault: Fault = no_fault
        self.camera = camera or CameraSpec()
        self._plans: dict[int, tuple[Plan, int]] = {}
        self._heard = 0
        self._sent_ns: dict[int, int] = {}
        self._planner_ready = False

        def out(kind: type, name: str, profile: QoSProfile = qos.RELIABLE) -> rclpy.publisher.Publisher:
            return self.create_publisher(kind, name, profile)

        self._image = out(Image, "~/front/image")
        self._compressed = out(CompressedImage, "~/front/image/compressed")
        self._camera_info = out(CameraInfo, "~/front/camera_info")
        self._odometry = out(Odometry, "~/odometry")
        self._imu = out(Imu, "~/imu")
        self._gnss = out(NavSatFix, "~/gnss")
        self._navigation = out(NavigationMsg, "~/navigation")
        self._route = out(Path, "~/route", qos.LATCHED)
        self._clock_out = out(Clock, "/clock")
        self.create_subscription(PlanMsg, "~/plan", self._on_plan, qos.RELIABLE)
        self.create_subscription(Bool, "~/planner_ready", self._on_ready, qos.LATCHED)
        self._spinning = threading.Lock()
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def show_route(self, route: RoutePlan) -> None:
        """Publish the whole route, for display."""
        self._route.publish(conversions.path_to_msg(route.xy_m, 0, conversions.MAP_FRAME))

    def publish_tick(self, frame: SimulationFrame) -> None:
        """Publish clock, odometry, IMU and GNSS of a step."""
        stamp = conversions.stamp_from_ns(frame.stamp_ns)
        self._clock_out.publish(Clock(clock=stamp))
        self._odometry.publish(conversions.ego_to_msg(frame.ego))
        if frame.imu is not None:
            self._imu.publish(imu_to_msg(frame.imu, frame.stamp_ns))
        if frame.gnss is not None:
            self._gnss.publish(gnss_to_msg(frame.gnss, frame.stamp_ns))
        self._spin(0.0)

    def send(self, frame: SimulationFrame, navigation: Navigation) -> None:
        """Publish navigation, then the camera frame; the odometry of this stamp is out already."""
        image = frame.images[self.camera.name]
        self._plans.clear()
        self._sent_ns = {frame.stamp_ns: time.monotonic_ns()}
        self._navigation.publish(conversions.navigation_to_msg(navigation, frame.stamp_ns))
        self._camera_info.publish(conversions.camera_info_to_msg(self.camera, frame.stamp_ns, OPTICAL_FRAME))
        self._image.publish(conversions.image_to_msg(image, OPTICAL_FRAME))
        if self._compressed.get_subscription_count():
            self._compressed.publish(conversions.compressed_to_msg(image, OPTICAL_FRAME))

    def wait(self, stamp_ns: int, timeout_s: float) -> Answer | None:
        """The plan made from the frame of `stamp_ns`, or None when it did not come within `timeout_s` of wall time.

        Plans for other frames count as heard and are dropped; so is one that cannot be converted, with a log line.

        Raises:
            InfrastructureError: the simulation server has ended meanwhile.
        """
        deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        while stamp_ns not in self._plans:
            left_ns = deadline_ns - time.monotonic_ns()
            if reason := self.server_fault():
                raise InfrastructureError(reason)
            if left_ns <= 0:
                return None
            self._spin(min(LONGEST_SPIN_S, left_ns * 1e-9))
        plan, received_ns = self._plans.pop(stamp_ns)
        return Answer(plan, received_ns - self._sent_ns.get(stamp_ns, received_ns))

    def heard(self) -> int:
        """How many plans have come so far, late ones included."""
        self._spin(0.0)
        return self._heard

    def wait_for_planner(self, alive: Callable[[], bool], timeout_s: float) -> None:
        """Return once the planner says that it is ready and both ends of every topic have found each other.

        Args:
            alive: whether the planner's process runs.
            timeout_s: wall clock; loading weights is part of it.

        Raises:
            InfrastructureError: the planner ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._planner_ready and self._connected()):
            if not alive():
                raise InfrastructureError("the planner node ended before it was ready")
            if time.monotonic() > deadline:
                state = "ready, but its topics are not connected" if self._planner_ready else "not ready"
                raise InfrastructureError(f"planner node: {state} after {timeout_s:g} s; see its log")
            self._spin(0.1)

    def close(self) -> None:
        """Stop spinning and leave the graph."""
        self._executor.shutdown()
        self.destroy_node()

    def _spin(self, timeout_s: float) -> None:
        """Handle what has come, or wait for it. A planner may be awaited on one thread while another shows the ticks;
        with no time to wait, a spin that is going on will do."""
        if self._spinning.acquire(blocking=timeout_s > 0):
            try:
                self._executor.spin_once(timeout_sec=timeout_s)
            finally:
                self._spinning.release()

    def _connected(self) -> bool:
        listened = all(publisher.get_subscription_count() for publisher in (self._odometry, self._navigation))
        return listened and self.count_publishers(self.resolve_topic_name("~/plan")) > 0

    def _on_plan(self, message: PlanMsg) -> None:
        received_ns = time.monotonic_ns()
        self._heard += 1
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        try:
            plan = conversions.plan_from_msg(message)
        except conversions.ConversionError as error:
            self.get_logger().warning(f"dropped a plan: {error}")
            return
        if stamp_ns in self._sent_ns:
            self._plans[stamp_ns] = plan, received_ns

    def _on_ready(self, message: Bool) -> None:
        self._planner_ready = message.data


def imu_to_msg(reading: ImuReading, stamp_ns: int) -> Imu:
    """Imu message in base_link; orientation is the heading alone, the covariances are unknown (0)."""
    message = Imu(header=conversions.header(stamp_ns, conversions.BASE_FRAME))
    message.orientation = conversions.quaternion_from_yaw(reading.yaw_rad)
    for vector, values in (
        (message.angular_velocity, reading.angular_velocity_radps),
        (message.linear_acceleration, reading.acceleration_mps2),
    ):
        vector.x, vector.y, vector.z = (float(value) for value in np.asarray(values))
    return message


def gnss_to_msg(reading: GnssReading, stamp_ns: int) -> NavSatFix:
    """NavSatFix message of a simulated receiver: always a fix, covariance unknown."""
    values = (reading.latitude_deg, reading.longitude_deg, reading.altitude_m)
    status = NavSatStatus.STATUS_FIX if all(map(math.isfinite, values)) else NavSatStatus.STATUS_NO_FIX
    return NavSatFix(
        header=conversions.header(stamp_ns, GNSS_FRAME),
        status=NavSatStatus(status=status, service=NavSatStatus.SERVICE_GPS),
        latitude=float(values[0]), longitude=float(values[1]), altitude=float(values[2]),
        position_covariance_type=NavSatFix.COVARIANCE_TYPE_UNKNOWN,
    )


def start_ros(arguments: Sequence[str]) -> None:
    """Start rclpy with the user's ROS arguments; plans come from the planner node unless they say otherwise.

    Signals stay with the caller, which has more to take down than ROS.

    Raises:
        UserError: the arguments are not valid ROS arguments, or something else stands among them.
    """
    # The first remap rule that fits is taken, so the defaults come last.
    defaults = ["--ros-args"]
    for topic, source in (("plan", "plan"), ("planner_ready", "ready")):
        defaults += ["-r", f"/{NAMESPACE}/{NODE_NAME}/{topic}:=/{NAMESPACE}/planner/output/{source}"]
    try:
        refuse_all_but_ros(arguments)
        rclpy.init(args=[NODE_NAME, *arguments, *defaults], signal_handler_options=SignalHandlerOptions.NO)
    except UserError:
        raise
    except Exception as error:
        rclpy.try_shutdown()
        raise UserError("ROS arguments", "--ros-args with valid remaps and parameters", " ".join(arguments),
                        " ".join(str(error).split())) from error
