"""A camera's projection: what it may see of the polygons, and where on the picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carla_bridge.server.geometry.polygons import Polygons
from carla_bridge.server.geometry.poses import Pose, rotation_matrix
from carla_bridge.server.geometry.scene import RenderCamera

NEAR_M = 0.25
HIGH_M = 40.0
SUBPIXEL_BITS = 4
SMALLEST_PX = 0.7  # radius below which a polygon is left out; in pixels of the painted picture


def carla_axes(pitch: float, yaw: float, roll: float) -> np.ndarray:
    """(3, 3): rows are the forward, right and up vectors of a `carla.Rotation`, degrees."""
    return np.ascontiguousarray(rotation_matrix(Pose(pitch=pitch, yaw=yaw, roll=roll)).T)


@dataclass(frozen=True)
class Seen:
    """Polygons in a camera's view.

    Attributes:
        local_m: (N, V, 3) vertices in the camera's axes: forward, right, up.
        colors, normals, materials, labels: as in `Polygons`.
        distance_m, radii_m: (N,) of the anchors, and of the farthest vertex from them.
    """

    local_m: np.ndarray
    colors: np.ndarray
    normals: np.ndarray
    materials: np.ndarray
    distance_m: np.ndarray
    radii_m: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.local_m)


class View:
    """A camera's projection.

    Attributes:
        width, height, focal_px: of the picture that is painted, before it is averaged down.
        eye_m: optical centre, CARLA's world.
        axes: (3, 3) rows forward, right and up.
        reach: factor on the distances at which polygons are drawn and fade.
        farthest_m: what is beyond is lost in fog.
    """

    def __init__(self, camera: RenderCamera, scale: int, farthest_m: float = np.inf) -> None:
        self.width, self.height = camera.width * scale, camera.height * scale
        self.focal_px = self.width / 2 / float(np.tan(np.deg2rad(camera.fov) / 2))
        self.eye_m = np.array([camera.x, camera.y, camera.z])
        self.axes = carla_axes(camera.pitch, camera.yaw, camera.roll)
        self.reach = max(1.0, float(np.ceil(camera.z / HIGH_M)))  # a high camera sees farther in detail
        self.farthest_m = farthest_m * self.reach
        half = np.array([self.width, self.height]) / 2 / self.focal_px
        self._slopes = half.tolist()
        self._slants = np.sqrt(1.0 + half**2).tolist()

    def spheres_in_view(self, centres_m: np.ndarray, radii_m: np.ndarray, to_m: float) -> np.ndarray:
        """(N,) bool: which spheres reach into the view, nearer than `to_m`.

        Args:
            centres_m: (N, 3) in the world.
            radii_m: (N,).
        """
        ahead, right, up = ((centres_m - self.eye_m) @ self.axes.T).T
        return (
            (ahead > NEAR_M - radii_m)
            & (ahead < min(to_m * self.reach, self.farthest_m))
            & (np.abs(right) < self._slopes[0] * ahead + self._slants[0] * radii_m)
            & (np.abs(up) < self._slopes[1] * ahead + self._slants[1] * radii_m)
        )

    def see(self, polygons: Polygons, *, billboards: bool = False) -> Seen:
        """Polygons that may be seen.

        Args:
            polygons: in the world.
            billboards: whether they are to be turned to the camera.
        """
        precision = polygons.anchors_m.dtype
        relative = polygons.anchors_m - self.eye_m.astype(precision)
        ahead, right, up = self.axes.astype(precision) @ relative.T
        radius = polygons.radii_m
        square = relative[:, 0] ** 2 + relative[:, 1] ** 2
        index = np.flatnonzero(
            (np.abs(right) - self._slants[0] * radius < self._slopes[0] * ahead)
            & (np.abs(up) - self._slants[1] * radius < self._slopes[1] * ahead)
            & (ahead > NEAR_M - radius)
            & (ahead < self.farthest_m + radius)
            & (radius * self.focal_px > SMALLEST_PX * ahead)
            & (square >= (polygons.from_m * self.reach) ** 2)
            & (square < (polygons.to_m * self.reach) ** 2)
        )
        vertices, normals = polygons.vertices_m[index], polygons.normals[index]
        if billboards:
            vertices = self._turned(vertices, polygons.anchors_m[index])
        else:
            facing = np.einsum("ij,ij->i", normals, self.eye_m - vertices[:, 0])
            keep = np.flatnonzero((facing > 0.0) | ~normals.any(axis=1))
            index, vertices, normals = index[keep], vertices[keep], normals[keep]
        return Seen(
            (vertices - self.eye_m) @ self.axes.T,
            polygons.colors[index],
            normals,
            polygons.materials[index],
            np.sqrt(square[index] + relative[index, 2] ** 2),
            radius[index],
            polygons.labels[index],
        )

    def _turned(self, vertices_m: np.ndarray, anchors_m: np.ndarray) -> np.ndarray:
        """Billboards as polygons in the world, upright and facing the camera."""
        right = self.axes[1] * (1.0, 1.0, 0.0)
        right /= max(float(np.linalg.norm(right)), 1e-9)
        offsets = vertices_m - anchors_m[:, None]
        return offsets[..., :1] * right + offsets[..., 1:2] * (0.0, 0.0, 1.0) + anchors_m[:, None]

    def project(self, local_m: np.ndarray) -> list[np.ndarray]:
        """Outlines (V, 2) int32 in sub-pixels; empty where a polygon lies wholly behind the near plane.

        Args:
            local_m: (N, V, 3) in the camera's axes.
        """
        if not len(local_m):
            return []
        ahead = local_m[..., 0] > NEAR_M
        whole, none = ahead.all(axis=1), ~ahead.any(axis=1)
        outlines: list[np.ndarray] = list(self._pixels(np.where(whole[:, None, None], local_m, 1.0)))
        crossing = np.flatnonzero(~whole & ~none)
        if len(crossing):
            for i, outline in zip(crossing, self._pixels(clip_near(local_m[crossing])), strict=True):
                outlines[i] = outline
        for i in np.flatnonzero(none):
            outlines[i] = np.empty((0, 2), np.int32)
        return outlines

    def _pixels(self, local_m: np.ndarray) -> np.ndarray:
        """(N, V, 2) int32 sub-pixels of camera points (forward, right, up)."""
        out = local_m[..., 1:] * (self.focal_px, -self.focal_px) / local_m[..., :1]
        # OpenCV's sub-pixel origin is a pixel's middle, ours is the picture's corner
        out += (self.width / 2 - 0.5, self.height / 2 - 0.5)
        return np.round(out * (1 << SUBPIXEL_BITS)).astype(np.int32)


def clip_near(local_m: np.ndarray) -> np.ndarray:
    """Cut (N, V, 3) convex polygons at the near plane; (N, 2V, 3), repeating vertices where one was cut off.

    Every polygon must have at least one vertex ahead of the plane.
    """
    following = np.roll(local_m, -1, axis=1)
    ahead, next_ahead = local_m[..., 0] > NEAR_M, following[..., 0] > NEAR_M
    crosses = ahead != next_ahead
    step = np.where(crosses, following[..., 0] - local_m[..., 0], 1.0)
    cut = local_m + ((NEAR_M - local_m[..., 0]) / step)[..., None] * (following - local_m)
    count, vertices = local_m.shape[:2]
    points = np.stack([local_m, cut], axis=2).reshape(count, 2 * vertices, 3)
    keep = np.stack([ahead, crosses], axis=2).reshape(count, 2 * vertices)
    # a dropped slot repeats the last kept one before it; leading ones repeat the first kept one
    slots = np.where(keep, np.arange(2 * vertices), -1)
    last = np.maximum.accumulate(slots, axis=1)
    last = np.where(last < 0, np.argmax(keep, axis=1)[:, None], last)
    return np.take_along_axis(points, last[..., None], axis=1)


def inverse_depth_planes(local_m: np.ndarray) -> np.ndarray:
    """(N, 3): 1/depth of each polygon's plane is `a + b x + c y`, x and y being a pixel's right and up over forward.

    Args:
        local_m: (N, V, 3) in the camera's axes, V 4 or more.
    """
    if local_m.shape[1] == 4:  # diagonals: also right for a triangle whose last vertex is repeated
        first, second = local_m[:, 2] - local_m[:, 0], local_m[:, 3] - local_m[:, 1]
    else:
        first, second = local_m[:, 1] - local_m[:, 0], local_m[:, 2] - local_m[:, 0]
    normals = np.empty_like(first)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        normals[:, i] = first[:, j] * second[:, k] - first[:, k] * second[:, j]
    offsets = np.einsum("ij,ij->i", normals, local_m[:, 0])
    edge_on = np.abs(offsets) < 1e-9
    return np.where(edge_on[:, None], 0.0, normals / np.where(edge_on, 1.0, offsets)[:, None])
