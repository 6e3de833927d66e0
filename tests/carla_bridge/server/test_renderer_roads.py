"""Paint across roads, and bridges. Oracle: what the client's map says of crosswalks, stop places and heights."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from shapely.geometry import Polygon
from shapely.ops import unary_union

carla = pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import LaneStrip, RenderActor, RenderCamera, SignalKind  # noqa: E402
from carla_bridge.server.rendering.renderer import Renderer  # noqa: E402
from carla_bridge.server.town.bridges import LowGround, build_bridges  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402

pytestmark = pytest.mark.carla

MAGENTA = (255, 0, 255)


@pytest.fixture(scope="module")
def signal_town() -> Town:
    return Town.load("Wamtown02")


@pytest.fixture(scope="module")
def signal_renderer(signal_town) -> Renderer:
    return Renderer(signal_town)


def from_above(renderer: Renderer, x: float, y: float, yaw: float = 0.0, width_m: float = 20.0) -> np.ndarray:
    """(200, 200, 3) int BGR, 0.1 m a pixel: up is `yaw`."""
    height = width_m / 2
    camera = RenderCamera(x, y, height, pitch=-90.0, yaw=yaw, width=200, height=200, fov=90.0)
    return renderer.render(camera)[..., :3].astype(int)


def is_white(picture: np.ndarray) -> np.ndarray:
    return picture.min(axis=2) > 200


def test_crosswalks_are_striped_where_the_map_has_them(signal_renderer, signal_town):
    corners = signal_town.map.get_crosswalks()
    assert len(corners) >= 10
    for start in range(0, len(corners), 25):
        outline = np.array([(p.x, p.y) for p in corners[start : start + 4]])
        x, y = outline.mean(axis=0)
        picture = is_white(from_above(signal_renderer, float(x), float(y)))
        # pixel (row, column) is (x + (100 - row) / 10, y + (column - 100) / 10)
        rows, columns = np.mgrid[0:200, 0:200]
        points = np.stack([x + (99.5 - rows) / 10, y + (columns - 99.5) / 10], axis=-1)
        lower, upper = outline.min(axis=0), outline.max(axis=0)
        inside = ((points > lower + 0.2) & (points < upper - 0.2)).all(axis=2)
        beside = ((points > lower - 0.6) & (points < upper + 0.6)).all(axis=2) & ~(
            (points > lower - 0.15) & (points < upper + 0.15)
        ).all(axis=2)
        assert 0.35 < picture[inside].mean() < 0.65
        assert picture[beside].mean() < 0.25


def test_lanes_with_a_light_or_stop_sign_have_a_line_where_their_traffic_stops(signal_renderer, signal_town):
    kinds = set()
    for signal in signal_town.signals:
        stop = signal.stops[0]
        waypoint = signal_town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
        pose = waypoint.transform
        picture = is_white(from_above(signal_renderer, pose.location.x, pose.location.y, pose.rotation.yaw))
        half = int(5 * waypoint.lane_width) - 4
        across = picture[98:102, 100 - half : 100 + half]
        kinds.add(signal.kind)
        if signal.kind is SignalKind.YIELD:
            assert 0.2 < across.mean() < 0.8
        else:
            assert across.mean() > 0.95
        assert picture[106:112, 100 - half : 100 + half].mean() < 0.2
    assert kinds == set(SignalKind)


def test_parking_lanes_are_parted_into_bays(signal_renderer, signal_town):
    lane = max((lane for lane in signal_town.lanes if lane.kind == "parking"), key=lambda lane: len(lane.left_m))
    middle = (lane.left_m + lane.right_m) / 2
    i = len(middle) // 2
    along = middle[i] - middle[i - 1]
    yaw = float(np.rad2deg(np.arctan2(along[1], along[0])))
    x, y, _ = (middle[i] + middle[i - 1]) / 2
    picture = is_white(from_above(signal_renderer, float(x), float(y), yaw))
    lines = np.flatnonzero(np.diff(picture[:, 98:103].all(axis=1).astype(int)) == 1)
    assert len(lines) in (3, 4)
    assert np.diff(lines) == pytest.approx(60, abs=2)


def test_junctions_have_no_grass_between_their_lanes(signal_renderer, signal_town):
    surfaces = [
        Polygon(quad).buffer(0.02)
        for lane in signal_town.lanes
        if lane.kind != "sidewalk"
        for quad in np.stack([lane.left_m[:-1], lane.left_m[1:], lane.right_m[1:], lane.right_m[:-1]], axis=1)[..., :2]
    ]
    ground = unary_union(surfaces)
    rings = [Polygon(ring) for part in getattr(ground, "geoms", [ground]) for ring in part.interiors]
    holes = [ring for ring in rings if 0.3 < ring.area < 35.0]
    assert len(holes) > 10
    for hole in holes:
        place = hole.representative_point()
        blue, green, red = from_above(signal_renderer, place.x, place.y)[100, 100]
        assert green - max(red, blue) < 15


def strip(road_id: int, heights_m: float, start: tuple[float, float], end: tuple[float, float]) -> LaneStrip:
    """A straight driving lane, 3.5 m wide, level."""
    ends = np.array([start, end], dtype=float)
    points = np.linspace(ends[0], ends[1], 21)
    along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
    right = np.array([-along[1], along[0]])
    z = np.full((21, 1), heights_m)
    left_m, right_m = (np.column_stack([points + k * 1.75 * right, z]) for k in (-1, 1))
    return LaneStrip(road_id, 0.0, -1, False, "driving", left_m, right_m)


def test_only_what_stands_clearly_above_another_road_is_a_bridge():
    low, high = strip(1, 0.0, (-100, 0), (100, 0)), strip(2, 7.0, (0, -100), (0, 100))
    ground = LowGround([low, high])
    assert not ground.flat
    assert not ground.raised(low.left_m).any()
    over = np.abs(high.left_m[:, 1]) < 30.0
    assert ground.raised(high.left_m)[over].all()
    assert not ground.raised(high.left_m)[np.abs(high.left_m[:, 1]) > 65.0].any()
    bridges = build_bridges([low, high], ground)
    under = bridges.normals[:, 2] < -0.9
    assert under.any()
    assert bridges.vertices_m[under][..., 2] == pytest.approx(6.1)
    upright = np.abs(bridges.normals[:, 2]) < 0.1
    pillars = upright & (bridges.vertices_m[..., 2].min(axis=1) < 0.1)
    assert (np.abs(bridges.vertices_m[pillars][..., 1]) > 5.0).all()


def test_a_flat_town_has_no_bridges(wamtown):
    assert len(build_bridges(wamtown.lanes, LowGround(wamtown.lanes))) == 0


def crossing_roads(*heights_m: float) -> SimpleNamespace:
    """A town of two roads that cross at the origin, along x and along y."""
    lanes = (strip(1, heights_m[0], (-100, 0), (100, 0)), strip(2, heights_m[1], (0, -100), (0, 100)))
    return SimpleNamespace(name="crossing", lanes=lanes, marks=(), static_boxes=(), crosswalks=(), islands=())


def test_a_bridge_hides_what_is_on_it_from_below_and_what_is_below_from_it():
    renderer = Renderer(crossing_roads(0.0, 7.0))
    half = {"extent_x": 0.8, "extent_y": 0.8, "extent_z": 0.5}
    boxes = {z: RenderActor("box", 0.0, 0.0, z, **half, color_rgb=MAGENTA) for z in (0.0, 7.0)}

    def pixels(box: RenderActor, camera: RenderCamera) -> int:
        with_box = renderer.render(camera, [box]).astype(int)
        return int((np.abs(with_box - renderer.render(camera)).max(axis=2) > 8).sum())

    for sign in (-1.0, 1.0):
        yaw = 0.0 if sign < 0 else 180.0
        on_the_road = RenderCamera(sign * 9.0, 0.0, 1.8, yaw=yaw)
        assert pixels(boxes[0.0], on_the_road) > 100
        assert pixels(boxes[7.0], RenderCamera(sign * 9.0, 0.0, 1.8, pitch=25.0, yaw=yaw)) == 0
        on_the_bridge = RenderCamera(0.0, sign * 9.0, 8.8, yaw=90.0 if sign < 0 else -90.0)
        assert pixels(boxes[7.0], on_the_bridge) > 100
        assert pixels(boxes[0.0], on_the_bridge) == 0
        from_the_side = RenderCamera(sign * 60.0, 0.0, 20.0, pitch=-16.0, yaw=yaw)
        assert pixels(boxes[7.0], from_the_side) > 0


def test_a_crest_hides_what_is_behind_it():
    hill = strip(1, 0.0, (-200, 0), (200, 0))
    for edge in (hill.left_m, hill.right_m):
        edge[:, 2] = np.maximum(0.0, 6.0 - 0.12 * np.abs(edge[:, 0]))
    town = crossing_roads(0.0, 0.0)
    town.lanes = (hill,)
    renderer = Renderer(town)
    camera = RenderCamera(-45.0, 0.0, 2.4, yaw=0.0)
    for x, expected in ((-20.0, True), (45.0, False)):
        z = max(0.0, 6.0 - 0.12 * abs(x))
        car = RenderActor("vehicle", x, 0.0, z, color_rgb=MAGENTA)
        seen = np.abs(renderer.render(camera, [car]).astype(int) - renderer.render(camera)).max(axis=2) > 8
        assert seen.any() == expected
