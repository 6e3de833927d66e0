"""Signals of towns, ours and foreign ones. Oracles: CARLA's own map, and shapely for crossing ways."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

carla = pytest.importorskip("carla")
shapely = pytest.importorskip("shapely")

from carla_bridge.server.actors.signals import Signal, SignalControl, trigger_middle  # noqa: E402
from carla_bridge.server.geometry.scene import SignalKind  # noqa: E402
from carla_bridge.server.town.opendrive_signals import Control, RoadProfile, _Writer, has_signals, with_signals  # noqa: E402
from carla_bridge.server.town.road_signals import SignalSpec  # noqa: E402
from carla_bridge.server.town.signal_reader import read_signals  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from carla_bridge.server.town.town_library import SHIPPED_FOLDER  # noqa: E402

pytestmark = pytest.mark.carla
LIGHTS = {"Town01": 36, "Town02": 24, "Town03": 44, "Town05": 73, "Wamtown02": 21, "Wamtown03": 22}
SIGNS = {"Town01": 0, "Town02": 0, "Town03": 8, "Town05": 1, "Wamtown02": 8, "Wamtown03": 6}
Lane = tuple[int, int]


@pytest.fixture(scope="module", params=sorted(LIGHTS))
def town(request: pytest.FixtureRequest) -> Town:
    if request.param.startswith("Wamtown"):
        return Town.load(request.param)
    return Town.load(request.getfixturevalue("shared_data") / "opendrive" / f"{request.param}.xodr")


def entries(town: Town) -> dict[int, dict[Lane, list[carla.Waypoint]]]:
    """By junction and entering lane: where its ways through begin."""
    found: dict[int, dict[Lane, list[carla.Waypoint]]] = defaultdict(lambda: defaultdict(list))
    for before, inside in town.map.get_topology():
        if inside.is_junction and not before.is_junction:
            found[inside.get_junction().id][before.road_id, before.lane_id].append(inside)
    return found


def way(start: carla.Waypoint) -> shapely.LineString:
    """Middle of a way, to the end of its lane."""
    places = [w.transform.location for w in (start, *start.next_until_lane_end(0.5))]
    return shapely.LineString([(p.x, p.y) for p in places])


def lights(town: Town) -> list[SignalSpec]:
    return [spec for spec in town.signals if spec.kind is SignalKind.TRAFFIC_LIGHT]


def test_number_of_signals(town: Town) -> None:
    assert len(lights(town)) == LIGHTS[town.name]
    assert len(town.signals) - len(lights(town)) == SIGNS[town.name]


def test_every_lane_into_a_lit_junction_has_exactly_one_light(town: Town) -> None:
    governed: dict[Lane, list[SignalSpec]] = defaultdict(list)
    for spec in lights(town):
        for stop in spec.stops:
            governed[stop.road_id, stop.lane_id].append(spec)
    lit = {spec.junction_id for spec in lights(town)}
    for junction_id, lanes in entries(town).items():
        for lane in lanes:
            if junction_id in lit:
                assert [spec.junction_id for spec in governed.pop(lane)] == [junction_id]
    assert not governed


def test_ids_are_those_of_the_landmarks(town: Town) -> None:
    for kind, number in ((SignalKind.TRAFFIC_LIGHT, "1000001"), (SignalKind.STOP, "206")):
        ids = {landmark.id for landmark in town.map.get_all_landmarks_of_type(number)}
        assert {spec.sign_id for spec in town.signals if spec.kind is kind} == ids


def test_ways_that_are_green_together_cross_only_where_a_left_turn_meets_oncoming_traffic(town: Town) -> None:
    ways = entries(town)
    crossings = 0
    for a in lights(town):
        for b in lights(town):
            if a.sign_id >= b.sign_id or (a.junction_id, a.phase) != (b.junction_id, b.phase):
                continue
            oncoming = math.cos(math.radians(a.yaw_deg - b.yaw_deg)) < -0.7
            for start_a in (w for stop in a.stops for w in ways[a.junction_id][stop.road_id, stop.lane_id]):
                for start_b in (w for stop in b.stops for w in ways[b.junction_id][stop.road_id, stop.lane_id]):
                    if way(start_a).distance(way(start_b)) < 1.0:
                        crossings += 1
                        assert oncoming, (a, b)
                        assert turns_left(start_a) or turns_left(start_b), (a, b)
    assert crossings > 0  # the permissive rule is in use


def turns_left(start: carla.Waypoint) -> bool:
    end = start.next_until_lane_end(0.5)[-1]
    turn = math.remainder(end.transform.rotation.yaw - start.transform.rotation.yaw, 360)
    return turn < -30


def test_stop_lines_lie_shortly_before_the_junction(town: Town) -> None:
    for spec in town.signals:
        for stop in spec.stops:
            place = town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
            assert not place.is_junction
            following = place.next(5.5)
            assert following
            assert {w.junction_id for w in following if w.is_junction} == {spec.junction_id}


def test_poles_stand_beside_the_roads_near_their_stop_lines(town: Town) -> None:
    for spec in town.signals:
        assert len(spec.posts) == (2 if spec.kind is SignalKind.TRAFFIC_LIGHT else 1)  # near and far
        for post in spec.posts:
            foot = carla.Location(*post.foot_m)
            assert town.map.get_waypoint(foot, project_to_road=False) is None, spec
            assert foot.distance(carla.Location(*spec.pose.location)) < 55


def test_trigger_volumes_show_the_leaderboard_the_lanes_that_they_stop(town: Town) -> None:
    """Its red-light test walks from points along the volume's x axis to the junction (RunningRedLightTest)."""
    for spec in lights(town):
        signal = SignalControl([spec], lambda: 1).actors[0]
        middle, (half_width, half_length, _) = carla.Location(*trigger_middle(signal)), spec.trigger[1]
        yaw = math.radians(signal.pose.yaw)
        found = set()
        for x in np.arange(-0.9 * half_width, 0.9 * half_width, 1.0):
            place = town.map.get_waypoint(middle + carla.Location(x * math.cos(yaw), x * math.sin(yaw), 0.0))
            while not place.is_junction:
                last, place = place, place.next(0.5)[0]
            found.add((last.road_id, last.lane_id))
            assert last.transform.location.distance(middle) < 15.0  # else its test does not look at this light
        assert found == {(stop.road_id, stop.lane_id) for stop in spec.stops}
        assert 4.5 < half_length < 8.6


