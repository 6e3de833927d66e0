"""What lies behind everything: sky, sun, stars, clouds, distant hills and, below the horizon, grass."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.rendering.ground_mesh import GRASS
from carla_bridge.server.rendering.lighting import Light

PIXELS_PER_DEGREE = 4
WIDTH, HEIGHT = 360 * PIXELS_PER_DEGREE, 180 * PIXELS_PER_DEGREE
GRASS_FADE_M = 260.0  # distance at which the horizon's grass has lost 63 % of its colour, in clear air
EYE_M = 1.8
LONGEST_VEIL_M = 900.0  # way through fog that counts, along the horizon
KEPT_PANORAMAS = 4
LENS_STEP = 8
POLE_ROWS = 10 * PIXELS_PER_DEGREE  # so near to the zenith azimuth turns fast
HILLS = ((1.0, 4.2, (150, 172, 190)), (2.6, 2.3, (122, 148, 136)))


def panorama(light: Light) -> np.ndarray:
    """(720, 1440, 4) uint8 BGRA: columns are azimuth 0..360 degrees (CARLA yaw), rows elevation +90..-90 degrees."""
    weather = light.weather
    elevation = 90.0 - (np.arange(HEIGHT, dtype=np.float32) + 0.5) / PIXELS_PER_DEGREE
    azimuth = np.deg2rad((np.arange(WIDTH, dtype=np.float32) + 0.5) / PIXELS_PER_DEGREE)
    top = HEIGHT // 2
    up = (np.clip(elevation[:top] / 50.0, 0.0, 1.0) ** 0.7)[:, None, None]
    column = light.horizon + up * (light.zenith - light.horizon)
    image = np.broadcast_to(column, (top, WIDTH, 3)).astype(np.float32)
    _stars(image, light)
    toward_sun = _sun_glow(image, light, elevation[:top], azimuth)
    _clouds(image, light, elevation[:top], toward_sun)

    # fog between the eye and the sky: thick along the ground, thin overhead
    sine = np.sin(np.deg2rad(np.maximum(elevation[:top], 0.3)))
    depth = weather.fog_extinction_pm * np.minimum(weather.fog_height_m / sine, LONGEST_VEIL_M)
    veil = (1.0 - np.exp(-depth)).astype(np.float32)[:, None, None]
    far = np.exp(-weather.fog_extinction_pm * 600.0)
    for seed, crest, color in HILLS:
        waves = sum(np.sin(azimuth * k + seed * k * k) / k for k in (2, 3, 5, 9, 17)) * 0.42
        ridge = crest * (0.62 + 0.38 * waves)
        tone = np.array(color) * light.ground * (0.55 + 0.45 * weather.daylight)
        share = 0.5 * weather.overcast * far  # clouds take the blue out of the distance
        tone = (tone + share * (light.haze * 0.85 - tone)) * far + light.haze * (1.0 - far)
        image[elevation[:top, None] < ridge] = tone
    image += veil * (light.haze.astype(np.float32) - image)

    bgra = np.full((HEIGHT, WIDTH, 4), 255, np.uint8)
    bgra[:top, :, :3] = np.clip(image[..., ::-1], 0, 255)
    bgra[top:, :, :3] = np.clip(_grass(light, elevation[top:])[:, None, ::-1], 0, 255)
    return bgra


def _grass(light: Light, elevation: np.ndarray) -> np.ndarray:
    """(rows, 3) grass seen from 1.8 m; where the air is worked out for every pixel, without the air."""
    near = light.shade(np.array([GRASS], float), np.zeros((1, 3)), np.array([Material.SOIL]))
    if light.per_pixel:
        return np.broadcast_to(near, (len(elevation), 3))
    distance = EYE_M / np.tan(np.deg2rad(np.clip(-elevation, 0.05, 89.0)))
    fade = (1.0 - np.exp(-distance / GRASS_FADE_M))[:, None]
    far = np.array((150, 168, 140)) * light.ground
    far = far + 0.4 * light.weather.overcast * (light.haze * 0.8 - far)
    return near * (1.0 - fade) + far * fade


def _stars(image: np.ndarray, light: Light) -> None:
    brightness = (1.0 - light.weather.daylight) ** 2 * (1.0 - light.weather.overcast)
    if brightness < 0.02:
        return
    rng = np.random.default_rng(11)
    rows, columns = rng.integers(0, image.shape[0] - 24, 500), rng.integers(0, WIDTH, 500)
    image[rows, columns] += (brightness * rng.uniform(40, 190, 500))[:, None].astype(np.float32)


def _sun_glow(image: np.ndarray, light: Light, elevation: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Add the sun and the bright sky round it; (rows, columns) cosine of the angle to the sun."""
    x, y, z = light.sun_direction.astype(np.float32)
    e = np.deg2rad(elevation)[:, None]
    cosine = np.cos(e) * (np.cos(azimuth) * x + np.sin(azimuth) * y)[None] + np.sin(e) * z
    strength = float(light.sun.max())
    if strength <= 0.0:
        return cosine
    color = light.sun / strength
    ahead = np.maximum(cosine, 0.0)
    wide, close = ahead**6, ahead**96
    low = float(np.clip((25.0 - light.weather.sun_altitude_deg) / 20.0, 0.0, 1.0))
    image += (wide[..., None] * (70.0 * low * strength) + close[..., None] * 260.0 * strength) * color.astype(
        np.float32
    )
    image[cosine > np.cos(np.deg2rad(1.4))] = 255.0
    return cosine


