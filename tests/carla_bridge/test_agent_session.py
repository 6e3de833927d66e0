"""A leaderboard route on the planner's side, fed with measurements made by hand; the planner is a recorder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from carla_bridge.agent_server.session import AgentSession, Driving, leaderboard_sensors
from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.errors import UserError
from wamdiff2_core.types import Check, NavCommand, Observation, Plan, Waypoints

RADIUS_M = 6378137.0
CAMERA = CameraSpec("front", width_px=32, height_px=16)
EAST_COMPASS = math.pi / 2  # CARLA's compass counts from north, clockwise


def degrees(x_m: float, y_north_m: float) -> list[float]:
    """On a map whose reference is 0, 0."""
    return [math.degrees(2 * math.atan(math.exp(y_north_m / RADIUS_M))) - 90, math.degrees(x_m / RADIUS_M)]


def route(**changes: Any) -> dict[str, Any]:
    """100 m eastwards along y = 0, with a left turn announced for its end."""
    positions = [[float(x), 0.0, 0.0] for x in range(101)]
    return {
        "type": "route", "name": "r", "positions": positions, "options": [4] * 80 + [1] * 21,
        "degrees": [degrees(x, -y) for x, y, _ in positions], "max_steer_deg": 70.0, **changes,
    }  # fmt: skip


class Planner:
    """Straight on at 5 m/s, and what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.ok = True

    def __call__(self, observation: Observation) -> Plan:
        self.seen.append(observation)
        xy = np.stack([2.5 * np.arange(1, 7), np.zeros(6)], axis=1)
        return Plan(observation.stamp_ns, Waypoints(xy, 0.5), check=Check(self.ok, "" if self.ok else "too bold"))


class Drive:
    """A session and a vehicle that goes along its route at 4 m/s."""

    def __init__(self, message: dict[str, Any] | None = None, **driving: Any) -> None:
        self.planner = Planner()
        rule = TargetRule("arc_length", (10.0, 20.0))
        self.session = AgentSession(Driving(self.planner, (CAMERA,), rule, **driving), message or route())
        self.tick, self.x_m, self.random = 0, 0.0, np.random.default_rng(0)
        self.wants = True

    def message(self, **changes: Any) -> dict[str, Any]:
        latitude, longitude = degrees(self.x_m, 0.0) + self.random.normal(0, 5e-6, 2)
        pixels = np.full((16, 32, 3), (200, 100, 50), np.uint8)
        images = {"front": {"height": 16, "width": 32, "rgb": pixels.tobytes()}} if self.wants else {}
        return {
            "type": "step", "time_s": 5.0 + 0.05 * self.tick, "speed_mps": 4.0, "images": images,
            "gnss": [latitude, longitude, 0.0], "imu": [0.0, 0.0, 9.81, 0.0, 0.0, 0.0, EAST_COMPASS], **changes,
        }  # fmt: skip

    def step(self, **changes: Any) -> dict[str, Any]:
        reply = self.session.step(self.message(**changes))
        self.tick += 1
        self.x_m += 0.2
        self.wants = reply["wants_images"]
        return reply


def test_sensors_are_left_handed_and_sit_where_localisation_expects_them() -> None:
    rig = (CameraSpec("left", 0.27, 0.55, 1.6, 1.0, 2.0, 55.0, 1600, 900, 70.0), CAMERA)
    left, front, gnss, imu, speed = leaderboard_sensors(rig)
    assert left == {
        "type": "sensor.camera.rgb", "id": "left", "x": 0.27, "y": -0.55, "z": 1.6, "roll": 1.0, "pitch": -2.0,
        "yaw": -55.0, "width": 1600, "height": 900, "fov": 70.0,
    }  # fmt: skip
    assert front["id"] == "front"
    assert [sensor["type"] for sensor in (gnss, imu)] == ["sensor.other.gnss", "sensor.other.imu"]
    assert all(sensor[axis] == 0.0 for sensor in (gnss, imu) for axis in ("x", "y", "z", "yaw"))
    assert speed["type"] == "sensor.speedometer"


def test_it_brakes_until_the_position_is_known_and_then_drives_a_held_plan() -> None:
    drive = Drive(every_ticks=4)
    replies = [drive.step() for _ in range(60)]
    settled = next(k for k, reply in enumerate(replies) if not reply["reason"])
    assert 3 < settled < 20
    assert all(reply["throttle"] == 0 and reply["brake"] > 0.5 for reply in replies[:settled])
    assert all("position known to" in reply["reason"] for reply in replies[:settled])
    assert all(reply["throttle"] > 0 and reply["brake"] == 0 for reply in replies[settled + 1 :])
    assert all(abs(reply["steer"]) < 0.05 for reply in replies[settled:])
    # A plan every fourth tick, and pictures asked for just then.
    stamps = [observation.stamp_ns for observation in drive.planner.seen]
    assert set(np.diff(stamps)) == {200_000_000}
    wanted = [reply["wants_images"] for reply in replies[settled:]]
    assert wanted[:8] == [False, False, False, True] * 2


