"""The benchmark of the world runs and its figures mean what they say."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("carla", reason="needs the carla client library")
from benchmarks import world_memory, world_speed


@pytest.fixture(scope="module")
def town() -> object:
    return world_speed.Town.load("Wamtown01")


def test_vehicles_of_a_load_drive_and_keep_to_the_road(town: world_speed.Town) -> None:
    load = world_speed.Load("test", 6, 2)
    world = world_speed.build_world(town, 0, rendering=False)
    actors, pilot = world_speed.populate(world, load, 0), world_speed.Pilot(town, 0)
    before = [actor.pose.location for actor in actors]
    for tick in range(100):
        if tick % 4 == 0:
            pilot.steer(actors)
        world.step(world_speed.DT_S)
    moved = [abs(a.pose.x - x) + abs(a.pose.y - y) for a, (x, y, _) in zip(actors, before, strict=True)]
    assert sum(way > 5.0 for way in moved[:6]) >= 5


def test_figures_of_a_series_of_ticks() -> None:
    speed = world_speed.summary("load", [0.01] * 98 + [0.03, 0.03])
    assert (speed.tick_ms, speed.tick_ms_p99) == (10.0, 30.0)
    assert speed.real_time_factor == pytest.approx(50 / 10.4, abs=0.01)


def test_long_run_reports_the_memory_of_its_server_twice_a_minute() -> None:
    reports = list(itertools.islice(world_memory.long_run("Wamtown01", 0.02, 0), 2))
    assert [round(seconds) for seconds, _ in reports] == [30, 60]
    assert all(30 < megabytes < 1000 for _, megabytes in reports)


def test_growth_compares_the_peaks_of_two_windows_not_two_moments() -> None:
    caches = [200.0, 210.0, 205.0, 220.0] * 25
    assert world_memory.growth(caches) == (220.0, 220.0, 0.0)
    leaking = [200.0 + 0.1 * i for i in range(100)]
    settled, end, grown = world_memory.growth(leaking)
    assert (settled, end) == pytest.approx((203.4, 209.9))
    assert grown > world_speed.GROWTH_LIMIT
