"""The worst moments of a route: infractions, a goal that was not reached, and near misses found in the recorded scene.

A near miss is a vehicle or walker that moves on the way, and that the driving ego vehicle passed with less than
`TIGHT_M` between the boxes, or would have hit within `AHEAD_S` had both gone on as they were, with more than
`HARD_MPS2` of braking needed against it.
The braking needed is the closing speed over twice the time left (the deceleration rate to avoid a crash, Cooper and
Ferguson 1976): a driver who stops smoothly behind a queue needs little all the way, however near it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carla_bridge.leaderboard.infractions import Infraction, InfractionKind, penalty
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.scene_track import Body, Scene
from carla_bridge.rectangles import box_gap_m, boxes_touch
from carla_bridge.report.run import Entry

TIGHT_M, MOVING_MPS = 0.5, 1.0
AHEAD_S, AHEAD_STEP_S, HARD_MPS2 = 1.5, 0.1, 5.0
CLOSE_M = 30.0  # no pair of boxes farther apart than that can touch within the look-ahead at town speeds
MISS_COST = 0.15  # below that of the cheapest infraction: what did not happen comes after what did
MISSES_PER_ROUTE = 3
ENDING = (InfractionKind.DEVIATION, InfractionKind.BLOCKED, InfractionKind.ROUTE_TIMEOUT, Outcome.PLANNER_LOST.value)
ENDS_THAT_COST_NOTHING = (Outcome.COMPLETED, Outcome.INTERRUPTED)


@dataclass(frozen=True)
class Moment:
    """A moment to look at.

    Attributes:
        route_id, repeat: the drive.
        t_s: simulated time since the route began.
        kind: an `InfractionKind`, `near miss`, or `end` for a goal that was not reached.
        reason: in words, with figures.
        cost: share of the route's score that it took, 0..1; for near misses how near, always less than an infraction.
        x_m, y_m: where, map frame.
    """

    route_id: str
    repeat: int
    t_s: float
    kind: str
    reason: str
    cost: float
    x_m: float
    y_m: float


def moments_of(entry: Entry, scene: Scene) -> list[Moment]:
    """The moments of a drive of ours, worst first."""
    result = entry.result
    if result is None:
        return []
    found = []
    hit: set[int] = set()
    for item in result.infractions:
        read = Infraction.read(item.kind, item.detail)
        if read.other_id is not None:
            hit.add(read.other_id)
        if item.kind in ENDING:
            continue  # the end of the route tells the same, with its cost
        factor = penalty([read])
        cost = 0.0 if factor is None else min(1.0, 1.0 - factor)
        what = f"with {read.other_type}" if read.other_type else item.detail
        found.append(Moment(entry.route_id, entry.repeat, item.t_s, item.kind, what, cost, item.x_m, item.y_m))
    if result.outcome not in ENDS_THAT_COST_NOTHING:
        last = scene.moments[-1].ego if scene.moments else None
        place = (last.x_m, last.y_m) if last is not None else (float("nan"), float("nan"))
        found.append(Moment(entry.route_id, entry.repeat, result.duration_s, "end",
                            f"{result.outcome.value}: {result.reason}", 1.0 - result.completion_pct / 100.0, *place))
    found += near_misses(entry, scene, hit)
    return sorted(found, key=lambda moment: -moment.cost)


def near_misses(entry: Entry, scene: Scene, hit: set[int]) -> list[Moment]:
    """The nearest moments with actors that were not hit, at most one an actor and `MISSES_PER_ROUTE` in all."""
    if scene.ego is None or len(scene.moments) < 3:
        return []
    times = np.array([moment.t_s for moment in scene.moments])
    ego = np.array([[moment.ego.x_m, moment.ego.y_m, moment.ego.yaw_rad] for moment in scene.moments])
    tracks: dict[int, list[tuple[int, float, float, float]]] = {}
    for index, moment in enumerate(scene.moments):
        for key, pose in moment.poses.items():
            if abs(pose.x_m - ego[index, 0]) < CLOSE_M and abs(pose.y_m - ego[index, 1]) < CLOSE_M:
                tracks.setdefault(key, []).append((index, pose.x_m, pose.y_m, pose.yaw_rad))
    misses = []
    for key, rows in tracks.items():
        body = scene.bodies[key]
        if key in hit or len(rows) < 2 or not body.type_id.startswith(("vehicle.", "walker.")):
            continue
        track = np.array(rows)
        index = track[:, 0].astype(int)
        miss = _nearest(times[index], ego[index], track[:, 1:], scene.ego, body)
        if miss is not None:
            at, cost, reason = miss
            misses.append(Moment(entry.route_id, entry.repeat, float(times[index[at]]), "near miss", reason, cost,
                                 float(ego[index[at], 0]), float(ego[index[at], 1])))
    return sorted(misses, key=lambda moment: -moment.cost)[:MISSES_PER_ROUTE]


def _nearest(
    t_s: np.ndarray, ego: np.ndarray, other: np.ndarray, ego_body: Body, body: Body
) -> tuple[int, float, str] | None:
    """Index, cost and reason of the worst moment of a pair of tracks, (N, 3) poses each; None without a near miss."""
    ego_mps, other_mps = _velocity(t_s, ego), _velocity(t_s, other)
    ego_speed = np.hypot(*ego_mps.T)
    driving = ego_speed > MOVING_MPS
    if not driving.any() or float(np.hypot(*other_mps.T).max()) < MOVING_MPS:
        return None
    gap = box_gap_m(_corners(ego, ego_body), _corners(other, body))
    tight = np.where(driving, gap, np.inf)
    braking, left_s = _braking(ego, other, ego_mps, other_mps, ego_body, body)
    braking = np.where(driving, braking, 0.0)
    by_gap, by_braking = int(np.argmin(tight)), int(np.argmax(braking))
    gap_cost = MISS_COST * (1 - tight[by_gap] / TIGHT_M)
    braking_cost = MISS_COST * min(1.0, (braking[by_braking] - HARD_MPS2) / (2 * HARD_MPS2))
    if max(gap_cost, braking_cost) <= 0:
        return None
    if gap_cost >= braking_cost:
        return by_gap, gap_cost, f"{tight[by_gap]:.2f} m from {body.type_id} at {ego_speed[by_gap]:.1f} m/s"
    return by_braking, braking_cost, (
        f"{body.type_id} {gap[by_braking]:.1f} m away would have been hit in {left_s[by_braking]:.1f} s: "
        f"{braking[by_braking]:.1f} m/s² of braking needed at {ego_speed[by_braking]:.1f} m/s"
    )


def _braking(
    ego: np.ndarray, other: np.ndarray, ego_mps: np.ndarray, other_mps: np.ndarray, ego_body: Body, body: Body
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) deceleration to avoid the crash of straight, steady motion, 0 without one; and (N,) time left to it."""
    closing = np.hypot(*(other_mps - ego_mps).T)
    ahead_s = np.arange(AHEAD_STEP_S, AHEAD_S + 1e-9, AHEAD_STEP_S)
    shift = ahead_s[:, None, None] * (other_mps - ego_mps)[None]  # (S, N, 2): the other, seen from the ego vehicle
    ego_corners = np.broadcast_to(_corners(ego, ego_body), (len(ahead_s), len(ego), 4, 2))
    touching = boxes_touch(ego_corners, _corners(other, body)[None] + shift[:, :, None, :])
    first = np.where(touching.any(axis=0), touching.argmax(axis=0), -1)
    left_s = np.where(first >= 0, ahead_s[first], np.inf)
    return closing / (2 * left_s), left_s


def _corners(poses: np.ndarray, body: Body) -> np.ndarray:
    """(N, 4, 2) corners at (N, 3) poses."""
    local = body.outline_m
    cos, sin = np.cos(poses[:, 2, None]), np.sin(poses[:, 2, None])
    turned = np.stack([cos * local[:, 0] - sin * local[:, 1], sin * local[:, 0] + cos * local[:, 1]], axis=-1)
    return np.asarray(poses[:, None, :2] + turned)


def _velocity(t_s: np.ndarray, poses: np.ndarray) -> np.ndarray:
    """(N, 2) velocity of (N, 3) poses at rising times."""
    return np.asarray(np.gradient(poses[:, :2], t_s, axis=0))


def worst(moments: Sequence[Moment], count: int) -> list[Moment]:
    """The worst of several routes' moments, those that cost nothing left out; of equal ones in the order given."""
    return sorted((moment for moment in moments if moment.cost > 0), key=lambda moment: -moment.cost)[:count]
