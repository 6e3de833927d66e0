"""The weather along a route, as the CARLA leaderboard changes it: with the ego vehicle's progress, never with time.

Source: `RouteWeatherBehavior` of the leaderboard's scenario runner, and how its route parser reads a `<weather>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from carla_bridge.leaderboard.criteria import DenseRoute
from carla_bridge.routes.route_file import WeatherSpec
from carla_bridge.weather_fields import WEATHER_FIELDS

if TYPE_CHECKING:
    from carla_bridge.routes.navigation import RoutePlan
    from wamdiff2_core.types import Pose2D

AHEAD_POINTS = 3  # of the route, a metre apart, that one tick may pass
# What a <weather> does not say, and the whole weather of a route without any.
BASE_WEATHER: Mapping[str, float] = dict.fromkeys(WEATHER_FIELDS, 0.0) | {
    "cloudiness": 50.0, "sun_altitude_angle": 70.0, "rayleigh_scattering_scale": 0.0331,
}


class RouteWeather:
    """Weather between the key points of one route, linear in the share of its length.

    Each point of the dense route has its weather; it is set when the ego vehicle first passes the point. Before the
    first key point and after the last the nearest one holds. As upstream, a dust storm is not interpolated: with two
    key points or more it is that of the first until the first point is passed, and none after that.
    """

    def __init__(self, plan: RoutePlan, weathers: Sequence[WeatherSpec]) -> None:
        """Prepare the weather of a route.

        Args:
            plan: the route.
            weathers: its key points, by rising share; none for the weather of a route that says nothing.
        """
        self._route, self._index = DenseRoute(plan), 0
        whole = [dict(BASE_WEATHER) | dict(weather.values) for weather in weathers] or [dict(BASE_WEATHER)]
        self.start: Mapping[str, float] = whole[0]
        self._shares = [weather.route_pct for weather in weathers]
        self._values = {
            name: [values[name] for values in whole] for name in WEATHER_FIELDS if name != "dust_storm"
        }
        xyz_m = np.column_stack([self._route.xy_m, plan.z_m[: len(self._route.xy_m)]])
        arc_m = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(xyz_m, axis=0), axis=1))])
        self._pct = 100.0 * arc_m / arc_m[-1]
        self._now = self.start

    def update(self, pose: Pose2D) -> Mapping[str, float] | None:
        """The weather to set now that the ego vehicle is at a pose; None while it stays as it is.

        Returns:
            fields of `carla.WeatherParameters`, all of them.
        """
        passed = self._route.passed(self._index, AHEAD_POINTS, np.array([pose.x_m, pose.y_m]))
        if not passed or passed[-1] == self._index or len(self._shares) < 2:
            return None
        self._index = passed[-1]
        weather = self.at(float(self._pct[self._index]))
        if weather == self._now:
            return None
        self._now = weather
        return weather

    def at(self, route_pct: float) -> Mapping[str, float]:
        """The weather at a share of the route's length, 0..100, of a route with two key points or more."""
        values = {name: float(np.interp(route_pct, self._shares, row)) for name, row in self._values.items()}
        return values | {"dust_storm": 0.0}
