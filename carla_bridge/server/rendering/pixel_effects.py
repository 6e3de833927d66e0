"""Fog, lamp light, wet roads and rain: what must be worked out for every pixel.

The painter leaves a picture of polygon numbers; with each polygon's plane that gives depth and place of every pixel.
Mirror images in water are found within the picture itself: below the foot of whatever stands on the ground, its picture
turned upside down; they are blurred anyway, and worked out at half size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from carla_bridge.server.geometry.polygons import GROUND, Material
from carla_bridge.server.geometry.scene import RenderActor
from carla_bridge.server.rendering.lamp_light import AHEAD_M, BEAMS, CELL_M, CELLS, StreetLamps, beam_light
from carla_bridge.server.rendering.lighting import HEAD_LIGHT, STREET_LIGHT, Light
from carla_bridge.server.rendering.view import NEAR_M, View

FARTHEST_M = 1500.0
BAND_PX = 32 * 512
STREET_STRENGTH, BEAM_STRENGTH = 0.62, 1.15
PUDDLE_TILE_M, PUDDLE_TILE_PX = 36.0, 192
STREAK_PHASES, RAIN_HZ = 5, 20.0
GLARE_BELOW_DEG, GLARE_STEP = 40.0, 4
_MIRRORS = np.array([m in (Material.PAVED, Material.WEAR, Material.PAINT) for m in Material], np.uint8)
_GROUND = np.array([m in GROUND for m in Material], np.uint8)


@dataclass(frozen=True)
class Painted:
    """What the painter leaves.

    Attributes:
        numbers: (H, W) number of the polygon on top; 0 is the background.
        materials: (n + 1,) of each number; the background's is soil.
        planes: (n + 1, 3) float32 of each number, see `inverse_depth_planes`; the background's is the ground.
        view: the camera.
        ground_z_m: height of the ground near it.
    """

    numbers: np.ndarray
    materials: np.ndarray
    planes: np.ndarray
    view: View
    ground_z_m: float


class PixelScene:
    """Where each pixel of (a band of rows of) a picture is, and what it shows.

    Args:
        painted: what the painter left.
        step: one pixel of the picture in pixels of the painter.
        rows: (first, after last) of the picture.

    Attributes:
        sky: (h, w) bool.
        depth_m, distance_m: (h, w) float32 along the optical axis, and along the pixel's own ray.
    """

    def __init__(self, painted: Painted, step: int, rows: tuple[int, int]) -> None:
        self.view, self.ground_z_m, self._materials = painted.view, painted.ground_z_m, painted.materials
        self._index = painted.numbers[rows[0] * step : rows[1] * step : step, ::step].astype(np.intp)
        right, up, slant = _rays(self.view.width // step, self.view.height // step, self.view.focal_px / step)
        self._right, self._up = right, up[rows[0] : rows[1]]
        a, b, c = painted.planes.T
        inverse = b.take(self._index)
        inverse *= self._right
        rise = c.take(self._index)
        rise *= self._up
        inverse += rise
        inverse += a.take(self._index)
        self.sky = inverse <= 1.0 / FARTHEST_M
        self.sky &= self._index == 0
        np.clip(inverse, 1.0 / FARTHEST_M, 1.0 / NEAR_M, out=inverse)
        self.depth_m = np.reciprocal(inverse, out=inverse)
        self.distance_m = self.depth_m * slant[rows[0] : rows[1]]

    def world(self, axis: int, origin_m: float = 0.0, scale: float = 1.0) -> np.ndarray:
        """(h, w) float32 coordinate of each pixel's place on a world axis, from an origin, times a scale."""
        forward, right, up = (scale * self.view.axes[:, axis]).astype(np.float32)
        out = right * self._right + (forward + self._up * up)
        out *= self.depth_m
        out += np.float32(scale * (self.view.eye_m[axis] - origin_m))
        return out

    def lookup(self, by_material: np.ndarray) -> np.ndarray:
        """(h, w) of a table by material; what it says of the sky means nothing."""
        return by_material[self._materials].take(self._index)


