"""Reference lines of lines and arcs, OpenDRIVE frame."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True)
class Segment:
    """A line (curvature 0) or arc of a reference line: start pose, length and curvature (left positive), 1/m."""

    x_m: float
    y_m: float
    heading_rad: float
    length_m: float
    curvature_radpm: float = 0.0


def wrap(angle_rad: float) -> float:
    """Angle in -pi..pi."""
    return (angle_rad + math.pi) % (2 * math.pi) - math.pi


def ahead(point: Point, heading_rad: float, distance_m: float) -> Point:
    """The point at a distance along a heading."""
    return point[0] + distance_m * math.cos(heading_rad), point[1] + distance_m * math.sin(heading_rad)


def rounded_polyline(start: Point, corners: tuple[tuple[float, float, float], ...], end: Point) -> list[Segment]:
    """Reference line through `start`, rounded `corners` (x, y, radius) and `end`.

    Raises:
        ValueError: a corner's arc does not fit between its neighbours.
    """
    points = [start, *((x, y) for x, y, _ in corners), end]
    headings = [math.atan2(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(points)]
    turns = [wrap(b - a) for a, b in itertools.pairwise(headings)]
    cuts = [0.0, *(r * math.tan(abs(turn) / 2) for (_, _, r), turn in zip(corners, turns, strict=True)), 0.0]
    segments = []
    for i, heading in enumerate(headings):
        length = math.dist(points[i], points[i + 1]) - cuts[i] - cuts[i + 1]
        if length < -1e-9:
            raise ValueError(f"corner at {points[i + 1]}: its arc overlaps the next one by {-length:.2f} m")
        x = points[i][0] + cuts[i] * math.cos(heading)
        y = points[i][1] + cuts[i] * math.sin(heading)
        if length > 1e-6:
            segments.append(Segment(x, y, heading, length))
        if i < len(turns) and abs(turns[i]) > 1e-9:
            radius = corners[i][2]
            end_x, end_y = ahead((x, y), heading, max(length, 0.0))
            segments.append(Segment(end_x, end_y, heading, radius * abs(turns[i]), math.copysign(1 / radius, turns[i])))
    return segments


def joint(start: Point, start_rad: float, end: Point, end_rad: float) -> list[Segment]:
    """One arc between two poses, with a straight at one end where they are not equally far from its corner.

    Raises:
        ValueError: parallel poses that do not face each other, or an arc that would have to run backwards.
    """
    turn = wrap(end_rad - start_rad)
    dx, dy = end[0] - start[0], end[1] - start[1]
    if abs(turn) < 1e-9:
        aside = dx * math.sin(start_rad) - dy * math.cos(start_rad)
        if abs(aside) > 1e-6:
            raise ValueError(f"poses at {start} and {end}: expected on one line, got {aside:.3f} m apart")
        return [Segment(*start, start_rad, math.hypot(dx, dy))]
    before = (dx * math.sin(end_rad) - dy * math.cos(end_rad)) / math.sin(turn)
    after = (dy * math.cos(start_rad) - dx * math.sin(start_rad)) / math.sin(turn)
    if min(before, after) < 1e-6:
        raise ValueError(f"poses at {start} and {end}: their lines do not cross between them")
    cut = min(before, after)
    radius = cut / math.tan(abs(turn) / 2)
    segments = []
    if before - cut > 1e-6:
        segments.append(Segment(*start, start_rad, before - cut))
    segments.append(
        Segment(*ahead(start, start_rad, before - cut), start_rad, radius * abs(turn), math.copysign(1 / radius, turn))
    )
    if after - cut > 1e-6:
        segments.append(Segment(*ahead(end, end_rad, cut - after), end_rad, after - cut))
    return segments
