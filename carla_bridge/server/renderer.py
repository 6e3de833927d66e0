"""A camera for the embedded world: a painter in numpy and OpenCV, deterministic, without a GPU or system libraries.

All polygons of the town are laid out once. A frame culls them by distance and view, projects the rest in one go,
clips what crosses the near plane, and fills them: ground in layers, then everything upright from far to near. Pictures
are painted at twice their size and averaged down, which smooths edges better than anti-aliased filling does.
Limits, on purpose: no reflections and no cast shadows on moving things; hills are painted far to near, so a bridge
over a road may show through.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from carla_bridge.server.actor_mesh import ACTOR_RANGE_M, actor_polygons, carla_axes
from carla_bridge.server.ground_mesh import build_ground
from carla_bridge.server.polygons import Polygons
from carla_bridge.server.scene import RenderActor, RenderCamera, RenderSignal
from carla_bridge.server.sky import HAZE, Background
from carla_bridge.server.town import Town
from carla_bridge.server.upright_mesh import build_uprights
from carla_bridge.server.weather import CLEAR_NOON, Weather

NEAR_M = 0.25
HAZE_M = 420.0  # distance at which 63 % of a colour is haze
CELL_M = 16.0
HIGH_M = 40.0
SUBPIXEL_BITS = 4
LARGEST_SUPERSAMPLED_PX = 700 * 400


class Renderer:
    """Renders pictures of one town.

    Args:
        town: the town; its geometry is laid out here, which takes about a second.
    """

    def __init__(self, town: Town) -> None:
        self._background = Background()
        ground = build_ground(town.name, town.lanes, town.marks, town.static_boxes)
        solid, billboards = build_uprights(town.name, town.static_boxes)
        self._flat = bool(np.ptp(ground.anchors_m[:, 2]) < 0.05)
        self._ground, self._solid, self._billboards = _Culled(ground), _Culled(solid), _Culled(billboards)

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
        scale = 2 if camera.width * camera.height <= LARGEST_SUPERSAMPLED_PX else 1
        view = _View(camera, scale)
        image = self._background.draw(view.axes, camera.width, camera.height, view.focal_px / scale)
        if scale > 1:
            image = cv2.resize(image, (view.width, view.height), interpolation=cv2.INTER_NEAREST)

        ground, distance = self._ground.visible(view)
        if not self._flat:
            order = np.argsort(-np.round(distance / 20.0), kind="stable")
            ground, distance = ground.take(order), distance[order]
        _paint(image, view.project(ground.vertices_m), view.hazy(ground.colors, distance))

        outlines: list[np.ndarray] = []
        colors: list[list[float]] = []
        distances: list[np.ndarray] = []
        for polygons, distance in (self._solid.visible(view), view.turned(*self._billboards.visible(view))):
            outlines += view.project(polygons.vertices_m)
            colors += view.hazy(polygons.colors, distance)
            distances.append(distance)
        for actor in actors:
            if not actor.visible or not view.may_see(actor) or _holds(actor, camera):
                continue
            polygons, distance = view.visible(actor_polygons(actor))
            outlines += view.project(polygons.vertices_m)
            colors += view.hazy(polygons.colors, distance)
            distances.append(distance)
        order = np.argsort(-np.concatenate(distances), kind="stable")
        _paint(image, [outlines[i] for i in order], [colors[i] for i in order])
        if scale > 1:
            image = cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
        return image


class _View:
    """A camera's projection.

    Attributes:
        width, height, focal_px: of the picture that is painted, before it is averaged down.
        eye_m: optical centre, CARLA's world.
        axes: (3, 3) rows forward, right and up.
        reach: factor on the distances at which polygons are drawn and fade.
    """

    def __init__(self, camera: RenderCamera, scale: int) -> None:
        self.width, self.height = camera.width * scale, camera.height * scale
        self.focal_px = self.width / 2 / float(np.tan(np.deg2rad(camera.fov) / 2))
        self.eye_m = np.array([camera.x, camera.y, camera.z])
        self.axes = carla_axes(camera.pitch, camera.yaw, camera.roll)
        self.reach = max(1.0, np.ceil(camera.z / HIGH_M))  # a high camera sees farther in detail
        half = np.array([self.width, self.height]) / 2 / self.focal_px
        self._slopes = half
        self._slants = np.sqrt(1.0 + half**2)

    def may_see(self, actor: RenderActor) -> bool:
        """Whether the actor's bounding sphere reaches into the view, near enough to be drawn."""
        relative = self.axes @ (actor.x - self.eye_m[0], actor.y - self.eye_m[1], actor.z - self.eye_m[2])
        radius = 2 * float(np.hypot(np.hypot(actor.extent_x, actor.extent_y), actor.extent_z))
        ahead, right, up = relative
        return bool(
            -radius < ahead < ACTOR_RANGE_M * self.reach
            and abs(right) < self._slopes[0] * ahead + self._slants[0] * radius
            and abs(up) < self._slopes[1] * ahead + self._slants[1] * radius
        )

    def visible(self, polygons: Polygons) -> tuple[Polygons, np.ndarray]:
        """Polygons that may be seen, and the distances of their anchors."""
        local = (polygons.anchors_m - self.eye_m) @ self.axes.T
        radius = polygons.radii_m
        index = np.flatnonzero(
            (np.abs(local[:, 1]) - self._slants[0] * radius < self._slopes[0] * local[:, 0])
            & (np.abs(local[:, 2]) - self._slants[1] * radius < self._slopes[1] * local[:, 0])
            & (local[:, 0] > NEAR_M - radius)
        )
        normals = polygons.normals[index]
        relative = polygons.anchors_m[index] - self.eye_m
        detail = np.hypot(relative[:, 0], relative[:, 1]) / self.reach
        facing = np.einsum("ij,ij->i", normals, self.eye_m - polygons.vertices_m[index, 0])
        index = index[
            (detail >= polygons.from_m[index])
            & (detail < polygons.to_m[index])
            & ((facing > 0.0) | ((normals[:, 0] == 0.0) & (normals[:, 1] == 0.0) & (normals[:, 2] == 0.0)))
        ]
        return polygons.take(index), np.linalg.norm(local[index], axis=1)

    def turned(self, billboards: Polygons, distance: np.ndarray) -> tuple[Polygons, np.ndarray]:
        """Billboards as polygons in the world, upright and facing the camera."""
        right = self.axes[1] * (1.0, 1.0, 0.0)
        right /= max(float(np.linalg.norm(right)), 1e-9)
        offsets = billboards.vertices_m - billboards.anchors_m[:, None]
        world = offsets[..., :1] * right + offsets[..., 1:2] * (0.0, 0.0, 1.0) + billboards.anchors_m[:, None]
        rest = (
            billboards.colors,
            billboards.normals,
            billboards.anchors_m,
            billboards.radii_m,
            billboards.from_m,
            billboards.to_m,
        )
        return Polygons(world, *rest), distance

    def hazy(self, colors: np.ndarray, distance_m: np.ndarray) -> list[list[float]]:
        """BGRA colours, faded into haze with distance."""
        clear = np.exp(-distance_m / (HAZE_M * self.reach))[:, None]
        rgb = colors * clear + np.array(HAZE, dtype=float) * (1.0 - clear)
        return np.column_stack([rgb[:, ::-1], np.full(len(rgb), 255.0)]).tolist()

    def project(self, vertices_m: np.ndarray) -> list[np.ndarray]:
        """Outlines (V, 2) int32 in sub-pixels; empty where a polygon lies wholly behind the near plane.

        Args:
            vertices_m: (N, V, 3) in the world.
        """
        if not len(vertices_m):
            return []
        local = (vertices_m - self.eye_m) @ self.axes.T
        ahead = local[..., 0] > NEAR_M
        whole, none = ahead.all(axis=1), ~ahead.any(axis=1)
        outlines: list[np.ndarray] = list(self._pixels(np.where(whole[:, None, None], local, 1.0)))
        crossing = np.flatnonzero(~whole & ~none)
        if len(crossing):
            for i, outline in zip(crossing, self._pixels(clip_near(local[crossing])), strict=True):
                outlines[i] = outline
        for i in np.flatnonzero(none):
            outlines[i] = np.empty((0, 2), np.int32)
        return outlines

    def _pixels(self, local: np.ndarray) -> np.ndarray:
        """(N, V, 2) int32 sub-pixels of camera points (forward, right, up)."""
        out = local[..., 1:] * (self.focal_px, -self.focal_px) / local[..., :1]
        # OpenCV's sub-pixel origin is a pixel's middle, ours is the picture's corner
        out += (self.width / 2 - 0.5, self.height / 2 - 0.5)
        return np.round(out * (1 << SUBPIXEL_BITS)).astype(np.int32)


