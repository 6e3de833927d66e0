"""A planner node as a drive's agent: its process, the bridge node that speaks to it, and the wait until it is ready."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.agents.linked import LinkedPlanner, Patience
from carla_bridge.client.server_watch import Fault
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.processes import ManagedProcess
from wamdiff2_ros.launch_setup import PARAMETERS_FILE, PLANNER_ON_BRIDGE

if TYPE_CHECKING:
    from carla_bridge.agents.bridge_node import BridgeNode

NAMESPACE = "wamdiff2"
START_S = 180.0


def planner_command(choice: AgentChoice, seed: int, device: str) -> list[str] | None:
    """Command line of the planner node; None for one that somebody else has started."""
    if choice.kind == "external":
        return None
    values = {
        "namespace": NAMESPACE, "params_file": str(PARAMETERS_FILE), "device": device, "image_transport": "raw",
        "checkpoint": "random" if choice.folder is None else str(choice.folder.resolve()),
    }
    arguments = PLANNER_ON_BRIDGE.ros_arguments(values)
    if choice.deadline_ms:
        arguments += ["-p", f"deadline_ms:={choice.deadline_ms:f}"]
    if choice.backend != "auto":
        arguments += ["-p", f"backend:={choice.backend}"]
    return [sys.executable, "-m", "wamdiff2_ros.planner_node", *arguments, "-p", f"seed:={seed}"]


class RosPlanner:
    """Starts on entering the `with` block: the planner's process at once, the bridge node with `connect`."""

    def __init__(
        self, choice: AgentChoice, seed: int, device: str, log_path: Path, patience: Patience,
        ros_arguments: Sequence[str] = (), node: BridgeNode | None = None,
    ) -> None:
        """Say what to start.

        Args:
            choice: a planner with `link` ros.
            seed: of a random planner.
            device: torch device of a checkpoint.
            log_path: for the planner's output.
            patience: how long its plans are waited for.
            ros_arguments: for the bridge node.
            node: the bridge, when rclpy runs already; otherwise both are started here.
        """
        self._choice, self._patience, self._ros_arguments = choice, patience, tuple(ros_arguments)
        self._command = planner_command(choice, seed, device)
        self._log_path, self._node = log_path, node
        self._process: ManagedProcess | None = None
        self._stack = ExitStack()

    def __enter__(self) -> RosPlanner:
        if self._command is not None:
            self._process = self._stack.enter_context(ManagedProcess("planner node", self._command, self._log_path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def connect(self, server_fault: Fault) -> LinkedPlanner:
        """The agent, once the planner is ready. Other children must have been started before: rclpy's threads and a
        fork do not go together well.

        Args:
            server_fault: tells of the simulation server's end, so that no plan is awaited any more.

        Raises:
            UserError: the planner cannot be loaded, or the ROS arguments are wrong.
            InfrastructureError: it did not become ready.
        """
        node = self._node or self._start_node()
        if self._choice.camera is not None:
            node.camera = self._choice.camera
        node.fault, node.server_fault = self._fault, server_fault
        process = self._process
        try:
            node.wait_for_planner(process.alive if process is not None else lambda: True, START_S)
        except InfrastructureError as error:
            if process is None:
                raise
            tail = process.log_tail(1)
            if process.returncode == ExitCode.WRONG_USE:
                raise UserError("--planner", "one that can be loaded", self._choice.spec, tail) from None
            raise InfrastructureError(f"{error}: {tail}") from None
        return LinkedPlanner(node, self._choice.needs, self._patience, self._choice.spec)

    def _start_node(self) -> BridgeNode:
        import rclpy

        from carla_bridge.agents.bridge_node import BridgeNode, start_ros

        start_ros(self._ros_arguments)
        self._stack.callback(rclpy.try_shutdown)
        node = BridgeNode()
        self._stack.callback(node.close)
        return node

    def _fault(self) -> str:
        return "" if self._process is None else self._process.fault()
