"""The nouns of the package: what a planner sees, and what it answers.

Every vector here is REP-103: base_link, x forward, y left, z up; metres, seconds, radians. `t0` is the stamp of the
camera frame that anchors an observation; a plan made from it carries the same stamp, so its age is measurable.
Arrays are checked once, at construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np


class NavCommand(Enum):
    """High-level route command; values are the words of the Bench2Drive/SimLingo prompt."""

    LEFT = "go left at the next intersection"
    RIGHT = "go right at the next intersection"
    STRAIGHT = "go straight at the next intersection"
    FOLLOW = "follow the road"
    CHANGE_LEFT = "do a lane change to the left"
    CHANGE_RIGHT = "do a lane change to the right"


def _array(name: str, value: object, shape: tuple[int | None, ...]) -> np.ndarray:
    array = np.array(value, dtype=np.float64)  # a copy: the caller's own array stays writable
    if array.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True)):
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    place = not_finite_at(array)
    if place is not None:
        raise ValueError(f"{name}{list(place)}: expected a finite number, got {array[place]}")
    array.setflags(write=False)
    return array


def not_finite_at(array: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first number of an array that is NaN or infinite; None when there is none."""
    places = np.argwhere(~np.isfinite(array))
    return tuple(int(index) for index in places[0]) if len(places) else None


@dataclass(frozen=True)
class CameraFrame:
    """One image.

    Attributes:
        rgb: (H, W, 3) uint8, RGB order.
        stamp_ns: acquisition time, nanoseconds.
        camera: name of the camera in the rig.
    """

    rgb: np.ndarray
    stamp_ns: int
    camera: str = "front"

    def __post_init__(self) -> None:
        if self.rgb.dtype != np.uint8 or self.rgb.ndim != 3 or self.rgb.shape[2] != 3:
            raise ValueError(f"rgb: expected (H, W, 3) uint8, got {self.rgb.shape} {self.rgb.dtype}")


@dataclass(frozen=True)
class Pose2D:
    """Planar pose `parent_from_child`: position in metres, yaw in radians, counter-clockwise positive."""

    x_m: float
    y_m: float
    yaw_rad: float


@dataclass(frozen=True)
class EgoState:
    """Motion of the ego vehicle at `stamp_ns`, and where it is.

    Attributes:
        velocity_mps: (2,) in base_link, x forward, y left.
        acceleration_mps2: (2,) in base_link, x forward, y left.
        yaw_rate_radps: positive turns left.
        map_from_base: pose in the map frame. A controller needs it to age a plan; a model never sees it.
        stamp_ns: time of the measurement, nanoseconds.
    """

    velocity_mps: np.ndarray = field(default_factory=lambda: np.zeros(2))
    acceleration_mps2: np.ndarray = field(default_factory=lambda: np.zeros(2))
    yaw_rate_radps: float = 0.0
    map_from_base: Pose2D = Pose2D(0.0, 0.0, 0.0)
    stamp_ns: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "velocity_mps", _array("velocity_mps", self.velocity_mps, (2,)))
        object.__setattr__(self, "acceleration_mps2", _array("acceleration_mps2", self.acceleration_mps2, (2,)))

    @property
    def speed_mps(self) -> float:
        """Signed forward speed."""
        return float(self.velocity_mps[0])


@dataclass(frozen=True)
class Navigation:
    """What the route asks for, as a model sees it.

    Attributes:
        targets_m: (2, 2) next two target points, base_link at t0, x forward, y left.
        command: high-level command; None when it is not known, which only NAVSIM's prompts have a word for.
    """

    targets_m: np.ndarray
    command: NavCommand | None = NavCommand.FOLLOW

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets_m", _array("targets_m", self.targets_m, (2, 2)))


@dataclass(frozen=True)
class Observation:
    """All a planner may look at.

    Attributes:
        frames: camera frames in the order of the checkpoint's rig; the first one anchors t0.
        ego: ego motion at t0.
        navigation: targets and command at t0.
    """

    frames: tuple[CameraFrame, ...]
    ego: EgoState
    navigation: Navigation

    def __post_init__(self) -> None:
        if not self.frames:
            raise ValueError("frames: expected at least one camera frame, got none")

    @property
    def stamp_ns(self) -> int:
        """t0: the stamp of the first camera frame."""
        return self.frames[0].stamp_ns


@dataclass(frozen=True)
class Waypoints:
    """Future positions of base_link.

    Attributes:
        xy_m: (T, 2) metres, base_link at t0, x forward, y left; row i is time t0 + (i + 1) * dt_s.
        dt_s: spacing in time, seconds.
    """

    xy_m: np.ndarray
    dt_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "xy_m", _array("xy_m", self.xy_m, (None, 2)))
        if not self.dt_s > 0:
            raise ValueError(f"dt_s: expected > 0, got {self.dt_s}")


@dataclass(frozen=True)
class DecodeStats:
    """How an answer was decoded.

    Attributes:
        prefill_ms: image encoding and prompt forward, wall clock.
        decode_ms: all block forwards and token choices, wall clock.
        forwards: forwards of the language model, prefill included.
        steps: denoising steps (AR: tokens).
        blocks: blocks decoded.
        tokens: answer tokens up to and including EOS.
        interventions: of these, tokens where the grammar chose another than the model's best when it was fixed.
        hurried_steps: steps in which the deadline fixed tokens that the strategy would have left open.
        overshoot_ms: by how much the batch missed its deadline, wall clock; 0 when it was met, or there was none.
        prefill_reused_tokens: of the prompt, tokens that were not run, as the prompt before began with them.
    """

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    forwards: int = 0
    steps: int = 0
    blocks: int = 0
    tokens: int = 0
    interventions: int = 0
    hurried_steps: int = 0
    overshoot_ms: float = 0.0
    prefill_reused_tokens: int = 0


@dataclass(frozen=True)
class Check:
    """Outcome of a check; `message` says what is wrong, and is empty when `ok`."""

    ok: bool = True
    message: str = ""


@dataclass(frozen=True)
class Plan:
    """A planner's answer to one observation.

    Attributes:
        stamp_ns: t0 of the observation it was made from, never the time of its making.
        waypoints: None when the answer could not be read; `check` then says why.
        text: the model's answer, verbatim.
        stats: decode statistics.
        check: whether the plan may be driven.
        source: checkpoint hash, or the name of the planner that made it.
    """

    stamp_ns: int
    waypoints: Waypoints | None
    text: str = ""
    stats: DecodeStats = DecodeStats()
    check: Check = Check()
    source: str = ""


@dataclass(frozen=True)
class VehicleCommand:
    """What the controller asks of the vehicle: front-wheel angle (left positive) and acceleration (forward)."""

    steer_rad: float
    accel_mps2: float