def test_the_planner_sees_rgb_speed_targets_and_command() -> None:
    drive = Drive()
    for _ in range(40):
        drive.step()
    seen = drive.planner.seen[-1]
    assert seen.frames[0].rgb[0, 0].tolist() == [200, 100, 50]
    assert seen.frames[0].camera == "front"
    assert seen.ego.speed_mps == 4.0
    np.testing.assert_allclose(seen.navigation.targets_m, [[10, 0], [20, 0]], atol=0.3)
    assert seen.navigation.command is NavCommand.FOLLOW
    drive.x_m = 60.0  # a jump that localisation needs a while for
    drive.session._navigator.progress_m = 58.0
    for _ in range(60):
        drive.step()
    assert drive.planner.seen[-1].navigation.command is NavCommand.LEFT


def test_refused_plans_are_not_driven_and_the_last_good_one_only_while_it_is_fresh() -> None:
    drive = Drive()
    for _ in range(40):
        drive.step()
    drive.planner.ok = False
    reasons = [drive.step()["reason"] for _ in range(40)]
    assert reasons[0] == ""
    assert reasons[-1].endswith("limit 1 s; later plans were refused: too bold")
    assert 15 < sum(not reason for reason in reasons) <= 21
    drive.planner.ok = True
    assert [drive.step()["reason"] for _ in range(6)][-1] == ""


def test_a_first_plan_that_is_refused_says_so() -> None:
    drive = Drive()
    drive.planner.ok = False
    reasons = [drive.step()["reason"] for _ in range(30)]
    assert reasons[-1] == "plan refused: too bold"


def test_compass_gaps_and_missing_readings_do_not_stop_it() -> None:
    drive = Drive()
    imu = [0.0, 0.0, 9.81, 0.0, 0.0, 0.0, math.nan]
    for k in range(60):
        reply = drive.step(**({"imu": imu} if k % 3 else {}), **({"gnss": None} if 30 < k < 40 else {}))
    assert reply["reason"] == ""
    assert "no speed" in drive.step(speed_mps=None)["reason"]


def test_a_restart_goes_on_from_where_the_route_was() -> None:
    begun, resumed = Drive(), Drive(route(progress_m=70.0))
    for drive in (begun, resumed):
        drive.x_m = 70.0
    for _ in range(30):
        reply = resumed.step()
    assert reply["reason"] == ""
    assert resumed.session.progress_m > 70.0
    with pytest.raises(UserError, match=r"GNSS.*of the plan's beginning.*70 m"):
        begun.step()


def test_jpeg_changes_pixels_as_jpeg_does() -> None:
    drive = Drive(jpeg_quality=20)
    noise = np.random.default_rng(1).integers(0, 255, (16, 32, 3), np.uint8)
    picture = {"front": {"height": 16, "width": 32, "rgb": noise.tobytes()}}
    for _ in range(20):
        drive.step(images=picture)
    stored = drive.planner.seen[-1].frames[0].rgb
    assert stored.shape == (16, 32, 3)
    assert 10 < np.abs(stored.astype(int) - noise).mean() < 80


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_s": None}, "time_s"), ({"time_s": "now"}, "time_s"), ({"speed_mps": math.inf}, "speed_mps"),
        ({"gnss": [0.0, 0.0]}, "gnss"), ({"imu": [0.0] * 6}, "imu"), ({"imu": ["x"] * 7}, "imu"),
        ({"images": [1]}, "images"), ({"images": {"rear": {}}}, "front"),
        ({"images": {"front": {"height": 16, "width": 32, "rgb": b"short"}}}, "front"),
        ({"images": {"front": {"height": 32, "width": 16, "rgb": bytes(1536)}}}, "front"),
    ],
)  # fmt: skip
def test_steps_that_are_wrong_are_refused_by_field(changes: dict[str, Any], said: str) -> None:
    drive = Drive()
    drive.step()
    with pytest.raises(UserError, match=said):
        drive.step(**changes)
    assert drive.step()["type"] == "control"


def test_time_that_goes_back_is_refused() -> None:
    drive = Drive()
    drive.step()
    with pytest.raises(UserError, match="time_s"):
        drive.step(time_s=1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": "straight on"}, "positions"), ({"positions": [[0.0, 0.0]] * 101}, "positions"),
        ({"options": [1.5] * 101}, "options"), ({"options": [4]}, "N options"), ({"degrees": None}, "degrees"),
        ({"positions": [[0.0, 0.0, 0.0], [1.0, math.nan, 0.0]]}, r"positions\[1, 1\]: .* finite number, got nan"),
        ({"degrees": [[0.0, 0.0]] * 3}, "degrees"), ({"max_steer_deg": 700.0}, "max_steer_deg"),
        ({"degrees": [[0.0, k * 1e-3] for k in range(101)]}, "Mercator"),
    ],
)  # fmt: skip
def test_routes_that_are_wrong_are_refused_by_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Drive(route(**changes))
