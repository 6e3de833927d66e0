"""Infractions as texts in the leaderboard's result files: made, taken apart and weighed here, and nowhere else.

What an evaluator writes is therefore what a scorer can compute again. Positions are in CARLA's world (left-handed,
metres). Sources: `atomic_criteria.py` and `statistics_manager.py` of Bench2Drive 0.0.4.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

DIGITS = 3


class InfractionKind(StrEnum):
    """Keys of a record's infractions, in the order in which they are written."""

    COLLISION_LAYOUT = "collisions_layout"
    COLLISION_PEDESTRIAN = "collisions_pedestrian"
    COLLISION_VEHICLE = "collisions_vehicle"
    RED_LIGHT = "red_light"
    STOP = "stop_infraction"
    OUTSIDE_LANES = "outside_route_lanes"
    MIN_SPEED = "min_speed_infractions"
    YIELD = "yield_emergency_vehicle_infractions"
    SCENARIO_TIMEOUT = "scenario_timeouts"
    DEVIATION = "route_dev"
    BLOCKED = "vehicle_blocked"
    ROUTE_TIMEOUT = "route_timeout"


FACTORS: Mapping[InfractionKind, float] = {
    InfractionKind.COLLISION_LAYOUT: 0.65,
    InfractionKind.COLLISION_PEDESTRIAN: 0.5,
    InfractionKind.COLLISION_VEHICLE: 0.6,
    InfractionKind.RED_LIGHT: 0.7,
    InfractionKind.STOP: 0.8,
    InfractionKind.YIELD: 0.7,
    InfractionKind.SCENARIO_TIMEOUT: 0.7,
    InfractionKind.MIN_SPEED: 1.0,  # the leaderboard proper multiplies here, Bench2Drive does not
    InfractionKind.DEVIATION: 1.0,  # these three end the route, that is their cost
    InfractionKind.BLOCKED: 1.0,
    InfractionKind.ROUTE_TIMEOUT: 1.0,
}
SHORT_NAMES: Mapping[str, str] = {
    InfractionKind.COLLISION_LAYOUT: "hit layout", InfractionKind.COLLISION_PEDESTRIAN: "hit pedestrian",
    InfractionKind.COLLISION_VEHICLE: "hit vehicle", InfractionKind.RED_LIGHT: "red light",
    InfractionKind.STOP: "stop sign", InfractionKind.OUTSIDE_LANES: "off lanes",
    InfractionKind.YIELD: "did not yield", InfractionKind.SCENARIO_TIMEOUT: "scenario timeout",
    InfractionKind.DEVIATION: "left route", InfractionKind.BLOCKED: "blocked", InfractionKind.ROUTE_TIMEOUT: "timeout",
}
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)"
_PLACE = rf"\(x=(?P<x>{_NUMBER}), y=(?P<y>{_NUMBER}), z=(?P<z>{_NUMBER})\)"
_COLLISION = re.compile(
    rf"Agent collided against object with type=(?P<type>\S+) and id=(?P<id>\d+) at {_PLACE}", re.ASCII
)
_FORMS: Mapping[InfractionKind, re.Pattern[str]] = {
    InfractionKind.COLLISION_LAYOUT: _COLLISION,
    InfractionKind.COLLISION_PEDESTRIAN: _COLLISION,
    InfractionKind.COLLISION_VEHICLE: _COLLISION,
    InfractionKind.RED_LIGHT: re.compile(rf"Agent ran a red light (?P<id>\d+) at {_PLACE}", re.ASCII),
    InfractionKind.STOP: re.compile(rf"Agent ran a stop with id=(?P<id>\d+) at {_PLACE}", re.ASCII),
    InfractionKind.OUTSIDE_LANES: re.compile(
        rf"Agent went outside its route lanes for about (?P<distance>{_NUMBER}) meters "
        rf"\((?P<percentage>{_NUMBER})% of the completed route\)", re.ASCII
    ),
    InfractionKind.MIN_SPEED: re.compile(
        rf"Average speed is (?P<percentage>{_NUMBER})% of the surrounding traffic's one", re.ASCII
    ),
    InfractionKind.YIELD: re.compile(r"Agent failed to yield to an emergency vehicle"),
    InfractionKind.SCENARIO_TIMEOUT: re.compile(r"Agent timed out a scenario"),
    InfractionKind.DEVIATION: re.compile(rf"Agent deviated from the route at {_PLACE}", re.ASCII),
    InfractionKind.BLOCKED: re.compile(rf"Agent got blocked at {_PLACE}", re.ASCII),
    InfractionKind.ROUTE_TIMEOUT: re.compile(r"Route timeout\."),
}


