"""Oriented boxes against shapely, impulses against conservation of momentum."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from carla_bridge.server.collisions import Box, normal_impulse, overlap

shapely = pytest.importorskip("shapely")

boxes = st.builds(
    Box, st.floats(-4, 4), st.floats(-4, 4), st.just(0.5), st.floats(-180, 180), st.floats(0.2, 3), st.floats(0.2, 3),
    st.just(0.5),
)  # fmt: skip


def polygon(box: Box) -> object:
    """The footprint."""
    from shapely import affinity

    flat = shapely.box(-box.extent_x, -box.extent_y, box.extent_x, box.extent_y)
    return affinity.translate(affinity.rotate(flat, box.yaw, origin=(0, 0)), box.x, box.y)


@given(boxes, boxes)
@settings(max_examples=300, deadline=None)
def test_overlap_agrees_with_polygon_intersection(a: Box, b: Box) -> None:
    area = shapely.intersection(polygon(a), polygon(b), grid_size=1e-9).area  # exact edges on edges fool it otherwise
    assume(area == 0 or area > 1e-6)
    assert (overlap(a, b) is not None) == (area > 0)


@given(boxes, boxes)
@settings(max_examples=200, deadline=None)
def test_moving_along_the_normal_by_the_depth_parts_the_boxes(a: Box, b: Box) -> None:
    contact = overlap(a, b)
    assume(contact is not None)
    assert contact.normal_x**2 + contact.normal_y**2 == pytest.approx(1.0)
    reach = contact.depth_m + 1e-6
    assert overlap(a._replace(x=a.x + reach * contact.normal_x, y=a.y + reach * contact.normal_y), b) is None
    reach = contact.depth_m * 0.9
    moved = a._replace(x=a.x + reach * contact.normal_x, y=a.y + reach * contact.normal_y)
    assert contact.depth_m < 1e-4 or overlap(moved, b) is not None


def test_boxes_at_different_heights_do_not_meet() -> None:
    car, buried = Box(0, 0, 0.75, 0, 2, 1, 0.75), Box(0, 0, -60.0, 0, 0.2, 0.2, 0.9)
    assert overlap(car, buried) is None
    assert overlap(car, buried._replace(z=1.0)) is not None


def test_impulse_conserves_momentum_and_reverses_the_closing_speed() -> None:
    mass_a, mass_b, va, vb = 1800.0, 600.0, 10.0, 2.0
    impulse = normal_impulse(va - vb, 1 / mass_a, 1 / mass_b, restitution=0.1)
    after_a, after_b = va - impulse / mass_a, vb + impulse / mass_b
    assert mass_a * after_a + mass_b * after_b == pytest.approx(mass_a * va + mass_b * vb)
    assert after_b - after_a == pytest.approx(0.1 * (va - vb))


def test_bodies_that_part_get_no_impulse() -> None:
    assert normal_impulse(-1.0, 1.0, 1.0) == 0.0