@lru_cache(maxsize=8)
def _rays(width: int, height: int, focal_px: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(1, w) right and (h, 1) up of each pixel's ray of forward length 1, and (h, w) its length."""
    right = ((np.arange(width) + 0.5 - width / 2) / focal_px)[None].astype(np.float32)
    up = ((height / 2 - np.arange(height) - 0.5) / focal_px)[:, None].astype(np.float32)
    return right, up, np.sqrt(1.0 + right**2 + up**2)


def lay_over(image: np.ndarray, painted: np.ndarray) -> None:
    """Lay a BGRA picture with premultiplied colours and alpha over an opaque one, in place."""
    clear = cv2.merge([cv2.bitwise_not(painted[..., 3])] * 4)
    cv2.multiply(image, clear, dst=image, scale=1 / 255)
    cv2.add(image, painted, dst=image)
    image[..., 3] = 255


def apply_effects(
    background: np.ndarray,
    foreground: np.ndarray,
    painted: Painted,
    light: Light,
    actors: Sequence[RenderActor],
    street_lamps: StreetLamps,
) -> np.ndarray:
    """A picture with lamps, fog and water.

    Args:
        background: (h, w, 4) uint8 BGRA, written to.
        foreground: (h, w, 4) uint8 BGRA of `Light.shade`, without air, premultiplied; written to.
        painted: what the foreground shows, at the same size or a multiple.
        light: of the weather.
        actors: those whose lamps shine.
        street_lamps: of the town.

    Returns:
        (h, w, 3) float32 BGR.
    """
    weather, (height, width) = light.weather, background.shape[:2]
    step = painted.view.width // width
    lamps = _LampSquares(painted.view, light, actors, street_lamps) if weather.lamps_lit else None
    image = np.empty((height, width, 3), np.float32)
    # in bands that fit a processor's cache
    band = max(1, BAND_PX // width)
    for top in range(0, height, band):
        rows = (top, min(top + band, height))
        scene = PixelScene(painted, step, rows)
        picture, over = background[rows[0] : rows[1]], foreground[rows[0] : rows[1]]
        if light.exposure != 1.0:
            # what counts as sky keeps its brightness: the edges that reach into it are taken back here
            edges = scene.sky & (over[..., 3] > 0)
            over[edges, :3] = over[edges, :3] / light.exposure
        lay_over(picture, over)
        planes = [plane.astype(np.float32) for plane in cv2.split(picture)[:3]]
        if not scene.sky.all():
            shines = scene.lookup(light.shining)
            if lamps is not None:
                lamps.light_up(planes, scene, scene.sky | shines)
            through = _transmittance(scene, light, shines)
            for plane, haze in zip(planes, light.haze[::-1], strict=True):
                plane -= np.float32(haze)
                plane *= through
                plane += np.float32(haze)
        cv2.merge(planes, dst=image[rows[0] : rows[1]])
    glow = max(0.7 * (1.0 - weather.daylight), min(0.5, 25.0 * weather.fog_extinction_pm))
    if glow > 0.05:
        shines = light.shining[painted.materials].take(painted.numbers[::step, ::step])
        if shines.any():
            _bloom(image, shines, glow)
    if weather.wet > 0.0:
        _mirror(image, painted, light)
    return image


class _LampSquares:
    """Light of the lamps near a camera, and how to put it on pixels."""

    def __init__(self, view: View, light: Light, actors: Sequence[RenderActor], street_lamps: StreetLamps) -> None:
        self._origin = np.round((view.eye_m[:2] + view.axes[0, :2] * AHEAD_M) / CELL_M) * CELL_M - CELLS * CELL_M / 2
        self._pools = street_lamps.light(self._origin)
        lit = any(actor.lamps & BEAMS for actor in actors)
        self._beams = beam_light(actors, self._origin) if lit else None
        self._sky = np.float32(1.0 / light.exposure)
        self._street, self._head = (
            (strength * color / light.ground / light.exposure)[::-1].astype(np.float32)
            for strength, color in ((STREET_STRENGTH, STREET_LIGHT), (BEAM_STRENGTH, HEAD_LIGHT))
        )

    def light_up(self, planes: Sequence[np.ndarray], scene: PixelScene, blank: np.ndarray) -> None:
        """Add lamp light to BGR planes that are lit by the sky, in place, and take back their exposure."""
        column, row = (scene.world(axis, self._origin[axis], 1 / CELL_M) for axis in (0, 1))
        height = scene.world(2, scene.ground_z_m)
        np.maximum(height, 0.0, out=height)
        height *= height
        pools = cv2.remap(self._pools, column, row, cv2.INTER_LINEAR, borderValue=0)
        pools /= height * np.float32(1 / 25.0) + np.float32(1.0)
        pools[blank] = 0.0
        beams = None
        if self._beams is not None:
            beams = cv2.remap(self._beams, column, row, cv2.INTER_LINEAR, borderValue=0)
            height *= height
            beams /= height * np.float32(1 / 4.0) + np.float32(1.0)
            beams[blank] = 0.0
        level = np.where(blank, np.float32(1.0), self._sky)
        for plane, street, head in zip(planes, self._street, self._head, strict=True):
            gain = pools * street
            gain += level
            if beams is not None:
                gain += beams * head
            plane *= gain


def _transmittance(scene: PixelScene, light: Light, shines: np.ndarray) -> np.ndarray:
    """(h, w) share of a colour that comes through the air; 1 for the sky, which has its own."""
    weather, view = light.weather, scene.view
    fog, clear_air = weather.fog_extinction_pm, light.extinction_pm - weather.fog_extinction_pm
    # a camera high above the fog looks through little of it
    eye_m = max(float(view.eye_m[2] - scene.ground_z_m), 0.1)
    fog *= weather.fog_height_m * (1.0 - np.exp(-eye_m / weather.fog_height_m)) / eye_m
    depth = np.maximum(scene.distance_m, np.float32(weather.fog_distance_m))
    depth -= np.float32(weather.fog_distance_m)
    depth *= np.float32(-fog)
    depth -= scene.distance_m * np.float32(clear_air / view.reach)
    depth[shines] *= np.float32(light.lamp_extinction_pm / light.extinction_pm)
    depth[scene.sky] = 0.0
    return cv2.exp(depth)


def _bloom(image: np.ndarray, shines: np.ndarray, strength: float) -> None:
    """Add a halo to everything that shines by itself."""
    height, width = shines.shape
    size = (max(width // 2, 1), max(height // 2, 1))
    source = cv2.resize(cv2.copyTo(image, shines.view(np.uint8)), size, interpolation=cv2.INTER_AREA)
    reach = 2 * (width // 100) + 3
    halo = cv2.blur(cv2.blur(source, (reach, reach)), (reach, reach))
    cv2.addWeighted(halo, 1.6 * strength, cv2.blur(source, (3, 3)), 0.35 * strength, 0.0, dst=halo)
    image += cv2.resize(halo, (width, height), interpolation=cv2.INTER_LINEAR)


def _mirror(image: np.ndarray, painted: Painted, light: Light) -> None:
    """Mirror what stands on the ground in wet roads, and more of it in puddles."""
    weather, step = light.weather, painted.view.width // image.shape[1]
    width, height = image.shape[1] // 2, image.shape[0] // 2
    scene = PixelScene(painted, 2 * step, (0, height))
    ground = scene.lookup(_GROUND).astype(bool) & ~scene.sky
    rows = np.arange(height, dtype=np.uint16)[:, None]
    foot = np.maximum.accumulate(np.where(ground, np.uint16(0), rows + np.uint16(1)), axis=0)
    row = 2.0 * foot.astype(np.float32) - rows - 1.0
    column = np.broadcast_to(np.arange(width, dtype=np.float32)[None], row.shape)
    soft = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    soft = cv2.blur(np.minimum(soft, 400.0, out=soft), (3, 2 * (height // 64) + 1))
    mirrored = cv2.remap(soft, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

    grazing = np.float32(max(float(scene.view.eye_m[2]) - scene.ground_z_m, 0.1)) / scene.distance_m
    fresnel = 1.0 - np.minimum(grazing, 1.0, out=grazing)
    fresnel **= 5
    share = fresnel * np.float32(0.40 * weather.wet) + np.float32(0.012 * weather.wet)
    if weather.puddles > 0.0:
        corner = np.floor(scene.view.eye_m / PUDDLE_TILE_M) * PUDDLE_TILE_M
        x, y = (scene.world(axis, corner[axis], PUDDLE_TILE_PX / PUDDLE_TILE_M) for axis in (0, 1))
        depth = cv2.remap(_puddle_depth(), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        puddle = np.clip((depth - np.float32(1.0 - weather.puddles)) * 14.0, 0.0, 1.0)
        share += puddle * (0.16 + 0.62 * fresnel - share)
    share[scene.sky] = 0.0
    share *= cv2.exp(scene.distance_m * np.float32(-light.extinction_pm / scene.view.reach))
    size = image.shape[1::-1]
    share = cv2.resize(share, size, interpolation=cv2.INTER_LINEAR)
    share *= _MIRRORS[painted.materials].take(painted.numbers[::step, ::step])
    mirrored = cv2.resize(mirrored, size, interpolation=cv2.INTER_LINEAR)
    mirrored -= image
    mirrored *= share[..., None]
    image += mirrored


@lru_cache(maxsize=1)
def _puddle_depth() -> np.ndarray:
    """Tile of smooth periodic noise, uniform in 0..1."""
    rng = np.random.default_rng(5)
    size = PUDDLE_TILE_PX
    spectrum = np.fft.rfft2(rng.standard_normal((size, size)))
    fy, fx = np.fft.fftfreq(size)[:, None] * size, np.fft.rfftfreq(size)[None] * size
    radius = np.hypot(fx, fy)
    noise = np.fft.irfft2(spectrum * np.exp(-((radius / 20.0) ** 2)) * (radius > 2.5), s=(size, size))
    ranks = np.argsort(np.argsort(noise, axis=None)).reshape(size, size) / (size * size)
    return ranks.astype(np.float32)


def add_rain(image: np.ndarray, light: Light, time_s: float) -> None:
    """Add falling rain to a (h, w, 3) float32 picture; what falls differs from one 1/20 s to the next."""
    weather = light.weather
    height, width = image.shape[:2]
    phase = round(time_s * RAIN_HZ) % STREAK_PHASES
    streaks = _streaks(width, height, phase, round(weather.rain * 10), round(weather.wind_intensity / 20))
    image += streaks * np.float32(13.0 + 0.15 * float(light.haze.mean()))


@lru_cache(maxsize=STREAK_PHASES + 1)
def _streaks(width: int, height: int, phase: int, heaviness: int, wind: int) -> np.ndarray:
    """(h, w, 3) float32 0..1."""
    rng = np.random.default_rng(100 + phase)
    canvas = np.zeros((height, width), np.uint8)
    for _ in range(int(0.0011 * width * height * (0.25 + heaviness / 10))):
        x, y, near = rng.uniform(-0.1, 1.1) * width, rng.uniform(-0.1, 1.0) * height, rng.random() ** 2
        length = (0.03 + 0.09 * near) * height
        slant = length * (0.06 + 0.10 * wind) * rng.uniform(0.8, 1.2)
        ends = np.round(np.array([(x, y), (x + slant, y + length)]) * 16).astype(int).tolist()
        cv2.line(canvas, ends[0], ends[1], int(60 + 150 * near), 1, cv2.LINE_AA, 4)
    return np.repeat(canvas[..., None].astype(np.float32) / 255.0, 3, axis=2)


def dazzles(light: Light) -> bool:
    """Whether the sun is so low that it dazzles who looks towards it."""
    return bool(light.sun.max() > 0.02) and light.weather.sun_altitude_deg < GLARE_BELOW_DEG


def add_glare(image: np.ndarray, view: View, light: Light, hidden: bool) -> None:
    """Add the veil of a low sun to a (h, w, 3) float32 picture.

    Args:
        image: to add to.
        view: the camera.
        light: of the weather.
        hidden: whether the sun itself stands behind something.
    """
    height, width = image.shape[:2]
    ahead, right, up = view.axes @ light.sun_direction
    strength = light.sun * float(np.clip((GLARE_BELOW_DEG - light.weather.sun_altitude_deg) / 25.0, 0.0, 1.0))
    if ahead <= 0.05 or not dazzles(light):
        return
    focal = view.focal_px * width / view.width
    u, v = width / 2 + focal * right / ahead, height / 2 - focal * up / ahead
    x = (np.arange(0, width, GLARE_STEP, dtype=np.float32) + GLARE_STEP / 2 - u) / focal
    y = (np.arange(0, height, GLARE_STEP, dtype=np.float32) + GLARE_STEP / 2 - v) / focal
    radius = np.sqrt(x[None] ** 2 + y[:, None] ** 2)
    veil = (0.35 if hidden else 1.0) * (150.0 * np.exp(-radius * 9.0) + 62.0 * np.exp(-radius * 2.2))
    veil = cv2.resize(veil.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    image += veil[..., None] * strength[::-1].astype(np.float32)


def sun_pixel(view: View, light: Light) -> tuple[int, int] | None:
    """(column, row) of the sun in the painted picture, None where it is not in it."""
    ahead, right, up = view.axes @ light.sun_direction
    if ahead <= 0.05:
        return None
    column, row = view.width / 2 + view.focal_px * right / ahead, view.height / 2 - view.focal_px * up / ahead
    return (int(column), int(row)) if 0 <= column < view.width and 0 <= row < view.height else None
