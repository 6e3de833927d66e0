"""Route files: what is read of scenarios and weather, and what a wrong one is answered. Oracle: the XML itself."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from carla_bridge.routes.route_file import load_routes
from wamdiff2_core.errors import UserError

POSITIONS = '<position x="0" y="0" z="0"/><position x="5" y="0" z="0"/>'
HEAD = f'<routes><route id="7" town="T"><waypoints>{POSITIONS}</waypoints>'
TRIGGER = '<trigger_point x="1" y="2" z="3" yaw="90"/>'


def write(folder: Path, scenarios: str = "", weathers: str = "") -> Path:
    file = folder / "routes.xml"
    file.write_text(
        f"{HEAD}<scenarios>{scenarios}</scenarios><weathers>{weathers}</weathers></route></routes>", encoding="utf-8"
    )
    return file


def test_all_scenarios_and_weathers_of_bench2drive_are_read_as_they_stand(shared_data):
    file = shared_data / "bench2drive" / "bench2drive220.xml"
    routes = load_routes(file)
    for route, element in zip(routes, ElementTree.parse(file).getroot(), strict=True):
        for scenario, item in zip(route.scenarios, element.iter("scenario"), strict=True):
            assert (scenario.name, scenario.type) == (item.get("name"), item.get("type"))
            assert scenario.trigger.yaw_deg == float(item.find("trigger_point").attrib["yaw"])
            assert {tag: dict(values) for tag, values in scenario.parameters.items()} == {
                child.tag: child.attrib for child in item if child.tag != "trigger_point"
            }
        for weather, item in zip(route.weathers, element.iter("weather"), strict=True):
            assert {"route_percentage": weather.route_pct, **weather.values} == {
                key: float(value) for key, value in item.attrib.items()
            }
    assert len({scenario.type for route in routes for scenario in route.scenarios}) == 44


def test_a_route_may_have_many_scenarios_and_no_weather(shared_data):
    first, second = load_routes(shared_data / "bench2drive" / "routes_devtest.xml")
    assert (len(first.scenarios), len(second.scenarios)) == (68, 51)
    old = load_routes(shared_data / "bench2drive" / "bench2drive_0.0.4_val.xml")
    assert sum(not route.weathers for route in old) == 4


def test_parameters_are_asked_for_with_their_type(tmp_path):
    scenario = load_routes(write(tmp_path, (
        f'<scenario name="A_1" type="A">{TRIGGER}<distance value="40"/><frequency from="3" to="8"/>'
        '<speed value="12"/><direction value="left"/><end x="1" y="-2" z="0.5"/></scenario>'
    )))[0].scenarios[0]
    assert scenario.number("distance") == 40.0
    assert scenario.number("offset", 0.25) == 0.25
    assert scenario.interval("frequency") == (3.0, 8.0)
    assert scenario.interval("speed") == (12.0, 12.0)
    assert scenario.choice("direction", ("left", "right")) == "left"
    assert scenario.location("end").tolist() == [1.0, -2.0, 0.5]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.number("distance"), "route 7: scenario A_1: distance: expected a number value, got far"),
        (lambda s: s.number("offset"), "scenario A_1: offset: expected an element <offset value=.../>, got none"),
        (lambda s: s.interval("frequency"), "expected from <= to, got from 9 to 8"),
        (lambda s: s.choice("direction", ("left", "right")), "expected one of left, right, got up"),
        (lambda s: s.location("end"), "end: expected a number z, got none"),
    ],
)
def test_a_wrong_parameter_is_named(tmp_path, ask, message):
    scenario = load_routes(write(tmp_path, (
        f'<scenario name="A_1" type="A">{TRIGGER}<distance value="far"/><frequency from="9" to="8"/>'
        '<direction value="up"/><end x="1" y="-2"/></scenario>'
    )))[0].scenarios[0]
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(".", r"\.")):
        ask(scenario)


@pytest.mark.parametrize(
    ("scenarios", "weathers", "message"),
    [
        (f'<scenario name="A_1">{TRIGGER}</scenario>', "", "scenario A_1: expected an attribute type"),
        ('<scenario name="A_1" type="A"/>', "", "expected one <trigger_point/>, got 0"),
        ('<scenario name="A_1" type="A"><trigger_point x="1" y="2" z="3"/></scenario>', "", "a number yaw, got none"),
        ("", '<weather cloudiness="1"/>', "routes.xml: route 7: weather 1: expected a number route_percentage"),
        ("", '<weather route_percentage="120"/>', "route 7: weather 1: route_percentage: expected 0 to 100, got 120"),
        ("", '<weather route_percentage="0" clouds="1"/>', "did you mean 'cloudiness'"),
        ("", '<weather route_percentage="0" wetness="nan"/>', "route 7: weather 1: expected a finite wetness"),
        ("", 2 * '<weather route_percentage="0"/>', "route 7: weathers: expected different route percentages"),
    ],
)
def test_a_malformed_scenario_or_weather_is_named(tmp_path, scenarios, weathers, message):
    with pytest.raises(UserError, match=message):
        load_routes(write(tmp_path, scenarios, weathers))
