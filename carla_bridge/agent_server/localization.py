"""Where the ego is, from what CARLA's leaderboard lets an agent measure: GNSS, compass, gyroscope and speedometer.

The leaderboard's GNSS has a noise of 5e-6 degrees, about half a metre, on every tick; the other sensors are all but
exact. So a motion model carries the pose and GNSS corrects it slowly. Agents get no map, but their plan comes twice,
in the world and in degrees: the map's projection follows from the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import wrap_angle
from wamdiff2_core.types import Pose2D

EARTH_RADIUS_M = 6378137.0
GNSS_NOISE_DEG = 5e-6
MAX_MISFIT_M = 0.01
MIN_EXTENT_M = 1.0
MIN_SCALE = 0.05  # that of 87 degrees north


@dataclass(frozen=True)
class Georeference:
    """The Mercator projection of a CARLA map, as far as positions need it.

    Attributes:
        scale: cosine of the reference latitude.
        east_m, north_m: projected coordinates of the map's origin.
    """

    scale: float
    east_m: float
    north_m: float

    @classmethod
    def fit(cls, degrees: np.ndarray, map_m: np.ndarray) -> Georeference:
        """The projection that maps the one onto the other.

        Args:
            degrees: (N, 2) latitude and longitude, N >= 2.
            map_m: (N, 2) the same points in the map frame, y north.

        Raises:
            UserError: the points are too close together, or no projection maps them within 1 cm.
        """
        unit = _mercator(degrees)
        # map = scale * unit - origin, linear in scale and the two coordinates of the origin.
        count = len(unit)
        matrix = np.zeros((2 * count, 3))
        centre = unit.mean(axis=0)
        matrix[:count, 0], matrix[count:, 0] = (unit - centre).T
        matrix[:count, 1] = matrix[count:, 2] = 1.0
        if count < 2 or np.ptp(map_m, axis=0).max() < MIN_EXTENT_M:
            raise UserError("global plan", f"points that lie more than {MIN_EXTENT_M:g} m apart", f"{count} points")
        (scale, *at_centre), *_ = np.linalg.lstsq(matrix, np.concatenate([map_m[:, 0], map_m[:, 1]]), rcond=None)
        east, north = scale * centre - at_centre
        found = cls(float(scale), float(east), float(north))
        misfit_m = float(np.abs(found.to_map(degrees) - map_m).max())
        if not (misfit_m < MAX_MISFIT_M and MIN_SCALE <= scale < 1.0 + 1e-3):
            raise UserError("global plan", "degrees that are a Mercator projection of its positions",
                            f"{misfit_m:.3g} m between them, scale {scale:.4g}")
        return found

    def to_map(self, degrees: np.ndarray) -> np.ndarray:
        """(..., 2) positions in the map frame, metres, of (..., 2) latitudes and longitudes."""
        return self.scale * _mercator(degrees) - [self.east_m, self.north_m]

    def noise_m(self, latitude_deg: float) -> np.ndarray:
        """(2,) standard deviation, east and north, of a position with the leaderboard's noise."""
        per_degree = self.scale * EARTH_RADIUS_M * np.deg2rad(1.0)
        return GNSS_NOISE_DEG * per_degree * np.array([1.0, 1.0 / np.cos(np.deg2rad(latitude_deg))])


def _mercator(degrees: np.ndarray) -> np.ndarray:
    """East and north on a sphere of the earth's radius, at the equator's scale."""
    latitude, longitude = np.moveaxis(np.deg2rad(np.asarray(degrees, dtype=np.float64)), -1, 0)
    return EARTH_RADIUS_M * np.stack([longitude, np.arctanh(np.sin(latitude))], axis=-1)


@dataclass(frozen=True)
class MotionNoise:
    """What the filter believes of its inputs, standard deviations.

    Attributes:
        slip_mps: of the velocity, along and across; it covers a speedometer that lags a tick while accelerating.
        turn_radps: of the yaw rate.
        compass_rad: of a compass reading.
    """

    slip_mps: float = 0.2
    turn_radps: float = 0.01
    compass_rad: float = 0.01


