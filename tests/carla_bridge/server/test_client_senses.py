"""Sensors and motion as the real `carla` client sees them, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wamdiff2_core.processes import child_environment

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = [pytest.mark.carla, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "client_scripts" / "senses.py"


@pytest.fixture(scope="module")
def seen(server_port: int) -> dict[str, Any]:
    """What the client saw; one run serves all tests below."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(server_port)],
        env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_several_cameras_measure_every_frame_from_where_they_are_mounted(seen: dict[str, Any]) -> None:
    assert seen["camera_frames_agree"]
    assert seen["camera_yaws"] == pytest.approx([-60.0, 0.0, 60.0], abs=0.01)


def test_depth_and_label_of_the_road_below_the_camera(seen: dict[str, Any]) -> None:
    blue, green, red, _ = seen["depth"]
    assert 1000.0 * (red + 256 * green + 65536 * blue) / (2**24 - 1) == pytest.approx(1.8 * 32.0 / 15.5, rel=0.03)
    assert seen["semantic_segmentation"][2] == 1
    assert seen["palette"] == [128, 64, 128]  # Cityscapes' colour of a road


def test_crossing_a_line_is_a_lane_invasion_and_keeping_the_lane_is_none(seen: dict[str, Any]) -> None:
    assert seen["crossed_while_keeping_the_lane"] == 0
    assert seen["crossed_while_leaving_it"] >= 1


def test_speed_limit_is_that_of_the_road(seen: dict[str, Any]) -> None:
    assert seen["speed_limit_kmh"] == pytest.approx(40.0)


def test_ackermann_control_reaches_its_speed_within_its_acceleration_until_pedals_take_over(
    seen: dict[str, Any],
) -> None:
    assert seen["ackermann_speed"] == pytest.approx(6.0, abs=0.1)
    assert seen["ackermann_acceleration"] == pytest.approx(2.0, abs=0.15)
    assert seen["pedals_take_over"] == 0.0


def test_physics_control_changes_mass_and_grip(seen: dict[str, Any]) -> None:
    assert seen["mass_kg"] == pytest.approx(2500.0)
    dry, slippery = seen["braking_distances"]
    assert 9.0 < dry < 13.0
    assert slippery == pytest.approx(12.0**2 / (2 * (0.95 * 9.81 * 0.2 + 0.1)), rel=0.05)


def test_target_yaw_rate_turns_a_standing_car_until_its_tyres_stop_it(seen: dict[str, Any]) -> None:
    assert 1.0 < seen["turned_deg"] < 20.0
    assert seen["still_turns_degps"] == 0.0