def test_stopped_car_is_within_reach_of_its_stop_sign_and_oncoming_traffic_is_not(town: Town) -> None:
    """The leaderboard looks 4 m ahead along the lane, in a box along the world's axes (RunningStopTest)."""

    def affected(place: carla.Waypoint, signal: Signal) -> bool:
        x, y, z = trigger_middle(signal)
        if place.transform.location.distance(carla.Location(x, y, z)) > 4.0:
            return False
        half_x, half_y = (1.2 * half for half in signal.spec.trigger[1][:2])
        ahead = [place, *(w for k in range(1, 9) for w in place.next(0.5 * k)[:1])]
        spots = [w.transform.location for w in ahead]
        return any(abs(spot.x - x) < half_x and abs(spot.y - y) < half_y for spot in spots)

    for spec in town.signals:
        if spec.kind is not SignalKind.STOP:
            continue
        signal = SignalControl([spec], lambda: 1).actors[0]
        for stop in spec.stops:
            line = town.map.get_waypoint_xodr(stop.road_id, stop.lane_id, stop.s_m)
            for gap in (0.2, 1.0):  # from the car's front, 2.45 m before its middle, to the line
                assert affected(line.previous(2.45 + gap)[0], signal), spec
            assert not affected(line.previous(9.0)[0], signal)
            assert not any(affected(place, signal) for place in line.next(6.0))
        opposite = town.map.get_waypoint_xodr(stop.road_id, -1 if stop.lane_id > 0 else 1, stop.s_m)
        if opposite is not None and opposite.lane_type == carla.LaneType.Driving:
            assert not affected(opposite, signal)


def test_crosswalks_lie_before_lit_junctions(town: Town) -> None:
    corners = town.map.get_crosswalks()
    assert len(corners) % 5 == 0
    assert len(corners) > 5 * 20
    for i in range(0, len(corners), 5):
        assert corners[i].distance(corners[i + 4]) < 1e-3
        sides = [corners[i + k].distance(corners[i + k + 1]) for k in range(4)]
        assert min(sides) == pytest.approx(3.0, abs=0.01)
        middle = carla.Location(*(sum(getattr(c, axis) for c in corners[i : i + 4]) / 4 for axis in "xyz"))
        assert town.map.get_waypoint(middle).transform.location.distance(middle) < 8