class Localizer:
    """Extended Kalman filter over (x, y, yaw) of base_link in the map frame.

    The motion is a unicycle's at the rear axle, which does not slip sideways; base_link lies ahead of it.

    Attributes:
        pose: the estimate.
        position_std_m: its standard deviation, the larger axis.
    """

    # Squared innovation over its variance averages 2 for a filter that is right; above this it has lost the vehicle.
    LOST, MEMORY_TICKS, LOST_STD_M = 6.0, 20, 2.0

    def __init__(
        self, georeference: Georeference, base_to_rear_axle_m: float = 1.43, noise: MotionNoise = MotionNoise()
    ) -> None:
        """Start without any idea of the pose."""
        self.pose = Pose2D(0.0, 0.0, 0.0)
        self.position_std_m = math.inf
        self._georeference, self._lever_m, self._noise = georeference, base_to_rear_axle_m, noise
        self._covariance: np.ndarray | None = None
        self._surprise = 2.0

    def step(
        self, dt_s: float, speed_mps: float, yaw_rate_radps: float, degrees: Sequence[float], compass_yaw_rad: float
    ) -> Pose2D:
        """Take one tick's measurements and return the pose at it.

        Args:
            dt_s: time since the last tick.
            speed_mps: forward speed.
            yaw_rate_radps: left positive.
            degrees: latitude and longitude; not finite when missing.
            compass_yaw_rad: yaw in the map frame; NaN on ticks where the compass has none.
        """
        fix = np.asarray(degrees, dtype=np.float64)[:2]
        has_fix = bool(np.isfinite(fix).all())
        if self._covariance is None:
            if not has_fix or not math.isfinite(compass_yaw_rad):
                return self.pose
            x, y = self._georeference.to_map(fix)
            self.pose = Pose2D(float(x), float(y), compass_yaw_rad)
            std_m = self._georeference.noise_m(float(fix[0]))
            self._covariance = np.diag([*std_m**2, self._noise.compass_rad**2])
        else:
            if math.isfinite(speed_mps) and math.isfinite(yaw_rate_radps):
                self._predict(dt_s, speed_mps, yaw_rate_radps)
            if math.isfinite(compass_yaw_rad):
                self._correct(np.array([[0.0, 0.0, 1.0]]), np.array([wrap_angle(compass_yaw_rad - self.pose.yaw_rad)]),
                              np.array([self._noise.compass_rad]))
            if has_fix:
                self._correct_position(fix)
        self.position_std_m = float(np.sqrt(np.linalg.eigvalsh(self._covariance[:2, :2])[-1]))
        return self.pose

    def _predict(self, dt_s: float, speed_mps: float, yaw_rate_radps: float) -> None:
        assert self._covariance is not None
        yaw = self.pose.yaw_rad + yaw_rate_radps * dt_s / 2  # at the middle of the tick
        ahead, left = speed_mps * dt_s, self._lever_m * yaw_rate_radps * dt_s
        c, s = math.cos(yaw), math.sin(yaw)
        self.pose = Pose2D(
            self.pose.x_m + ahead * c - left * s, self.pose.y_m + ahead * s + left * c,
            wrap_angle(self.pose.yaw_rad + yaw_rate_radps * dt_s),
        )
        jacobian = np.eye(3)
        jacobian[:2, 2] = -ahead * s - left * c, ahead * c - left * s
        slip, turn = (self._noise.slip_mps * dt_s) ** 2, (self._noise.turn_radps * dt_s) ** 2
        self._covariance = jacobian @ self._covariance @ jacobian.T + np.diag([slip, slip, turn])

    def _correct_position(self, fix: np.ndarray) -> None:
        """Correct by GNSS; a vehicle that was moved otherwise than by driving, as in a collision, is found again."""
        assert self._covariance is not None
        innovation = self._georeference.to_map(fix) - [self.pose.x_m, self.pose.y_m]
        std_m = self._georeference.noise_m(float(fix[0]))
        expected = self._covariance[:2, :2] + np.diag(std_m**2)
        surprise = float(innovation @ np.linalg.solve(expected, innovation))
        self._surprise += (surprise - self._surprise) / self.MEMORY_TICKS
        if self._surprise > self.LOST:
            self._covariance = self._covariance + np.diag([self.LOST_STD_M**2, self.LOST_STD_M**2, 0.0])
            self._surprise = 2.0
        self._correct(np.eye(2, 3), innovation, std_m)

    def _correct(self, rows: np.ndarray, innovation: np.ndarray, std: np.ndarray) -> None:
        assert self._covariance is not None
        covariance = self._covariance
        gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + np.diag(std**2))
        dx, dy, dyaw = gain @ innovation
        self.pose = Pose2D(
            float(self.pose.x_m + dx), float(self.pose.y_m + dy), wrap_angle(self.pose.yaw_rad + float(dyaw))
        )
        # Joseph's form keeps it symmetric and positive.
        rest = np.eye(3) - gain @ rows
        self._covariance = rest @ covariance @ rest.T + gain @ np.diag(std**2) @ gain.T
