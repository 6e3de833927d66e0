"""The configuration tree: frozen dataclasses, validated where they are built, stored beside weights and read back.

One class per subject. `parse` turns a mapping from JSON or YAML into one of them and names the field at fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from wamdiff2_core.errors import UserError, did_you_mean, require, unknown_name

T = TypeVar("T")

LabelAlignment = Literal["shifted", "aligned"]
MaskKind = Literal["strict", "upstream"]
RemaskingStrategy = Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "autoregressive"]
TaskName = Literal["planning", "lingoqa", "drivebench", "grounding"]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)
GrammarMode = Literal["off", "task"]
GRAMMAR_MODES: tuple[str, ...] = get_args(GrammarMode)
WarmStart = Literal["off", "previous"]
WARM_STARTS: tuple[str, ...] = get_args(WarmStart)
PromptReuse = Literal["off", "float32", "always"]
PROMPT_REUSES: tuple[str, ...] = get_args(PromptReuse)
REMASKING_STRATEGIES: tuple[str, ...] = get_args(RemaskingStrategy)
LONGEST_DEADLINE_MS = 86_400_000.0  # beyond all use, and far within what a clock of nanoseconds can count


class Strict:
    """Base of every configuration class: `parse` refuses keys that the class does not have."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class DecodeConfig(Strict):
    """How an answer is decoded; defaults are the published ones (paper section 4.1).

    Attributes:
        block_size: tokens denoised together, B >= 1. Ignored by `autoregressive`.
        denoising_steps: step budget per block; at least one token is fixed per step.
        strategy: `autoregressive` (label-shifted, one token a forward), `sequential` (leftmost masks first),
            `low_confidence_static` (the scheduled number of most confident masks) or `low_confidence_dynamic`
            (every mask at or above the threshold, else the best one).
        confidence_threshold: for `low_confidence_dynamic`, in [0, 1].
        temperature: 0 takes the most probable token; above 0 samples.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: nucleus mass in (0, 1].
        seed: of the sampling generator.
        max_new_tokens: length limit of an answer; rounded up to whole blocks.
        grammar: `off`, or `task`: only answers that the task's reader can read, at temperature 0.
        deadline_ms: wall-clock milliseconds for an answer, prompt included: when they run short, steps fix more tokens;
            0: none. Not with `autoregressive`.
        warm_start: `off`, or `previous`: a planner takes its plan before, moved on, as a second opinion, so that the
            tokens in which both agree need less confidence; with `low_confidence_dynamic`.
        prompt_reuse: whether a prompt that begins as the one before did runs only what is new in it: `off`; `float32`,
            where sums are in float32, so that answers stay the same; or `always`, where roundings may differ.
    """

    block_size: int = 32
    denoising_steps: int = 32
    strategy: str = "low_confidence_dynamic"
    confidence_threshold: float = 0.9
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128
    grammar: GrammarMode = "off"
    deadline_ms: float = 0.0
    warm_start: WarmStart = "off"
    prompt_reuse: PromptReuse = "float32"

    def __post_init__(self) -> None:
        sizes = "published sizes: 4, 8, 16, 32"
        require(self.block_size >= 1, "block_size", "an integer >= 1", self.block_size, sizes)
        require(self.denoising_steps >= 1, "denoising_steps", "an integer >= 1", self.denoising_steps)
        if self.strategy not in REMASKING_STRATEGIES:
            raise unknown_name("strategy", self.strategy, REMASKING_STRATEGIES)
        require(0 <= self.confidence_threshold <= 1, "confidence_threshold", "0..1", self.confidence_threshold)
        require(0 <= self.temperature < math.inf, "temperature", "a finite number >= 0", self.temperature,
                "0 takes the most probable token")
        require(self.top_k >= 0, "top_k", "an integer >= 0 (0 = all)", self.top_k)
        require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        require(0 <= self.seed < 2**63, "seed", "an integer from 0 to 2**63 - 1", self.seed)
        require(self.max_new_tokens >= 1, "max_new_tokens", "an integer >= 1", self.max_new_tokens)
        if self.grammar not in GRAMMAR_MODES:
            raise unknown_name("grammar", self.grammar, GRAMMAR_MODES)
        require(self.grammar == "off" or self.temperature == 0, "temperature", "0 with grammar task",
                self.temperature, "the most probable valid block is searched, not drawn; or set grammar off")
        require(0 <= self.deadline_ms <= LONGEST_DEADLINE_MS, "deadline_ms",
                "milliseconds >= 0 (0 = none), a day at most", self.deadline_ms)
        require(self.deadline_ms == 0 or self.strategy != "autoregressive", "deadline_ms", "0 with autoregressive",
                self.deadline_ms, "one token a forward cannot be hurried")
        if self.warm_start not in WARM_STARTS:
            raise unknown_name("warm_start", self.warm_start, WARM_STARTS)
        require(self.warm_start == "off" or self.strategy == "low_confidence_dynamic", "warm_start",
                f"off with {self.strategy}", self.warm_start, "only low_confidence_dynamic may fix more tokens a step")
        if self.prompt_reuse not in PROMPT_REUSES:
            raise unknown_name("prompt_reuse", self.prompt_reuse, PROMPT_REUSES)