def _clouds(image: np.ndarray, light: Light, elevation: np.ndarray, toward_sun: np.ndarray) -> None:
    """Cover as much of the sky as the weather says: scattered below 20 %, closed from 80 % on."""
    cover_share = max(light.weather.cloudiness / 100.0, 0.7 * light.weather.overcast)
    threshold = float(np.interp(cover_share, (0.0, 0.05, 0.10, 0.4, 0.8), (0.70, 0.54, 0.54, 0.40, 0.10)))
    noise = _noise()[: len(elevation)]
    cover = np.clip((noise - threshold) * 4.5, 0.0, float(np.interp(cover_share, (0.1, 0.8), (0.85, 0.97))))
    cover *= np.clip((elevation - 2.0) / 12.0, 0.0, 1.0)[:, None]
    day = float(light.sky.mean() / 0.60)
    overcast = light.weather.overcast
    white = np.array((247.0, 248.0, 250.0)) * min(1.0, day) * (light.sky / light.sky.mean())
    lit = white * (1.0 - overcast) + light.zenith * 1.08 * overcast
    warm = float(np.clip((18.0 - light.weather.sun_altitude_deg) / 15.0, 0.0, 1.0)) * (light.sun.max() > 0)
    if warm > 0.0:
        lit = lit * (1.0 - 0.45 * warm) + 0.45 * warm * light.horizon
    # heavy cloud has a grain, or a closed cover would be one flat colour
    shade = 1.0 + overcast * 0.55 * (noise - 0.5)
    color = lit.astype(np.float32) * shade[..., None].astype(np.float32)
    if warm > 0.0:
        color += (warm * 60.0 * np.maximum(toward_sun, 0.0) ** 3)[..., None] * np.array((1.0, 0.6, 0.3), np.float32)
    image += cover[..., None].astype(np.float32) * (color - image)


@lru_cache(maxsize=1)
def _noise() -> np.ndarray:
    """(720, 1440) smooth noise in 0..1, periodic in azimuth."""
    rng = np.random.default_rng(7)
    total, weight = np.zeros((HEIGHT, WIDTH), np.float32), 0.0
    for octave, amplitude in ((12, 1.0), (24, 0.6), (48, 0.35), (96, 0.2)):
        coarse = rng.random((octave, octave)).astype(np.float32)
        tiled = np.concatenate([coarse, coarse, coarse], axis=1)
        fine = cv2.resize(tiled, (3 * WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)[:, WIDTH : 2 * WIDTH]
        total += amplitude * fine
        weight += amplitude
    return total / weight


@lru_cache(maxsize=KEPT_PANORAMAS)
def _doubled(light: Light) -> np.ndarray:
    """The panorama twice round, so that a view never crosses a seam."""
    return np.tile(panorama(light), (1, 2, 1))


def draw_background(light: Light, axes: np.ndarray, width: int, height: int, focal_px: float) -> np.ndarray:
    """(height, width, 4) BGRA background of a camera with `axes` (rows forward, right, up)."""
    columns, rows = _lens_map(axes, width, height, focal_px)
    return cv2.remap(_doubled(light), columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _lens_map(axes: np.ndarray, width: int, height: int, focal_px: float) -> tuple[np.ndarray, np.ndarray]:
    """(height, width) float32 column and row of every pixel in the doubled panorama.

    Directions change so evenly that every 8th pixel is enough, unless the zenith or nadir is in view.
    """
    across, down = -(-width // LENS_STEP) + 2, -(-height // LENS_STEP) + 2
    u, v = ((np.arange(count) - 0.5) * LENS_STEP for count in (across, down))
    columns, rows = _directions(axes, u[None], v[:, None], width, height, focal_px)
    if rows.min() < POLE_ROWS or rows.max() > HEIGHT - POLE_ROWS:
        u, v = np.arange(width)[None] + 0.5, np.arange(height)[:, None] + 0.5
        return _directions(axes, u, v, width, height, focal_px)
    size = (across * LENS_STEP, down * LENS_STEP)
    window = (slice(LENS_STEP, LENS_STEP + height), slice(LENS_STEP, LENS_STEP + width))
    fine = [cv2.resize(coarse, size, interpolation=cv2.INTER_LINEAR)[window] for coarse in (columns, rows)]
    return fine[0], fine[1]


def _directions(
    axes: np.ndarray, u: np.ndarray, v: np.ndarray, width: int, height: int, focal_px: float
) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows in the doubled panorama of picture points `u` from the left and `v` from the top."""
    yaw = float(np.arctan2(axes[0, 1], axes[0, 0]))
    c, s = np.cos(-yaw), np.sin(-yaw)
    level = axes @ np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])  # the same camera with yaw 0
    right, up = (u - width / 2) / focal_px, (height / 2 - v) / focal_px
    x, y, z = (level[0, k] + right * level[1, k] + up * level[2, k] for k in range(3))
    azimuth, elevation = np.rad2deg(np.arctan2(y, x)), np.rad2deg(np.arctan2(z, np.hypot(x, y)))
    # columns of yaw 0 start at -180 degrees
    shift = (np.rad2deg(yaw) + 180.0) * PIXELS_PER_DEGREE % WIDTH
    columns, rows = (azimuth + 180.0) * PIXELS_PER_DEGREE - 0.5 + shift, (90.0 - elevation) * PIXELS_PER_DEGREE - 0.5
    return columns.astype(np.float32), rows.astype(np.float32)
