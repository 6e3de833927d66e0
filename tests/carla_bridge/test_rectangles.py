"""Rectangles in the plane against shapely."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from carla_bridge.rectangles import box_gap_m, boxes_touch


def rectangles(random: np.random.Generator, count: int, spread_m: float = 4.0) -> np.ndarray:
    half, yaw = random.uniform(0.3, 3.0, (count, 2)), random.uniform(-np.pi, np.pi, count)
    local = half[:, None, :] * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    cos, sin = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
    turned = np.stack([cos * local[..., 0] - sin * local[..., 1], sin * local[..., 0] + cos * local[..., 1]], -1)
    return turned + random.uniform(-spread_m, spread_m, (count, 1, 2))


@pytest.mark.parametrize("seed", range(4))
def test_gaps_agree_with_shapely(seed):
    random = np.random.default_rng(seed)
    one, other = rectangles(random, 200), rectangles(random, 200)
    a, b = shapely.polygons(one), shapely.polygons(other)
    assert boxes_touch(one, other).tolist() == shapely.intersects(a, b).tolist()
    assert box_gap_m(one, other) == pytest.approx(shapely.distance(a, b), abs=1e-9)


def test_depth_is_the_shortest_way_to_part_them():
    """The way out of the hull of all differences of points, which holds the origin where two shapes overlap."""
    random = np.random.default_rng(5)
    one, other = rectangles(random, 300, 2.5), rectangles(random, 300, 2.5)
    depths_m = random.uniform(0.0, 2.0, 300)
    expected = []
    for a, b, depth_m in zip(one, other, depths_m, strict=True):
        hull = shapely.MultiPoint((a[:, None] - b[None]).reshape(-1, 2)).convex_hull
        origin = shapely.Point(0.0, 0.0)
        expected.append(hull.contains(origin) and hull.exterior.distance(origin) >= depth_m)
    found = [bool(boxes_touch(a, b, depth_m)) for a, b, depth_m in zip(one, other, depths_m, strict=True)]
    assert found == expected
    assert 50 < sum(expected) < 250
