"""Light and air: what a weather makes of a colour, and the colours of the sky.

Everything is tuned by eye, with the clear noon as the reference in which level ground shows its own colour. Sky colours
are given for a few altitudes of the sun, and mixed in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from carla_bridge.server.geometry.polygons import GROUND, Material
from carla_bridge.server.weather import CLEAR_AIR_EXTINCTION_PM, Weather

# Columns: sun altitude, then RGB of horizon, of zenith, of daylight from the sky, and of sunlight.
_CLEAR_SKY = np.array(
    [
        (-12.0, 20, 25, 42, 7, 10, 22, 0.150, 0.165, 0.230, 0.00, 0.00, 0.00),
        (-6.0, 58, 56, 82, 18, 24, 52, 0.210, 0.215, 0.290, 0.00, 0.00, 0.00),
        (0.0, 222, 142, 98, 52, 66, 116, 0.480, 0.430, 0.460, 0.16, 0.07, 0.02),
        (6.0, 240, 178, 122, 72, 98, 158, 0.600, 0.540, 0.520, 0.62, 0.36, 0.16),
        (15.0, 240, 208, 168, 88, 126, 184, 0.700, 0.650, 0.610, 0.60, 0.43, 0.26),
        (30.0, 218, 220, 216, 86, 136, 196, 0.640, 0.625, 0.610, 0.46, 0.42, 0.36),
        (45.0, 206, 218, 226, 84, 138, 200, 0.600, 0.600, 0.600, 0.42, 0.42, 0.42),
        (90.0, 200, 218, 232, 72, 130, 204, 0.600, 0.605, 0.615, 0.44, 0.44, 0.43),
    ]
)
# The same under a closed cloud cover, without sun.
_GREY_SKY = np.array(
    [
        (-12.0, 30, 31, 36, 18, 19, 24, 0.150, 0.158, 0.185),
        (-6.0, 58, 60, 70, 40, 43, 54, 0.200, 0.205, 0.240),
        (0.0, 132, 130, 134, 88, 92, 104, 0.440, 0.440, 0.460),
        (15.0, 176, 172, 168, 124, 126, 132, 0.580, 0.570, 0.560),
        (45.0, 196, 200, 204, 150, 156, 164, 0.690, 0.695, 0.700),
        (90.0, 200, 204, 208, 156, 162, 170, 0.720, 0.725, 0.730),
    ]
)
_REFERENCE_SKY, _REFERENCE_SUN = 0.60, 0.42
_GROUND_FROM_SKY = 0.70  # of the light on level ground at clear noon; the rest comes from the sun
_REFERENCE_SIN = np.sin(np.deg2rad(45.0))
STREET_LIGHT = np.array((1.00, 0.80, 0.50))
HEAD_LIGHT = np.array((1.00, 0.97, 0.88))
ROOM_LIGHT = np.array((250.0, 202.0, 124.0))
STREET_LAMP = np.array((255.0, 238.0, 200.0))
_IS_GROUND = np.array([material in GROUND for material in Material])
_WET_DARKENING = {
    Material.SOIL: 0.14,
    Material.SHADOW: 0.10,
    Material.PAVED: 0.42,
    Material.WEAR: 0.42,
    Material.PAINT: 0.16,
}


@dataclass(frozen=True, eq=False)  # one object a weather, so that others may keep what they made of it
class Light:
    """The light of one weather.

    Attributes:
        sky, sun: (3,) RGB share of its colour that a face shows by the light of the sky, and of the sun square on.
        ground: (3,) the same for level ground.
        sun_direction: (3,) towards the sun.
        horizon, zenith, haze: (3,) RGB 0..255. Haze is what distance fades into.
        extinction_pm: of the air, 1/m, and `lamp_extinction_pm` of what shines through it.
        exposure: factor on shaded colours that are to be lit by lamps as well; at night they would be lost in the
            steps of 8 bits.
        per_pixel: whether fog, lamps or water must be worked out for every pixel.
    """

    weather: Weather
    sky: np.ndarray
    sun: np.ndarray
    ground: np.ndarray
    sun_direction: np.ndarray
    horizon: np.ndarray
    zenith: np.ndarray
    haze: np.ndarray
    extinction_pm: float
    lamp_extinction_pm: float
    exposure: float
    per_pixel: bool

    @cached_property
    def shining(self) -> np.ndarray:
        """(materials,) bool: which materials shine by themselves in this weather."""
        return np.arange(len(Material)) >= (Material.ROOM if self.weather.lamps_lit else Material.LAMP)

    @property
    def directness(self) -> float:
        """Share of direct sunlight, 1 at clear noon: how hard shadows are."""
        return float(min(1.0, self.sun.mean() / _REFERENCE_SUN))

    def shade(self, colors: np.ndarray, normals: np.ndarray, materials: np.ndarray) -> np.ndarray:
        """(N, 3) colours in this light, times `exposure`, without fog and lamps; what shines has its own colour.

        Args:
            colors: (N, 3) RGB 0..255.
            normals: (N, 3) outward; ground, and what has none, is lit as if level.
            materials: (N,).
        """
        facing = np.maximum(normals @ self.sun_direction, 0.0)
        level = _IS_GROUND[materials] | ~normals.any(axis=1)
        light = np.where(level[:, None], self.ground, self.sky + facing[:, None] * self.sun)
        lit = light * (self.exposure * self._tones(colors, materials))
        if self.weather.lamps_lit:
            rooms = materials == Material.ROOM
            # the shades of glass stand for different lamps behind it
            lit[rooms] = ROOM_LIGHT * np.clip(colors[rooms].mean(axis=1, keepdims=True) / 110.0, 0.55, 1.0)
            lit[materials == Material.STREET_LAMP] = STREET_LAMP
        lamps = materials == Material.LAMP
        lit[lamps] = colors[lamps]
        return lit

    def _tones(self, colors: np.ndarray, materials: np.ndarray) -> np.ndarray:
        """Colours before light: wet ones darker, shadows as strong as the sun."""
        wet = self.weather.wet
        shade = np.ones(len(Material))
        for material, darkening in _WET_DARKENING.items():
            shade[material] -= wet * darkening
        shade[Material.SHADOW] *= 1.0 + 0.5 * (1.0 - self.directness)
        return colors * shade[materials][:, None]

    def faded(self, colors: np.ndarray, distance_m: np.ndarray, materials: np.ndarray, reach: float) -> np.ndarray:
        """(N, 3) colours behind `distance_m` of air; a high camera's `reach` clears it."""
        extinction = np.where(self.shining[materials], self.lamp_extinction_pm, self.extinction_pm)
        clear = np.exp(-extinction * distance_m / reach)[:, None]
        return colors * clear + self.haze * (1.0 - clear)


