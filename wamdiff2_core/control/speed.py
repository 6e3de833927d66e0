"""Speed control: what a plan's spacing asks for, and the acceleration that brings the vehicle there."""

from __future__ import annotations

import numpy as np

from wamdiff2_core.types import Waypoints


def planned_speed(waypoints: Waypoints, time_s: float) -> float:
    """Speed a plan asks for at a time after its t0.

    The mean speed between two waypoints holds at the middle of their interval; between the middles it is interpolated,
    before the first and after the last it goes on with the nearest slope, never below zero.

    Args:
        waypoints: the plan; t0 is at the origin.
        time_s: seconds after t0.

    Returns:
        m/s, >= 0.
    """
    steps = np.diff(np.vstack([[0.0, 0.0], waypoints.xy_m]), axis=0)
    speeds = np.hypot(steps[:, 0], steps[:, 1]) / waypoints.dt_s
    if len(speeds) == 1:
        return float(speeds[0])
    position = time_s / waypoints.dt_s - 0.5
    k = min(max(int(np.floor(position)), 0), len(speeds) - 2)
    # Half an interval beyond the known middles is what the plan covers; no slope is trusted further than that.
    part = min(max(position - k, -0.5), 1.5)
    return max(0.0, float(speeds[k] + part * (speeds[k + 1] - speeds[k])))


class SpeedController:
    """PI on speed; its integral stays still while the output is at a limit.

    Args:
        gain_per_s: acceleration per m/s of error; the inverse of the time in which an error is made good.
        integral_per_s2: of the error's integral, against a vehicle that answers too weakly or too strongly.
        max_accel_mps2, max_decel_mps2: limits of the output, both positive.
    """

    def __init__(self, gain_per_s: float, integral_per_s2: float, max_accel_mps2: float, max_decel_mps2: float) -> None:
        self._gain, self._integral = gain_per_s, integral_per_s2
        self._upper, self._lower = max_accel_mps2, -max_decel_mps2
        self.reset()

    def reset(self) -> None:
        """Forget the integral."""
        self._sum = 0.0

    def step(self, wanted_mps: float, speed_mps: float, dt_s: float) -> float:
        """Acceleration in m/s^2 for the next `dt_s`."""
        error = wanted_mps - speed_mps
        trial = self._sum + error * dt_s
        raw = self._gain * error + self._integral * trial
        limited = max(self._lower, min(self._upper, raw))
        if raw == limited or (raw > limited) == (error < 0):
            self._sum = trial
        return max(self._lower, min(self._upper, self._gain * error + self._integral * self._sum))
