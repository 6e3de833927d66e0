"""The planner node as a process of its own, fed at a camera's rate and timed from its topics.

Latency counts from the image's stamp, which is taken just before anything of its frame is published, to the reception
of the plan with that stamp; so it holds both ways through ROS, the pairing with odometry and navigation, and all that
the node does. What the node says of itself comes by its diagnostics: the time of a plan, and how many images it saw,
dropped and refused. They come ten times a second, so of a quicker node not every plan's own time is known.

Every frame has another picture: one column of pixels further.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image
from std_msgs.msg import Bool
from wamdiff2.msg import Navigation as NavigationMsg
from wamdiff2.msg import Plan as PlanMsg

from wamdiff2_core.bench.parts import PartRow, part_row
from wamdiff2_core.bench.subjects import moved
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.processes import ManagedProcess
from wamdiff2_core.types import Observation
from wamdiff2_ros import conversions, qos
from wamdiff2_ros.launch_setup import FASTDDS_PROFILE, FASTDDS_VARIABLE, PLANNER

DIAGNOSTICS_PERIOD_S = 0.1
START_S = 600.0  # a large checkpoint on a CPU plans twice before it is ready
SETTLE_S = 60.0
COUNTS = ("images", "plans", "rejected", "refused", "unpaired", "dropped_busy", "dropped_loading")


@dataclass(frozen=True)
class HeardPlan:
    """A plan as it came.

    Attributes:
        stamp_ns: of its image.
        received_ns: on the steady clock of this process.
        model_ms: prefill and decoding, as the node says.
        ok: whether it may be driven.
    """

    stamp_ns: int
    received_ns: int
    model_ms: float
    ok: bool


@dataclass(frozen=True)
class Told:
    """One message of the node's diagnostics.

    Attributes:
        counts: by the names of `COUNTS`, since the node's start.
        plan_ms: the newest plan's time in the node; None before the first.
    """

    counts: Mapping[str, int]
    plan_ms: float | None

    @property
    def answered(self) -> int:
        """Plans, those that must not be driven included."""
        return self.counts["plans"] + self.counts["rejected"]

    @property
    def open(self) -> int:
        """Images that have no outcome yet."""
        return self.counts["images"] - sum(self.counts[name] for name in COUNTS if name != "images")


@dataclass(frozen=True)
class NodeFigures:
    """What a run measured.

    Attributes:
        rows: `start_to_ready`, `start_to_first_plan`, `latency`, `model`, `plan` and `way`; see docs/benchmarks.md.
        inputs: images published and received, and what became of them.
        seconds: from the first measured image to the last plan.
        peak_memory_gib: of the node's process.
    """

    rows: list[PartRow]
    inputs: dict[str, int]
    seconds: float
    peak_memory_gib: float


class Feeder:
    """The other end of the node's topics: publishes frames, and keeps what comes back."""

    def __init__(self, namespace: str, observation: Observation) -> None:
        """Join the graph.

        Args:
            namespace: of the planner node, without slashes.
            observation: what every frame shows, but for the picture's columns; one camera.
        """
        self.sent: dict[int, int] = {}  # stamp -> steady clock
        self.plans: list[HeardPlan] = []
        self.told: list[Told] = []
        self.plan_ms: dict[int, float] = {}  # number of a plan, from 1 -> its time in the node
        self.ready_ns: int | None = None
        self._observation = observation
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node("bench", namespace=namespace, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        planner = f"/{namespace}/planner"
        self._image = self._node.create_publisher(Image, f"{planner}/input/image", qos.SENSOR)
        self._odometry = self._node.create_publisher(Odometry, f"{planner}/input/odometry", qos.STATE)
        self._navigation = self._node.create_publisher(NavigationMsg, f"{planner}/input/navigation", qos.STATE)
        self._node.create_subscription(PlanMsg, f"{planner}/output/plan", self._on_plan, qos.RELIABLE)
        self._node.create_subscription(Bool, f"{planner}/output/ready", self._on_ready, qos.LATCHED)
        self._node.create_subscription(DiagnosticArray, f"/{namespace}/diagnostics", self._on_diagnostics, qos.RELIABLE)

    def publish(self) -> None:
        """One frame, stamped now: navigation and odometry first, as the image completes the set."""
        seen = moved(self._observation, len(self.sent))
        image = conversions.image_to_msg(seen.frames[0], "front_optical_frame")
        stamp_ns, now_ns = time.time_ns(), time.monotonic_ns()
        self.sent[stamp_ns] = now_ns
        self._navigation.publish(conversions.navigation_to_msg(seen.navigation, stamp_ns))
        self._odometry.publish(conversions.ego_to_msg(replace(seen.ego, stamp_ns=stamp_ns)))
        image.header.stamp = conversions.stamp_from_ns(stamp_ns)
        self._image.publish(image)

    def feed(self, rate_hz: float, done: Callable[[], bool]) -> None:
        """Publish frames at a rate until `done`, which is asked before each and whenever something has come."""
        next_ns = time.monotonic_ns()
        while not done():
            left_ns = next_ns - time.monotonic_ns()
            if left_ns > 0:
                self._executor.spin_once(timeout_sec=left_ns * 1e-9)
                continue
            self.publish()
            self._executor.spin_once(timeout_sec=0.0)  # what comes is heard at rates that nobody can keep, too
            next_ns = max(next_ns + round(1e9 / rate_hz), time.monotonic_ns())

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Publish nothing until `done`; False when it is not within `timeout_s`."""
        deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        while not done():
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            self._executor.spin_once(timeout_sec=min(DIAGNOSTICS_PERIOD_S, left_ns * 1e-9))
        return True

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _on_plan(self, message: PlanMsg) -> None:
        received_ns = time.monotonic_ns()
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.plans.append(HeardPlan(stamp_ns, received_ns, message.prefill_ms + message.decode_ms, message.ok))

    def _on_ready(self, message: Bool) -> None:
        if message.data and self.ready_ns is None:
            self.ready_ns = time.monotonic_ns()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            values = {pair.key: pair.value for pair in status.values}
            own_ms = float(values["plan_ms"]) if "plan_ms" in values else None
            told = Told({name: int(values[name]) for name in COUNTS}, own_ms)
            if own_ms is not None:
                self.plan_ms.setdefault(told.answered, own_ms)
            self.told.append(told)


def node_command(
    planner: str, namespace: str, *, device: str = "cpu", backend: str = "auto", threads: int | None = None,
    deadline_ms: float = 0.0,
) -> list[str]:
    """Command line of the planner node under measurement: as the launch file starts it, with diagnostics of its own.

    Args:
        planner: checkpoint folder, or `random`.
        namespace: of the node.
        device: torch device.
        backend: what runs the model.
        threads: of torch; None leaves its own choice.
        deadline_ms: of a plan; 0 leaves the record's.
    """
    (setup,) = PLANNER.nodes
    values = PLANNER.defaults() | {"checkpoint": planner, "namespace": namespace, "device": device}
    arguments = setup.ros_arguments(values)
    arguments += ["-r", f"/diagnostics:=/{namespace}/diagnostics"]
    arguments += ["-p", f"diagnostics_period_s:={DIAGNOSTICS_PERIOD_S}"]
    if backend != "auto":
        arguments += ["-p", f"backend:={backend}"]
    if threads is not None:
        arguments += ["-p", f"torch_threads:={threads}"]
    if deadline_ms:
        arguments += ["-p", f"deadline_ms:={deadline_ms:f}"]
    return [sys.executable, "-m", "wamdiff2_ros.planner_node", *arguments]


def measure_node(
    command: Sequence[str], namespace: str, observation: Observation, rate_hz: float, frames: int, log: Path,
    show: Callable[[int], None] = lambda done: None,
) -> NodeFigures:
    """Start a planner node, feed it from the beginning, and measure `frames` images after its first plan.

    Args:
        command: of the node.
        namespace: of the node; nobody else's.
        observation: what the frames show.
        rate_hz: images a second.
        frames: images to measure.
        log: file for the node's output.
        show: told how many images are published.

    Raises:
        UserError: the node refuses its checkpoint or parameters.
        InfrastructureError: it ended otherwise, or did not plan in time.
    """
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ.setdefault(FASTDDS_VARIABLE, str(FASTDDS_PROFILE))
    started_ns = time.monotonic_ns()
    # the process first: rclpy's threads and a fork do not go together
    with ManagedProcess("planner node", command, log) as process, _joined(namespace, observation) as feeder:
        limit_ns = started_ns + round(START_S * 1e9)

        def first_plan() -> bool:
            _check(process)
            if time.monotonic_ns() > limit_ns:
                raise InfrastructureError(f"planner node: no plan after {START_S:g} s; {process.log_tail(1)}")
            return bool(feeder.plans)

        feeder.feed(rate_hz, first_plan)
        before = _settled(feeder, process)
        earlier, published = len(feeder.plans), len(feeder.sent)

        def all_sent() -> bool:
            _check(process)
            show(len(feeder.sent) - published)
            return len(feeder.sent) - published >= frames

        feeder.feed(rate_hz, all_sent)
        after = _settled(feeder, process)
    memory_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return figures_of(feeder, started_ns, published, earlier, before, after, memory_gib)


def figures_of(
    feeder: Feeder, started_ns: int, published: int, earlier: int, before: Told, after: Told, memory_gib: float
) -> NodeFigures:
    """Figures of what a feeder kept.

    Args:
        feeder: at the end.
        started_ns: when the node's process was started.
        published: frames before the measured ones.
        earlier: plans before the measured ones.
        before, after: the node's counts around the measured frames.
        memory_gib: of the node's process.

    Raises:
        InfrastructureError: there is no plan among the measured ones.
    """
    plans = [plan for plan in feeder.plans[earlier:] if plan.stamp_ns in feeder.sent]
    if not plans:
        raise InfrastructureError("planner node: no plan for any of the measured images; see its log")
    latency_ms = {plan.stamp_ns: (plan.received_ns - feeder.sent[plan.stamp_ns]) / 1e6 for plan in plans}
    own_ms = {plan.stamp_ns: feeder.plan_ms[number] for number, plan in enumerate(feeder.plans, 1)
              if number > earlier and number in feeder.plan_ms and plan.stamp_ns in latency_ms}
    first = feeder.plans[0]
    starts = [("start_to_first_plan", first.received_ns)]
    if feeder.ready_ns is not None:
        starts.insert(0, ("start_to_ready", feeder.ready_ns))
    rows = [part_row(name, [(at_ns - started_ns) / 1e6]) for name, at_ns in starts]
    rows += [part_row("latency", list(latency_ms.values())), part_row("model", [plan.model_ms for plan in plans])]
    if own_ms:
        rows += [part_row("plan", list(own_ms.values())),
                 part_row("way", [latency_ms[stamp] - own for stamp, own in own_ms.items()])]
    counts = {name: after.counts[name] - before.counts[name] for name in COUNTS}
    measured = list(feeder.sent.values())[published:]
    inputs = {"published": len(measured), "lost": len(measured) - counts["images"]} | counts
    return NodeFigures(rows, inputs, (plans[-1].received_ns - measured[0]) / 1e9, memory_gib)


@contextlib.contextmanager
def _joined(namespace: str, observation: Observation) -> Iterator[Feeder]:
    feeder = Feeder(namespace, observation)
    try:
        yield feeder
    finally:
        feeder.close()


def _settled(feeder: Feeder, process: ManagedProcess) -> Told:
    """The node's counts once every image has its outcome, and every plan has come."""
    known = len(feeder.told)

    def settled() -> bool:
        _check(process)
        # the first message from now on may have been on its way while images still were
        return len(feeder.told) > known + 1 and feeder.told[-1].open <= 0 and (
            len(feeder.plans) >= feeder.told[-1].answered
        )

    feeder.wait(settled, SETTLE_S)
    if not feeder.told:
        raise InfrastructureError(f"planner node: no diagnostics within {SETTLE_S:g} s; {process.log_tail(1)}")
    return feeder.told[-1]


def _check(process: ManagedProcess) -> None:
    if process.alive():
        return
    tail = process.log_tail(1)
    if process.returncode == ExitCode.WRONG_USE:
        raise UserError("planner", "one that the node can load", tail)
    raise InfrastructureError(f"{process.describe_end()}: {tail}")