@dataclass(frozen=True)
class CameraSpec(Strict):
    """A camera of the rig.

    Attributes:
        name: key of the camera in observations and topics.
        x_m, y_m, z_m: position of the optical centre in base_link, x forward, y left, z up.
        roll_deg, pitch_deg, yaw_deg: orientation in base_link, REP-103 signs (pitch positive looks down, yaw left).
        width_px, height_px: image size.
        hfov_deg: horizontal field of view.
    """

    name: str = "front"
    x_m: float = 1.0
    y_m: float = 0.0
    z_m: float = 1.8
    roll_deg: float = 0.0
    pitch_deg: float = 0.0
    yaw_deg: float = 0.0
    width_px: int = 256
    height_px: int = 128
    hfov_deg: float = 90.0

    def __post_init__(self) -> None:
        require(self.width_px > 0 and self.height_px > 0, "camera size", "> 0", (self.width_px, self.height_px))
        require(0 < self.hfov_deg < 180, "hfov_deg", "in (0, 180)", self.hfov_deg)

    @property
    def focal_px(self) -> float:
        """Pinhole focal length in pixels (square pixels)."""
        return self.width_px / 2 / math.tan(math.radians(self.hfov_deg) / 2)


@dataclass(frozen=True)
class ImagePolicy(Strict):
    """How images are brought to the model: resized to `size_px` when given, then snapped to whole patches within
    [`min_pixels`, `max_pixels`] as Qwen's image processor does.

    Attributes:
        size_px: (width, height), or None to keep the image's own size.
        min_pixels, max_pixels: area limits; the defaults are WAM-Diff2's (1920 x 1080).
    """

    size_px: tuple[int, int] | None = None
    min_pixels: int = 12544
    max_pixels: int = 2073600

    def __post_init__(self) -> None:
        require(0 < self.min_pixels <= self.max_pixels, "min_pixels", "0 < min_pixels <= max_pixels",
                (self.min_pixels, self.max_pixels))


@dataclass(frozen=True)
class TargetRule(Strict):
    """Which two points of the remaining route are shown to the model.

    Attributes:
        kind: `arc_length`: the points at `distances_m` along the route ahead of the ego's projection on it;
            `plan_points`: the 2nd and 3rd points of the remaining sparse plan beyond `distances_m[0]` (SimLingo).
        distances_m: see `kind`.
    """

    kind: Literal["arc_length", "plan_points"] = "plan_points"
    distances_m: tuple[float, ...] = (7.5,)


@dataclass(frozen=True)
class PlanningTask(Strict):
    """The planning question a checkpoint was trained on.

    Attributes:
        prompt: template in `tasks/planning.py`.
        waypoints: number of waypoints in the answer.
        dt_s: their spacing in time, seconds.
        decimals: decimals of waypoints in the answer's text.
        input_decimals: decimals of targets and speeds in the prompt's text.
        y_axis: direction of y in all text (`left`: REP-103 and NAVSIM; `right`: CARLA and SimLingo).
        target_rule: how target points were chosen.
        commands: which command words are used; `simlingo` is the set of `types.NavCommand`.
    """

    prompt: Literal["bench2drive", "navsim_paper", "navsim_upstream"] = "bench2drive"
    waypoints: int = 6
    dt_s: float = 0.5
    decimals: int = 2
    input_decimals: int = 2
    y_axis: Literal["left", "right"] = "right"
    target_rule: TargetRule = TargetRule()
    commands: Literal["simlingo"] = "simlingo"

    def __post_init__(self) -> None:
        require(self.waypoints >= 1, "waypoints", ">= 1", self.waypoints)
        require(self.dt_s > 0, "dt_s", "> 0 seconds", self.dt_s)
        for name in ("decimals", "input_decimals"):
            require(0 <= getattr(self, name) <= 3, name, "0..3", getattr(self, name))


@dataclass(frozen=True)
class GroundingTask(Strict):
    """The grounding question a checkpoint was trained on.

    Attributes:
        quotes: marks around the description: `doubled` single ones (published), `curly` double or `straight` double.
    """

    quotes: Literal["doubled", "curly", "straight"] = "doubled"


def parse(cls: type[T], data: Mapping[str, Any], source: str) -> T:
    """Build `cls` from a mapping, strictly.

    Args:
        cls: a dataclass of this module, or one made of them.
        data: mapping from JSON or YAML.
        source: file or option the mapping came from, for messages.

    Raises:
        UserError: unknown key, missing key or value of the wrong type, named by its dotted path.
    """
    try:
        return TypeAdapter(cls).validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, UserError):
            where = ".".join([*map(str, first["loc"]), cause.field])
            raise UserError(f"{source}: {where}", cause.expected, cause.got, cause.fix) from None
        where = f"{source}: {'.'.join(map(str, first['loc']))}"
        if first["type"] == "unexpected_keyword_argument":
            key = str(first["loc"][-1])
            known = [field.name for field in fields(_class_at(cls, first["loc"][:-1]))]
            raise UserError(where, "a known key", key, did_you_mean(key, known)) from None
        if first["type"] == "missing":
            raise UserError(where, "a value", "nothing") from None
        raise UserError(where, first["msg"].removeprefix("Input should be "), first.get("input")) from None


def _class_at(cls: Any, path: tuple[int | str, ...]) -> Any:
    """The dataclass that stands at a path of keys and indices inside `cls`."""
    for step in path:
        inner = cls if isinstance(step, int) else get_type_hints(cls)[step]
        choices = get_args(inner) or (inner,)
        cls = next((choice for choice in choices if is_dataclass(choice)), inner)
    return cls