def test_junctions_without_light_stop_the_minor_arms_of_a_t(shared_data: Path) -> None:
    roads = (shared_data / "opendrive" / "Town03.xodr").read_text()
    town = Town.load(shared_data / "opendrive" / "Town03.xodr")
    stopped = {(stop.road_id, stop.lane_id) for spec in town.signals for stop in spec.stops} - {
        (stop.road_id, stop.lane_id) for spec in lights(town) for stop in spec.stops
    }
    # 490 is a T of roads 56, 57 and 90, and 90 ends there; 222 is the four-armed one of Bench2Drive's route 26990
    assert (90, -1) in stopped
    assert not {(56, -1), (57, 1)} & stopped
    assert len(stopped & {(19, 1), (18, -1), (49, -1), (50, 1)}) == 2
    assert not has_signals(roads)
    assert has_signals(town.opendrive)


def test_chosen_controls_replace_the_rule_and_the_text_is_reproducible() -> None:
    roads = (SHIPPED_FOLDER / "Wamtown01.xodr").read_text(encoding="utf-8")
    text = with_signals("x", roads, {1004: Control.LIGHTS, 1000: Control.STOP_SIGNS})
    assert text == with_signals("x", roads, {1004: Control.LIGHTS, 1000: Control.STOP_SIGNS})
    specs = Town.from_opendrive("x", text).signals
    assert {(spec.junction_id, spec.kind) for spec in specs} == {
        (1004, SignalKind.TRAFFIC_LIGHT),
        (1000, SignalKind.STOP),
    }


def test_signals_of_a_file_are_kept_and_lanes_of_signals_inside_a_junction_are_found(tmp_path: Path) -> None:
    """As in CARLA's own towns, a reference on a connecting road stands for the lanes that lead there."""
    roads = (SHIPPED_FOLDER / "Wamtown01.xodr").read_text(encoding="utf-8")
    inside = next(i for i in Town.from_opendrive("x", roads).map.get_topology() if i[1].get_junction() is not None)[1]
    before = inside.previous(1.0)[0]
    signal = (
        '<signals><signal s="0.5" t="-4" id="77" name="own" dynamic="yes" orientation="+" zOffset="0" country="X"'
        ' type="1000001" subtype="-1" value="-1"><validity fromLane="-1" toLane="-1"/></signal></signals>'
    )
    start = roads.index(f'id="{inside.road_id}" junction="{inside.junction_id}"')
    end = roads.index("</road>", start)
    (tmp_path / "own.xodr").write_text(roads[:end] + signal + roads[end:], encoding="utf-8")
    (spec,) = Town.load(tmp_path / "own.xodr").signals
    assert spec.sign_id == "77"
    assert spec.junction_id == inside.junction_id
    assert [(stop.road_id, stop.lane_id) for stop in spec.stops] == [(before.road_id, before.lane_id)]


def test_signal_in_a_junction_whose_ways_form_a_ring_governs_nothing() -> None:
    steps = itertools.count()

    def previous(distance_m: float) -> list:
        assert next(steps) < 1000
        return [ring]

    ring = SimpleNamespace(is_junction=True, lane_type=carla.LaneType.Driving, road_id=1, lane_id=-1, previous=previous)
    landmark = SimpleNamespace(
        type="1000001", id="5", road_id=1, s=3.0, orientation=carla.LandmarkOrientation.Positive,
        get_lane_validities=lambda: [(-1, -1)],
    )  # fmt: skip
    carla_map = SimpleNamespace(get_all_landmarks=lambda: [landmark], get_waypoint_xodr=lambda road, lane, s: ring)
    assert read_signals("<OpenDRIVE/>", carla_map) == ()


def test_pole_stands_beside_a_road_whose_lanes_get_their_numbers_just_before_the_junction() -> None:
    def section(s_m: float, *lanes: tuple[int, float]) -> str:
        rows = "".join(
            f'<lane id="{i}" type="driving"><width sOffset="0" a="{w}" b="0" c="0" d="0"/></lane>' for i, w in lanes
        )
        return f'<laneSection s="{s_m}"><right>{rows}</right></laneSection>'

    road = ElementTree.fromstring(
        f'<road id="7" length="50"><lanes>{section(0, (-1, 3.5))}{section(49, (-1, 3.0), (-2, 3.5))}</lanes></road>'
    )
    pose = SimpleNamespace(location=carla.Location(50.0, 4.75, 0.0), get_right_vector=lambda: carla.Vector3D(0, 1, 0))
    end = SimpleNamespace(lane_id=-2, s=50.0, transform=pose)
    nowhere = SimpleNamespace(get_waypoint_xodr=lambda *place: None, get_waypoint=lambda *place, **options: None)
    writer = _Writer(ElementTree.Element("OpenDRIVE"), {7: RoadProfile(road)}, nowhere)
    approach = SimpleNamespace(road_id=7, at_end=True, end_s_m=50.0, ends=(end,), lane_ids=(-2,))
    writer.add_signal(approach, "206", "Sign_Stop", 45.0)
    assert float(road.find("signals/signal").get("t")) == pytest.approx(-3.5 - 0.8)


