"""Car following and stopping, against analytic results and step-by-step integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.server.traffic.following import HARDEST_BRAKING_MPS2, Idm, stop_at, travel_s

DT_S = 0.05


def acceleration(
    idm: Idm, speed_mps: np.ndarray, desired_mps: np.ndarray, gap_m: np.ndarray, lead_mps: np.ndarray
) -> np.ndarray:
    """Of a driver behind a leader, as far as brakes can give it."""
    wanted = idm.free(speed_mps, desired_mps) - idm.interaction(speed_mps, gap_m, lead_mps)
    return np.maximum(wanted, -HARDEST_BRAKING_MPS2)


def equilibrium_gap_m(idm: Idm, speed_mps: float, desired_mps: float) -> float:
    """Gap at which vehicles of the same speed keep it (equation 4 of the paper)."""
    share = 1.0 - (speed_mps / desired_mps) ** idm.exponent
    return (idm.standstill_m + speed_mps * idm.headway_s) / math.sqrt(share)


def test_acceleration_vanishes_at_the_equilibrium_gap() -> None:
    idm = Idm(acceleration_mps2=1.4, braking_mps2=2.0, headway_s=1.5, standstill_m=2.0)
    for speed in (0.0, 3.0, 8.0, 12.5):
        low, high = 0.1, 1000.0  # the root of the acceleration, by bisection
        for _ in range(80):
            middle = (low + high) / 2
            state = (np.array([v]) for v in (speed, 13.9, middle, speed))
            low, high = (middle, high) if acceleration(idm, *state)[0] < 0 else (low, middle)
        assert equilibrium_gap_m(idm, speed, 13.9) == pytest.approx(low, rel=1e-6)


def test_follower_settles_at_the_equilibrium_gap() -> None:
    idm, lead_speed, desired = Idm(), 9.0, np.array([13.9])
    lead, place, speed = 60.0, 0.0, np.array([13.0])
    for _ in range(round(120 / DT_S)):
        rate = acceleration(idm, speed, desired, np.array([lead - place]), np.array([lead_speed]))
        place += float(speed[0]) * DT_S
        speed = np.maximum(speed + rate * DT_S, 0.0)
        lead += lead_speed * DT_S
    assert float(speed[0]) == pytest.approx(lead_speed, abs=0.01)
    assert lead - place == pytest.approx(equilibrium_gap_m(idm, lead_speed, 13.9), abs=0.1)


def test_a_standing_vehicle_far_ahead_is_approached_with_comfortable_braking() -> None:
    idm, gap, speed, hardest = Idm(), 120.0, np.array([14.0]), 0.0
    for _ in range(round(60 / DT_S)):
        rate = acceleration(idm, speed, np.array([14.0]), np.array([gap]), np.array([0.0]))
        hardest = max(hardest, -float(rate[0]))
        gap -= float(speed[0]) * DT_S
        speed = np.maximum(speed + rate * DT_S, 0.0)
    assert hardest < 1.4 * idm.braking_mps2
    assert gap == pytest.approx(idm.standstill_m, abs=0.3)


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.floats(3.0, 60.0), min_size=3, max_size=12),
    shares=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    stopped=st.integers(0, 11),
)
def test_nobody_touches_on_a_ring_even_if_one_stops_dead(gaps: list[float], shares: list[float], stopped: int) -> None:
    idm, n, length = Idm(), len(gaps), 4.6
    places = np.concatenate([[0.0], np.cumsum(np.array(gaps) + length)])
    ring, places = places[-1], places[:-1]
    # at the start nobody is faster than one who can stop comfortably in the gap ahead
    speeds = np.array(shares[:n]) * np.minimum(np.sqrt(2 * idm.braking_mps2 * (np.array(gaps) - idm.standstill_m)), 14)
    desired = np.full(n, 13.9)
    for tick in range(round(60 / DT_S)):
        room = (np.roll(places, -1) - places) % ring - length
        assert room.min() > 0.0
        rates = acceleration(idm, speeds, desired, room, np.roll(speeds, -1))
        if 20 < tick * DT_S < 40:
            rates[stopped % n] = -6.0
        after = np.maximum(speeds + rates * DT_S, 0.0)
        places = places + (speeds + after) / 2 * DT_S
        speeds = after
    assert speeds.max() > 1.0 or ring / n < length + idm.standstill_m + 1.5


@settings(max_examples=40, deadline=None)
@given(speed=st.floats(0.0, 20.0), share=st.floats(1.1, 5.0))
def test_who_obeys_a_line_stops_shortly_before_it_without_slamming_the_brakes(speed: float, share: float) -> None:
    line = 1.0 + share * speed * speed / (2 * 3.0)
    place, hardest = 0.0, 0.0
    for _ in range(round(60 / DT_S)):
        rate = min(float(stop_at(np.array([speed]), np.array([line - place]))[0]), 1.8)
        hardest = max(hardest, -rate)
        after = max(speed + rate * DT_S, 0.0)
        place += (speed + after) / 2 * DT_S
        speed = after
    assert 0.0 <= line - place < 0.5
    assert hardest < 5.0


@settings(deadline=None)
@given(
    distance=st.floats(0.1, 200.0),
    speed=st.floats(0.0, 15.0),
    acceleration=st.floats(0.5, 3.0),
    top=st.floats(1.0, 20.0),
)
def test_time_that_a_distance_takes_is_that_of_step_by_step_integration(
    distance: float, speed: float, acceleration: float, top: float
) -> None:
    seconds, place, v, h = 0.0, 0.0, speed, 0.01
    while place < distance:
        after = max(min(v + acceleration * h, top), v if v > top else 0.0)
        place += (v + after) / 2 * h
        v, seconds = after, seconds + h
    assert travel_s(distance, speed, acceleration, top) == pytest.approx(seconds, abs=0.03, rel=0.01)
