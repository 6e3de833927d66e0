"""Comfort ("driving smoothness") from the agents' `metric_info.json`: as upstream codes it, and corrected.

A route is cut into stretches of 20 samples; its figure is the share of stretches in which six quantities stay within
nuPlan's limits. Upstream (`efficiency_smoothness_benchmark.py`, Bench2Drive 0.0.4) deviates from nuPlan in four ways:

- CARLA gives angular velocity in deg/s; it is compared with limits in rad/s, and unwrapped as if it were an angle;
- the yaw acceleration is never differentiated: it is the smoothed yaw rate again;
- jerk is differentiated with 0.1 s, although samples are 0.05 s apart;
- so a steady turn of 1.0 deg/s fails and one of 0.9 deg/s passes, whatever the ride is like.

The corrected figure mends these and keeps the rest: limits, filter, stretches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import savgol_filter

from carla_bridge.leaderboard.metric_info import METRIC_FILE

CORRECTION = ("upstream compares yaw rates in deg/s with limits in rad/s, takes the smoothed yaw rate for the yaw "
              "acceleration, and differentiates samples 0.05 s apart with 0.1 s")
STRETCH = 20
WINDOW = 7
ORDER = 2
TICK_S = 0.05
UPSTREAM_STEP_S = 0.1

LON_ACCEL_MPS2 = (-4.05, 2.40)
LAT_ACCEL_MPS2 = (-4.89, 4.89)
JERK_MPS3 = (-8.37, 8.37)
LON_JERK_MPS3 = (-4.13, 4.13)
YAW_ACCEL_RADPS2 = (-1.93, 1.93)
YAW_RATE_RADPS = (-0.95, 0.95)


class MetricFileError(ValueError):
    """A metric file cannot be used; the message says why."""


@dataclass(frozen=True)
class MetricInfo:
    """What an agent noted of its vehicle, one row a sample, in CARLA's world; in stretches, with an axis in front.

    Attributes:
        accel_mps2: (N, 2) horizontal acceleration.
        forward, right: (N, 2) horizontal part of the vehicle's axes.
        yaw_rate_degps: (N,) clockwise positive.
        step_s: time between samples.
    """

    accel_mps2: np.ndarray
    forward: np.ndarray
    right: np.ndarray
    yaw_rate_degps: np.ndarray
    step_s: float = TICK_S

    def __len__(self) -> int:
        return len(self.yaw_rate_degps)


@dataclass(frozen=True)
class RouteComfort:
    """Share of comfortable stretches of one route, 0..1, by both rules."""

    as_coded: float
    corrected: float


def find_metric_file(folder: Path, save_name: str) -> Path | None:
    """The metric file of a record: where upstream's tool looks, or the only one further down in its folder."""
    if not save_name:
        return None
    usual = folder / save_name / METRIC_FILE
    if usual.is_file():
        return usual
    deeper = list((folder / save_name).rglob(METRIC_FILE))
    return deeper[0] if len(deeper) == 1 else None


def load_metric_info(path: Path) -> MetricInfo:
    """Read `{step: {acceleration, angular_velocity, forward_vector, right_vector, ...}}`, in the order of the file.

    Raises:
        MetricFileError: damaged, of another form, or with fewer than three samples.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MetricFileError(f"{path} cannot be read: {error}") from None
    try:
        rows = list(data.values())
        columns = {
            name: np.array([row[name] for row in rows], dtype=np.float64).reshape(len(rows), 3)
            for name in ("acceleration", "angular_velocity", "forward_vector", "right_vector")
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MetricFileError(f"{path}: expected three numbers of each quantity for every step ({error!r})") from None
    if not all(np.isfinite(column).all() for column in columns.values()):
        raise MetricFileError(f"{path}: expected finite numbers")
    if len(rows) <= ORDER:
        raise MetricFileError(f"{path}: expected at least {ORDER + 1} samples, got {len(rows)}")
    return MetricInfo(
        columns["acceleration"][:, :2], columns["forward_vector"][:, :2], columns["right_vector"][:, :2],
        columns["angular_velocity"][:, 2], _step_s(list(data)),
    )


def _step_s(steps: Sequence[str]) -> float:
    """Time between samples, from their step numbers: an agent may note every second tick only."""
    try:
        gaps = np.diff([int(step) for step in steps])
    except ValueError:
        return TICK_S
    return TICK_S * max(float(np.median(gaps)), 1.0)


def route_comfort(info: MetricInfo) -> RouteComfort:
    """Both figures of one route.

    Args:
        info: at least three samples.
    """
    return RouteComfort(_share(info, _comfortable_as_coded), _share(info, _comfortable))


def _share(info: MetricInfo, rule: Callable[[MetricInfo], np.ndarray]) -> float:
    """Share of whole stretches that pass; a route of one stretch or less is judged once."""
    length = min(len(info), STRETCH)
    count = len(info) // length

    def cut(column: np.ndarray) -> np.ndarray:
        return column[: count * length].reshape(count, length, *column.shape[1:])

    stretches = MetricInfo(
        cut(info.accel_mps2), cut(info.forward), cut(info.right), cut(info.yaw_rate_degps), info.step_s
    )
    return float(rule(stretches).mean())


def _comfortable_as_coded(info: MetricInfo) -> np.ndarray:
    unwrapped = info.yaw_rate_degps.copy()
    turns = np.round(np.diff(info.yaw_rate_degps) / (2 * math.pi))
    unwrapped[..., 1:] -= 2 * math.pi * np.cumsum(turns, axis=-1)
    rate = smoothed(unwrapped)
    return _linear(info, UPSTREAM_STEP_S) & _within(rate, YAW_ACCEL_RADPS2) & _within(rate, YAW_RATE_RADPS)


def _comfortable(info: MetricInfo) -> np.ndarray:
    rate = smoothed(np.deg2rad(info.yaw_rate_degps))
    return (
        _linear(info, info.step_s)
        & _within(smoothed(rate, info.step_s), YAW_ACCEL_RADPS2)
        & _within(rate, YAW_RATE_RADPS)
    )


def _linear(info: MetricInfo, step_s: float) -> np.ndarray:
    """Accelerations and jerks; jerk is the derivative of the smoothed acceleration."""
    lon = smoothed((info.accel_mps2 * info.forward).sum(-1))
    lat = smoothed((info.accel_mps2 * info.right).sum(-1))
    magnitude = smoothed(np.linalg.norm(info.accel_mps2, axis=-1))
    return (
        _within(lon, LON_ACCEL_MPS2)
        & _within(lat, LAT_ACCEL_MPS2)
        & _within(smoothed(magnitude, step_s), JERK_MPS3)
        & _within(smoothed(lon, step_s), LON_JERK_MPS3)
    )


def _within(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Whether all values of a stretch lie strictly between two limits; a NaN does not."""
    return np.asarray(((values > limits[0]) & (values < limits[1])).all(axis=-1))


def smoothed(values: np.ndarray, derivative_step_s: float | None = None) -> np.ndarray:
    """Savitzky-Golay filter: parabolas fitted to seven samples, by least squares.

    Args:
        values: (..., N) with N >= 3; fewer than seven are fitted all at once.
        derivative_step_s: sample spacing; the first derivative is returned instead of the value.

    Returns:
        (..., N) fitted values or derivatives; the first and last three come from the first and last fit.
    """
    window = min(WINDOW, values.shape[-1])
    if derivative_step_s is None:
        return np.asarray(savgol_filter(values, window, ORDER))
    return np.asarray(savgol_filter(values, window, ORDER, deriv=1, delta=derivative_step_s))
