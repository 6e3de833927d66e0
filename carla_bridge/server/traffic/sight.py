"""What stands or moves in the way of each vehicle.

A vehicle sweeps a band along its route. Thin slices of that band are tested against the footprints of all bodies, all
vehicles at once; the test of two boxes is exact (separating axes), so a car in the next lane or a wall beside a curve
does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.traffic.network import COS, SIN, X, Y

HALF_SLICE_M = 0.55
BESIDE_M = 0.25  # kept to both sides
LEVEL_M = 4.0
WALKER_AHEAD_S, CLIENT_AHEAD_S = 2.0, 1.0  # where a body is going counts as well, for so long
ACROSS_COS = 0.85  # of a vehicle that a client drives only if it comes from the side


@dataclass
class Bodies:
    """All bodies of a tick, and where they are going.

    Attributes:
        ids: actor ids.
        xy_m: (M, 2) middles.
        z_m: (M,) heights.
        axis: (M, 2) unit vectors along them.
        half_m: (M, 2) half lengths and half widths.
        velocity_mps: (M, 2).
        across: (M,) whether it is only the way ahead of a body, which matters to who crosses it.
    """

    ids: np.ndarray
    xy_m: np.ndarray
    z_m: np.ndarray
    axis: np.ndarray
    half_m: np.ndarray
    velocity_mps: np.ndarray
    across: np.ndarray


def look_around(actors: Iterable[Actor], driven: set[int], walk_ahead_m: dict[int, float]) -> Bodies:
    """Bodies of all actors.

    Args:
        actors: everybody.
        driven: ids of vehicles that the server drives: it knows where they go, so nothing is guessed.
        walk_ahead_m: of walkers whose way is known, how much of what lies ahead of them they are going to take.
    """
    rows = []
    for actor in actors:
        if not actor.collides or actor.parent is not None:
            continue
        pose, (length, width, _) = actor.pose, actor.blueprint.extent_m
        vx, vy, _ = actor.velocity
        speed = (vx * vx + vy * vy) ** 0.5
        if isinstance(actor, Walker) and speed > 0.1:
            ahead = walk_ahead_m.get(actor.id, WALKER_AHEAD_S * speed)
            cos, sin = vx / speed, vy / speed
            x, y = pose.x + cos * ahead / 2, pose.y + sin * ahead / 2
            rows.append((actor.id, x, y, pose.z, cos, sin, length + ahead / 2, width, vx, vy, 0.0))
            continue
        yaw = math.radians(pose.yaw)
        cos, sin = math.cos(yaw), math.sin(yaw)
        rows.append((actor.id, pose.x, pose.y, pose.z, cos, sin, length, width, vx, vy, 0.0))
        if isinstance(actor, Vehicle) and actor.id not in driven and speed > 0.5:
            ahead = CLIENT_AHEAD_S * speed
            x, y = pose.x + vx / speed * ahead / 2, pose.y + vy / speed * ahead / 2
            rows.append((actor.id, x, y, pose.z, cos, sin, length + ahead / 2, width, vx, vy, 1.0))
    table = np.array(rows, dtype=float).reshape(-1, 11)
    return Bodies(
        table[:, 0].astype(np.int64),
        table[:, 1:3],
        table[:, 3],
        table[:, 4:6],
        table[:, 6:8],
        table[:, 8:10],
        table[:, 10] > 0,
    )


@dataclass
class Sightings:
    """Bodies in the way: of each the first slice of the way that it touches.

    Attributes:
        row: (P,) index of the vehicle that sees it.
        body: (P,) index of the body.
        gap_m: (P,) from the front bumper.
        lead_mps: (P,) its speed along the way there.
    """

    row: np.ndarray
    body: np.ndarray
    gap_m: np.ndarray
    lead_mps: np.ndarray


def bodies_ahead(
    ids: np.ndarray,
    z_m: np.ndarray,
    half_m: np.ndarray,
    points: np.ndarray,
    ahead_m: np.ndarray,
    horizon_m: np.ndarray,
    bodies: Bodies,
) -> Sightings:
    """Find what stands in the way of each of N vehicles.

    Args:
        ids: (N,) their actor ids.
        z_m: (N,) their heights.
        half_m: (N, 2) half lengths and half widths.
        points: (N, K, 4 or more) points of the way ahead: x, y, direction.
        ahead_m: (N, K) how far each lies before the front bumper.
        horizon_m: (N,) how far to look.
        bodies: everybody.
    """
    radius = np.hypot(bodies.half_m[:, 0], bodies.half_m[:, 1])
    start = points[:, 0, :2]
    reach = horizon_m + half_m[:, 0] + 3.0
    dx = bodies.xy_m[None, :, 0] - start[:, None, 0]
    dy = bodies.xy_m[None, :, 1] - start[:, None, 1]
    limit = reach[:, None] + radius[None, :]
    near = (dx * dx + dy * dy < limit * limit) & (np.abs(z_m[:, None] - bodies.z_m[None, :]) < LEVEL_M)
    near &= ids[:, None] != bodies.ids[None, :]
    row, body = np.nonzero(near)
    wide = half_m[:, 1] + BESIDE_M
    ox = bodies.xy_m[body, 0, None] - points[row, :, X]
    oy = bodies.xy_m[body, 1, None] - points[row, :, Y]
    limit = (radius[body] + wide[row] + HALF_SLICE_M)[:, None]
    seen = (ahead_m >= -HALF_SLICE_M) & (ahead_m <= horizon_m[:, None])
    pair, k = np.nonzero((ox * ox + oy * oy < limit * limit) & seen[row])
    i, j = row[pair], body[pair]
    ox, oy = ox[pair, k], oy[pair, k]
    tx, ty = points[i, k, COS], points[i, k, SIN]
    ux, uy = bodies.axis[j, 0], bodies.axis[j, 1]
    length, width = bodies.half_m[j, 0], bodies.half_m[j, 1]
    cos, sin = np.abs(tx * ux + ty * uy), np.abs(tx * uy - ty * ux)
    along, across = ox * tx + oy * ty, oy * tx - ox * ty
    reach_along, reach_across = length * cos + width * sin, length * sin + width * cos
    hit = (np.abs(along) < reach_along + HALF_SLICE_M) & (np.abs(across) < reach_across + wide[i])
    hit &= np.abs(ox * ux + oy * uy) < length + HALF_SLICE_M * cos + wide[i] * sin
    hit &= np.abs(oy * ux - ox * uy) < width + HALF_SLICE_M * sin + wide[i] * cos
    hit &= ~(bodies.across[j] & (cos > ACROSS_COS))
    pair, k, along, reach_along = pair[hit], k[hit], along[hit], reach_along[hit]
    tx, ty = tx[hit], ty[hit]
    first = np.concatenate([[True], pair[1:] != pair[:-1]]) if len(pair) else np.zeros(0, bool)
    pair, k = pair[first], k[first]
    i, j = row[pair], body[pair]
    gap = ahead_m[i, k] + np.clip(along[first] - reach_along[first], -HALF_SLICE_M, HALF_SLICE_M)
    lead = bodies.velocity_mps[j, 0] * tx[first] + bodies.velocity_mps[j, 1] * ty[first]
    return Sightings(i, j, gap, lead)
