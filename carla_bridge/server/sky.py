"""What lies behind everything: sky, clouds, distant hills and, below the horizon, grass."""

from __future__ import annotations

import cv2
import numpy as np

from carla_bridge.server.ground_mesh import GRASS
from carla_bridge.server.scene import Rgb

HAZE: Rgb = (206, 218, 226)
ZENITH: Rgb = (84, 138, 200)
PIXELS_PER_DEGREE = 4


def panorama() -> np.ndarray:
    """(720, 1440, 4) uint8 BGRA: columns are azimuth 0..360 degrees (CARLA yaw), rows elevation +90..-90 degrees."""
    width, height = 360 * PIXELS_PER_DEGREE, 180 * PIXELS_PER_DEGREE
    elevation = 90.0 - (np.arange(height) + 0.5) / PIXELS_PER_DEGREE
    azimuth = np.deg2rad((np.arange(width) + 0.5) / PIXELS_PER_DEGREE)
    haze, zenith = np.array(HAZE, dtype=float), np.array(ZENITH, dtype=float)

    up = np.clip(elevation / 50.0, 0.0, 1.0)[:, None, None] ** 0.7
    image = np.broadcast_to(haze + up * (zenith - haze), (height, width, 3)).copy()
    cover = np.clip((_noise(width, height) - 0.54) * 4.5, 0.0, 0.85)
    cover *= np.clip((elevation - 2.0) / 12.0, 0.0, 1.0)[:, None]
    image += cover[..., None] * (np.array((247.0, 248.0, 250.0)) - image)

    for seed, top, color in ((1.0, 4.2, (150, 172, 190)), (2.6, 2.3, (122, 148, 136))):
        waves = sum(np.sin(azimuth * k + seed * k * k) / k for k in (2, 3, 5, 9, 17)) * 0.42
        ridge = top * (0.62 + 0.38 * waves)
        image[(elevation[:, None] < ridge) & (elevation[:, None] >= 0.0)] = color

    # the ground seen from 1.8 m, lost in haze towards the horizon
    distance = 1.8 / np.tan(np.deg2rad(np.clip(-elevation, 0.05, 89.0)))
    fade = (1.0 - np.exp(-distance / 260.0))[:, None]
    ground = np.array(GRASS) * (1.0 - fade) + np.array((150, 168, 140)) * fade
    image[elevation < 0.0] = np.broadcast_to(ground[:, None], image.shape)[elevation < 0.0]
    bgra = np.full((height, width, 4), 255, np.uint8)
    bgra[..., :3] = np.clip(image[..., ::-1], 0, 255)
    return bgra


def _noise(width: int, height: int) -> np.ndarray:
    """(height, width) smooth noise in 0..1, periodic in azimuth."""
    rng = np.random.default_rng(7)
    total, weight = np.zeros((height, width), np.float32), 0.0
    for octave, amplitude in ((12, 1.0), (24, 0.6), (48, 0.35), (96, 0.2)):
        coarse = rng.random((octave, octave)).astype(np.float32)
        tiled = np.concatenate([coarse, coarse, coarse], axis=1)
        fine = cv2.resize(tiled, (3 * width, height), interpolation=cv2.INTER_CUBIC)[:, width : 2 * width]
        total += amplitude * fine
        weight += amplitude
    return total / weight


class Background:
    """Draws the panorama into a camera; the lens map is kept for the last few cameras."""

    def __init__(self) -> None:
        self._width = 360 * PIXELS_PER_DEGREE
        self._panorama = np.tile(panorama(), (1, 2, 1))  # twice round, so that a view never crosses a seam
        self._maps: dict[tuple[float, ...], tuple[np.ndarray, np.ndarray]] = {}

    def draw(self, axes: np.ndarray, width: int, height: int, focal_px: float) -> np.ndarray:
        """(height, width, 4) BGRA background of a camera with `axes` (rows forward, right, up)."""
        yaw = float(np.arctan2(axes[0, 1], axes[0, 0]))
        c, s = np.cos(-yaw), np.sin(-yaw)
        level = axes @ np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])  # the same camera with yaw 0
        key = (width, height, focal_px, *np.round(level.ravel(), 4))
        if key not in self._maps:
            if len(self._maps) >= 8:
                self._maps.clear()
            self._maps[key] = self._lens_map(level, width, height, focal_px)
        map_x, map_y = self._maps[key]
        # columns of yaw 0 start at -180 degrees
        shift = (np.rad2deg(yaw) + 180.0) * PIXELS_PER_DEGREE % self._width
        return cv2.remap(
            self._panorama, map_x + np.float32(shift), map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )

    @staticmethod
    def _lens_map(level: np.ndarray, width: int, height: int, focal_px: float) -> tuple[np.ndarray, np.ndarray]:
        """Panorama column, counted from -180 degrees, and row of every pixel."""
        v, u = np.mgrid[0:height, 0:width] + 0.5
        right, up = ((u - width / 2) / focal_px)[..., None], ((height / 2 - v) / focal_px)[..., None]
        ray = level[0] + right * level[1] + up * level[2]
        azimuth = np.rad2deg(np.arctan2(ray[..., 1], ray[..., 0]))
        elevation = np.rad2deg(np.arctan2(ray[..., 2], np.hypot(ray[..., 0], ray[..., 1])))
        columns, rows = (azimuth + 180.0) * PIXELS_PER_DEGREE - 0.5, (90.0 - elevation) * PIXELS_PER_DEGREE - 0.5
        return columns.astype(np.float32), rows.astype(np.float32)
