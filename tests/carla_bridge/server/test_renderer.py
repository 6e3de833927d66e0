"""The painter. Oracles: `carla.Rotation`, a pinhole written out here, and the map's own idea of where the road is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

carla = pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import RenderActor, RenderCamera  # noqa: E402
from carla_bridge.server.rendering.renderer import Renderer  # noqa: E402
from carla_bridge.server.rendering.view import NEAR_M, carla_axes, clip_near  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402

pytestmark = pytest.mark.carla

angles = st.floats(-180, 180)
MAGENTA = (255, 0, 255)


@pytest.fixture(scope="module")
def town(wamtown) -> Town:
    return wamtown


@pytest.fixture(scope="module")
def renderer(wamtown_renderer) -> Renderer:
    return wamtown_renderer


def camera_in_lane(town: Town, index: int, **changes) -> RenderCamera:
    pose = town.spawn_points[index]
    values = {"x": pose.location.x, "y": pose.location.y, "z": pose.location.z + 1.8, "yaw": pose.rotation.yaw}
    return RenderCamera(**{**values, **changes})


def ahead(camera: RenderCamera, forward: float, right: float = 0.0) -> tuple[float, float]:
    c, s = np.cos(np.deg2rad(camera.yaw)), np.sin(np.deg2rad(camera.yaw))
    return camera.x + forward * c - right * s, camera.y + forward * s + right * c


def changed(renderer: Renderer, camera: RenderCamera, *actors: RenderActor) -> np.ndarray:
    """(H, W) bool: pixels that the actors change."""
    with_actors = renderer.render(camera, actors).astype(int)
    return np.abs(with_actors - renderer.render(camera).astype(int)).max(axis=2) > 8


@given(angles, angles, angles)
@settings(deadline=None)
def test_axes_are_those_of_carla(pitch, yaw, roll):
    transform = carla.Transform(carla.Location(), carla.Rotation(pitch=pitch, yaw=yaw, roll=roll))
    vectors = (transform.get_forward_vector(), transform.get_right_vector(), transform.get_up_vector())
    np.testing.assert_allclose(carla_axes(pitch, yaw, roll), [(v.x, v.y, v.z) for v in vectors], atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(256, 128), (640, 320), (33, 47), (1600, 900)])
def test_picture_is_bgra_of_the_asked_size(renderer, town, width, height):
    picture = renderer.render(camera_in_lane(town, 0, width=width, height=height))
    assert picture.shape == (height, width, 4)
    assert picture.dtype == np.uint8
    assert (picture[..., 3] == 255).all()


@given(st.integers(0, 200), st.floats(-25, 25), angles, st.floats(-20, 20), st.floats(50, 110), st.floats(0.3, 4))
@settings(deadline=None, max_examples=25)
def test_any_pose_gives_a_picture(renderer, town, index, pitch, yaw, roll, fov, z):
    picture = renderer.render(camera_in_lane(town, index, pitch=pitch, yaw=yaw, roll=roll, fov=fov, z=z))
    assert picture.std() > 5


@pytest.mark.parametrize("pose", [(0.0, 0.0, 0.0, 90.0), (-8.0, 20.0, 5.0, 70.0), (4.0, -30.0, -12.0, 100.0)])
@pytest.mark.parametrize("place", [(9.0, 1.5), (15.0, -2.0), (25.0, 3.0)])
def test_an_actor_appears_where_a_pinhole_puts_it(renderer, town, pose, place):
    pitch, turn, roll, fov = pose
    base = camera_in_lane(town, 20)
    camera = RenderCamera(base.x, base.y, base.z, pitch, base.yaw + turn, roll, 640, 320, fov)
    x, y = ahead(base, *place)
    cube = RenderActor("cube", x, y, 0.0, yaw=base.yaw, extent_x=0.4, extent_y=0.4, extent_z=0.4, color_rgb=MAGENTA)

    inverse = np.array(
        carla.Transform(
            carla.Location(camera.x, camera.y, camera.z), carla.Rotation(pitch=pitch, yaw=camera.yaw, roll=roll)
        ).get_inverse_matrix()
    )
    frame = carla.Transform(carla.Location(x, y, 0), carla.Rotation(yaw=base.yaw))
    corners = [frame.transform(carla.Location(a, b, c)) for a in (-0.4, 0.4) for b in (-0.4, 0.4) for c in (0.0, 0.8)]
    local = np.array([(p.x, p.y, p.z, 1.0) for p in corners]) @ inverse.T
    focal = 320 / np.tan(np.deg2rad(fov) / 2)
    u, v = 320 + focal * local[:, 1] / local[:, 0], 160 - focal * local[:, 2] / local[:, 0]
    if u.min() < 2 or u.max() > 638 or v.min() < 2 or v.max() > 318:
        pytest.skip("the cube is not wholly in the picture from here")

    picture = renderer.render(camera, [cube]).astype(int)
    magenta = (picture[..., 2] - picture[..., 1] > 60) & (picture[..., 0] - picture[..., 1] > 60)
    rows, columns = np.nonzero(magenta)
    assert columns.min() == pytest.approx(u.min(), abs=1.5)
    assert columns.max() + 1 == pytest.approx(u.max(), abs=1.5)
    assert rows.min() == pytest.approx(v.min(), abs=1.5)
    assert rows.max() + 1 == pytest.approx(v.max(), abs=1.5)


def test_road_is_painted_where_the_map_has_lanes(renderer, town):
    agreed = checked = 0
    for index in range(0, len(town.spawn_points), 23):
        camera = camera_in_lane(town, index)
        picture = renderer.render(camera).astype(int)
        focal = 128.0
        for v in range(75, 128, 6):
            for u in range(4, 256, 12):
                forward = focal * 1.8 / (v + 0.5 - 64)
                x, y = ahead(camera, forward, forward * (u + 0.5 - 128) / focal)
                nearest = town.map.get_waypoint(carla.Location(x, y, 0), lane_type=carla.LaneType.Driving)
                gap = nearest.transform.location.distance(carla.Location(x, y, 0)) - nearest.lane_width / 2
                blue, green, red = picture[v, u, :3]
                grey = abs(green - red) < 12 and abs(green - blue) < 14 and green < 125
                if gap < -0.4:
                    yellow_or_white = green > 125
                    checked, agreed = checked + 1, agreed + (grey or yellow_or_white)
                elif 3.3 < gap < 5.0:
                    checked, agreed = checked + 1, agreed + (not grey)
    assert checked > 1000
    # scenery hides some ground, so the two can never agree everywhere
    assert agreed / checked > 0.98


def test_near_hides_far(renderer, town):
    camera = camera_in_lane(town, 20)
    far = RenderActor("vehicle", *ahead(camera, 30.0), 0.0, yaw=camera.yaw, color_rgb=MAGENTA)
    wall = RenderActor("box", *ahead(camera, 12.0), 0.0, yaw=camera.yaw, extent_x=0.2, extent_y=6.0, extent_z=3.0)
    for order in ((far, wall), (wall, far)):
        np.testing.assert_array_equal(renderer.render(camera, order), renderer.render(camera, [wall]))


def test_a_building_hides_what_stands_behind_it(renderer, town):
    building = max(town.static_boxes, key=lambda box: box.floors * box.extent_x)
    c, s = np.cos(np.deg2rad(building.yaw)), np.sin(np.deg2rad(building.yaw))
    front = building.extent_y + 8.0
    camera = RenderCamera(building.x + front * s, building.y - front * c, 1.8, yaw=building.yaw + 90)
    behind = RenderActor("vehicle", *ahead(camera, front + building.extent_y + 3.0), 0.0, color_rgb=MAGENTA)
    assert not changed(renderer, camera, behind).any()
    before = RenderActor("vehicle", *ahead(camera, 5.0), 0.0, color_rgb=MAGENTA)
    assert changed(renderer, camera, before).any()


def test_what_is_behind_the_camera_is_not_seen(renderer, town):
    camera = camera_in_lane(town, 20)
    assert not changed(renderer, camera, RenderActor("vehicle", *ahead(camera, -6.0), 0.0)).any()


def test_a_nearer_actor_covers_more_pixels(renderer, town):
    camera = camera_in_lane(town, 20)
    sizes = [
        changed(
            renderer,
            camera,
            RenderActor("walker", *ahead(camera, d, 1.0), 0.0, extent_x=0.25, extent_y=0.25, extent_z=0.9),
        ).sum()
        for d in (30.0, 15.0, 8.0)
    ]
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_own_vehicle_is_not_drawn_when_the_camera_is_inside(renderer, town):
    camera = camera_in_lane(town, 20, z=1.2)
    own = RenderActor("vehicle", camera.x, camera.y, 0.0, yaw=camera.yaw)
    assert not changed(renderer, camera, own).any()


def test_right_side_of_the_road_is_on_the_right(renderer, town):
    camera = camera_in_lane(town, 20)
    mask = changed(renderer, camera, RenderActor("vehicle", *ahead(camera, 15.0, 4.0), 0.0, yaw=camera.yaw))
    assert np.nonzero(mask)[1].min() > 128


def test_picture_depends_on_nothing_rendered_before(town, renderer):
    camera = camera_in_lane(town, 50)
    first = renderer.render(camera)
    for index in range(0, 60, 3):
        renderer.render(camera_in_lane(town, index))
    np.testing.assert_array_equal(renderer.render(camera), first)
    np.testing.assert_array_equal(Renderer(town).render(camera), first)


def test_top_view_shows_road_between_grass(renderer, town):
    lane = next(lane for lane in town.lanes if lane.kind == "driving" and not lane.in_junction)
    x, y, _ = (lane.left_m + lane.right_m)[len(lane.left_m) // 2] / 2
    picture = renderer.render(RenderCamera(float(x), float(y), 40.0, pitch=-90.0, width=200, height=200)).astype(int)
    green = picture[..., 1] - np.maximum(picture[..., 0], picture[..., 2]) > 15
    assert 0.1 < green.mean() < 0.9
    assert not green[95:105, 95:105].any()


vertices = st.tuples(st.floats(-20, 20), st.floats(-20, 20), st.floats(-5, 5))


@given(st.lists(vertices, min_size=3, max_size=8))
def test_near_clip_keeps_only_what_is_ahead_and_on_the_polygon(points):
    polygon = np.array([points])
    if not (polygon[0, :, 0] > NEAR_M + 1e-6).any():
        return
    clipped = clip_near(polygon)[0]
    assert (clipped[:, 0] >= NEAR_M - 1e-9).all()
    ahead_points = polygon[0][polygon[0, :, 0] > NEAR_M]
    assert all(np.abs(clipped - p).max(axis=1).min() < 1e-9 for p in ahead_points)
    edges = list(zip(polygon[0], np.roll(polygon[0], -1, axis=0), strict=True))
    for p in clipped:
        gaps = [
            np.linalg.norm(np.cross(b - a, p - a)) / max(np.linalg.norm(b - a), 1e-9)
            if np.linalg.norm(b - a) > 1e-9
            else np.linalg.norm(p - a)
            for a, b in edges
        ]
        assert min(gaps) < 1e-5


def test_clipping_half_a_square_halves_its_area():
    square = np.array([[[NEAR_M - 1, -1, 0], [NEAR_M + 1, -1, 0], [NEAR_M + 1, 1, 0], [NEAR_M - 1, 1, 0.0]]])
    x, y = clip_near(square)[0, :, 0], clip_near(square)[0, :, 1]
    assert abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2 == pytest.approx(2.0)


def test_a_foreign_town_with_hills_can_be_seen(shared_data):
    foreign = Town.load(shared_data / "opendrive" / "Town03.xodr")
    picture = Renderer(foreign).render(camera_in_lane(foreign, 30))
    grey = np.ptp(picture[-30:, :, :3].astype(int), axis=2) < 16
    assert grey.mean() > 0.3
