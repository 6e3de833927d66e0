"""How fast to go: the intelligent driver model (Treiber, Hennecke and Helbing 2000) behind everything that is ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEEDED_MPS2 = 0.8  # a stop that needs more than this is braked for as it needs


@dataclass(frozen=True)
class Ahead:
    """Something that the vehicle must not run into.

    Attributes:
        rear_m: arc length of its near end, now.
        speed_mps: along the route; it is taken to keep that speed.
        standstill_m: gap that is left when both stand.
        why: in a word or two.
    """

    rear_m: float
    speed_mps: float = 0.0
    standstill_m: float = 2.5
    why: str = ""


@dataclass(frozen=True)
class IdmConfig:
    """Attributes:
        max_accel_mps2, comfort_decel_mps2: of the model.
        max_decel_mps2: what the vehicle can do.
        headway_s: time gap to a leader.
    """

    max_accel_mps2: float = 2.2
    comfort_decel_mps2: float = 2.8
    max_decel_mps2: float = 7.0
    headway_s: float = 0.8


def idm_accel(v: float, wanted_mps: float, gap_m: float, ahead: Ahead, c: IdmConfig) -> float:
    """Acceleration behind one leader, m/s^2.

    Args:
        v: own speed.
        wanted_mps: speed on a free road.
        gap_m: to the leader's near end; negative when it is overlapped.
        ahead: the leader.
        c: parameters.
    """
    free = 1.0 - (v / max(wanted_mps, 0.1)) ** 4 if v <= wanted_mps else -1.0
    headway_m = v * c.headway_s if ahead.speed_mps > 0.0 else 0.0
    closing = v * (v - ahead.speed_mps) / (2.0 * math.sqrt(c.max_accel_mps2 * c.comfort_decel_mps2))
    desired = ahead.standstill_m + max(0.0, headway_m + closing)
    accel = c.max_accel_mps2 * min(free, 1.0 - (desired / max(gap_m, 0.1)) ** 2)
    # The model alone rolls a metre into its own standstill gap.
    needed = max(0.0, v - ahead.speed_mps) ** 2 / (2.0 * max(gap_m - ahead.standstill_m, 0.1))
    return min(accel, -needed) if needed > NEEDED_MPS2 else accel


def roll_speeds(
    front_m: float, speed_mps: float, limit: Callable[[float], float], leaders: Sequence[Ahead], steps: int,
    dt_s: float, c: IdmConfig,
) -> tuple[list[float], list[float]]:
    """Accelerations of the next steps, and the way made after each of them.

    Args:
        front_m: arc length of the vehicle's front.
        speed_mps: its speed.
        limit: free speed at a distance ahead of now.
        leaders: everything ahead.
        steps, dt_s: how far to roll.
        c: parameters.

    Returns:
        Accelerations (m/s^2) and distances covered (m), one a step.
    """
    v, way = max(0.0, speed_mps), 0.0
    accels, ways = [], []
    for step in range(steps):
        wanted = limit(way)
        accel = c.max_accel_mps2 * (1.0 - (v / max(wanted, 0.1)) ** 4) if v <= wanted else (wanted - v) / 0.5
        accel = max(accel, -c.comfort_decel_mps2)
        for ahead in leaders:
            gap = ahead.rear_m + ahead.speed_mps * step * dt_s - front_m - way
            accel = min(accel, idm_accel(v, wanted, gap, ahead, c))
        accel = max(-c.max_decel_mps2, accel)
        if v + accel * dt_s < 0.0:
            accel = -v / dt_s
        way += max(0.0, v + 0.5 * accel * dt_s) * dt_s
        v = max(0.0, v + accel * dt_s)
        accels.append(accel)
        ways.append(way)
    return accels, ways
