"""The controller: a plan and the ego state in, a vehicle command out. It never sees a route.

A plan is fixed to the ground by the ego pose at its t0, then read from where the vehicle is now; so it stays right
while it ages. For a plan that is too old the vehicle brakes along its path, without one it brakes with straight wheels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_core.config import Strict
from wamdiff2_core.control.pure_pursuit import curvature_to, point_ahead, steer_for_curvature
from wamdiff2_core.control.speed import SpeedController, planned_speed
from wamdiff2_core.errors import require
from wamdiff2_core.frames import compose, inverse, transform_points
from wamdiff2_core.types import EgoState, Plan, Pose2D, VehicleCommand


@dataclass(frozen=True)
class ControlConfig(Strict):
    """Vehicle geometry and gains.

    Attributes:
        wheelbase_m: distance between the axles.
        rear_axle_x_m: the rear axle in base_link; not ahead of it.
        max_steer_rad: limit of the front-wheel angle.
        min_lookahead_m, lookahead_s: look-ahead distance is min + speed * s.
        preview_s: the speed asked for is the plan's this much later than now.
        speed_gain_per_s, speed_integral_per_s2: PI gains.
        max_accel_mps2, max_decel_mps2: limits while a plan is driven.
        stop_speed_mps: a plan slower than this asks to stand.
        hold_decel_mps2: deceleration while it asks to stand.
        emergency_decel_mps2: deceleration without a plan that may be driven.
        max_plan_age_s: for a plan older than this the vehicle brakes along its path.
    """

    wheelbase_m: float = 2.86
    rear_axle_x_m: float = -1.43
    max_steer_rad: float = 0.6
    min_lookahead_m: float = 2.0
    lookahead_s: float = 0.35
    preview_s: float = 0.5
    speed_gain_per_s: float = 2.0
    speed_integral_per_s2: float = 0.1
    max_accel_mps2: float = 3.0
    max_decel_mps2: float = 5.0
    stop_speed_mps: float = 0.15
    hold_decel_mps2: float = 3.0
    emergency_decel_mps2: float = 6.0
    max_plan_age_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("wheelbase_m", "max_steer_rad", "min_lookahead_m", "max_accel_mps2", "max_decel_mps2",
                     "emergency_decel_mps2", "max_plan_age_s"):
            require(getattr(self, name) > 0, name, "> 0", getattr(self, name))
        for name in ("lookahead_s", "preview_s", "speed_gain_per_s", "speed_integral_per_s2", "stop_speed_mps",
                     "hold_decel_mps2"):
            require(getattr(self, name) >= 0, name, ">= 0", getattr(self, name))
        require(self.rear_axle_x_m <= 0, "rear_axle_x_m", "<= 0, behind base_link", self.rear_axle_x_m)


@dataclass(frozen=True)
class PlanInMap:
    """A plan, fixed to the ground.

    Attributes:
        plan: waypoints in base_link at `plan.stamp_ns`.
        map_from_base_at_t0: the ego pose at that moment.
    """

    plan: Plan
    map_from_base_at_t0: Pose2D

    @property
    def stamp_ns(self) -> int:
        """t0 of the plan, nanoseconds."""
        return self.plan.stamp_ns


class Controller:
    """One per drive.

    Attributes:
        reason: why the last command was to brake; empty while a plan is driven.
    """

    def __init__(self, config: ControlConfig = ControlConfig()) -> None:
        self.config = config
        self._speed = SpeedController(
            config.speed_gain_per_s, config.speed_integral_per_s2, config.max_accel_mps2, config.max_decel_mps2
        )
        self._last_ns: int | None = None
        self.reason = ""

    def reset(self) -> None:
        """Forget everything, as for a new route."""
        self._speed.reset()
        self._last_ns = None
        self.reason = ""

    def step(self, plan: PlanInMap | None, ego_now: EgoState, now_ns: int) -> VehicleCommand:
        """The command until the next step.

        Args:
            plan: the plan in force, or None.
            ego_now: pose and speed at `now_ns`.
            now_ns: simulated or vehicle time, the clock of the plan's stamp.
        """
        c = self.config
        dt_s = 0.05 if self._last_ns is None else min(0.5, max(0.0, (now_ns - self._last_ns) * 1e-9))
        self._last_ns = now_ns
        self.reason = self._refusal(plan, now_ns)
        if plan is None or plan.plan.waypoints is None or not plan.plan.check.ok:
            self._speed.reset()
            return VehicleCommand(0.0, -c.emergency_decel_mps2)

        waypoints = plan.plan.waypoints
        now_from_t0 = compose(inverse(ego_now.map_from_base), plan.map_from_base_at_t0)
        path = transform_points(now_from_t0, np.vstack([[0.0, 0.0], waypoints.xy_m]))
        speed = ego_now.speed_mps
        target = point_ahead(path, c.min_lookahead_m + c.lookahead_s * max(0.0, speed))
        curvature = 0.0 if target is None else curvature_to(*target, -c.rear_axle_x_m)
        steer = steer_for_curvature(curvature, c.wheelbase_m, c.max_steer_rad)
        if self.reason:  # too old to drive by, but its path still lies on the road: brake along it
            self._speed.reset()
            return VehicleCommand(steer, -c.emergency_decel_mps2)

        wanted = planned_speed(waypoints, (now_ns - plan.stamp_ns) * 1e-9 + c.preview_s)
        accel = self._speed.step(wanted, speed, dt_s)
        if wanted < c.stop_speed_mps and speed < 1.0:
            self._speed.reset()
            accel = -c.hold_decel_mps2
        return VehicleCommand(steer, accel)

    def _refusal(self, plan: PlanInMap | None, now_ns: int) -> str:
        if plan is None:
            return "no plan"
        if not plan.plan.check.ok:
            return f"plan refused: {plan.plan.check.message}"
        if plan.plan.waypoints is None:
            return "plan without waypoints"
        age_s = (now_ns - plan.stamp_ns) * 1e-9
        if age_s > self.config.max_plan_age_s:
            return f"plan is {age_s:.2f} s old, limit {self.config.max_plan_age_s:g} s"
        return ""
