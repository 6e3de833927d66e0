"""Depth and semantic cameras. Oracles: plain geometry, the ray caster, and CARLA's published decoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.scene import RenderActor, RenderCamera
from carla_bridge.server.rendering.buffer_pictures import Buffers
from carla_bridge.server.rendering.renderer import Renderer
from carla_bridge.server.rendering.view import View
from carla_bridge.server.sensors.ray_scene import RayScenery
from carla_bridge.server.town.town import Town

pytestmark = pytest.mark.carla
EYE_M = 1.8


def camera_in_lane(town: Town, index: int = 3) -> RenderCamera:
    pose = town.spawn_points[index]
    return RenderCamera(
        pose.location.x, pose.location.y, pose.location.z + EYE_M, yaw=pose.rotation.yaw, width=256, height=128
    )


def ahead(camera: RenderCamera, forward: float, right: float, **body: object) -> RenderActor:
    c, s = np.cos(np.deg2rad(camera.yaw)), np.sin(np.deg2rad(camera.yaw))
    x, y = camera.x + forward * c - right * s, camera.y + forward * s + right * c
    return RenderActor(x=x, y=y, z=camera.z - EYE_M, yaw=camera.yaw, **body)  # type: ignore[arg-type]


def test_a_wall_at_a_known_distance(wamtown: Town, wamtown_renderer: Renderer) -> None:
    camera = camera_in_lane(wamtown)
    for distance in (3.0, 10.0, 25.0):
        size = {"extent_x": 0.5, "extent_y": 4.0, "extent_z": 3.0}
        wall = ahead(camera, distance + 0.5, 0.0, kind="prop", label=int(Label.STATIC), **size)
        seen = wamtown_renderer.buffers(camera, [wall])
        assert seen.depth_m[64, 128] == pytest.approx(distance, abs=0.02 + 0.001 * distance)
        assert seen.labels[64, 128] == Label.STATIC
        # along the optical axis: the same wherever the wall is in the picture
        assert np.ptp(seen.depth_m[60:64, 118:138]) < 0.01


def test_level_road_is_as_far_as_a_pinhole_says(wamtown: Town, wamtown_renderer: Renderer) -> None:
    camera = camera_in_lane(wamtown)
    seen = wamtown_renderer.buffers(camera)
    rows = np.arange(88, 128)  # beyond that the road bends
    assert seen.depth_m[rows, 128] == pytest.approx(EYE_M * 128.0 / (rows + 0.5 - 64.0), rel=0.01)
    assert set(seen.labels[rows, 128].tolist()) <= {Label.ROADS, Label.ROAD_LINES}
    assert {Label.SKY, Label.BUILDINGS, Label.SIDEWALKS, Label.ROAD_LINES} <= set(np.unique(seen.labels).tolist())
    assert (seen.depth_m[seen.labels == Label.SKY] >= 1000.0).all()


@pytest.mark.parametrize(("kind", "type_id", "label", "size"), [
    ("vehicle", "vehicle.lincoln.mkz_2020", Label.CAR, (2.45, 0.92, 0.75)),
    ("vehicle", "vehicle.mitsubishi.fusorosa", Label.BUS, (5.1, 1.97, 2.1)),
    ("walker", "walker.pedestrian.0001", Label.PEDESTRIANS, (0.19, 0.19, 0.93)),
])
def test_label_of_who_stands_there_and_of_the_road_in_its_shadow(
    wamtown: Town, wamtown_renderer: Renderer, kind: str, type_id: str, label: Label, size: tuple[float, float, float]
) -> None:
    camera = camera_in_lane(wamtown)
    body = dict(zip(("extent_x", "extent_y", "extent_z"), size, strict=True))
    actor = ahead(camera, 9.0 + size[0], 0.0, kind=kind, type_id=type_id, label=int(label), **body)
    empty, seen = wamtown_renderer.buffers(camera), wamtown_renderer.buffers(camera, [actor])
    row = round(64.0 + 128.0 * (EYE_M - 0.9) / 9.0)  # 0.9 m above the ground
    assert seen.labels[row, 128] == label
    assert seen.depth_m[row, 128] == pytest.approx(9.0, abs=1.5)
    changed = seen.depth_m != empty.depth_m
    assert set(seen.labels[changed].tolist()) == {label}
    assert (seen.depth_m[changed] < empty.depth_m[changed] + 0.15).all()  # soles


def test_buildings_are_where_rays_meet_them(wamtown: Town, wamtown_renderer: Renderer) -> None:
    camera = camera_in_lane(wamtown, 12)
    seen, view = wamtown_renderer.buffers(camera), View(camera, 1)
    rows, columns = np.nonzero(seen.labels == Label.BUILDINGS)
    local = np.stack([np.ones(len(rows)), (columns + 0.5 - 128.0) / 128.0, (64.0 - rows - 0.5) / 128.0], axis=1)
    scene = RayScenery(wamtown.static_boxes, None).with_actors(())
    length = np.linalg.norm(local, axis=1)
    met, target = scene.cast(view.eye_m, (local / length[:, None]) @ view.axes, 400.0)
    agree = np.abs(met / length - seen.depth_m[rows, columns]) < 0.5
    assert len(rows) > 300
    assert agree[target >= 0].mean() > 0.95  # roofs rise above the boxes, and eaves out of them
    assert (target >= 0).mean() > 0.8


@given(st.lists(st.floats(0.0, 1500.0), min_size=4, max_size=4))
def test_pictures_decode_as_carla_says(depths: list[float]) -> None:
    buffers = Buffers(np.array(depths, np.float32).reshape(2, 2), np.array([[1, 14], [12, 24]], np.uint8))
    blue, green, red, alpha = np.moveaxis(buffers.depth_picture().astype(float), -1, 0)
    decoded = 1000.0 * (red + 256.0 * green + 65536.0 * blue) / (2**24 - 1)
    assert decoded == pytest.approx(np.minimum(buffers.depth_m, 1000.0), abs=1e-4)
    assert (alpha == 255).all()
    labels = buffers.label_picture()
    assert labels[..., 2].tolist() == [[1, 14], [12, 24]]
    assert not labels[..., :2].any()
