"""ROS parameters of the planner node, generated from one dataclass.

A field's `doc` is the parameter's description, and `low` and `high` are the range in its descriptor. All are read-only:
a node that changes its sensors or its model is started anew.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wamdiff2_core.errors import UserError, did_you_mean, unknown_name

if TYPE_CHECKING:
    from rclpy.node import Node

IMAGE_TRANSPORTS = ("raw", "compressed")
GRAMMARS = ("record", "off", "task")


def _param(
    default: Any, doc: str, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True)
class PlannerParameters:
    """Parameters of the planner node; the metadata of each field describes it."""

    planner: str = _param("", "checkpoint folder, or 'random' for a planner without a model (a negative control)")
    device: str = _param("cpu", "torch device of the model, such as cpu, cuda or npu")
    backend: str = _param("auto", "what runs the model: auto (by device), eager, cpu, cuda, cuda-flashinfer or npu")
    torch_threads: int = _param(0, "CPU threads of torch; 0 leaves torch's own choice", 0, 256)
    seed: int = _param(0, "seed of the 'random' planner", 0, 2**31 - 1)
    deadline_ms: float = _param(
        0.0, "wall-clock milliseconds for a plan, from the beginning of planning, picture preparation included, to its "
        "answer's last token: when they run short, the model fixes more tokens a step; 0 leaves what the checkpoint's "
        "record says, usually none", 0.0, 60_000.0
    )
    grammar: str = _param(
        "record", "'task' lets only answers through that can be read, 'off' any, 'record' as the checkpoint's record "
        "says; with a deadline it is 'task' wherever the tokenizer allows", choices=GRAMMARS
    )
    image_transport: str = _param(
        "raw", "'raw' takes ~/input/image, 'compressed' takes ~/input/image/compressed (JPEG)", choices=IMAGE_TRANSPORTS
    )
    reliable_inputs: bool = _param(False, "subscribe reliably to the inputs; needs publishers that are reliable too")
    sync_tolerance_s: float = _param(
        0.05, "largest difference in stamp between an image and the odometry and navigation used with it, seconds; "
        "0 takes equal stamps only", 0.0, 1.0
    )
    base_frame: str = _param(
        "base_link", "frame of plans, navigation targets and odometry's twist: the vehicle's centre on the ground, x "
        "forward, y left; an input that names another is refused"
    )
    input_timeout_s: float = _param(
        1.0, "diagnostics warn when no usable image came for this long, seconds of wall clock", 0.05, 60.0
    )
    diagnostics_period_s: float = _param(1.0, "period of /diagnostics, seconds of wall clock", 0.1, 10.0)


def declare(node: Node) -> PlannerParameters:
    """Declare every parameter on the node, and read the values given by file or command line.

    Raises:
        UserError: wrong type, out of range, or not one of the choices.
    """
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
    from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException

    values: dict[str, Any] = {}
    for field in dataclasses.fields(PlannerParameters):
        low, high, choices = field.metadata["low"], field.metadata["high"], field.metadata["choices"]
        descriptor = ParameterDescriptor(description=field.metadata["doc"], read_only=True)
        expected = type(field.default).__name__
        if isinstance(field.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        elif isinstance(field.default, int) and low is not None:
            descriptor.integer_range = [IntegerRange(from_value=low, to_value=high, step=1)]
        if low is not None:
            expected += f" in {low:g}..{high:g}"
        given = _given(node).get(field.name)
        got = given.value if given is not None else field.default
        try:
            value = node.declare_parameter(field.name, field.default, descriptor).value
        except (InvalidParameterTypeException, InvalidParameterValueException):
            fix = f"write {got}.0" if isinstance(field.default, float) and type(got) is int else ""
            raise UserError(f"parameter {field.name}", expected, got, fix) from None
        if choices and value not in choices:
            raise unknown_name(f"parameter {field.name}", value, choices)
        values[field.name] = value
    return PlannerParameters(**values)


def _given(node: Node) -> dict[str, Any]:
    return node._parameter_overrides  # what files and the command line said; rclpy has no public name for it


def unknown_overrides(node: Node) -> list[str]:
    """Messages about given parameters that the node does not have; ROS itself ignores a misspelt one silently.

    They are not refused, as a file may address several nodes at once with `/**`.
    """
    known = [field.name for field in dataclasses.fields(PlannerParameters)]
    return [
        f"parameter {name}: the planner has none of that name; {did_you_mean(name, known)}"
        for name in sorted(_given(node))
        if not node.has_parameter(name)
    ]
