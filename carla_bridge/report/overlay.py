"""A plan drawn into a camera picture: waypoints on the ground, projected through the rig's pinhole camera."""

from __future__ import annotations

import cv2
import numpy as np
from scipy.interpolate import PchipInterpolator

from wamdiff2_core.config import CameraSpec

NEAR_M = 0.5  # what is nearer to the image plane is cut off
HALF_WIDTH_M = 0.85
RIBBON_RGB, EDGE_RGB = (45, 212, 191), (13, 148, 136)
REFUSED_RIBBON_RGB, REFUSED_EDGE_RGB = (248, 113, 113), (185, 28, 28)
DOT_RGB, TARGET_RGB = (255, 255, 255), (251, 191, 36)
PIECES_PER_WAYPOINT = 8


def base_from_camera(camera: CameraSpec) -> np.ndarray:
    """(3, 3) rotation from the camera's body axes (x along the view, y left, z up) to base_link.

    Angles turn about x, then y, then z of base_link: roll, pitch (positive looks down), yaw (positive looks left).
    """
    roll, pitch, yaw = np.deg2rad([camera.roll_deg, camera.pitch_deg, camera.yaw_deg])
    cr, sr, cp, sp, cy, sy = np.cos(roll), np.sin(roll), np.cos(pitch), np.sin(pitch), np.cos(yaw), np.sin(yaw)
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


def project(points_m: np.ndarray, camera: CameraSpec) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of points in base_link.

    Args:
        points_m: (N, 3) metres, base_link, x forward, y left, z up.
        camera: mount, size and field of view.

    Returns:
        (N, 2) pixels (u right, v down, origin at the image's upper left corner), and (N,) depth along the view in
        metres; pixels mean nothing where the depth is not positive.
    """
    offset = np.asarray(points_m, dtype=np.float64) - [camera.x_m, camera.y_m, camera.z_m]
    ahead, left, up = (offset @ base_from_camera(camera)).T
    depth = np.where(np.abs(ahead) < 1e-9, 1e-9, ahead)
    u = camera.width_px / 2 - camera.focal_px * left / depth
    v = camera.height_px / 2 - camera.focal_px * up / depth
    return np.stack([u, v], axis=1), ahead


def smooth_path(waypoints_m: np.ndarray) -> np.ndarray:
    """(M, 2) points on a smooth curve from base_link's origin through all waypoints."""
    knots = np.vstack([[0.0, 0.0], waypoints_m])
    fine = np.linspace(0, len(knots) - 1, PIECES_PER_WAYPOINT * (len(knots) - 1) + 1)
    return np.asarray(PchipInterpolator(np.arange(len(knots)), knots)(fine))


def draw_plan(
    rgb: np.ndarray, camera: CameraSpec, waypoints_m: np.ndarray, targets_m: np.ndarray | None = None,
    driven: bool = True,
) -> np.ndarray:
    """A copy of a picture with a plan on its road.

    Args:
        rgb: (H, W, 3) uint8 of `camera`.
        camera: the camera it was taken with.
        waypoints_m: (T, 2) metres, base_link at the picture's stamp; may be empty.
        targets_m: (K, 2) target points the planner was given, or None.
        driven: False paints the plan red, as one that was refused.
    """
    picture = np.ascontiguousarray(rgb).copy()
    colours = (RIBBON_RGB, EDGE_RGB) if driven else (REFUSED_RIBBON_RGB, REFUSED_EDGE_RGB)
    waypoints_m = np.asarray(waypoints_m, dtype=np.float64).reshape(-1, 2)
    if len(waypoints_m):
        _draw_ribbon(picture, camera, waypoints_m, *colours)
    if targets_m is not None:
        for u, v in _visible(np.asarray(targets_m, dtype=np.float64), camera):
            diamond = np.array([(u, v - 6), (u + 5, v), (u, v + 6), (u - 5, v)])
            cv2.fillPoly(picture, [np.int32(diamond * 16)], TARGET_RGB, cv2.LINE_AA, shift=4)
    for u, v in _visible(waypoints_m, camera):
        centre = int(u * 16), int(v * 16)
        cv2.circle(picture, centre, 4 * 16, colours[1], -1, cv2.LINE_AA, shift=4)
        cv2.circle(picture, centre, round(2.6 * 16), DOT_RGB, -1, cv2.LINE_AA, shift=4)
    return picture


def _draw_ribbon(
    picture: np.ndarray, camera: CameraSpec, waypoints_m: np.ndarray, ribbon_rgb: tuple[int, ...],
    edge_rgb: tuple[int, ...],
) -> None:
    path = smooth_path(waypoints_m)
    if np.abs(path - path[0]).max() < 0.3:  # a plan to stand
        return
    along = np.gradient(path, axis=0)
    length = np.linalg.norm(along, axis=1, keepdims=True)
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1) / np.maximum(length, 1e-6)
    edges = [path + HALF_WIDTH_M * normal, path - HALF_WIDTH_M * normal]
    (left, left_depth), (right, right_depth) = (project(_on_ground(edge), camera) for edge in edges)
    seen = (left_depth > NEAR_M) & (right_depth > NEAR_M)
    layer, alpha = picture.copy(), np.zeros(picture.shape[:2], np.uint8)
    for i in range(len(path) - 1):
        if seen[i] and seen[i + 1]:
            quad = np.int32(np.clip(np.array([left[i], left[i + 1], right[i + 1], right[i]]), -4000, 4000) * 16)
            cv2.fillPoly(layer, [quad], ribbon_rgb, cv2.LINE_AA, shift=4)
            cv2.fillPoly(alpha, [quad], int(150 - 90 * i / len(path)), cv2.LINE_AA, shift=4)
    x, y, width, height = cv2.boundingRect(alpha)
    box = np.s_[y : y + height, x : x + width]
    weight = alpha[box][..., None].astype(np.uint16)
    picture[box] = (layer[box] * weight + picture[box] * (255 - weight)) // 255
    for edge in (left, right):
        line = edge[seen]
        if len(line) > 1:
            points = np.int32(np.clip(line, -4000, 4000) * 16)
            cv2.polylines(picture, [points], False, edge_rgb, 1, cv2.LINE_AA, shift=4)


def _on_ground(xy_m: np.ndarray) -> np.ndarray:
    return np.column_stack([xy_m, np.zeros(len(xy_m))])


def _visible(xy_m: np.ndarray, camera: CameraSpec) -> list[tuple[float, float]]:
    """Pixels of the ground points that lie in the picture."""
    if not len(xy_m):
        return []
    pixels, depth = project(_on_ground(xy_m), camera)
    inside = (depth > NEAR_M) & (pixels >= 0).all(axis=1) & (pixels < [camera.width_px, camera.height_px]).all(axis=1)
    return [(float(u), float(v)) for u, v in pixels[inside]]
