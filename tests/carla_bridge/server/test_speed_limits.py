"""Speed limits read from OpenDRIVE."""

from __future__ import annotations

import random

import pytest

from carla_bridge.server.actors.spawning import make_actor
from carla_bridge.server.actors.speed_limits import DEFAULT_KMH, SpeedLimits
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.geometry.poses import Pose

FILE = """<OpenDRIVE>
<road id="1"><type s="0" type="town"><speed max="40" unit="km/h"/></type>
 <type s="100" type="rural"><speed max="55" unit="mph"/></type></road>
<road id="2"><type s="0" type="town"><speed max="10"/></type></road>
<road id="3"/>
<road id="4"><type s="0" type="motorway"><speed max="no limit"/></type></road>
<road id="5"><type s="0" type="motorway"><speed max="undefined" unit="mph"/></type></road>
</OpenDRIVE>"""


@pytest.mark.parametrize(
    ("road", "s", "limit"),
    [
        (1, 0.0, 40.0), (1, 99.9, 40.0), (1, 100.0, 55 * 1.609344), (1, 500.0, 55 * 1.609344), (2, 5.0, 36.0),
        (3, 5.0, DEFAULT_KMH), (4, 5.0, 130.0), (5, 5.0, DEFAULT_KMH), (77, 0.0, DEFAULT_KMH),
    ],
)  # fmt: skip
def test_limit_is_that_of_the_stretch_in_kmh(road: int, s: float, limit: float) -> None:
    assert SpeedLimits(FILE, lambda x, y, z: None).on(road, s) == pytest.approx(limit)


def test_vehicle_gets_the_limit_of_its_road_and_parked_ones_cost_nothing() -> None:
    asked = []

    def road_at(x: float, y: float, z: float) -> tuple[int, float]:
        asked.append(x)
        return 1, x

    limits = SpeedLimits(FILE, road_at)
    car = make_actor(1, [0, "vehicle.audi.tt", []], Pose(x=50.0), random.Random(0))
    assert isinstance(car, Vehicle)
    for _ in range(10):
        limits.watch([car])
    assert (asked, car.speed_limit_kmh) == ([50.0], 40.0)
    for x in range(51, 151):
        car.place(Pose(x=float(x)))
        limits.watch([car])
    assert car.speed_limit_kmh == pytest.approx(55 * 1.609344)
    assert len(asked) < 40
