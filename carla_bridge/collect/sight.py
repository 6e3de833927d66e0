"""What a picture shows of the boxes in front of it: where, how large, and how much of it.

Only what the picture holds may be asked about. A thing is `seen` when it is large enough, mostly inside the picture,
mostly not hidden behind something nearer, turned to the camera where it has a face, and stands out in the pixels, a
lamp by its colour; it is `hidden` when it clearly is not; whatever lies between is `unsure`, and no question may hang
on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from carla_bridge.collect.boxes import Boxes, Thing

NEAR_M = 0.3
SEEN_PX, SEEN_THIN_PX, LOST_PX = 6.0, 3.0, 3.5  # longer and shorter side; below the last nothing can be told
SEEN_SHARE, LOST_SHARE = 0.5, 0.15  # of its pixels that nothing nearer hides, and that lie inside the picture
SEEN_FACE_RAD, LOST_FACE_RAD = math.radians(65.0), math.radians(88.0)
SEEN_CONTRAST = 12.0  # grey levels, standard deviation within its box and a margin; by day it is 20 and more
LAMP_LEVELS = 45.0  # by which a lamp's colour stands out of grey
GRID = 8  # rays a side
_EDGES = [(a, b) for a in range(8) for b in range(a + 1, 8) if bin(a ^ b).count("1") == 1]


class Status(Enum):
    """Whether a picture shows something."""

    SEEN = "seen"
    UNSURE = "unsure"
    HIDDEN = "hidden"


@dataclass(frozen=True)
class Camera:
    """A pinhole camera in the map frame.

    Attributes:
        eye_m: (3,) optical centre.
        axes: (3, 3) rows: ahead, right, up.
        width_px, height_px: of the picture.
        focal_px: focal length.
    """

    eye_m: np.ndarray
    axes: np.ndarray
    width_px: int
    height_px: int
    focal_px: float

    def project(self, points_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (..., 2) and distance ahead (...) of points (..., 3); pixels mean nothing nearer than `NEAR_M`."""
        local = (points_m - self.eye_m) @ self.axes.T
        ahead = np.maximum(local[..., 0], NEAR_M)
        u = self.width_px / 2 + self.focal_px * local[..., 1] / ahead
        v = self.height_px / 2 - self.focal_px * local[..., 2] / ahead
        return np.stack([u, v], axis=-1), local[..., 0]


@dataclass(frozen=True)
class Seen:
    """A thing in a picture.

    Attributes:
        thing: what it is.
        rect_px: left, upper, right and lower edge, cut at the picture's edges.
        distance_m: from the optical centre to its middle.
        share: of its box's pixels that show it.
        status: whether it can be told.
    """

    thing: Thing
    rect_px: tuple[float, float, float, float]
    distance_m: float
    share: float
    status: Status


def look(
    camera: Camera, picture: np.ndarray, things: Sequence[Thing], boxes: Boxes, scenery: Boxes, carrier: int
) -> list[Seen]:
    """Everything of which a picture may show something.

    Args:
        camera: that took it.
        picture: (H, W, 3) uint8.
        things: what the boxes are.
        boxes: of these things.
        scenery: further boxes that hide things.
        carrier: id of the vehicle that the camera is mounted on, which it does not see.
    """
    own = [i for i, thing in enumerate(things) if thing.id != carrier]
    things, boxes = [things[i] for i in own], boxes.take(np.array(own, dtype=int))
    near = np.flatnonzero(np.hypot(*(scenery.centre_m[:, :2] - camera.eye_m[:2]).T) < 110.0)
    everything = Boxes.join([boxes, scenery.take(near)])
    rects, nearest, farthest, whole = _rects(camera, everything)
    size = np.array([camera.width_px, camera.height_px, camera.width_px, camera.height_px])
    cut = np.clip(rects, 0.0, size)
    inside = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1]) & (farthest > NEAR_M)
    found = []
    for i, thing in enumerate(things):
        if not inside[i]:
            continue
        rivals = np.flatnonzero(
            inside & (np.arange(len(inside)) != i) & (nearest < farthest[i])
            & (cut[:, 0] < cut[i, 2]) & (cut[:, 2] > cut[i, 0]) & (cut[:, 1] < cut[i, 3]) & (cut[:, 3] > cut[i, 1])
        )
        area = max(1e-9, (rects[i, 2] - rects[i, 0]) * (rects[i, 3] - rects[i, 1]))
        share = (cut[i, 2] - cut[i, 0]) * (cut[i, 3] - cut[i, 1]) / area
        if len(rivals):
            share *= _free_share(camera, everything, i, rivals, cut[i])
        distance = float(np.linalg.norm(everything.centre_m[i] - camera.eye_m))
        status = _status(camera, picture, thing, everything.centre_m[i], cut[i], float(share), bool(whole[i]))
        found.append(Seen(thing, tuple(float(v) for v in cut[i]), distance, float(share), status))  # type: ignore[arg-type]
    return found


