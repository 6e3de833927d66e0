"""Projection of the plan into the picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.report.overlay import RIBBON_RGB, base_from_camera, draw_plan, project
from wamdiff2_core.config import CameraSpec

CAMERA = CameraSpec()  # 1 m ahead of base_link, 1.8 m up, 256 x 128, 90 degrees: f = 128 px


@pytest.mark.parametrize(("point_m", "pixel", "depth_m"), [
    ((10.0, 0.0, 0.0), (128.0, 64.0 + 128.0 * 1.8 / 9.0), 9.0),  # on the road straight ahead: below the middle
    ((10.0, 3.0, 1.8), (128.0 - 128.0 * 3.0 / 9.0, 64.0), 9.0),  # left at the camera's height: left of the middle
    ((5.0, -4.0, 0.0), (256.0, 64.0 + 128.0 * 1.8 / 4.0), 4.0),  # 45 degrees to the right: the image's edge
])
def test_point_falls_on_the_pixel_computed_by_hand(point_m, pixel, depth_m):
    pixels, depth = project(np.array([point_m]), CAMERA)
    assert pixels[0] == pytest.approx(pixel)
    assert depth[0] == pytest.approx(depth_m)


def test_pitch_looks_down_and_yaw_looks_left():
    down = base_from_camera(CameraSpec(pitch_deg=30.0)) @ [1.0, 0.0, 0.0]
    left = base_from_camera(CameraSpec(yaw_deg=30.0)) @ [1.0, 0.0, 0.0]
    assert down == pytest.approx([np.sqrt(3) / 2, 0.0, -0.5])
    assert left == pytest.approx([np.sqrt(3) / 2, 0.5, 0.0])
    # What lies where a turned camera looks falls into the middle of the image.
    turned = CameraSpec(x_m=0.0, z_m=2.0, pitch_deg=30.0, yaw_deg=40.0)
    ray = base_from_camera(turned) @ [4.0, 0.0, 0.0]
    pixels, depth = project(np.array([[0.0, 0.0, 2.0]]) + ray, turned)
    assert pixels[0] == pytest.approx((128.0, 64.0))
    assert depth[0] == pytest.approx(4.0)


@given(st.floats(-180, 180), st.floats(-80, 80), st.floats(-180, 180))
def test_mount_is_a_rotation(roll, pitch, yaw):
    matrix = base_from_camera(CameraSpec(roll_deg=roll, pitch_deg=pitch, yaw_deg=yaw))
    assert matrix @ matrix.T == pytest.approx(np.eye(3), abs=1e-9)
    assert np.linalg.det(matrix) == pytest.approx(1.0)


def test_plan_to_the_left_paints_the_left_half_and_leaves_the_sky_alone():
    rgb = np.zeros((320, 640, 3), np.uint8)
    camera = CameraSpec(width_px=640, height_px=320)
    waypoints = np.stack([np.linspace(2, 14, 6), np.linspace(0.5, 12, 6)], axis=1)
    painted = (draw_plan(rgb, camera, waypoints) != 0).any(axis=2)
    assert painted[:, :320].sum() > 5 * painted[:, 320:].sum()
    assert not painted[:159].any()
    assert not rgb.any()  # the picture itself is untouched


@pytest.mark.parametrize("waypoints", [
    np.zeros((0, 2)), np.zeros((6, 2)), np.full((6, 2), -30.0), np.array([[1e3, 1e3]]),
    np.array([[0.6, 0.0], [0.2, 5.0]]),
])
def test_any_plan_can_be_drawn(waypoints):
    rgb = np.full((128, 256, 3), 7, np.uint8)
    drawn = draw_plan(rgb, CAMERA, waypoints, np.array([[10.0, 0.0], [-5.0, 0.0]]))
    assert drawn.shape == rgb.shape
    assert drawn.dtype == np.uint8


def test_plan_to_stand_paints_no_band():
    rgb = np.zeros((128, 256, 3), np.uint8)
    drawn = draw_plan(rgb, CAMERA, np.full((6, 2), 0.05))
    assert not (np.abs(drawn.astype(int) - RIBBON_RGB).sum(axis=2) < 60).any()


def test_refused_plan_is_painted_red_and_a_driven_one_is_not():
    rgb = np.zeros((128, 256, 3), np.uint8)
    waypoints = np.stack([np.linspace(2, 14, 6), np.zeros(6)], axis=1)
    for driven in (True, False):
        red, green, _ = draw_plan(rgb, CAMERA, waypoints, driven=driven).reshape(-1, 3).sum(axis=0)
        assert (green > red) == driven
