"""The controller against a bicycle, and what it does without a plan."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wamdiff2_core.control.controller import ControlConfig, Controller, PlanInMap
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import compose, inverse, transform_points
from wamdiff2_core.types import Check, EgoState, Plan, Pose2D, Waypoints

CONFIG = ControlConfig()
ORIGIN = Pose2D(0.0, 0.0, 0.0)
STEP_NS = 50_000_000


def straight_plan(speed_mps: float, y_m: float = 0.0, stamp_ns: int = 0) -> Plan:
    t = np.arange(1, 7) * 0.5
    return Plan(stamp_ns, Waypoints(np.stack([speed_mps * t, np.full(6, y_m)], axis=1), 0.5))


def ego(speed_mps: float, pose: Pose2D = ORIGIN) -> EgoState:
    return EgoState(velocity_mps=np.array([speed_mps, 0.0]), map_from_base=pose)


class Bicycle:
    """A kinematic bicycle about its rear axle: independent of the controller's geometry."""

    def __init__(self, pose: Pose2D, speed_mps: float) -> None:
        self.rear = compose(pose, Pose2D(-1.43, 0.0, 0.0))
        self.speed_mps = speed_mps

    @property
    def pose(self) -> Pose2D:
        return compose(self.rear, Pose2D(1.43, 0.0, 0.0))

    def move(self, steer_rad: float, accel_mps2: float, dt_s: float = 0.05) -> None:
        turn = self.speed_mps * math.tan(steer_rad) / 2.86 * dt_s
        middle = self.rear.yaw_rad + turn / 2
        self.rear = Pose2D(
            self.rear.x_m + self.speed_mps * math.cos(middle) * dt_s,
            self.rear.y_m + self.speed_mps * math.sin(middle) * dt_s,
            self.rear.yaw_rad + turn,
        )
        self.speed_mps = max(0.0, self.speed_mps + accel_mps2 * dt_s)


@given(y=st.floats(0.2, 4.0), speed=st.floats(1.0, 10.0))
def test_left_waypoints_give_positive_steer_and_the_mirror_image_the_opposite(y: float, speed: float) -> None:
    commands = [
        Controller().step(PlanInMap(straight_plan(speed, side * y), ORIGIN), ego(speed), 0) for side in (1, -1)
    ]
    assert commands[0].steer_rad > 0
    assert commands[1].steer_rad == pytest.approx(-commands[0].steer_rad)
    assert commands[1].accel_mps2 == pytest.approx(commands[0].accel_mps2)


@given(x=st.floats(-500, 500), y=st.floats(-500, 500), yaw=st.floats(-3.1, 3.1))
def test_commands_do_not_depend_on_where_the_map_has_its_origin(x: float, y: float, yaw: float) -> None:
    map_from_other = Pose2D(x, y, yaw)
    at_t0, now = Pose2D(1.0, 2.0, 0.3), Pose2D(3.0, 2.9, 0.5)
    plan = straight_plan(5.0, 1.0)
    here = Controller().step(PlanInMap(plan, at_t0), ego(5.0, now), 400_000_000)
    there = Controller().step(
        PlanInMap(plan, compose(map_from_other, at_t0)), ego(5.0, compose(map_from_other, now)), 400_000_000
    )
    assert there.steer_rad == pytest.approx(here.steer_rad, abs=1e-9)
    assert there.accel_mps2 == pytest.approx(here.accel_mps2, abs=1e-9)


def test_an_old_plan_stays_fixed_to_the_ground() -> None:
    # The vehicle has moved 3 m along a plan and 1 m to the left of it: the path now lies to its right.
    plan = PlanInMap(straight_plan(6.0), ORIGIN)
    assert Controller().step(plan, ego(6.0, Pose2D(3.0, 1.0, 0.0)), 500_000_000).steer_rad < 0
    assert Controller().step(plan, ego(6.0, Pose2D(3.0, 0.0, 0.0)), 500_000_000).steer_rad == pytest.approx(0.0)