@dataclass(frozen=True)
class Infraction:
    """One entry of a record's infractions.

    Attributes:
        kind: its key in the file; a plain text for a key that Bench2Drive does not have.
        text: its text in the file.
        percentage: of the driven route for lanes left, of the traffic's speed for minimum speed; else None.
        distance_m: metres driven outside the route's lanes, else None.
        other_type, other_id: CARLA type and id of the object hit, or id of the light or stop sign.
        carla_xyz_m: where, in CARLA's world: the vehicle, or the light or sign.
    """

    kind: InfractionKind | str
    text: str
    percentage: float | None = None
    distance_m: float | None = None
    other_type: str = ""
    other_id: int | None = None
    carla_xyz_m: tuple[float, float, float] | None = None

    @classmethod
    def collision(cls, other_type: str, other_id: int, carla_xyz_m: Sequence[float]) -> Infraction | None:
        """A collision with an actor; None for a kind of object that is counted nowhere, such as a sidewalk."""
        if ("static" in other_type or "traffic" in other_type) and "sidewalk" not in other_type:
            kind = InfractionKind.COLLISION_LAYOUT
        elif "vehicle" in other_type:
            kind = InfractionKind.COLLISION_VEHICLE
        elif "walker" in other_type:
            kind = InfractionKind.COLLISION_PEDESTRIAN
        else:
            return None
        text = f"Agent collided against object with type={other_type} and id={other_id} at {_place(carla_xyz_m)}"
        return cls.read(kind, text)

    @classmethod
    def red_light(cls, light_id: int, carla_xyz_m: Sequence[float]) -> Infraction:
        """A red light run; the position is the light's."""
        return cls.read(InfractionKind.RED_LIGHT, f"Agent ran a red light {light_id} at {_place(carla_xyz_m)}")

    @classmethod
    def stop_sign(cls, sign_id: int, carla_xyz_m: Sequence[float]) -> Infraction:
        """A stop sign run; the position is the sign's."""
        return cls.read(InfractionKind.STOP, f"Agent ran a stop with id={sign_id} at {_place(carla_xyz_m)}")

    @classmethod
    def outside_lanes(cls, distance_m: float, driven_m: float) -> Infraction:
        """Metres outside the route's lanes, of the metres driven so far; at most one such entry a route."""
        percentage = 100.0 * distance_m / driven_m
        text = (f"Agent went outside its route lanes for about {round(distance_m, DIGITS)} meters "
                f"({round(percentage, 2)}% of the completed route)")
        return cls(InfractionKind.OUTSIDE_LANES, text, percentage, distance_m)

    @classmethod
    def min_speed(cls, percentage: float) -> Infraction:
        """The vehicle's mean speed over a stretch, as a percentage of that of the background traffic."""
        text = f"Average speed is {round(percentage, 2)}% of the surrounding traffic's one"
        return cls.read(InfractionKind.MIN_SPEED, text)

    @classmethod
    def yield_to_emergency(cls) -> Infraction:
        """An emergency vehicle was still behind when its scenario ended."""
        return cls.read(InfractionKind.YIELD, "Agent failed to yield to an emergency vehicle")

    @classmethod
    def scenario_timeout(cls) -> Infraction:
        """A scenario ran out of time."""
        return cls.read(InfractionKind.SCENARIO_TIMEOUT, "Agent timed out a scenario")

    @classmethod
    def deviation(cls, carla_xyz_m: Sequence[float]) -> Infraction:
        """The route was left."""
        return cls.read(InfractionKind.DEVIATION, f"Agent deviated from the route at {_place(carla_xyz_m)}")

    @classmethod
    def blocked(cls, carla_xyz_m: Sequence[float]) -> Infraction:
        """The vehicle stood still for too long."""
        return cls.read(InfractionKind.BLOCKED, f"Agent got blocked at {_place(carla_xyz_m)}")

    @classmethod
    def route_timeout(cls) -> Infraction:
        """The route ran out of time."""
        return cls.read(InfractionKind.ROUTE_TIMEOUT, "Route timeout.")

    @classmethod
    def read(cls, kind: str, text: str) -> Infraction:
        """An entry from a file; of a text in another form only kind and text are known."""
        if kind not in _FORMS:
            return cls(kind, text)
        known = InfractionKind(kind)
        match = _FORMS[known].fullmatch(text)
        if match is None:
            return cls(known, text)
        found = match.groupdict()
        place = (float(found["x"]), float(found["y"]), float(found["z"])) if "x" in found else None
        return cls(
            known,
            text,
            float(found["percentage"]) if "percentage" in found else None,
            float(found["distance"]) if "distance" in found else None,
            found.get("type", ""),
            int(found["id"]) if "id" in found else None,
            place,
        )

    @property
    def factor(self) -> float | None:
        """What the entry multiplies the route's score with; None when kind or text do not tell."""
        if self.kind in FACTORS:
            return FACTORS[InfractionKind(self.kind)]
        if self.kind == InfractionKind.OUTSIDE_LANES and self.percentage is not None:
            return 1.0 - self.percentage / 100.0
        return None


def _place(carla_xyz_m: Sequence[float]) -> str:
    x, y, z = (round(float(value), DIGITS) for value in carla_xyz_m)
    return f"(x={x}, y={y}, z={z})"


def penalty(infractions: Iterable[Infraction]) -> float | None:
    """Product of all factors; None when one of them is unknown."""
    factors = [infraction.factor for infraction in infractions]
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def count_kinds(kinds: Iterable[str]) -> Counter[str]:
    """How many infractions of each kind count against a drive: minimum speed costs nothing and is left out."""
    counts = Counter(str(kind) for kind in kinds)
    counts.pop(InfractionKind.MIN_SPEED.value, None)
    return counts
