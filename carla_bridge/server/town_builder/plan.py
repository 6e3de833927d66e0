"""What a generated town is made from: junction centres, the roads between them, and who goes first where.

All numbers are in the OpenDRIVE frame: x east, y north, metres. Traffic keeps to the right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

ARM_LENGTH_M = 12.0  # junction centre to the end of a road; the tightest right turn has a lane radius of 10.25 m
WIDE_ARM_LENGTH_M = 20.0  # where a road with two lanes each way meets the junction


class Edge(Enum):
    """What lies beside the outermost driving or parking lane."""

    SIDEWALK = "sidewalk"
    SHOULDER = "shoulder"


@dataclass(frozen=True)
class RoadPlan:
    """A road between two junctions.

    Attributes:
        start, end: names of the junctions.
        corners: (x_m, y_m, radius_m) between them.
        speed_kmh: speed limit.
        lanes: driving lanes each way.
        one_way: traffic runs from start to end only.
        parking: a parking lane on both sides, away from the junctions.
        edge: what borders the road.
        end_at: where the road ends, when that is not on the line from the last corner to the junction's centre.
    """

    start: str
    end: str
    corners: tuple[tuple[float, float, float], ...] = ()
    speed_kmh: int = 40
    lanes: int = 1
    one_way: bool = False
    parking: bool = False
    edge: Edge = Edge.SIDEWALK
    end_at: tuple[float, float] | None = None


@dataclass(frozen=True)
class TownPlan:
    """A town.

    Attributes:
        name: of the town.
        junctions: centres by name.
        roads: the roads between them.
        lights, stop_signs, yield_signs: names of the junctions with traffic lights, and of those where all arms but
            the two straightest have a stop or yield sign.
        arm_lengths_m: distance from centre to the ends of the roads, where it is not the usual one.
    """

    name: str
    junctions: dict[str, tuple[float, float]]
    roads: tuple[RoadPlan, ...]
    lights: tuple[str, ...] = ()
    stop_signs: tuple[str, ...] = ()
    yield_signs: tuple[str, ...] = ()
    arm_lengths_m: Mapping[str, float] = field(default_factory=dict)

    def arm_length_m(self, junction: str) -> float:
        """Distance from a junction's centre to the ends of its roads."""
        wide = any(road.lanes > 1 for road in self.roads if junction in (road.start, road.end))
        return self.arm_lengths_m.get(junction, WIDE_ARM_LENGTH_M if wide else ARM_LENGTH_M)
