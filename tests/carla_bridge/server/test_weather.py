"""Weather. Oracle: the client's own `carla.WeatherParameters`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

carla = pytest.importorskip("carla")

from carla_bridge.server.weather import CLEAR_NOON, Weather  # noqa: E402
from carla_bridge.weather_fields import WEATHER_FIELDS  # noqa: E402

pytestmark = pytest.mark.carla

def preset(name: str) -> Weather:
    parameters = getattr(carla.WeatherParameters, name)
    return Weather.from_protocol([getattr(parameters, name) for name in WEATHER_FIELDS])


def test_the_default_is_the_preset_clear_noon():
    np.testing.assert_allclose(CLEAR_NOON.as_protocol(), preset("ClearNoon").as_protocol(), atol=1e-6)


def test_protocol_order_survives_a_round_trip():
    numbers = [float(n) for n in range(1, 15)]
    assert Weather.from_protocol(numbers).as_protocol() == numbers


def test_a_wrong_count_says_what_was_expected():
    with pytest.raises(ValueError, match=r"expected 14 numbers .*got 3"):
        Weather.from_protocol([1.0, 2.0, 3.0])


def test_presets_mean_what_their_names_say():
    assert preset("ClearNoon").daylight == 1.0
    assert not preset("ClearNoon").lamps_lit
    assert preset("ClearNight").daylight == 0.0
    assert preset("ClearNight").lamps_lit
    assert preset("HardRainNoon").wet == 1.0
    assert preset("HardRainNoon").rain == 1.0
    assert preset("ClearNoon").wet == preset("ClearNoon").puddles == 0.0
    assert preset("ClearNoon").overcast < preset("CloudyNoon").overcast < preset("DustStorm").overcast


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=14, max_size=14))
def test_any_numbers_give_finite_light_and_air(numbers):
    weather = Weather.from_protocol(numbers)
    assert np.isfinite(weather.sun_direction).all()
    assert np.linalg.norm(weather.sun_direction) == pytest.approx(1.0)
    for share in (weather.daylight, weather.overcast, weather.rain, weather.wet, weather.puddles):
        assert 0.0 <= share <= 1.0
    assert weather.extinction_pm >= weather.fog_extinction_pm >= 0.0


@given(st.floats(0, 100), st.floats(0, 100))
def test_denser_fog_hides_more(a, b):
    thin, thick = sorted((a, b))
    assert Weather(fog_density=thin).extinction_pm <= Weather(fog_density=thick).extinction_pm
