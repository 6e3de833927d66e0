"""A camera for the embedded world: a painter in numpy and OpenCV, deterministic, without a GPU or system libraries.

All polygons of the town are laid out once. A frame culls them by distance and view, projects the rest in one go, clips
what crosses the near plane, and paints them: ground in layers, then everything upright from far to near. Where weather
must be worked out for every pixel, the polygons' numbers are painted; a table then gives colours and depth. Pictures
are painted at twice their size and averaged down, which smooths edges better than anti-aliased filling does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from carla_bridge.server.geometry.labels import Label
from carla_bridge.server.geometry.polygons import Material, Polygons
from carla_bridge.server.geometry.scene import RenderActor, RenderCamera, RenderSignal
from carla_bridge.server.rendering.actor_mesh import see_actors
from carla_bridge.server.rendering.buffer_pictures import Buffers
from carla_bridge.server.rendering.ground_mesh import build_ground, build_shadows
from carla_bridge.server.rendering.lamp_light import StreetLamps
from carla_bridge.server.rendering.lighting import Light, light_of
from carla_bridge.server.rendering.pixel_effects import (
    Painted,
    PixelScene,
    add_glare,
    add_rain,
    apply_effects,
    dazzles,
    lay_over,
    sun_pixel,
)
from carla_bridge.server.rendering.signal_mesh import see_signals
from carla_bridge.server.rendering.sky import draw_background
from carla_bridge.server.rendering.upright_mesh import build_uprights
from carla_bridge.server.rendering.view import SUBPIXEL_BITS, Seen, View, inverse_depth_planes
from carla_bridge.server.town.bridges import LowGround, build_bridges
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import CLEAR_NOON, Weather

CELL_M = 16.0
LARGEST_SUPERSAMPLED_PX = 700 * 400
INVISIBLE_SHARE = 0.01  # of a colour that comes through fog: what shows less is not painted
KEPT_SUNS, KEPT_CANVASES, KEPT_CELLS = 4, 8, 16
BAND_PX = 64 * 1024
SUN_STEP_DEG = 5.0
_LAYER_M = np.array([{Material.SOIL: 8.0, Material.SHADOW: 7.0, Material.PAVED: 6.0}.get(m, 0.0) for m in Material])


class Renderer:
    """Renders pictures of one town, one at a time.

    Args:
        town: the town; its geometry is laid out here, which takes a few seconds.
        go_on: called between the parts of that; what it raises ends it.
    """

    def __init__(self, town: Town, go_on: Callable[[], None] = lambda: None) -> None:
        self._boxes = town.static_boxes
        self._street_lamps = StreetLamps(self._boxes)
        go_on()
        lanes, marks, islands = town.lanes, town.marks, town.islands
        go_on()
        soil, paving = build_ground(town.name, lanes, marks, town.crosswalks, islands)
        go_on()
        solid, billboards = build_uprights(town.name, self._boxes)
        go_on()
        self._low_ground = LowGround(town.lanes)
        self._flat = self._low_ground.flat
        if not self._flat:
            soil, paving = soil.facing_up(), paving.facing_up()
            solid = Polygons.join([solid, build_bridges(town.lanes, self._low_ground)])
        self._soil, self._paving = _Culled(soil), _Culled(paving)
        self._solid, self._billboards = _Culled(solid), _Culled(billboards)
        self._shadows: dict[tuple[float, float], _Culled] = {}
        self._canvases: dict[tuple, np.ndarray] = {}

    def render(
        self,
        camera: RenderCamera,
        actors: Sequence[RenderActor] = (),
        signals: Sequence[RenderSignal] = (),
        weather: Weather = CLEAR_NOON,
        time_s: float = 0.0,
    ) -> np.ndarray:
        """One picture, (height, width, 4) uint8 BGRA, alpha 255; the same arguments give the same bytes.

        Args:
            camera: where it is taken from. An actor whose box holds the camera is not drawn.
            actors: everything that moves.
            signals: traffic lights and signs.
            weather: light, air and water.
            time_s: simulated time; rain falls and indicators blink by it.
        """
        light = light_of(weather.coarse())
        scale = 2 if camera.width * camera.height <= LARGEST_SUPERSAMPLED_PX else 1
        view = View(camera, scale, farthest_m=-np.log(INVISIBLE_SHARE) / light.extinction_pm)
        ground = self._ground_in(view, light)
        upright = [self._solid.seen(view), self._billboards.seen(view, billboards=True)]
        upright += see_actors(actors, camera, view, time_s)
        upright += see_signals(signals, view)
        return self._develop(camera, view, light, ground, upright, actors, time_s)

    def buffers(
        self, camera: RenderCamera, actors: Sequence[RenderActor] = (), signals: Sequence[RenderSignal] = ()
    ) -> Buffers:
        """Depth and label of every pixel's middle; weather hides nothing, and lamps and shadows are not seen.

        Args:
            camera, actors, signals: as for `render`.
        """
        view = View(camera, 1)
        ground = [self._soil.seen(view), self._paving.seen(view)]
        upright = [self._solid.seen(view), self._billboards.seen(view, billboards=True)]
        upright += see_actors(actors, camera, view, 0.0) + see_signals(signals, view)
        batches = ground + upright
        labels = np.concatenate([[Label.TERRAIN], *(batch.labels for batch in batches)]).astype(np.uint8)
        outlines = [outline for batch in batches for outline in view.project(batch.local_m)]
        order = [i for i in self._painting_order(ground, upright).tolist() if labels[i + 1] != Label.NONE]
        numbers = np.zeros((view.height, view.width), np.int32)
        _paint(numbers, outlines, order, range(1, len(labels)))
        planes = [self._ground_plane(view), *(inverse_depth_planes(batch.local_m) for batch in batches)]
        table = np.asfortranarray(np.concatenate(planes), dtype=np.float32)
        painted = Painted(numbers, labels, table, view, self._ground_z_m(view))
        scene = PixelScene(painted, 1, (0, view.height))
        return Buffers(scene.depth_m, np.where(scene.sky, np.uint8(Label.SKY), labels.take(numbers)))

    def _ground_z_m(self, view: View) -> float:
        """Height of the ground below a camera."""
        return float(self._low_ground(view.eye_m[None])[0])

    def _ground_in(self, view: View, light: Light) -> list[Seen]:
        layers = [self._soil.seen(view), self._paving.seen(view)]
        if light.directness > 0.02:
            layers.insert(1, self._shadows_of(light.weather).seen(view))
        return layers

    def _shadows_of(self, weather: Weather) -> _Culled:
        """Shadows for a sun, in steps of a few degrees."""
        steps = tuple(
            round(a / SUN_STEP_DEG) * SUN_STEP_DEG for a in (weather.sun_azimuth_deg, weather.sun_altitude_deg)
        )
        if steps not in self._shadows:
            if len(self._shadows) >= KEPT_SUNS:
                del self._shadows[next(iter(self._shadows))]
            sun = Weather(sun_azimuth_deg=steps[0], sun_altitude_deg=max(steps[1], 1.0)).sun_direction
            self._shadows[steps] = _Culled(build_shadows(self._boxes, sun))
        return self._shadows[steps]

    def _develop(
        self,
        camera: RenderCamera,
        view: View,
        light: Light,
        ground: list[Seen],
        upright: list[Seen],
        actors: Sequence[RenderActor],
        time_s: float,
    ) -> np.ndarray:
        batches = ground + upright
        outlines: list[np.ndarray] = []
        for batch in batches:
            outlines += view.project(batch.local_m)
        order = self._painting_order(ground, upright).tolist()
        colors, materials = self._colors(batches, light, view)
        table = np.zeros((len(colors) + 1, 4), np.uint8)
        table[1:, :3] = np.clip(np.round(colors[:, ::-1]), 0, 255)
        table[1:, 3] = 255
        painted = self._canvas(view, np.uint32)
        if light.per_pixel:
            numbers = self._canvas(view, np.uint16 if len(outlines) < 65535 else np.int32)
            numbers.fill(0)
            _paint(numbers, outlines, order, range(1, len(table)))
            _look_up(table.view(np.uint32)[:, 0], numbers, painted)
        else:
            painted.fill(0)
            _paint(painted.view(np.uint8).reshape(view.height, view.width, 4), outlines, order, table[1:].tolist())
        painted = painted.view(np.uint8).reshape(view.height, view.width, 4)
        sun = sun_pixel(view, light)
        sun_hidden = sun is None or bool(painted[sun[1], sun[0], 3])
        scale = view.width // camera.width
        if scale > 1:
            painted = cv2.resize(painted, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
        image = draw_background(light, view.axes, camera.width, camera.height, view.focal_px / scale)
        if light.per_pixel:
            planes = [self._ground_plane(view), *(inverse_depth_planes(batch.local_m) for batch in batches)]
            scene = Painted(
                numbers,
                np.concatenate([[Material.SOIL], materials]),
                np.asfortranarray(np.concatenate(planes), dtype=np.float32),
                view,
                self._ground_z_m(view),
            )
            lit = apply_effects(image, painted, scene, light, actors, self._street_lamps)
        else:
            lay_over(image, painted)
            if not dazzles(light):
                return image
            lit = cv2.cvtColor(image, cv2.COLOR_BGRA2BGR).astype(np.float32)
        add_glare(lit, view, light, hidden=sun_hidden)
        if light.weather.rain > 0.0:
            add_rain(lit, light, time_s)
        return cv2.cvtColor(cv2.convertScaleAbs(lit), cv2.COLOR_BGR2BGRA)

    def _canvas(self, view: View, dtype: type) -> np.ndarray:
        """(height, width) of any content, kept from picture to picture: fresh memory of this size is slow to touch."""
        key = (view.height, view.width, dtype)
        if key not in self._canvases:
            if len(self._canvases) >= KEPT_CANVASES:
                self._canvases.clear()
            self._canvases[key] = np.empty((view.height, view.width), dtype)
        return self._canvases[key]

    def _painting_order(self, ground: list[Seen], upright: list[Seen]) -> np.ndarray:
        """Indices of all polygons in the order in which they are painted."""
        far_first = np.concatenate([batch.distance_m for batch in upright])
        count = sum(len(batch) for batch in ground)
        if self._flat:
            return np.concatenate([np.arange(count), count + np.argsort(-far_first, kind="stable")])
        # Ground may hide things behind a crest or below a bridge. It counts as far away as its farthest point, so
        # that it never hides what stands on it, and surfaces as farther by more than a lane, so that they never hide
        # what is painted on their seams.
        farthest = [batch.distance_m + batch.radii_m + _LAYER_M[batch.materials] for batch in ground]
        return np.argsort(-np.concatenate([*farthest, far_first]), kind="stable")

    def _colors(self, batches: list[Seen], light: Light, view: View) -> tuple[np.ndarray, np.ndarray]:
        """(n, 3) RGB of all polygons, faded by distance unless that is done for every pixel; and their materials."""
        materials = np.concatenate([batch.materials for batch in batches])
        colors = light.shade(
            np.concatenate([batch.colors for batch in batches]),
            np.concatenate([batch.normals for batch in batches]),
            materials,
        )
        if not light.per_pixel:
            distance = np.concatenate([batch.distance_m for batch in batches])
            colors = light.faded(colors, distance, materials, view.reach)
        return colors, materials

    def _ground_plane(self, view: View) -> np.ndarray:
        """(1, 3) plane of the ground near the camera, as `inverse_depth_planes` gives it."""
        height = min(self._ground_z_m(view) - view.eye_m[2], -0.2)
        return (view.axes[:, 2] / height)[None]


class _Culled:
    """Polygons of a town with a shortlist for the neighbourhood of the camera."""

    def __init__(self, polygons: Polygons) -> None:
        self._polygons = polygons
        self._near: dict[tuple[int, int, float], Polygons] = {}

    def seen(self, view: View, *, billboards: bool = False) -> Seen:
        """As `View.see`, of all polygons of the town."""
        cell = (int(view.eye_m[0] // CELL_M), int(view.eye_m[1] // CELL_M), view.reach)
        if cell not in self._near:
            if len(self._near) >= KEPT_CELLS:
                self._near.clear()
            middle = (np.array(cell[:2]) + 0.5) * CELL_M
            distance = np.linalg.norm(self._polygons.anchors_m[:, :2] - middle, axis=1)
            near = np.flatnonzero(distance < self._polygons.to_m * view.reach + CELL_M)
            self._near[cell] = self._polygons.take(near).for_culling()
        return view.see(self._near[cell], billboards=billboards)


def _paint(canvas: np.ndarray, outlines: list[np.ndarray], order: list[int], values: Sequence) -> None:
    """Fill convex polygons with their values, in an order."""
    fill = cv2.fillConvexPoly
    for i in order:
        outline = outlines[i]
        if len(outline):
            fill(canvas, outline, values[i], cv2.LINE_8, SUBPIXEL_BITS)


def _look_up(table: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    """Write `table[numbers]` to `out`, in bands that fit a processor's cache."""
    band = max(1, BAND_PX // numbers.shape[1])
    for top in range(0, len(numbers), band):
        rows = slice(top, top + band)
        table.take(numbers[rows], out=out[rows], mode="clip")
