"""Turns of the ways through junctions. Oracles: curvatures as the OpenDRIVE text has them, and the unsplit road."""

from __future__ import annotations

import copy
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.routes.lane_graph import LaneGraph  # noqa: E402
from carla_bridge.server.traffic.network import RoadNetwork  # noqa: E402

pytestmark = pytest.mark.carla
CUTS = (0.05, 0.3, 0.7)  # where new lane sections begin, as shares of a road's length


def bends_rad(root: ElementTree.Element) -> dict[int, float]:
    """Change of heading along each junction road's reference line, counterclockwise positive, by its arcs."""
    return {
        int(road.get("id", 0)): sum(
            float(arc.get("curvature", 0)) * float(piece.get("length", 0))
            for piece in road.iter("geometry") for arc in piece.iter("arc")
        )
        for road in root.iter("road") if road.get("junction") != "-1"
    }


@pytest.mark.parametrize("name", ["Town01", "Town02", "Town03", "Town05"])
def test_the_turn_of_a_way_is_that_of_all_its_sections(shared_data, name):
    text = (shared_data / "opendrive" / f"{name}.xodr").read_text(encoding="utf-8")
    graph = LaneGraph(carla.Map(name, text))
    ways = {key: lane for key, lane in graph.lanes.items() if lane.in_junction}
    bends = bends_rad(ElementTree.fromstring(text))
    sections = Counter((road, np.sign(lane)) for road, _, lane in ways)
    assert max(sections.values()) > 1
    for key in ways:
        # CARLA's y is turned over; lanes with positive ids lead against their road's direction
        expected = -bends[key[0]] if key[2] < 0 else bends[key[0]]
        apart = (graph.turn_rad(key) - expected + np.pi) % (2 * np.pi) - np.pi
        assert abs(apart) < 0.4, (key, graph.turn_rad(key), expected)  # chords of 1 m, and lanes that widen


def split(opendrive: str) -> str:
    """The same town, with several lane sections on every junction road."""
    root = ElementTree.fromstring(opendrive)
    for road in root.iter("road"):
        if road.get("junction") == "-1":
            continue
        lanes = road.find("lanes")
        (first,) = lanes.findall("laneSection")
        parts = [first, *(copy.deepcopy(first) for _ in CUTS)]
        for part, share in zip(parts[1:], CUTS, strict=True):
            part.set("s", str(share * float(road.get("length"))))
            lanes.append(part)
        for number, part in enumerate(parts):
            for lane in part.iter("lane"):
                link = lane.find("link")
                for name, at_end in (("predecessor", number == 0), ("successor", number == len(parts) - 1)):
                    if link is not None and not at_end:
                        found = link.find(name)
                        (ElementTree.SubElement(link, name) if found is None else found).set("id", lane.get("id"))
    return ElementTree.tostring(root, encoding="unicode")


def test_more_sections_change_no_turn(wamtown):
    text = split(wamtown.opendrive)
    whole, parts = (RoadNetwork(carla.Map("Town", t), t, ()) for t in (wamtown.opendrive, text))
    turns = {key[::2]: lane.turn for key, lane in whole.lanes.items() if lane.in_junction}
    assert {-1, 0, 1} == set(turns.values())
    found = Counter((*key[::2], lane.turn) for key, lane in parts.lanes.items() if lane.in_junction)
    assert found == {(*key, turn): 1 + len(CUTS) for key, turn in turns.items()}


def test_one_goes_straight_on_where_the_first_sections_are_all_straight(wamtown):
    whole, parts = (LaneGraph(carla.Map("Town", text)) for text in (wamtown.opendrive, split(wamtown.opendrive)))
    branching = [
        key for key, lane in whole.lanes.items()
        if len(lane.successors) > 1 and min(abs(whole.turn_rad(way)) for way in lane.successors) < 0.2
    ]
    assert len(branching) > 5
    for key in branching:
        chosen = [{piece.key[0] for piece in graph.follow((key, 0.0), graph.lanes[key].length_m + 5.0)}
                  for graph in (whole, parts)]
        assert chosen[0] == chosen[1]