def _rects(camera: Camera, boxes: Boxes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(N, 4) edges in pixels; (N,) nearest and farthest distance ahead; (N,) whether all of it is before the camera."""
    pixels, ahead = camera.project(boxes.corners_m)
    rects = np.concatenate([pixels.min(axis=1), pixels.max(axis=1)], axis=1)
    nearest, farthest = ahead.min(axis=1), ahead.max(axis=1)
    whole = nearest > NEAR_M
    for i in np.flatnonzero(~whole & (farthest > NEAR_M)):
        corners = boxes.corners_m[i]
        points = [corners[k] for k in range(8) if ahead[i, k] > NEAR_M]
        for a, b in _EDGES:
            if (ahead[i, a] > NEAR_M) != (ahead[i, b] > NEAR_M):
                share = (NEAR_M - ahead[i, a]) / (ahead[i, b] - ahead[i, a])
                points.append(corners[a] + share * (corners[b] - corners[a]))
        shown, _ = camera.project(np.array(points))
        rects[i] = np.concatenate([shown.min(axis=0), shown.max(axis=0)])
    return rects, nearest, farthest, whole


def _free_share(camera: Camera, boxes: Boxes, index: int, rivals: np.ndarray, rect_px: np.ndarray) -> float:
    """Share of a box's pixels in a rectangle that no rival hides."""
    u = rect_px[0] + (np.arange(GRID) + 0.5) / GRID * (rect_px[2] - rect_px[0])
    v = rect_px[1] + (np.arange(GRID) + 0.5) / GRID * (rect_px[3] - rect_px[1])
    right = (u - camera.width_px / 2) / camera.focal_px
    up = (camera.height_px / 2 - v) / camera.focal_px
    grid = np.stack(np.meshgrid(right, up), axis=-1).reshape(-1, 2)
    rays = camera.axes[0] + grid[:, :1] * camera.axes[1] + grid[:, 1:] * camera.axes[2]
    own = _entry(boxes, np.array([index]), camera.eye_m, rays)[:, 0]
    met = np.isfinite(own)
    if not met.any():
        return 0.0
    others = _entry(boxes, rivals, camera.eye_m, rays[met]).min(axis=1)
    return float((others > own[met]).mean())


def _entry(boxes: Boxes, index: np.ndarray, eye_m: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """(M, K) where rays (M, 3) enter boxes, in lengths of the ray; infinite where they miss, or begin inside."""
    axes, half = boxes.axes[index], boxes.half_m[index]
    start = np.einsum("kij,kj->ki", axes, eye_m - boxes.centre_m[index])
    slope = np.einsum("kij,mj->mki", axes, rays)
    slope = np.where(np.abs(slope) < 1e-12, 1e-12, slope)
    low, high = (-half - start) / slope, (half - start) / slope
    first, last = np.minimum(low, high).max(axis=2), np.maximum(low, high).min(axis=2)
    return np.where((first < last) & (first > 0.0), first, np.inf)


def _status(
    camera: Camera, picture: np.ndarray, thing: Thing, centre_m: np.ndarray, rect_px: np.ndarray, share: float,
    whole: bool,
) -> Status:
    long, thin = sorted((rect_px[2] - rect_px[0], rect_px[3] - rect_px[1]), reverse=True)
    turned = 0.0
    if thing.faces_rad is not None:
        back = camera.eye_m - centre_m
        turned = abs((math.atan2(back[1], back[0]) - thing.faces_rad + math.pi) % (2 * math.pi) - math.pi)
    if share < LOST_SHARE or long < LOST_PX or turned > LOST_FACE_RAD:
        return Status.HIDDEN
    large = long >= SEEN_PX and thin >= SEEN_THIN_PX
    if share < SEEN_SHARE or not large or turned > SEEN_FACE_RAD or not whole:
        return Status.UNSURE
    if thing.state and not _shines(picture, rect_px, thing.state):
        return Status.UNSURE
    return Status.SEEN if _contrast(picture, rect_px) >= SEEN_CONTRAST else Status.UNSURE


def _shines(picture: np.ndarray, rect_px: np.ndarray, state: str) -> bool:
    """Whether a pixel of a light's head has the colour of its lamp: a crown or the picture's edge may hide it."""
    x0, y0 = np.floor(rect_px[:2]).astype(int)
    x1, y1 = np.ceil(rect_px[2:]).astype(int)
    red, green, blue = np.moveaxis(picture[y0:y1, x0:x1].astype(np.float32), 2, 0)
    excess = {"red": red - np.maximum(green, blue), "yellow": np.minimum(red, green) - blue, "green": green - red}
    return state in excess and excess[state].size > 0 and float(excess[state].max()) >= LAMP_LEVELS


def _contrast(picture: np.ndarray, rect_px: np.ndarray) -> float:
    """Standard deviation, in grey levels, of the pixels in a box and a margin around it."""
    margin = 1.0 + 0.15 * (rect_px[2:] - rect_px[:2])
    x0, y0 = np.maximum(0, np.floor(rect_px[:2] - margin)).astype(int)
    x1, y1 = np.ceil(rect_px[2:] + margin).astype(int)
    crop = picture[y0:y1, x0:x1].astype(np.float32)
    return float(crop.reshape(-1, 3).std(axis=0).max()) if crop.size else 0.0
