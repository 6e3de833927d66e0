"""The mount of the checkpoint's camera while collecting, angles included."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

import carla

from carla_bridge.collect import fleet as fleet_module
from carla_bridge.collect import preview
from carla_bridge.collect.fleet import Fleet
from carla_bridge.collect.perturbation import NOWHERE, Aside
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.config import CameraSpec

pytestmark = pytest.mark.carla
# On the left side, rolled right, looking down and to the left.
TURNED = CameraSpec(x_m=1.5, y_m=0.4, z_m=1.6, roll_deg=3.0, pitch_deg=10.0, yaw_deg=30.0)


class MountWorld:
    """Takes down where cameras are mounted."""

    def __init__(self) -> None:
        self.places: list[carla.Transform] = []

    def get_blueprint_library(self) -> MountWorld:
        return self

    def find(self, kind: str) -> SimpleNamespace:
        return SimpleNamespace(set_attribute=lambda name, value: None)

    def get_actor(self, actor_id: int) -> int:
        return actor_id

    def spawn_actor(self, blueprint: object, place: carla.Transform, attach_to: int) -> SimpleNamespace:
        self.places.append(place)
        return SimpleNamespace(id=90, listen=lambda callback: None)


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> tuple[Fleet, MountWorld]:
    monkeypatch.setattr(fleet_module, "NANO_CAMERA", TURNED)
    world = MountWorld()
    simulation = SimpleNamespace(world=world, ego_id=7, call=lambda function, what: function())
    fleet = Fleet(simulation, np.random.default_rng(0), straight_route(100.0), ())  # type: ignore[arg-type]
    fleet.mount_cameras(0.0)
    return fleet, world


def numbers(place: carla.Transform) -> list[float]:
    at, turned = place.location, place.rotation
    return [at.x, at.y, at.z, turned.roll, turned.pitch, turned.yaw]


def test_cameras_of_the_fleet_sit_as_the_rig_says(mounted: tuple[Fleet, MountWorld]) -> None:
    # y to the right, pitch up and yaw clockwise in CARLA; roll is the same
    assert numbers(mounted[1].places[0]) == pytest.approx([1.5, -0.4, 1.6, 3.0, -10.0, -30.0])


@pytest.mark.parametrize(("aside", "expected"), [
    (NOWHERE, [1.5, -0.4, 1.6, 3.0, -10.0, -30.0]),
    # turned left by 90 degrees: 1.5 ahead of it lies to the left, 0.4 to its left lies behind
    (Aside(0.5, math.pi / 2), [-0.4, -2.0, 1.6, 3.0, -10.0, -120.0]),
])
def test_a_camera_beside_its_vehicle_keeps_its_angles(
    mounted: tuple[Fleet, MountWorld], aside: Aside, expected: list[float]
) -> None:
    mounted[0].turn_camera(7, aside)
    assert numbers(mounted[0]._batch[-1].transform) == pytest.approx(expected, abs=1e-5)


def test_the_preview_draws_where_a_pitched_camera_sees_the_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "NANO_CAMERA", CameraSpec(pitch_deg=20.0))
    axis_m = 1.0 + 1.8 / math.tan(math.radians(20.0))  # where its optical axis meets the ground
    drawn = preview._path_px({"waypoints_m": [[axis_m, 0.0], [axis_m, -1.0], [1.2, 0.0]]})  # the last is too near
    slope_m = math.hypot(1.8, axis_m - 1.0)
    assert drawn == [pytest.approx((128.0, 64.0)), pytest.approx((128.0 + 128.0 / slope_m, 64.0))]