@lru_cache(maxsize=8)
def light_of(weather: Weather) -> Light:
    """The light of a weather."""
    clear, grey = (
        np.array([np.interp(weather.sun_altitude_deg, sky[:, 0], column) for column in sky.T[1:]])
        for sky in (_CLEAR_SKY, _GREY_SKY)
    )
    overcast = weather.overcast
    gloom = 1.0 - 0.22 * weather.rain * overcast
    mixed = (clear[:9] * (1.0 - overcast) + grey * overcast) * gloom
    horizon, zenith, sky = mixed[:3], mixed[3:6], mixed[6:9]
    sun = clear[9:12] * (1.0 - overcast)
    if weather.dust_storm > 0.0:
        share = 0.8 * weather.dust_storm / 100.0
        dust = np.array((196.0, 152.0, 96.0)) * horizon.mean() / 215.0
        horizon, zenith = horizon + share * (dust - horizon), zenith + share * (0.85 * dust - zenith)
    # thick fog is white or grey, whatever colour the sky has
    fog = min(1.0, weather.fog_extinction_pm / 0.02)
    haze = horizon + 0.55 * fog * (1.0 - weather.dust_storm / 100.0) * (horizon.mean() - horizon)
    height = max(float(weather.sun_direction[2]), 0.0) / _REFERENCE_SIN
    ground = _GROUND_FROM_SKY * sky / _REFERENCE_SKY
    ground = ground + (1.0 - _GROUND_FROM_SKY) * min(height, 1.15) * sun / _REFERENCE_SUN
    return Light(
        weather,
        sky,
        sun,
        ground,
        weather.sun_direction,
        horizon,
        zenith,
        haze,
        weather.extinction_pm,
        CLEAR_AIR_EXTINCTION_PM + 0.4 * weather.fog_extinction_pm,
        exposure=max(1.0, 1.0 / float((sky + sun).max())) if weather.lamps_lit else 1.0,
        per_pixel=weather.fog_extinction_pm > 0.001 or weather.lamps_lit or weather.wet > 0.0,
    )
