"""The planner as a ROS 2 node: image, odometry and navigation in; plan, path and diagnostics out.

    ~/input/image, ~/input/image/compressed   one of them, by the parameter `image_transport`
    ~/input/camera_info                       optional; a camera other than the checkpoint's is refused
    ~/input/odometry, ~/input/navigation      paired with the image by stamp
    ~/output/plan                             stamped like the image it was made from; also when its check failed
    ~/output/path                             the same as nav_msgs/Path; empty when the plan must not be driven
    ~/output/ready                            latched Bool, true after warm-up
    /diagnostics                              once a second

The executor's thread only converts and pairs messages; the model runs in a worker thread, and images that come while it
is busy are dropped. Every outcome counts in the diagnostics.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from nav_msgs.msg import Odometry, Path
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Bool
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg

from wamdiff2_core.errors import ExitCode, UserError
from wamdiff2_core.tasks.planning import check_drivable
from wamdiff2_core.threads import wait_without_spinning
from wamdiff2_core.types import CameraFrame, Check, EgoState, Navigation, Observation, Plan
from wamdiff2_ros import conversions, params, qos
from wamdiff2_ros.arguments import refuse_all_but_ros
from wamdiff2_ros.shutdown import end_process, signals_set
from wamdiff2_ros.sync import Synchronizer
from wamdiff2_ros.worker import Worker

if TYPE_CHECKING:
    from wamdiff2_core.planner import Planner

NODE_NAME = "planner"
NAMESPACE = "wamdiff2"
STOP_TIMEOUT_S = 5.0
ARGUMENT_ERRORS = (_rclpy.RCLInvalidROSArgsError, _rclpy.UnknownROSArgsError, _rclpy.RCLError)


class PlannerNode(Node):
    """Feeds a `Planner` from topics, and publishes what it answers."""

    def __init__(self, make: Callable[[params.PlannerParameters], Planner], ended: threading.Event) -> None:
        """Declare parameters and create the topics; `start` then loads the planner.

        Args:
            make: builds the planner; runs in the worker thread, as loading a model takes its time.
            ended: set by the node when its work has failed, and by whoever wants it to end.

        Raises:
            UserError: a parameter is wrong.
        """
        super().__init__(NODE_NAME, namespace=NAMESPACE)
        self.settings = params.declare(self)
        for warning in params.unknown_overrides(self):
            self.get_logger().warning(warning)
        if not self.settings.planner:
            raise UserError("parameter planner", "a checkpoint folder or 'random'", "nothing",
                            "give --checkpoint FOLDER, or -p planner:=FOLDER")
        self.failure: Exception | None = None
        self._ended = ended
        self._make = make
        self._planner: Planner | None = None
        self._counts: Counter[str] = Counter()
        self._problem = ""  # why the newest input or plan was not usable; empty when it was
        self._camera = Check()
        self._last: tuple[Plan, float] | None = None  # and its milliseconds: one value, as two threads look at it
        self._last_usable_s: float | None = None
        self._sync = Synchronizer(("odometry", "navigation"), round(self.settings.sync_tolerance_s * 1e9))
        self._worker = Worker(self._prepare, self._plan, self._deliver, self._fail)
        self._create_topics()

    def _create_topics(self) -> None:
        sensor, state = (qos.RELIABLE, qos.RELIABLE) if self.settings.reliable_inputs else (qos.SENSOR, qos.STATE)
        if self.settings.image_transport == "compressed":
            self.create_subscription(CompressedImage, "~/input/image/compressed", self._on_compressed, sensor)
        else:
            self.create_subscription(Image, "~/input/image", self._on_image, sensor)
        self.create_subscription(CameraInfo, "~/input/camera_info", self._on_camera_info, sensor)
        self.create_subscription(Odometry, "~/input/odometry", self._on_odometry, state)
        self.create_subscription(NavigationMsg, "~/input/navigation", self._on_navigation, state)
        self._plan_out = self.create_publisher(PlanMsg, "~/output/plan", qos.RELIABLE)
        self._path_out = self.create_publisher(Path, "~/output/path", qos.RELIABLE)
        self._ready_out = self.create_publisher(Bool, "~/output/ready", qos.LATCHED)
        self._diagnostics_out = self.create_publisher(DiagnosticArray, "/diagnostics", qos.RELIABLE)
        # Simulated time may stand still; silence must be noticed all the same.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(self.settings.diagnostics_period_s, self._publish_diagnostics, clock=steady)

    def start(self) -> None:
        """Load and warm up the planner in the worker thread."""
        self._ready_out.publish(Bool(data=False))
        self._worker.start()

    def stop(self) -> None:
        """Wait for the plan in hand, for a while."""
        if not self._worker.stop(STOP_TIMEOUT_S):
            self.get_logger().warning(f"inference did not end within {STOP_TIMEOUT_S:g} s")

    # Worker thread

    def _prepare(self) -> None:
        started_s = time.monotonic()
        planner = self._make(self.settings)
        refuse_unserved(planner)
        planner.warm_up()
        self._planner = planner
        self.get_logger().info(f"ready: {self.settings.planner}, loaded in {time.monotonic() - started_s:.1f} s")
        self._ready_out.publish(Bool(data=True))

    def _fail(self, error: Exception) -> None:
        if not self._ended.is_set():  # afterwards the publishers may be closed under the worker's hands: no failure
            self.failure = error
        self._ended.set()

    def _plan(self, observation: Observation) -> tuple[Plan, float]:
        assert self._planner is not None
        started_s = time.perf_counter()
        try:
            plan = self._planner.plan(observation)
        except Exception as error:
            self.get_logger().error(f"planner failed\n{traceback.format_exc()}")
            message = f"planner failed: {type(error).__name__}: {error}"
            plan = Plan(observation.stamp_ns, None, check=Check(False, message), source=self.settings.planner)
        return plan, (time.perf_counter() - started_s) * 1e3

    def _deliver(self, result: tuple[Plan, float]) -> None:
        plan, took_ms = result
        self._counts["plans" if plan.check.ok else "rejected"] += 1
        self._problem = "" if plan.check.ok else f"plan rejected: {plan.check.message}"
        self._last = result
        self.get_logger().debug(f"t0 {plan.stamp_ns / 1e9:.3f} s: {took_ms:.0f} ms, {plan.check.message or 'ok'}")
        self._path_out.publish(conversions.plan_path_to_msg(plan, self.settings.base_frame))
        self._plan_out.publish(conversions.plan_to_msg(plan, self.settings.base_frame))

    # Executor thread

    def _on_image(self, message: Image) -> None:
        self._take_image(conversions.image_from_msg, message)

    def _on_compressed(self, message: CompressedImage) -> None:
        self._take_image(conversions.compressed_from_msg, message)

    def _take_image(self, convert: Callable[[Any, str], CameraFrame], message: Any) -> None:
        self._counts["images"] += 1
        spec = self._planner.rig[0] if self._planner is not None and self._planner.rig else None
        try:
            frame = convert(message, spec.name if spec else "front")
        except conversions.ConversionError as error:
            self._refuse(str(error))
            return
        height, width = frame.rgb.shape[:2]
        if spec is not None and (width, height) != (spec.width_px, spec.height_px):
            wanted = f"{spec.width_px}x{spec.height_px}"
            self._refuse(f"image: expected {wanted} pixels as the checkpoint's rig has, got {width}x{height}")
            return
        if not self._camera.ok:
            self._refuse(self._camera.message)
            return
        self._offer(self._sync.add_image(frame.stamp_ns, frame))

    def _on_camera_info(self, message: CameraInfo) -> None:
        if self._planner is not None and self._planner.rig:
            self._camera = conversions.check_camera_info(message, self._planner.rig[0])

    def _on_odometry(self, message: Odometry) -> None:
        convert = partial(conversions.ego_from_msg, base_frame=self.settings.base_frame)
        self._take_partner("odometry", convert, message)

    def _on_navigation(self, message: NavigationMsg) -> None:
        convert = partial(conversions.navigation_from_msg, base_frame=self.settings.base_frame)
        self._take_partner("navigation", convert, message)

    def _take_partner(self, name: str, convert: Callable[[Any], EgoState | Navigation], message: Any) -> None:
        try:
            sample = convert(message)
        except conversions.ConversionError as error:
            self._refuse(str(error))
            return
        self._offer(self._sync.add(name, conversions.stamp_to_ns(message.header.stamp), sample))

    def _offer(self, matched: tuple[CameraFrame, dict[str, Any]] | None) -> None:
        if matched is None:
            return
        frame, partners = matched
        if self._planner is None:
            self._counts["dropped_loading"] += 1
        elif not self._worker.offer(Observation((frame,), partners["odometry"], partners["navigation"])):
            self._counts["dropped_busy"] += 1
        self._last_usable_s = time.monotonic()

    def _refuse(self, problem: str) -> None:
        self._counts["refused"] += 1
        self._problem = problem
        self.get_logger().warning(problem, throttle_duration_sec=5.0)

    def _publish_diagnostics(self) -> None:
        level, message = self._health()
        counts = ("images", "plans", "rejected", "refused", "dropped_busy", "dropped_loading")
        values = {name: str(self._counts[name]) for name in counts} | {"unpaired": str(self._sync.unpaired)}
        last = self._last
        if last is not None:
            plan, took_ms = last
            stats = plan.stats
            values |= {
                "plan_ms": f"{took_ms:.1f}",
                "prefill_ms": f"{stats.prefill_ms:.1f}",
                "decode_ms": f"{stats.decode_ms:.1f}",
                "forwards": str(stats.forwards),
                "interventions": str(stats.interventions),
                "hurried_steps": str(stats.hurried_steps),
                "overshoot_ms": f"{stats.overshoot_ms:.1f}",
            }
        status = DiagnosticStatus(
            level=level,
            name=f"{self.get_name()}: inference",
            message=message,
            hardware_id=last[0].source if last is not None else "",
            values=[KeyValue(key=key, value=value) for key, value in values.items()],
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics_out.publish(array)

    def _health(self) -> tuple[bytes, str]:
        if self._planner is None:
            return DiagnosticStatus.WARN, "loading"
        if self._problem:
            return DiagnosticStatus.ERROR, self._problem
        missing = self._sync.missing()
        if missing:
            lacks = " and ".join(missing)
            return DiagnosticStatus.WARN, f"image without {lacks} within {self.settings.sync_tolerance_s:g} s"
        if self._last_usable_s is None:
            return DiagnosticStatus.OK, "ready, no image yet"
        age_s = time.monotonic() - self._last_usable_s
        if age_s > self.settings.input_timeout_s:
            return DiagnosticStatus.WARN, f"no usable image for {age_s:.1f} s"
        return DiagnosticStatus.OK, "planning"


def refuse_unserved(planner: Planner) -> None:
    """Raise `UserError` for a planner that the node's topics do not feed: with several cameras, or NAVSIM's prompt."""
    if len(planner.rig) > 1:
        names = ", ".join(camera.name for camera in planner.rig)
        raise UserError("parameter planner", "a checkpoint with one camera", f"one with {names}")
    task = planner.record.planning if planner.record is not None else None
    if task is not None:
        check_drivable(task, "parameter planner")


def planner_from(settings: params.PlannerParameters) -> Planner:
    """The planner that the parameters name.

    Raises:
        UserError: no such folder (told before torch is imported, which takes seconds), or it does not plan.
    """
    from wamdiff2_core.planner import RANDOM, make_planner

    if settings.planner != RANDOM and not FilePath(settings.planner).is_dir():
        raise UserError("parameter planner", "a checkpoint folder or 'random'", settings.planner)
    if settings.torch_threads:
        import torch

        torch.set_num_threads(settings.torch_threads)
    options: dict[str, Any] = {"backend": settings.backend}
    if settings.planner == RANDOM:  # a checkpoint's record has its own seed of sampling
        options["seed"] = settings.seed
    if settings.deadline_ms:
        options["deadline_ms"] = settings.deadline_ms
    if settings.grammar != "record":
        options["grammar"] = settings.grammar
    return make_planner(settings.planner, device=settings.device, **options)


def run(
    arguments: Sequence[str] | None = None,
    make: Callable[[params.PlannerParameters], Planner] = planner_from,
    options: Sequence[str] = (),
) -> int:
    """Run the node until SIGINT, SIGTERM or a failure to load.

    Args:
        arguments: command line with the program's name first, as in `sys.argv`; the default is `sys.argv` itself.
        make: builds the planner.
        options: those that the caller has taken off the command line, to suggest them for one that is unknown.

    Returns:
        0 after a signal.

    Raises:
        UserError: an argument, a parameter or the checkpoint is wrong.
    """
    wait_without_spinning()
    line = list(sys.argv if arguments is None else arguments)
    ended = threading.Event()
    with signals_set(ended):
        _run_until(ended, line, make, options)
    return int(ExitCode.DONE)


def _run_until(
    ended: threading.Event,
    line: list[str],
    make: Callable[[params.PlannerParameters], Planner],
    options: Sequence[str],
) -> None:
    try:
        refuse_all_but_ros(line[1:], options)
        rclpy.init(args=line, signal_handler_options=SignalHandlerOptions.NO)
        node = PlannerNode(make, ended)
    except ARGUMENT_ERRORS as error:
        rclpy.try_shutdown()
        raise UserError("ROS arguments", "valid arguments and parameter files", " ".join(str(error).split())) from error
    except UserError:
        rclpy.try_shutdown()
        raise
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        node.start()
        while not ended.is_set():
            executor.spin_once(timeout_sec=0.2)
    finally:
        node.stop()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    if node.failure is not None:
        raise node.failure


def main() -> int:
    """Executable `planner_node`: one line and exit code 2 for what the user can mend, 3 for failed infrastructure."""
    from wamdiff2_core.cli.main import exit_code_of

    return exit_code_of(run)


if __name__ == "__main__":
    end_process(main())
