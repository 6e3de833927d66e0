"""From a command to pedals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.client.vehicle_control import PedalMap, to_pedals
from carla_bridge.server.dynamics.motion import Motion
from carla_bridge.server.dynamics.vehicle_dynamics import Pedals as ServerPedals
from carla_bridge.server.dynamics.vehicle_dynamics import advance
from carla_bridge.server.dynamics.vehicle_model import VehicleModel
from wamdiff2_core.types import VehicleCommand

MAP = PedalMap(max_steer_rad=0.6)


def test_steering_left_is_negative_for_carla() -> None:
    assert to_pedals(VehicleCommand(0.3, 0.0), MAP).steer == -0.5
    assert to_pedals(VehicleCommand(-0.3, 0.0), MAP).steer == 0.5


@given(steer=st.floats(-3, 3), accel=st.floats(-20, 20))
def test_pedals_are_in_range_and_never_pressed_together(steer: float, accel: float) -> None:
    pedals = to_pedals(VehicleCommand(steer, accel), MAP)
    assert 0 <= pedals.throttle <= 1
    assert 0 <= pedals.brake <= 1
    assert -1 <= pedals.steer <= 1
    assert pedals.throttle == 0 or pedals.brake == 0


@pytest.mark.parametrize("accel", [-5.0, -1.0, 0.0, 1.5, 3.0])
def test_the_embedded_vehicle_accelerates_as_commanded(accel: float) -> None:
    model, motion = VehicleModel(), Motion(speed_mps=8.0)
    pedals = to_pedals(VehicleCommand(0.0, accel), PedalMap(model.max_steer_rad))
    for _ in range(10):
        advance(motion, ServerPedals(pedals.throttle, pedals.steer, pedals.brake), model, 0.05)
    before = motion.speed_mps
    for _ in range(10):
        advance(motion, ServerPedals(pedals.throttle, pedals.steer, pedals.brake), model, 0.05)
    assert (motion.speed_mps - before) / 0.5 == pytest.approx(accel, abs=0.1)


def test_the_embedded_vehicle_turns_left_on_a_left_command() -> None:
    model, motion = VehicleModel(), Motion(speed_mps=5.0)
    pedals = to_pedals(VehicleCommand(0.2, 0.0), PedalMap(model.max_steer_rad))
    for _ in range(20):
        advance(motion, ServerPedals(pedals.throttle, pedals.steer, pedals.brake), model, 0.05)
    assert motion.yaw_rate_radps == pytest.approx(-motion.speed_mps * math.tan(0.2) / model.wheelbase_m, rel=1e-3)