def test_shipped_first_town_has_none() -> None:
    assert Town.load("Wamtown01").signals == ()


def renumbered(opendrive: str, road_id: int, length_m: float) -> str:
    """The file with a lane section more at the end of a road, where every lane has the next number outwards."""
    root = ElementTree.fromstring(opendrive)
    road = next(road for road in root.findall("road") if road.get("id") == str(road_id))
    sections = road.find("lanes")
    (first,) = sections.findall("laneSection")
    last = copy.deepcopy(first)
    last.set("s", str(float(road.get("length")) - length_m))
    sections.append(last)
    for section, here, there in ((first, 0, 1), (last, 1, 0)):
        for lane in (*section.findall("left/lane"), *section.findall("right/lane")):
            lane_id = int(lane.get("id"))
            outwards = int(math.copysign(1, lane_id))
            lane.set("id", str(lane_id + here * outwards))
            link = lane.find("link")
            link = ElementTree.Element("link") if link is None else link
            for name in ("predecessor", "successor"):
                other = link.find(name)
                if (name == "successor") is (section is first):
                    if other is None:
                        other = ElementTree.SubElement(link, name)
                    other.set("id", str(lane_id + there * outwards))
            if lane.find("link") is None:
                lane.insert(0, link)
    for side, lane_id in (("left", 1), ("right", -1)):
        edge = last.find(side)
        if edge is not None:
            narrow = ElementTree.SubElement(edge, "lane", {"id": str(lane_id), "type": "none", "level": "false"})
            ElementTree.SubElement(narrow, "width", {"sOffset": "0", "a": "0.02", "b": "0", "c": "0", "d": "0"})
            edge[:] = sorted(edge, key=lambda lane: -int(lane.get("id")))
    for junction in root.findall("junction"):
        for connection in junction.findall("connection"):
            if connection.get("incomingRoad") == str(road_id):
                for link in connection.findall("laneLink"):
                    start = int(link.get("from"))
                    link.set("from", str(start + int(math.copysign(1, start))))
    for other in root.findall("road"):
        for end in ("predecessor", "successor"):
            joint = other.find(f"link/{end}")
            if joint is not None and joint.get("elementId") == str(road_id) and joint.get("contactPoint") == "end":
                for link in other.iterfind(f"lanes/laneSection/*/lane/link/{end}"):
                    start = int(link.get("id"))
                    link.set("id", str(start + int(math.copysign(1, start))))
    return ElementTree.tostring(root, encoding="unicode")


def test_light_before_a_change_of_lane_numbers_governs_the_lanes_that_lead_on_to_the_junction() -> None:
    plain = (SHIPPED_FOLDER / "Wamtown01.xodr").read_text(encoding="utf-8")
    ways = Town.from_opendrive("x", plain).map.get_topology()
    lit = next(a for a, b in ways if b.is_junction and not a.is_junction and a.lane_id < 0)
    text = renumbered(plain, lit.road_id, 3.0)
    carla_map = carla.Map("x", text)
    entering = {
        (before.road_id, before.lane_id): inside.junction_id
        for before, inside in carla_map.get_topology()
        if inside.is_junction and before.road_id == lit.road_id and before.lane_id < 0
    }
    assert set(entering) == {(lit.road_id, lit.lane_id - 1)}
    (junction_id,) = entering.values()
    signalled = with_signals("x", text, {junction_id: Control.LIGHTS})
    town = Town.from_opendrive("x", signalled)
    control = SignalControl(town.signals, itertools.count(1).__next__)
    (stop,) = [stop for spec in lights(town) for stop in spec.stops if stop.road_id == lit.road_id]
    assert (stop.lane_id, stop.end_lane_id) == (lit.lane_id, lit.lane_id - 1)
    light = control.light_for(lit.road_id, lit.lane_id - 1)
    assert light is not None
    assert light.junction_id == junction_id
