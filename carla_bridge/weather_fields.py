"""The fields of `carla.WeatherParameters`, in the protocol's order; known here so that a route file needs no CARLA."""

from __future__ import annotations

WEATHER_FIELDS = (
    "cloudiness", "precipitation", "precipitation_deposits", "wind_intensity", "sun_azimuth_angle",
    "sun_altitude_angle", "fog_density", "fog_distance", "fog_falloff", "wetness", "scattering_intensity",
    "mie_scattering_scale", "rayleigh_scattering_scale", "dust_storm",
)  # fmt: skip
