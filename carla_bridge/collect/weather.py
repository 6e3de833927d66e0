"""Weathers to drive in, drawn from a palette, and their words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

SKIES, SKY_SHARES = ("clear", "cloudy", "rain", "fog"), (0.40, 0.22, 0.24, 0.14)
TIMES, TIME_SHARES = ("day", "low sun", "night"), (0.62, 0.18, 0.20)
WET_DRY_SHARE = 0.15  # of the days without rain that follow one


@dataclass(frozen=True)
class Weather:
    """Weather of some seconds.

    Attributes:
        sky: one of `SKIES`.
        time: one of `TIMES`.
        wet: whether the road is.
        values: every field of `carla.WeatherParameters` that counts.
    """

    sky: str
    time: str
    wet: bool
    values: Mapping[str, float]

    @property
    def id(self) -> str:
        """Name for tables, such as `rain/night`."""
        return f"{self.sky}/{self.time}"


def draw_weather(rng: np.random.Generator) -> Weather:
    """A weather whose words can be told from a picture: dusk and drizzle are left out."""
    sky = SKIES[int(rng.choice(len(SKIES), p=SKY_SHARES))]
    time = TIMES[int(rng.choice(len(TIMES), p=TIME_SHARES))]
    altitude = {"day": (18.0, 80.0), "low sun": (2.0, 8.0), "night": (-60.0, -10.0)}[time]
    cloudiness = {"clear": (0.0, 15.0), "cloudy": (75.0, 100.0), "rain": (80.0, 100.0), "fog": (10.0, 90.0)}[sky]
    rain = rng.uniform(40.0, 100.0) if sky == "rain" else 0.0
    soaked = sky == "rain" or rng.random() < WET_DRY_SHARE
    drawn = {
        "cloudiness": rng.uniform(*cloudiness), "precipitation": rain,
        "precipitation_deposits": rng.uniform(30.0, 90.0) if soaked else 0.0,
        "wind_intensity": rng.uniform(5.0, 60.0), "sun_azimuth_angle": rng.uniform(-180.0, 180.0),
        "sun_altitude_angle": rng.uniform(*altitude),
        "fog_density": rng.uniform(50.0, 95.0) if sky == "fog" else rng.uniform(0.0, 4.0),
        "fog_distance": 0.75, "fog_falloff": 0.1, "wetness": rng.uniform(60.0, 100.0) if soaked else 0.0,
        "scattering_intensity": 1.0, "mie_scattering_scale": 0.03, "rayleigh_scattering_scale": 0.0331,
        "dust_storm": 0.0,
    }
    return Weather(sky, time, soaked, {name: round(float(value), 2) for name, value in drawn.items()})