@settings(max_examples=20, deadline=None)
@given(radius=st.floats(8.0, 60.0), side=st.sampled_from([-1, 1]), offset=st.floats(-0.3, 0.3), age=st.integers(1, 10))
def test_a_circle_is_tracked_within_half_a_metre(radius: float, side: int, offset: float, age: int) -> None:
    speed = min(8.0, math.sqrt(2.0 * radius))
    car = Bicycle(Pose2D(0.0, offset, 0.0), speed)
    controller, centre = Controller(), np.array([0.0, side * radius])
    plan: PlanInMap | None = None
    errors = []
    for k in range(200):
        if k % age == 0:  # plans as a planner gives them: the next points of the circle, rounded to 1 decimal
            here = car.pose
            angle0 = math.atan2(here.y_m - centre[1], here.x_m - centre[0])
            angles = angle0 + side * speed / radius * np.arange(1, 7) * 0.5
            on_circle = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            xy = transform_points(inverse(here), on_circle).round(1)
            plan = PlanInMap(Plan(k * STEP_NS, Waypoints(xy, 0.5)), here)
        command = controller.step(plan, ego(car.speed_mps, car.pose), k * STEP_NS)
        car.move(command.steer_rad, command.accel_mps2)
        errors.append(abs(math.hypot(car.pose.x_m - centre[0], car.pose.y_m - centre[1]) - radius))
    assert max(errors) < 0.5
    assert car.speed_mps == pytest.approx(speed, abs=0.5)


def test_it_stops_where_the_plan_stops_and_stands() -> None:
    car, controller = Bicycle(ORIGIN, 6.0), Controller()
    t = np.minimum(np.arange(1, 7) * 0.5, 2.0)
    plan = PlanInMap(Plan(0, Waypoints(np.stack([6.0 * t - 1.5 * t**2, np.zeros(6)], axis=1), 0.5)), ORIGIN)
    standing = PlanInMap(Plan(0, Waypoints(np.zeros((6, 2)), 0.5)), ORIGIN)
    for k in range(60):
        # From 2 s on a new plan every step says: stay.
        stay = PlanInMap(dataclasses.replace(standing.plan, stamp_ns=k * STEP_NS), car.pose)
        current = plan if k < 40 else stay
        command = Controller(dataclasses.replace(CONFIG, max_plan_age_s=3.0)).step(
            current, ego(car.speed_mps, car.pose), k * STEP_NS
        )
        car.move(command.steer_rad, command.accel_mps2)
    assert car.speed_mps == 0.0
    assert car.pose.x_m == pytest.approx(6.0, abs=1.2)
    assert controller.step(standing, ego(0.0), 0).accel_mps2 < 0


REFUSED = {
    "none": None,
    "no waypoints": PlanInMap(Plan(0, None), ORIGIN),
    "refused": PlanInMap(dataclasses.replace(straight_plan(8.0, 2.0), check=Check(False, "jumps")), ORIGIN),
}


@pytest.mark.parametrize("case", REFUSED)
def test_without_a_plan_to_drive_it_brakes_straight_and_says_why(case: str) -> None:
    controller = Controller()
    command = controller.step(REFUSED[case], ego(8.0), 0)
    assert command.steer_rad == 0.0
    assert command.accel_mps2 == -CONFIG.emergency_decel_mps2
    assert controller.reason


def test_for_a_plan_that_is_too_old_it_brakes_along_its_path() -> None:
    controller = Controller()
    stale = PlanInMap(straight_plan(8.0, 2.0, stamp_ns=-1_050_000_000), ORIGIN)
    command = controller.step(stale, ego(8.0), 0)
    assert command.accel_mps2 == -CONFIG.emergency_decel_mps2
    assert command.steer_rad > 0
    assert "old" in controller.reason


def test_a_plan_at_the_age_limit_is_still_driven() -> None:
    controller = Controller()
    plan = PlanInMap(straight_plan(8.0, 2.0, stamp_ns=-1_000_000_000), ORIGIN)
    assert controller.step(plan, ego(8.0), 0).steer_rad > 0
    assert controller.reason == ""


def test_a_rear_axle_ahead_of_base_link_is_refused() -> None:
    with pytest.raises(UserError, match="rear_axle_x_m"):
        ControlConfig(rear_axle_x_m=0.5)
