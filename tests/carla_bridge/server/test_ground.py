"""Height of the ground. Oracle: CARLA's own map."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

carla = pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import LaneStrip  # noqa: E402
from carla_bridge.server.town.ground import GroundHeight  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402

pytestmark = pytest.mark.carla


@pytest.mark.parametrize("name", ["Town03", "Town05"])
def test_height_of_slopes_and_bridges_agrees_with_the_map(shared_data: Path, name: str) -> None:
    town = Town.load(shared_data / "opendrive" / f"{name}.xodr")
    chooser = random.Random(1)
    heights, compared = [], 0
    for waypoint in chooser.sample(town.map.generate_waypoints(3.0), 2000):
        right, aside = waypoint.transform.get_right_vector(), chooser.uniform(-0.45, 0.45) * waypoint.lane_width
        place = waypoint.transform.location + carla.Location(aside * right.x, aside * right.y, 0.0)
        found = town.map.get_waypoint(place)
        if (found.road_id, found.lane_id) != (waypoint.road_id, waypoint.lane_id):
            continue  # roads overlap in junctions, and each has its own height
        compared += 1
        heights.append(place.z)
        assert town.ground_z_m(place.x, place.y, place.z) == pytest.approx(place.z, abs=0.05)
    assert compared > 1500
    assert np.ptp(heights) > 5


def strip(z_m: float, rise_m: float = 0.0) -> LaneStrip:
    """A lane along x, 20 m long and 4 m wide."""
    left = np.array([[0.0, 0.0, z_m], [20.0, 0.0, z_m + rise_m]])
    return LaneStrip(1, 0.0, -1, False, "driving", left, left + np.array([0.0, 4.0, 0.0]))


def test_a_bridge_and_the_road_below_are_told_apart_by_the_height_asked_from() -> None:
    ground = GroundHeight([strip(0.0), strip(6.0)])
    assert ground(5.0, 2.0, 0.7) == 0.0
    assert ground(5.0, 2.0, 6.7) == pytest.approx(6.0)
    assert ground(5.0, 2.0) == 0.0
    assert ground(5.0, -9.0, 5.0) == pytest.approx(6.0)


def test_slope_is_even_and_off_the_road_the_nearest_edge_counts() -> None:
    ground = GroundHeight([strip(0.0, 2.0)])
    for x, y in ((0.0, 0.0), (7.0, 1.0), (7.0, 4.0), (20.0, 2.0), (13.3, 2.2)):
        assert ground(x, y) == pytest.approx(x / 10)
    assert ground(25.0, 2.0) == pytest.approx(2.0)
    assert ground(-5.0, 40.0) == pytest.approx(0.0)
