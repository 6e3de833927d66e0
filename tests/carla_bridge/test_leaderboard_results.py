"""Result files: real ones come back as they were written, infractions survive as text, bad files say what is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.leaderboard.infractions import FACTORS, Infraction, InfractionKind, penalty
from carla_bridge.leaderboard.results import (
    EMBEDDED_WORLD,
    EntryStatus,
    LeaderboardResults,
    RecordError,
    ResultsFileError,
    RouteRecord,
    RouteStatus,
)

PLACE = (1.0, -2.5, 0.125)


def record(**changes):
    data = {
        "index": 0,
        "route_id": "RouteScenario_1711_rep0",
        "status": "Completed",
        "infractions": {},
        "scores": {"score_route": 100, "score_penalty": 1.0, "score_composed": 100.0},
    }
    return data | changes


def text_of(*records, **top):
    return json.dumps({"_checkpoint": {"records": list(records)}, **top})


@pytest.mark.parametrize("number", range(4))
def test_a_real_shard_is_written_as_bench2drive_wrote_it(shared_data, tmp_path, number):
    original = shared_data / "results" / "pdm_lite" / f"eval_bench2drive220_{number}.json"
    LeaderboardResults.load(original).save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(original.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["again.json"]


def test_merged_form_is_recognised(shared_data):
    merged = LeaderboardResults.load(shared_data / "results" / "zoo" / "UniAD-Tiny.json")
    assert merged.merged
    assert len(merged.records) == 215
    assert {record.index for record in merged.records} == {None}


def test_every_real_infraction_text_is_understood(shared_data):
    for path in (*shared_data.glob("results/pdm_lite/merged.json"), *shared_data.glob("results/zoo/*.json")):
        for route in LeaderboardResults.load(path).records:
            for entry in route.infractions:
                assert entry.factor is not None
                if "=" in entry.text or "light" in entry.text:
                    assert entry.carla_xyz_m is not None
                if entry.kind == InfractionKind.MIN_SPEED:
                    assert entry.percentage is not None


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        (
            Infraction.collision("vehicle.audi.tt", 12, PLACE),
            "collisions_vehicle",
            "Agent collided against object with type=vehicle.audi.tt and id=12 at (x=1.0, y=-2.5, z=0.125)",
        ),
        (
            Infraction.collision("static.prop.trafficwarning", 3, PLACE),
            "collisions_layout",
            "Agent collided against object with type=static.prop.trafficwarning and id=3 at (x=1.0, y=-2.5, z=0.125)",
        ),
        (Infraction.collision("walker.pedestrian.0013", 3, PLACE), "collisions_pedestrian", None),
        (Infraction.red_light(7, PLACE), "red_light", "Agent ran a red light 7 at (x=1.0, y=-2.5, z=0.125)"),
        (Infraction.stop_sign(7, PLACE), "stop_infraction", "Agent ran a stop with id=7 at (x=1.0, y=-2.5, z=0.125)"),
        (
            Infraction.outside_lanes(4.2512, 99.3),
            "outside_route_lanes",
            "Agent went outside its route lanes for about 4.251 meters (4.28% of the completed route)",
        ),
        (
            Infraction.min_speed(83.4),
            "min_speed_infractions",
            "Average speed is 83.4% of the surrounding traffic's one",
        ),
        (Infraction.blocked(PLACE), "vehicle_blocked", "Agent got blocked at (x=1.0, y=-2.5, z=0.125)"),
        (Infraction.deviation(PLACE), "route_dev", "Agent deviated from the route at (x=1.0, y=-2.5, z=0.125)"),
        (
            Infraction.yield_to_emergency(),
            "yield_emergency_vehicle_infractions",
            "Agent failed to yield to an emergency vehicle",
        ),
        (Infraction.scenario_timeout(), "scenario_timeouts", "Agent timed out a scenario"),
        (Infraction.route_timeout(), "route_timeout", "Route timeout."),
    ],
)
def test_texts_have_the_leaderboards_words(entry, kind, text):
    assert entry.kind == kind
    assert text is None or entry.text == text
    again = Infraction.read(kind, entry.text)
    assert again.other_id == entry.other_id
    assert again.carla_xyz_m == entry.carla_xyz_m
    assert again.factor == pytest.approx(entry.factor, abs=1e-4)


def test_a_touched_sidewalk_is_no_infraction():
    assert Infraction.collision("static.sidewalk", 0, PLACE) is None


metres = st.floats(0.001, 5000.0)


@given(metres, st.floats(1.0, 5000.0), st.floats(0.0, 99.99))
def test_lanes_left_can_be_computed_again_within_the_stated_tolerance(outside_m, driven_m, completion_pct):
    driven = RouteRecord.of_drive("1", round(completion_pct, 2), [Infraction.outside_lanes(outside_m, driven_m)])
    again = RouteRecord.from_json(json.loads(json.dumps(driven.to_json(0))))
    value, tolerance = again.recomputed()
    assert abs(value - driven.score_composed) <= tolerance
    assert tolerance < 0.006


@given(st.lists(st.sampled_from([k for k in InfractionKind if k in FACTORS])), st.integers(0, 10000))
def test_a_record_survives_its_file(kinds, hundredths):
    makers = {
        "collisions_layout": lambda: Infraction.collision("static.pole", 0, PLACE),
        "collisions_pedestrian": lambda: Infraction.collision("walker.pedestrian.0001", 5, PLACE),
        "collisions_vehicle": lambda: Infraction.collision("vehicle.audi.tt", 5, PLACE),
        "red_light": lambda: Infraction.red_light(5, PLACE),
        "stop_infraction": lambda: Infraction.stop_sign(5, PLACE),
        "min_speed_infractions": lambda: Infraction.min_speed(120.0),
        "yield_emergency_vehicle_infractions": Infraction.yield_to_emergency,
        "scenario_timeouts": Infraction.scenario_timeout,
        "route_dev": lambda: Infraction.deviation(PLACE),
        "vehicle_blocked": lambda: Infraction.blocked(PLACE),
        "route_timeout": Infraction.route_timeout,
    }
    made = RouteRecord.of_drive(
        "17", hundredths / 100, [makers[kind]() for kind in kinds], RouteStatus.BLOCKED, repetition=2, town="Town05",
        scenario_name="Accident_1", weather_id="3", save_name="x", route_length_m=80.0, world=EMBEDDED_WORLD,
    )
    results = LeaderboardResults.of_run([made], 1, world=EMBEDDED_WORLD)
    (again,) = LeaderboardResults.parse(json.dumps(results.to_json())).records
    assert again == replace(made, index=0)


def test_status_and_scores_of_a_drive():
    hit = Infraction.collision("vehicle.audi.tt", 5, PLACE)
    stop = Infraction.stop_sign(5, PLACE)
    crashed = RouteRecord.of_drive("1", 72.4, [hit, stop], RouteStatus.TICK_LIMIT)
    assert (crashed.status, crashed.score_composed, crashed.success) == ("Failed - TickRuntime", 34.752, False)
    slow = RouteRecord.of_drive("1", 100, [Infraction.min_speed(100.0)])
    assert (slow.status, slow.score_composed, slow.success) == ("Completed", 100.0, True)
    outside = RouteRecord.of_drive("1", 100, [Infraction.outside_lanes(3.0, 120.0)])
    assert (outside.status, outside.score_composed, outside.success) == ("Completed", 97.5, False)
    assert RouteRecord.of_drive("1", 100, []).status == RouteStatus.PERFECT


def test_lanes_left_for_more_than_the_route_cost_everything_but_no_more():
    assert RouteRecord.of_drive("1", 50.0, [Infraction.outside_lanes(90.0, 60.0)]).score_composed == 0.0


def test_an_unknown_kind_of_infraction_has_no_factor_and_is_no_success():
    entry = Infraction.read("parked_badly", "Agent parked badly")
    assert penalty([entry]) is None
    odd = RouteRecord.from_json(record(infractions={"parked_badly": ["Agent parked badly"]}))
    assert not odd.success
    assert odd.recomputed() is None
    assert odd.to_json(0)["infractions"]["parked_badly"] == ["Agent parked badly"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"_checkpoint": {"records": [', "is cut off in line 1"),
        *((text, "is cut off in line 1") for text in (
            "{", '{"a', '{"a": tr', '{"a": -', '{"a": 1.', '{"a": 1e-', '{"a": "\\u12', '{"a": "\\', '{"a": 1,',
        )),
        ('{"a": 1}\n, "b"}', "is not JSON"),
        *((text, "is not JSON") for text in (
            "hello world", "<html><body></body></html>", "Traceback (most recent call last):", "{hello", '{"a": yes',
            "route: 7", "[1, 2",
        )),
        ('{"Overtaking": 0.9, "mean": 0.9}', "no leaderboard results"),
        ("[1, 2]", "no leaderboard results"),
        ('{"_checkpoint": {"records": 3}}', "no leaderboard results"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_result_file_says_so(text, reason):
    with pytest.raises(ResultsFileError, match=reason):
        LeaderboardResults.parse(text)


def test_bytes_are_not_text(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultsFileError, match="not text"):
        LeaderboardResults.load(tmp_path / "a.json")


def test_every_way_of_cutting_a_real_file_off_is_noticed(shared_data):
    text = (shared_data / "results" / "pdm_lite" / "eval_bench2drive220_1.json").read_text().rstrip()
    for length in [*range(1, len(text), 1009), len(text) - 1]:
        with pytest.raises(ResultsFileError, match=r"cut off|is empty"):
            LeaderboardResults.parse(text[:length])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scores": {"score_route": math.nan, "score_penalty": 1.0, "score_composed": 1.0}}, "score_route.*NaN"),
        ({"scores": {"score_route": 1.0, "score_penalty": 1.5, "score_composed": 1.0}}, "score_penalty.*from 0 to 1"),
        ({"scores": {"score_route": 1.0, "score_penalty": 1.0, "score_composed": -1}}, "score_composed.*-1"),
        ({"scores": {"score_route": True, "score_penalty": 1.0, "score_composed": 1}}, "score_route.*true"),
        ({"scores": {"score_route": 1.0}}, "score_penalty.*none"),
        ({"scores": None}, "scores"),
        ({"infractions": []}, "infractions"),
        ({"infractions": {"red_light": "x"}}, "infractions.red_light"),
        ({"route_id": None}, "route_id"),
        ({"status": None}, "status"),
    ],
)
def test_a_record_that_cannot_be_used_says_why_and_leaves_the_others(changes, reason):
    with pytest.raises(RecordError, match=reason):
        RouteRecord.from_json(record(**changes))
    results = LeaderboardResults.parse(text_of(record(), record(**changes), 7))
    assert len(results.records) == 1
    assert [fault.position for fault in results.faults] == [1, 2]


@pytest.mark.parametrize(
    ("route_id", "expected"),
    [("RouteScenario_1711_rep0", ("1711", 0)), ("RouteScenario_a_b_rep12", ("a_b", 12)), ("1711", ("1711", 0)),
     (1711, ("1711", 0)), ("RouteScenario_5", ("5", 0))],
)
def test_route_ids(route_id, expected):
    found = RouteRecord.from_json(record(route_id=route_id))
    assert (found.route_id, found.repetition) == expected


@pytest.mark.parametrize(
    ("statuses", "routes", "entry", "eligible"),
    [
        (["Completed", "Failed"], 2, EntryStatus.FINISHED, True),
        (["Completed"], 2, EntryStatus.STARTED, False),
        (["Completed", "Failed - Simulation crashed"], 2, EntryStatus.CRASHED, False),
        (["Failed - Agent's sensors were invalid"], 1, EntryStatus.REJECTED, False),
    ],
)
def test_entry_status_of_a_run(statuses, routes, entry, eligible):
    results = LeaderboardResults.of_run([RouteRecord.from_json(record(status=s)) for s in statuses], routes)
    assert results.entry_status == entry
    assert results.to_json()["eligible"] is eligible


def test_the_world_stands_in_every_record_and_survives_a_merge():
    written = LeaderboardResults.of_run([RouteRecord.of_drive("1", 100, [])], 1, world=EMBEDDED_WORLD).to_json()
    assert written["world"] == EMBEDDED_WORLD
    merged = {"_checkpoint": {"records": written["_checkpoint"]["records"]}, "driving score": 1, "eval num": 1}
    (again,) = LeaderboardResults.parse(json.dumps(merged)).records
    assert again.world == EMBEDDED_WORLD
    assert "world" not in LeaderboardResults.of_run([RouteRecord.of_drive("1", 100, [])], 1).to_json()
