"""Oriented boxes against shapely, impulses against conservation laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from carla_bridge.server.dynamics.collisions import (
    CONTACT_FRICTION,
    Body,
    Box,
    contact_impulse,
    gaps,
    overlap,
    touch_point,
)

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


@given(boxes, boxes)
@settings(max_examples=200, deadline=None)
def test_touch_point_is_the_middle_of_the_common_area(a: Box, b: Box) -> None:
    common = shapely.intersection(polygon(a), polygon(b))
    assume(common.area > 1e-3)
    middle = common.centroid
    assert touch_point(a, b) == pytest.approx((middle.x, middle.y), abs=1e-5)


@given(boxes, boxes)
@settings(max_examples=200, deadline=None)
def test_gap_never_overstates_the_distance_and_is_negative_only_for_overlaps(a: Box, b: Box) -> None:
    rows = [
        np.array([[x.x, x.y, math.cos(math.radians(x.yaw)), math.sin(math.radians(x.yaw)), x.extent_x, x.extent_y]])
        for x in (a, b)
    ]
    gap = float(gaps(*rows)[0])
    assert gap <= shapely.distance(polygon(a), polygon(b)) + 1e-9
    assume(abs(gap) > 1e-9)
    assert (gap < 0) == (overlap(a, b) is not None)


bodies = st.builds(
    Body, st.floats(-20, 20), st.floats(-20, 20), st.floats(-5, 5), st.floats(-3, 3), st.floats(-3, 3),
    st.floats(1e-4, 1e-2), st.floats(1e-5, 1e-2),
)  # fmt: skip


def struck(body: Body, jx: float, jy: float) -> Body:
    """The body after an impulse at its point of contact."""
    spin = (body.arm_x * jy - body.arm_y * jx) * body.inverse_inertia
    return body._replace(
        vx=body.vx + jx * body.inverse_mass, vy=body.vy + jy * body.inverse_mass, rate=body.rate + spin
    )


def energy(body: Body) -> float:
    """Kinetic energy in J."""
    return 0.5 * (body.vx**2 + body.vy**2) / body.inverse_mass + 0.5 * body.rate**2 / body.inverse_inertia


@given(bodies, bodies, st.floats(-math.pi, math.pi))
@settings(max_examples=300, deadline=None)
def test_impulse_stops_the_closing_unless_friction_turns_it_and_adds_no_energy(a: Body, b: Body, angle: float) -> None:
    nx, ny = math.cos(angle), math.sin(angle)
    jx, jy = contact_impulse(a, b, nx, ny)
    closing = b.point_speed(nx, ny) - a.point_speed(nx, ny)
    if closing <= 0:
        assert (jx, jy) == (0.0, 0.0)
        return
    push, drag = jx * nx + jy * ny, jy * nx - jx * ny
    assert push > 0
    assert abs(drag) <= CONTACT_FRICTION * push * (1 + 1e-9)
    after_a, after_b = struck(a, jx, jy), struck(b, -jx, -jy)
    before, after = energy(a) + energy(b), energy(after_a) + energy(after_b)
    assert after <= before * (1 + 1e-9)


def test_head_on_impulse_is_the_perfectly_plastic_one() -> None:
    mass_a, mass_b, va, vb = 1800.0, 600.0, 2.0, 10.0
    a = Body(va, 0.0, 0.0, -2.0, 0.0, 1 / mass_a, 1 / 4000.0)
    b = Body(vb, 0.0, 0.0, 2.0, 0.0, 1 / mass_b, 1 / 1000.0)
    jx, jy = contact_impulse(a, b, 1.0, 0.0)
    together = (mass_a * va + mass_b * vb) / (mass_a + mass_b)
    assert (va + jx / mass_a, vb - jx / mass_b) == pytest.approx((together, together))
    assert jy == 0.0
