"""Weather as a client sets it, and what it means for light, air and road.

CARLA's own sky is a physical model whose inner workings are not part of the protocol. Here every number gets a plain
meaning that keeps CARLA's documented ends: 0 is none, 100 is as much as there can be. The origin of the sun's azimuth
is not documented; it is chosen so that the azimuth of nearly all presets, -1, gives long soft shadows on town grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property

import numpy as np

AZIMUTH_ORIGIN_DEG = -128.3  # CARLA yaw of a sun of azimuth 0
CLEAR_AIR_EXTINCTION_PM = 1 / 420.0
THICKEST_FOG_EXTINCTION_PM = 0.042  # density 100: an object 25 m away shows a third of its colour
LAMPS_ON_BELOW_DEG = 5.0  # street lamps, lit windows
DAY_ABOVE_DEG, NIGHT_BELOW_DEG = 10.0, -8.0


@dataclass(frozen=True)
class Weather:
    """`carla.WeatherParameters`, fields in the protocol's order, clipped to their documented ranges.

    Attributes:
        cloudiness, precipitation, precipitation_deposits, wind_intensity: 0..100. Deposits are puddles.
        sun_azimuth_deg, sun_altitude_deg: altitude -90..90.
        fog_density: 0..100. fog_distance_m: where fog begins. fog_falloff: 0 fills the sky, 5 lies on the ground.
        wetness: 0..100; road surface, without puddles.
        scattering_intensity, mie_scattering_scale, rayleigh_scattering_scale: kept, without effect.
        dust_storm: 0..100.
    """

    cloudiness: float = 5.0
    precipitation: float = 0.0
    precipitation_deposits: float = 0.0
    wind_intensity: float = 10.0
    sun_azimuth_deg: float = -1.0
    sun_altitude_deg: float = 45.0
    fog_density: float = 2.0
    fog_distance_m: float = 0.75
    fog_falloff: float = 0.1
    wetness: float = 0.0
    scattering_intensity: float = 1.0
    mie_scattering_scale: float = 0.03
    rayleigh_scattering_scale: float = 0.0331
    dust_storm: float = 0.0

    @classmethod
    def from_protocol(cls, values: Sequence[float]) -> Weather:
        """Weather of the 14 numbers of the protocol; what is out of range is clipped, what is no number is 0.

        Raises:
            ValueError: not 14 values.
        """
        names = [f.name for f in fields(cls)]
        if len(values) != len(names):
            raise ValueError(f"weather: expected {len(names)} numbers ({', '.join(names)}), got {len(values)}")
        numbers = np.nan_to_num(np.asarray(values, dtype=float), nan=0.0, posinf=1e6, neginf=-1e6)
        weather = dict(zip(names, numbers.tolist(), strict=True))
        for name in _PERCENTAGES:
            weather[name] = min(max(weather[name], 0.0), 100.0)
        weather["sun_altitude_deg"] = min(max(weather["sun_altitude_deg"], -90.0), 90.0)
        weather["fog_distance_m"] = max(weather["fog_distance_m"], 0.0)
        weather["fog_falloff"] = max(weather["fog_falloff"], 0.0)
        return cls(**weather)

    def as_protocol(self) -> list[float]:
        """The 14 numbers, in protocol order."""
        return list(astuple(self))

    def coarse(self) -> Weather:
        """The same weather in steps that the eye does not see: what is worked out once per weather lasts longer."""
        return Weather(*(round(2.0 * value) / 2.0 if value >= 1.0 or value < 0.0 else value for value in astuple(self)))

    @cached_property
    def sun_direction(self) -> np.ndarray:
        """(3,) unit vector towards the sun, CARLA's world; below the horizon at night."""
        yaw, altitude = np.deg2rad(AZIMUTH_ORIGIN_DEG + self.sun_azimuth_deg), np.deg2rad(self.sun_altitude_deg)
        return np.array([np.cos(altitude) * np.cos(yaw), np.cos(altitude) * np.sin(yaw), np.sin(altitude)])

    @property
    def daylight(self) -> float:
        """0 at night, 1 by day, between them at dusk."""
        return float(np.interp(self.sun_altitude_deg, (NIGHT_BELOW_DEG, DAY_ABOVE_DEG), (0.0, 1.0)))

    @property
    def lamps_lit(self) -> bool:
        """Whether street lamps burn and windows are lit."""
        return self.sun_altitude_deg < LAMPS_ON_BELOW_DEG

    @property
    def overcast(self) -> float:
        """Share of sunlight that clouds take away, 0..1; scattered clouds leave the sun alone, rain does not."""
        grey = max(self.cloudiness, self.dust_storm, 0.9 * self.precipitation)
        return float(np.interp(grey, (10.0, 90.0), (0.0, 1.0)))

    @property
    def rain(self) -> float:
        """0 none, 1 downpour."""
        return self.precipitation / 100.0

    @property
    def wet(self) -> float:
        """How wet the road is, 0 dry to 1 under a film of water; rain wets it whatever `wetness` says."""
        return min(1.0, max(self.wetness, 1.5 * self.precipitation, 0.5 * self.precipitation_deposits) / 100.0)

    @property
    def puddles(self) -> float:
        """Share of the road under puddles, 0..0.4."""
        return 0.4 * self.precipitation_deposits / 100.0

    @property
    def fog_extinction_pm(self) -> float:
        """Extinction of the fog alone, 1/m, at the ground."""
        dust = 0.5 * self.dust_storm
        return THICKEST_FOG_EXTINCTION_PM * (max(self.fog_density, dust) / 100.0) ** 1.5 + 0.004 * self.rain**2

    @property
    def extinction_pm(self) -> float:
        """Extinction of clear air and fog, 1/m, at the ground."""
        return CLEAR_AIR_EXTINCTION_PM + self.fog_extinction_pm

    @property
    def fog_height_m(self) -> float:
        """Height at which the fog has a third of its density."""
        return float(np.clip(30.0 / (0.1 + self.fog_falloff), 4.0, 300.0))


_PERCENTAGES = (
    "cloudiness",
    "precipitation",
    "precipitation_deposits",
    "wind_intensity",
    "fog_density",
    "wetness",
    "dust_storm",
)
CLEAR_NOON = Weather()
