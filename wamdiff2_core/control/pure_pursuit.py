"""Pure pursuit for a path of base_link, where base_link lies ahead of the rear axle.

Textbook pure pursuit steers the rear axle through the target. Plans here are positions of base_link (the vehicle's
centre), which runs on a slightly larger circle about the same turning centre; the law below puts base_link itself on
the target, so a perfect plan is followed without a bias in turns.
"""

from __future__ import annotations

import math

import numpy as np


def curvature_to(x_m: float, y_m: float, base_to_rear_axle_m: float) -> float:
    """Curvature of the rear axle's circle that carries base_link through a point.

    The turning centre is (-d, R) for a rear axle at (-d, 0); base_link and the target are equally far from it, hence
    ``R = (x^2 + y^2 + 2 d x) / (2 y)``.

    Args:
        x_m, y_m: the point in base_link, x forward, y left.
        base_to_rear_axle_m: d, how far the rear axle lies behind base_link.

    Returns:
        1/m, positive turns left. A point behind the vehicle gives an infinite curvature of the nearer side, because
        no finite circle leads there forwards in less than half a turn.
    """
    reach = x_m * x_m + y_m * y_m + 2.0 * base_to_rear_axle_m * x_m
    if x_m <= 0.0 or reach <= 0.0:
        return math.copysign(math.inf, y_m) if (x_m, y_m) != (0.0, 0.0) else 0.0
    return 2.0 * y_m / reach


def steer_for_curvature(curvature_radpm: float, wheelbase_m: float, max_steer_rad: float) -> float:
    """Front-wheel angle of a kinematic bicycle, left positive, limited to +-`max_steer_rad`."""
    angle = math.atan(wheelbase_m * curvature_radpm)
    return max(-max_steer_rad, min(max_steer_rad, angle))


def point_ahead(path_m: np.ndarray, distance_m: float) -> tuple[float, float] | None:
    """The point `distance_m` of arc ahead of the origin's projection on a polyline.

    Args:
        path_m: (N, 2) in base_link now, in driving order.
        distance_m: > 0.

    Returns:
        (x_m, y_m); beyond the path's end it goes straight on along the path's last metre. None when the path is
        shorter than half a metre: it has no direction then.
    """
    segments = np.diff(path_m, axis=0)
    lengths = np.hypot(segments[:, 0], segments[:, 1])
    arc = np.concatenate([[0.0], np.cumsum(lengths)])
    if arc[-1] < 0.5:
        return None
    safe = np.where(lengths > 1e-9, lengths, 1.0)
    along = np.clip(-(path_m[:-1] * segments).sum(axis=1) / safe**2, 0.0, 1.0)
    nearest = path_m[:-1] + along[:, None] * segments
    k = int(np.argmin(np.hypot(nearest[:, 0], nearest[:, 1])))
    wanted = arc[k] + along[k] * lengths[k] + distance_m

    def at(s: float) -> np.ndarray:
        return np.array([np.interp(s, arc, path_m[:, 0]), np.interp(s, arc, path_m[:, 1])])

    if wanted <= arc[-1]:
        x, y = at(wanted)
    else:
        tail = path_m[-1] - at(max(0.0, arc[-1] - 1.0))
        x, y = path_m[-1] + tail / max(1e-9, float(np.hypot(*tail))) * (wanted - arc[-1])
    return float(x), float(y)
