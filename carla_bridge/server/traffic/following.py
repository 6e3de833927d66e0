"""Longitudinal behaviour: the Intelligent Driver Model, and stopping at a line.

Treiber, Hennecke, Helbing: Congested traffic states in empirical observations and microscopic simulations, Phys. Rev. E
62 (2000), equations 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

HARDEST_BRAKING_MPS2 = 8.0
LINE_GAP_M = 0.4  # from the bumper of who has stopped to the line
FIRM_MPS2 = 1.6  # a line is braked for once it takes this much
CLOSE_M = 0.3


@dataclass(frozen=True)
class Idm:
    """Parameters of the model.

    Attributes:
        acceleration_mps2: at the start.
        braking_mps2: comfortable braking.
        headway_s: to the vehicle ahead.
        standstill_m: gap in a queue.
        exponent: how the acceleration fades towards the desired speed.
    """

    acceleration_mps2: float = 1.8
    braking_mps2: float = 2.2
    headway_s: float = 1.2
    standstill_m: float = 2.0
    exponent: float = 4.0

    def free(self, speed_mps: np.ndarray, desired_mps: np.ndarray) -> np.ndarray:
        """Acceleration on an empty road; beyond the desired speed no more than comfortable braking."""
        ratio = speed_mps / np.maximum(desired_mps, 0.1)
        return np.maximum(self.acceleration_mps2 * (1.0 - ratio**self.exponent), -self.braking_mps2)

    def interaction(self, speed_mps: np.ndarray, gap_m: np.ndarray, lead_mps: np.ndarray) -> np.ndarray:
        """What a leader takes away from the free acceleration: m/s^2, not negative.

        Args:
            speed_mps: own speed.
            gap_m: from bumper to bumper.
            lead_mps: speed of the leader along the own way; negative when it comes closer by itself.
        """
        scale = 2.0 * math.sqrt(self.acceleration_mps2 * self.braking_mps2)
        dynamic = speed_mps * self.headway_s + speed_mps * (speed_mps - lead_mps) / scale
        wished = self.standstill_m + np.maximum(dynamic, 0.0)
        return self.acceleration_mps2 * (wished / np.maximum(gap_m, 0.05)) ** 2


def stop_at(speed_mps: np.ndarray, distance_m: np.ndarray) -> np.ndarray:
    """Most acceleration that still stops short of a line: +inf while there is nothing to do about it.

    Args:
        speed_mps: own speed.
        distance_m: from the front bumper to the line; inf for none.
    """
    room = distance_m - LINE_GAP_M
    needed = speed_mps**2 / (2.0 * np.maximum(room, 0.1))
    held = room < CLOSE_M
    braking = np.minimum(np.maximum(needed, held * 1.0), HARDEST_BRAKING_MPS2)
    return np.where(held | (needed > FIRM_MPS2), -braking, np.inf)


def travel_s(distance_m: float, speed_mps: float, acceleration_mps2: float, top_mps: float) -> float:
    """Seconds that a distance takes when accelerating up to a top speed; 0 for what lies behind."""
    if distance_m <= 0.0:
        return 0.0
    top = max(top_mps, speed_mps)
    run_up_m = (top * top - speed_mps * speed_mps) / (2.0 * acceleration_mps2)
    if distance_m <= run_up_m:
        return (math.sqrt(speed_mps * speed_mps + 2.0 * acceleration_mps2 * distance_m) - speed_mps) / acceleration_mps2
    return (top - speed_mps) / acceleration_mps2 + (distance_m - run_up_m) / top
