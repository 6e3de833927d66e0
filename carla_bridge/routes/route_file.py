"""Route files in Bench2Drive's form: key points, scenarios and weather of each route, as the file says them.

Everything is in CARLA's world (y right, yaw clockwise, degrees). What a scenario's parameters mean is known to the
scenario (`carla_bridge.scenarios`); here they are read as they stand, and asked for with errors that name the route.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

import numpy as np

from carla_bridge.weather_fields import WEATHER_FIELDS
from wamdiff2_core.errors import UserError, did_you_mean


@dataclass(frozen=True)
class CarlaPose:
    """A pose in CARLA's world: metres, y right, yaw clockwise in degrees."""

    x_m: float
    y_m: float
    z_m: float
    yaw_deg: float


@dataclass(frozen=True)
class ScenarioSpec:
    """A scenario of a route.

    Attributes:
        name: such as `Accident_1`; the leaderboard's own files use one twice in a route.
        type: what happens, such as `Accident`.
        trigger: where on the route it begins.
        parameters: attributes of each further element by its tag, such as `{"distance": {"value": "40"}}`.
        where: file and route, for messages.
    """

    name: str
    type: str
    trigger: CarlaPose
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    where: str = ""

    def number(self, tag: str, default: float | None = None) -> float:
        """`value` of an element as a number.

        Raises:
            UserError: it is missing and has no default, or is no number.
        """
        if tag not in self.parameters and default is not None:
            return default
        return self._number(tag, "value")

    def interval(self, tag: str, default: tuple[float, float] | None = None) -> tuple[float, float]:
        """`from` and `to` of an element; a single `value` stands for both.

        Raises:
            UserError: as `number`, or `from` is greater than `to`.
        """
        if tag not in self.parameters and default is not None:
            return default
        if "value" in self.parameters.get(tag, {}):
            value = self._number(tag, "value")
            return value, value
        low, high = self._number(tag, "from"), self._number(tag, "to")
        if low > high:
            raise UserError(self._field(tag), "from <= to", f"from {low:g} to {high:g}")
        return low, high

    def choice(self, tag: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """`value` of an element as one of several words.

        Raises:
            UserError: it is missing and has no default, or is another word.
        """
        value = self.parameters.get(tag, {}).get("value", default)
        if value not in allowed:
            raise UserError(self._field(tag), "one of " + ", ".join(allowed), "nothing" if value is None else value)
        return value

    def text(self, tag: str, default: str) -> str:
        """`value` of an element as it stands."""
        return self.parameters.get(tag, {}).get("value", default)

    def location(self, tag: str) -> np.ndarray:
        """(3,) `x`, `y` and `z` of an element, metres, CARLA's world.

        Raises:
            UserError: one is missing or is no number.
        """
        return np.array([self._number(tag, axis) for axis in "xyz"])

    def _number(self, tag: str, key: str) -> float:
        attributes = self.parameters.get(tag)
        if attributes is None:
            raise UserError(self._field(tag), f"an element <{tag} {key}=.../>", "none")
        return _finite(self._field(tag), key, attributes)

    def _field(self, tag: str) -> str:
        return f"{self.where}: scenario {self.name}: {tag}"


@dataclass(frozen=True)
class WeatherSpec:
    """Weather at one place of a route.

    Attributes:
        route_pct: share of the route's length, 0..100.
        values: fields of `carla.WeatherParameters` that the file sets.
    """

    route_pct: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class RouteSpec:
    """A route as the file says it.

    Attributes:
        id, town: from the file.
        keypoints_carla: (N, 3) metres, CARLA's world, N >= 2.
        scenarios: in the file's order.
        weathers: by rising share of the route; empty when the file sets none.
    """

    id: str
    town: str
    keypoints_carla: np.ndarray
    scenarios: tuple[ScenarioSpec, ...] = ()
    weathers: tuple[WeatherSpec, ...] = ()


def load_routes(path: str | Path) -> list[RouteSpec]:
    """Read all routes of a file, in its order.

    Raises:
        UserError: the file is missing, is not a route file, or a route is malformed; says which one.
    """
    path = Path(path)
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise UserError("--routes", "a readable route file", f"{path} ({error.strerror})") from error
    except ElementTree.ParseError as error:
        raise UserError(f"routes {path}", "well-formed XML", str(error)) from error
    if root.tag != "routes":
        raise UserError(f"routes {path}", "a <routes> element at the top", f"<{root.tag}>")
    routes = [_parse_route(path, i, element) for i, element in enumerate(root.findall("route"))]
    if not routes:
        raise UserError(f"routes {path}", "at least one <route>", "none")
    seen: set[str] = set()
    for route in routes:
        if route.id in seen:
            raise UserError(f"routes {path}", "different route ids", f"id {route.id} twice")
        seen.add(route.id)
    return routes


def _parse_route(path: Path, index: int, element: ElementTree.Element) -> RouteSpec:
    name = f"routes {path}: route {element.get('id', f'number {index + 1}')}"
    for key in ("id", "town"):
        if not element.get(key):
            raise UserError(name, f"an attribute {key}", "none")
    if not re.fullmatch(r"\w[\w.-]*", element.attrib["id"], re.ASCII):  # it names files of a run
        raise UserError(f"routes {path}: route number {index + 1}: id", "letters, digits, '_', '-' and '.'",
                        element.attrib["id"])
    positions = element.findall("waypoints/position")
    if len(positions) < 2:
        raise UserError(name, "at least two <waypoints><position/>", f"{len(positions)}")
    keypoints = np.array([
        [_finite(f"{name}: position {k + 1}", axis, position.attrib) for axis in "xyz"]
        for k, position in enumerate(positions)
    ])
    scenarios = tuple(_parse_scenario(name, k, item) for k, item in enumerate(element.findall("scenarios/scenario")))
    weathers = [_parse_weather(name, k, item) for k, item in enumerate(element.findall("weathers/weather"))]
    weathers.sort(key=lambda weather: weather.route_pct)
    shares = [weather.route_pct for weather in weathers]
    if len(set(shares)) != len(shares):
        raise UserError(f"{name}: weathers", "different route percentages", shares)
    return RouteSpec(element.attrib["id"], element.attrib["town"], keypoints, scenarios, tuple(weathers))


def _parse_scenario(route: str, index: int, element: ElementTree.Element) -> ScenarioSpec:
    name = f"{route}: scenario {element.get('name', f'number {index + 1}')}"
    for key in ("name", "type"):
        if not element.get(key):
            raise UserError(name, f"an attribute {key}", "none")
    triggers = element.findall("trigger_point")
    if len(triggers) != 1:
        raise UserError(name, "one <trigger_point/>", f"{len(triggers)}")
    trigger = CarlaPose(*(_finite(f"{name}: trigger_point", key, triggers[0].attrib) for key in ("x", "y", "z", "yaw")))
    parameters: dict[str, Mapping[str, str]] = {}
    for item in element:
        if item.tag != "trigger_point":
            if item.tag in parameters:
                raise UserError(name, f"one <{item.tag}/>", "several")
            parameters[item.tag] = MappingProxyType(dict(item.attrib))
    return ScenarioSpec(element.attrib["name"], element.attrib["type"], trigger, MappingProxyType(parameters), route)


def _parse_weather(route: str, index: int, element: ElementTree.Element) -> WeatherSpec:
    name = f"{route}: weather {index + 1}"
    share = _finite(name, "route_percentage", element.attrib)
    if not 0.0 <= share <= 100.0:
        raise UserError(f"{name}: route_percentage", "0 to 100", share)
    values = {}
    for key in element.attrib:
        if key == "route_percentage":
            continue
        if key not in WEATHER_FIELDS:
            raise UserError(name, "fields of carla.WeatherParameters", key, did_you_mean(key, WEATHER_FIELDS))
        values[key] = _finite(name, key, element.attrib)
    return WeatherSpec(share, MappingProxyType(values))


def _finite(name: str, key: str, attributes: Mapping[str, str]) -> float:
    try:
        value = float(attributes[key])
    except (KeyError, ValueError):
        raise UserError(name, f"a number {key}", attributes.get(key, "none")) from None
    if not math.isfinite(value):
        raise UserError(name, f"a finite {key}", attributes[key])
    return value