def clip_near(local: np.ndarray) -> np.ndarray:
    """Cut (N, V, 3) convex polygons at the near plane; (N, 2V, 3), repeating vertices where one was cut off.

    Every polygon must have at least one vertex ahead of the plane.
    """
    following = np.roll(local, -1, axis=1)
    ahead, next_ahead = local[..., 0] > NEAR_M, following[..., 0] > NEAR_M
    crosses = ahead != next_ahead
    step = np.where(crosses, following[..., 0] - local[..., 0], 1.0)
    cut = local + ((NEAR_M - local[..., 0]) / step)[..., None] * (following - local)
    count, vertices = local.shape[:2]
    points = np.stack([local, cut], axis=2).reshape(count, 2 * vertices, 3)
    keep = np.stack([ahead, crosses], axis=2).reshape(count, 2 * vertices)
    # a dropped slot repeats the last kept one before it; leading ones repeat the first kept one
    slots = np.where(keep, np.arange(2 * vertices), -1)
    last = np.maximum.accumulate(slots, axis=1)
    last = np.where(last < 0, np.argmax(keep, axis=1)[:, None], last)
    return np.take_along_axis(points, last[..., None], axis=1)


class _Culled:
    """Polygons of a town with a shortlist for the neighbourhood of the camera."""

    def __init__(self, polygons: Polygons) -> None:
        self._polygons = polygons
        self._near: dict[tuple[int, int, float], Polygons] = {}

    def visible(self, view: _View) -> tuple[Polygons, np.ndarray]:
        """As `_View.visible`, of all polygons of the town."""
        cell = (int(view.eye_m[0] // CELL_M), int(view.eye_m[1] // CELL_M), float(view.reach))
        if cell not in self._near:
            if len(self._near) >= 16:
                self._near.clear()
            middle = (np.array(cell[:2]) + 0.5) * CELL_M
            distance = np.linalg.norm(self._polygons.anchors_m[:, :2] - middle, axis=1)
            self._near[cell] = self._polygons.take(np.flatnonzero(distance < self._polygons.to_m * view.reach + CELL_M))
        return view.visible(self._near[cell])


def _paint(image: np.ndarray, outlines: Sequence[np.ndarray], colors: Sequence[list[float]]) -> None:
    """Fill convex polygons in order."""
    fill = cv2.fillConvexPoly
    for outline, color in zip(outlines, colors, strict=True):
        if len(outline):
            fill(image, outline, color, cv2.LINE_8, SUBPIXEL_BITS)


def _holds(actor: RenderActor, camera: RenderCamera) -> bool:
    local = carla_axes(actor.pitch, actor.yaw, actor.roll) @ (
        camera.x - actor.x,
        camera.y - actor.y,
        camera.z - actor.z,
    )
    return bool(
        abs(local[0]) <= actor.extent_x and abs(local[1]) <= actor.extent_y and -0.1 <= local[2] <= 2 * actor.extent_z
    )
