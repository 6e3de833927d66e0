"""Signals, controllers, stop signs and crosswalks for OpenDRIVE files that have none.

The towns that CARLA published in 2019 describe roads only; without landmarks a client finds no light at a junction and
the scenarios that need one are void. What is added is ordinary OpenDRIVE, so the client's map agrees with the actors.

The rule, the same for every file:

- A junction with three arms or more, whose traffic cannot all go at once, has lights if at least five lanes enter it;
  in a town without any such junction, if as many lanes enter it as enter the town's busiest.
- Any other junction with three arms or more has stop signs on all arms but the two that face each other and have most
  lanes.
- One signal governs all lanes of an arm. One controller is one phase: arms that may have green together.
- Every arm of a junction with lights has a crosswalk, where its road is long enough.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from enum import Enum
from xml.etree import ElementTree

import carla

from carla_bridge.server.town.junctions import Approach, Junction, read_junctions
from carla_bridge.server.town.road_signals import LIGHT_TYPE, POLE_GAP_M, POLE_STEP_M, POLE_TRIES, STOP_TYPE, YIELD_TYPE
from carla_bridge.server.town.signal_reader import on_road

BUSY_LANES = 5
CROSSWALK_GAP_M, CROSSWALK_DEPTH_M = 0.8, 3.0  # from the junction to the crosswalk, and across it
STOP_GAP_M = 1.0  # from a crosswalk or the junction to the middle of the stop line
SHORTEST_CROSSED_ROAD_M = 15.0
WHEEL_LANES = ("driving", "bidirectional", "parking", "shoulder", "stop", "biking", "border", "restricted")


class Control(Enum):
    """Who goes first at a junction."""

    LIGHTS = "lights"
    STOP_SIGNS = "stop signs"
    YIELD_SIGNS = "yield signs"
    NONE = "none"


SIGNS = {Control.STOP_SIGNS: (STOP_TYPE, "Sign_Stop"), Control.YIELD_SIGNS: (YIELD_TYPE, "Sign_Yield")}


def has_signals(opendrive: str) -> bool:
    """Whether an OpenDRIVE text has signals of its own."""
    return ElementTree.fromstring(opendrive).find("road/signals/signal") is not None


def controls(junctions: tuple[Junction, ...]) -> dict[int, Control]:
    """The rule of this module: control of each junction by its id."""
    able = {j.junction_id: j.entering_lanes for j in junctions if len(j.approaches) >= 3 and len(j.phases) >= 2}
    enough = min(BUSY_LANES, max(able.values(), default=0))
    chosen = {}
    for junction in junctions:
        if able.get(junction.junction_id, 0) >= enough > 0:
            chosen[junction.junction_id] = Control.LIGHTS
        elif len(junction.approaches) >= 3:
            chosen[junction.junction_id] = Control.STOP_SIGNS
        else:
            chosen[junction.junction_id] = Control.NONE
    return chosen


def with_signals(name: str, opendrive: str, chosen: Mapping[int, Control] | None = None) -> str:
    """OpenDRIVE text with signals, controllers, stop signs and crosswalks added.

    Args:
        name: of the town.
        opendrive: text without signals.
        chosen: control of junctions by id, in place of the rule; a junction that is not listed gets none.

    Raises:
        RuntimeError: CARLA cannot read the text.
    """
    root = ElementTree.fromstring(opendrive)
    carla_map = carla.Map(name, opendrive)
    roads = {int(road.get("id", 0)): RoadProfile(road) for road in root.findall("road")}
    junctions = read_junctions(carla_map, {road_id: road.length_m for road_id, road in roads.items()})
    chosen = controls(junctions) if chosen is None else chosen
    writer = _Writer(root, roads, carla_map)
    for junction in junctions:
        control = chosen.get(junction.junction_id, Control.NONE)
        if control is Control.LIGHTS:
            writer.add_lights(junction)
        elif control in SIGNS:
            for approach in junction.approaches:
                if approach not in junction.major:
                    writer.add_signal(approach, *SIGNS[control], writer.stop_s_m(approach))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


class RoadProfile:
    """Cross-section of a road: where its lanes lie beside the reference line."""

    def __init__(self, element: ElementTree.Element) -> None:
        self.element = element
        self.length_m = float(element.get("length", 0.0))
        self._sections = element.findall("lanes/laneSection")
        self._section_starts = [float(section.get("s", 0.0)) for section in self._sections]
        self._offsets = element.findall("lanes/laneOffset")

    def lanes(self, s_m: float) -> list[tuple[int, str, float, float]]:
        """(lane id, type, inner t, outer t) of every lane at s, t positive to the left; sorted from left to right."""
        index = self._section_at(s_m)
        section, ds = self._sections[index], s_m - self._section_starts[index]
        middle = _value(self._offsets, "s", s_m)
        rows = []
        for side, sign in (("left", 1), ("right", -1)):
            edge = middle
            for lane in sorted(section.findall(f"{side}/lane"), key=lambda lane: abs(int(lane.get("id", 0)))):
                outer = edge + sign * max(0.0, _value(lane.findall("width"), "sOffset", ds))
                rows.append((int(lane.get("id", 0)), lane.get("type", "none"), edge, outer))
                edge = outer
        return sorted(rows, key=lambda row: -row[0])

    def lanes_from(self, lane_ids: Iterable[int], at_end: bool, s_m: float) -> list[int]:
        """Numbers, at s, of lanes that are known by their numbers at an end of the road; a lane that begins after s has
        none there.
        """
        index = self._section_at(s_m)
        later = self._sections[:index:-1] if at_end else self._sections[:index]
        link = "predecessor" if at_end else "successor"
        found = list(lane_ids)
        for section in later:
            links = {int(lane.get("id", 0)): lane.find(f"link/{link}") for lane in section.iter("lane")}
            before = [links.get(lane_id) for lane_id in found]
            found = [int(element.get("id", 0)) for element in before if element is not None]
        return found

    def _section_at(self, s_m: float) -> int:
        return max(0, bisect.bisect_right(self._section_starts, s_m) - 1)

    def wheels(self, s_m: float) -> tuple[float, float]:
        """t of the left and right edge of what wheels may use."""
        used = [row for row in self.lanes(s_m) if row[1] in WHEEL_LANES]
        return max(max(row[2:]) for row in used), min(min(row[2:]) for row in used)


def _value(polynomials: list[ElementTree.Element], key: str, s_m: float) -> float:
    """Value of the piecewise cubic at s; 0 without any piece."""
    starts = [float(p.get(key, 0.0)) for p in polynomials]
    index = bisect.bisect_right(starts, s_m) - 1
    if index < 0:
        return 0.0
    ds, p = s_m - starts[index], polynomials[index]
    a, b, c, d = (float(p.get(k, 0.0)) for k in "abcd")
    return a + ds * (b + ds * (c + ds * d))


class _Writer:
    """Adds elements to an OpenDRIVE tree, numbering them from 1."""

    def __init__(self, root: ElementTree.Element, roads: dict[int, RoadProfile], carla_map: carla.Map) -> None:
        self._root, self._roads, self._map = root, roads, carla_map
        self._junctions = {int(e.get("id", -1)): e for e in root.findall("junction")}
        self._signals = self._controllers = self._objects = 0

    def stop_s_m(self, approach: Approach) -> float:
        """s of an arm's stop line."""
        return self._before(approach, STOP_GAP_M)

    def add_lights(self, junction: Junction) -> None:
        """Crosswalks, one signal per arm, one controller per phase."""
        for phase in junction.phases:
            self._controllers += 1
            controller = ElementTree.SubElement(
                self._root, "controller", {"name": f"ctrl{self._controllers}", "id": str(self._controllers)}
            )
            reference = {"id": str(self._controllers), "type": "0"}
            ElementTree.SubElement(self._junctions[junction.junction_id], "controller", reference)
            for approach in phase:
                gap = STOP_GAP_M
                if self._roads[approach.road_id].length_m >= SHORTEST_CROSSED_ROAD_M:
                    self._add_crosswalk(approach)
                    gap += CROSSWALK_GAP_M + CROSSWALK_DEPTH_M
                sign_id = self.add_signal(approach, LIGHT_TYPE, "Signal_3Light_Post01", self._before(approach, gap))
                ElementTree.SubElement(controller, "control", {"signalId": sign_id, "type": "0"})

    def add_signal(self, approach: Approach, kind: str, name: str, s_m: float) -> str:
        """A signal on the right of an arm, valid for all its entering lanes; returns its id."""
        self._signals += 1
        t = self._pole_t_m(approach, s_m)
        road = self._roads[approach.road_id].element
        holder = road.find("signals")
        if holder is None:
            holder = ElementTree.SubElement(road, "signals")
        attributes = {
            "s": _number(s_m), "t": _number(t), "id": str(self._signals), "name": name,
            "dynamic": "yes" if kind == LIGHT_TYPE else "no", "orientation": "+" if approach.at_end else "-",
            "zOffset": "0", "country": "OpenDRIVE", "type": kind, "subtype": "-1", "value": "-1", "hOffset": "0",
            "pitch": "0", "roll": "0", "height": "0.9", "width": "0.4",
        }  # fmt: skip
        signal = ElementTree.SubElement(holder, "signal", attributes)
        lanes = self._roads[approach.road_id].lanes_from(approach.lane_ids, approach.at_end, s_m) or approach.lane_ids
        low, high = min(lanes), max(lanes)
        ElementTree.SubElement(signal, "validity", {"fromLane": str(low), "toLane": str(high)})
        return str(self._signals)

    def _before(self, approach: Approach, gap_m: float) -> float:
        """s of a place before the junction; on a very short road, its middle."""
        gap_m = min(gap_m, self._roads[approach.road_id].length_m / 2)
        return approach.end_s_m - gap_m if approach.at_end else approach.end_s_m + gap_m

    def _pole_t_m(self, approach: Approach, s_m: float) -> float:
        """Beside the road on the right of entering traffic, clear of every other lane as far as possible."""
        left, right = self._roads[approach.road_id].wheels(s_m)
        edge, outwards = (right, -1) if approach.at_end else (left, 1)
        lane = approach.ends[-1]
        # a lane may begin, or get its number, between there and the junction
        place = self._map.get_waypoint_xodr(approach.road_id, lane.lane_id, s_m) or lane
        rows = {row[0]: row for row in self._roads[approach.road_id].lanes(place.s)}
        _, _, inner, outer = rows[lane.lane_id]
        middle, side = place.transform.location, place.transform.get_right_vector()
        for step in range(POLE_TRIES):
            t = edge + outwards * (POLE_GAP_M + step * POLE_STEP_M)
            reach = abs(t - (inner + outer) / 2)
            there = carla.Location(middle.x + reach * side.x, middle.y + reach * side.y, middle.z)
            if not on_road(self._map, there):
                return t
        return edge + outwards * POLE_GAP_M

    def _add_crosswalk(self, approach: Approach) -> None:
        """A crosswalk over the whole road, kerb to kerb."""
        road = self._roads[approach.road_id]
        s_m = self._before(approach, CROSSWALK_GAP_M + CROSSWALK_DEPTH_M / 2)
        left, right = road.wheels(s_m)
        self._objects += 1
        holder = road.element.find("objects")
        if holder is None:
            holder = ElementTree.SubElement(road.element, "objects")
        attributes = {
            "id": str(self._objects), "name": "SimpleCrosswalk", "type": "crosswalk", "s": _number(s_m),
            "t": _number((left + right) / 2), "zOffset": "0", "orientation": "none", "hdg": "0", "pitch": "0",
            "roll": "0", "width": _number(left - right), "length": _number(CROSSWALK_DEPTH_M),
        }  # fmt: skip
        outline = ElementTree.SubElement(ElementTree.SubElement(holder, "object", attributes), "outline")
        half_u, half_v = CROSSWALK_DEPTH_M / 2, (left - right) / 2
        for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)):
            corner = {"u": _number(u * half_u), "v": _number(v * half_v), "z": "0"}
            ElementTree.SubElement(outline, "cornerLocal", corner)


def _number(value: float) -> str:
    """Millimetres are enough, and the same on every platform."""
    return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")
