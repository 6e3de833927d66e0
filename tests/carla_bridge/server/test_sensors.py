"""Geodesy, sensor clocks, and what an IMU feels."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.server.actors.spawning import Sensor
from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.sensors.payloads import EARTH_RADIUS_M, GeoReference
from carla_bridge.server.sensors.sensing import Tick, publish


def inverse(latitude_deg: float, longitude_deg: float, reference: GeoReference) -> tuple[float, float]:
    """World x, y by the published inverse of CARLA's Mercator projection, as evaluation agents use it."""
    scale = math.cos(math.radians(reference.latitude_deg))
    mx = scale * math.radians(longitude_deg) * EARTH_RADIUS_M
    my = scale * EARTH_RADIUS_M * math.log(math.tan((90 + latitude_deg) * math.pi / 360))
    mx0 = scale * math.radians(reference.longitude_deg) * EARTH_RADIUS_M
    my0 = scale * EARTH_RADIUS_M * math.log(math.tan((90 + reference.latitude_deg) * math.pi / 360))
    return mx - mx0, my0 - my


@given(
    st.floats(-5000, 5000), st.floats(-5000, 5000), st.floats(-60, 60), st.floats(-170, 170),
)  # fmt: skip
def test_agents_recover_the_position_from_gnss(x: float, y: float, latitude: float, longitude: float) -> None:
    reference = GeoReference(latitude, longitude)
    lat, lon, alt = reference.geodetic((x, y, 3.0))
    assert inverse(lat, lon, reference) == pytest.approx((x, y), abs=1e-5)
    assert alt == 3.0


def test_north_is_minus_y() -> None:
    assert GeoReference(49.0, 8.0).geodetic((0.0, -100.0, 0.0))[0] > 49.0


@pytest.mark.parametrize("text", [
    "<header><geoReference><![CDATA[+proj=tmerc +lat_0=49.5 +lon_0=-8.25 +k=1]]></geoReference></header>",
    "<header><geoReference>+proj=tmerc+lat_0=49.5+lon_0=-8.25+k=1</geoReference></header>",
    "<header><geoReference>\n  +proj=tmerc\t+lat_0 = 4.95e1\n  +lon_0 =-8.25 </geoReference></header>",
    "<header><geoReference>+lon_0=-8.25 +lat_0=+49.5</geoReference></header><userData>+lat_0=1</userData>",
    "<header><userData>+lat_0=1 +lon_0=2</userData><geoReference>&#43;lat_0=49.5 +lon_0=-8.25</geoReference></header>",
])
def test_geo_reference_of_a_header_however_it_is_written(text: str) -> None:
    assert GeoReference.of(f"<?xml version='1.0'?><OpenDRIVE>{text}</OpenDRIVE>") == GeoReference(49.5, -8.25)


@pytest.mark.parametrize("text", ["", "<header/>", "<header><geoReference>+proj=merc</geoReference></header>"])
def test_header_without_a_place_has_carlas_fallback(text: str) -> None:
    assert GeoReference.of(f"<OpenDRIVE>{text}</OpenDRIVE>") == GeoReference(42.0, 2.0)


def sensor(tick: str) -> Sensor:
    return Sensor(1, LIBRARY["sensor.camera.rgb"], [0, "sensor.camera.rgb", [["sensor_tick", 3, tick]]], Pose())


def due_ticks(one: Sensor, ticks: int, dt_s: float = 0.05) -> list[int]:
    return [i for i in range(ticks) if one.due(100.0 + i * dt_s)]


def test_sensor_tick_of_a_quarter_second_is_every_fifth_tick_without_drift() -> None:
    assert due_ticks(sensor("0.25"), 2000) == list(range(0, 2000, 5))


def test_sensor_tick_zero_is_every_tick() -> None:
    assert due_ticks(sensor("0.0"), 10) == list(range(10))


def test_sensor_tick_that_is_no_multiple_keeps_its_mean_rate() -> None:
    assert len(due_ticks(sensor("0.07"), 1400)) == 1000


def test_sensor_clock_goes_on_while_nobody_listens() -> None:
    class Hub:
        heard: ClassVar[list[float]] = []
        on = False

        def listening(self, stream_id: int) -> bool:
            return self.on

        def send(self, stream_id: int, payload: bytes) -> None:
            self.heard.append(tick)

    hub, camera = Hub(), sensor("0.25")
    for tick in range(14):
        hub.on = tick >= 3  # a subscription comes in between two pictures
        moment = Tick(tick, 0.05 * tick, 0.05, GeoReference(), lambda *_: bytes(800 * 600 * 4), lambda: None, {})
        publish(hub, moment, [camera], lambda actor: [])
    assert hub.heard == [5, 10]


def test_sensor_clock_starts_anew_after_a_pause() -> None:
    one = sensor("0.25")
    assert [one.due(t) for t in (0.0, 0.05, 10.0, 10.05, 10.25)] == [True, False, True, False, True]
