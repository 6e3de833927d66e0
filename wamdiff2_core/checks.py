"""Whether a plan may be driven: complete, finite, and possible for a car.

Limits leave room for the text's rounding: one decimal of a metre is 0.2 m/s of speed at half a second's spacing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from wamdiff2_core.config import Strict
from wamdiff2_core.errors import require
from wamdiff2_core.types import Check, Waypoints


@dataclass(frozen=True)
class PlanLimits(Strict):
    """What a plan must stay within.

    Attributes:
        max_speed_mps: between two waypoints.
        max_accel_mps2, max_decel_mps2: change of speed over time. The first, from the ego's own speed to the mean of
            the first step, may be three times as large.
        max_yaw_rate_radps: change of direction over time, from straight ahead on.
        min_step_m: steps shorter than this have no direction that rounding leaves intact.
    """

    max_speed_mps: float = 45.0
    max_accel_mps2: float = 8.0
    max_decel_mps2: float = 14.0
    max_yaw_rate_radps: float = 1.5
    min_step_m: float = 0.75

    def __post_init__(self) -> None:
        for field in fields(self):
            require(getattr(self, field.name) > 0, field.name, "> 0", getattr(self, field.name))


DEFAULT_LIMITS = PlanLimits()
# From t0 to the middle of the first step is half an interval, so a constant acceleration a changes the speed by
# a * dt / 2 there, which over a whole dt is a / 2, and with this factor a / 3: the limit is three times as wide. It is
# the one change that holds the error of the measured speed.
FIRST_CHANGE = 2 / 3


def check_waypoints(
    waypoints: Waypoints, speed_mps: float, expected: int | None = None, limits: PlanLimits = DEFAULT_LIMITS
) -> Check:
    """Check waypoints against the ego's motion.

    Args:
        waypoints: base_link at t0, metres.
        speed_mps: the ego's forward speed at t0.
        expected: number of waypoints, or None for any number >= 1.
        limits: kinematic limits.

    Returns:
        The first fault found, named with its waypoint (counted from 1).
    """
    points = waypoints.xy_m
    if len(points) == 0 or (expected is not None and len(points) != expected):
        return Check(False, f"plan: expected {expected or 'at least 1'} waypoints, got {len(points)}")
    if not np.isfinite(points).all():
        return Check(False, "plan: a waypoint is not finite")
    steps = np.diff(points, axis=0, prepend=np.zeros((1, 2)))
    lengths = np.hypot(steps[:, 0], steps[:, 1])
    speeds = lengths / waypoints.dt_s
    changes = np.diff(speeds, prepend=abs(speed_mps)) / waypoints.dt_s
    changes[0] *= FIRST_CHANGE
    for name, values, limit, unit in (
        ("speed", speeds, limits.max_speed_mps, "m/s"),
        ("acceleration", changes, limits.max_accel_mps2, "m/s^2"),
        ("deceleration", -changes, limits.max_decel_mps2, "m/s^2"),
        ("yaw rate", _yaw_rates(steps, lengths, waypoints.dt_s, limits.min_step_m), limits.max_yaw_rate_radps, "rad/s"),
    ):
        worst = int(np.argmax(values))
        if values[worst] > limit:
            found = f"{name} {values[worst]:.1f} {unit} at waypoint {worst + 1}"
            return Check(False, f"plan: {found} is above {limit:g} {unit}")
    return Check()


def _yaw_rates(steps: np.ndarray, lengths: np.ndarray, dt_s: float, min_step_m: float) -> np.ndarray:
    """(T,) rad/s, absolute: turn from the last step with a direction to this one, over the time between them."""
    rates = np.zeros(len(steps))
    last_direction, last_index = 0.0, -1
    for index in np.flatnonzero(lengths >= min_step_m):
        direction = float(np.arctan2(steps[index, 1], steps[index, 0]))
        turn = abs((direction - last_direction + np.pi) % (2 * np.pi) - np.pi)
        rates[index] = turn / ((index - last_index) * dt_s)
        last_direction, last_index = direction, int(index)
    return rates
