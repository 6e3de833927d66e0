"""Which speed limit a vehicle is under: that of the road it is on, from the OpenDRIVE file."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from xml.etree import ElementTree

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.vehicle import Vehicle

DEFAULT_KMH = 50.0  # where the file says nothing
UNLIMITED_KMH = 130.0
KMH_OF = {"km/h": 1.0, "mph": 1.609344, "m/s": 3.6}  # a missing unit is m/s, by the standard
STRIDE_M = 2.0  # finding the road takes long: it is looked up again after this way

RoadAt = Callable[[float, float, float], tuple[int, float] | None]


class SpeedLimits:
    """Limits of all roads of a town.

    Args:
        opendrive: text of the file.
        road_at: (x, y, z) in CARLA's world -> road id and s of the nearest lane.
    """

    def __init__(self, opendrive: str, road_at: RoadAt) -> None:
        self._road_at = road_at
        self._limits = {
            int(road.get("id", "0")): _limits(road) for road in ElementTree.fromstring(opendrive).iter("road")
        }
        self._seen_at: dict[int, tuple[float, float]] = {}

    def on(self, road_id: int, s_m: float) -> float:
        """Limit in km/h at a place of a road."""
        limits = self._limits.get(road_id)
        if not limits:
            return DEFAULT_KMH
        index = bisect.bisect_right(limits, (s_m, math.inf)) - 1
        return limits[max(index, 0)][1]

    def watch(self, actors: Iterable[Actor]) -> None:
        """Tell every vehicle its limit."""
        seen: dict[int, tuple[float, float]] = {}
        for actor in actors:
            if not isinstance(actor, Vehicle):
                continue
            x, y = actor.pose.x, actor.pose.y
            last = self._seen_at.get(actor.id)
            if last is None or (x - last[0]) ** 2 + (y - last[1]) ** 2 > STRIDE_M**2:
                last = (x, y)
                road = self._road_at(x, y, actor.pose.z)
                actor.speed_limit_kmh = self.on(*road) if road is not None else DEFAULT_KMH
            seen[actor.id] = last
        self._seen_at = seen


def _limits(road: ElementTree.Element) -> list[tuple[float, float]]:
    """(s, km/h) in ascending order."""
    found = []
    for kind in road.findall("type"):
        speed = kind.find("speed")
        if speed is not None:
            found.append((float(kind.get("s", "0")), _kmh(speed.get("max", ""), speed.get("unit", "m/s"))))
    return sorted(found)


def _kmh(most: str, unit: str) -> float:
    try:
        value = float(most) * KMH_OF.get(unit, 3.6)
    except ValueError:  # "no limit", "undefined"
        return UNLIMITED_KMH if most == "no limit" else DEFAULT_KMH
    return value if 0 < value < 1000 else DEFAULT_KMH
