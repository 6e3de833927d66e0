"""Bench2Drive's figures: published ones to the last digit, hand-worked routes, bounds that hold, no wrong headline."""

from __future__ import annotations

import io
import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from carla_bridge.leaderboard.results import EMBEDDED_WORLD, Infraction, LeaderboardResults, RouteRecord, RouteStatus
from carla_bridge.score.abilities import ABILITIES
from carla_bridge.score.bench2drive import score_files, score_records
from carla_bridge.score.efficiency import mean_bounds, route_efficiency
from carla_bridge.score.problems import ProblemKind
from carla_bridge.score.route_sets import RouteFacts, RouteSet, load_route_set, shipped_sets
from carla_bridge.score.sources import FoundRecord
from carla_bridge.score.table import print_score
from wamdiff2_core.errors import UserError

PLACE = (1.0, 2.0, 3.0)
HIT = Infraction.collision("vehicle.audi.tt", 7, PLACE)
STOP = Infraction.stop_sign(7, PLACE)
SLOW = Infraction.min_speed(80.0)

# Three routes of which two count for signs, one for overtaking, one for merging.
SMALL = RouteSet("small", {
    "1": RouteFacts("Town01", "Accident"),
    "2": RouteFacts("Town01", "T_Junction"),
    "3": RouteFacts("Town02", "EnterActorFlow"),
})


def drive(route_id, completion_pct=100, infractions=(SLOW,), routes=SMALL, **keys):
    facts = routes.routes.get(route_id, RouteFacts("Town01", "Accident"))
    keys = {"scenario_name": f"{facts.scenario_type}_1", "town": facts.town} | keys
    return RouteRecord.of_drive(route_id, completion_pct, infractions, **keys)


def scored(*records, **keys):
    return score_records([FoundRecord(record, "a.json") for record in records], SMALL, **keys)


def kinds(score):
    return {problem.kind for problem in score.problems}


def message(score, kind):
    (found,) = [problem.message for problem in score.problems if problem.kind == kind]
    return found


@pytest.fixture
def pdm_lite(shared_data, tmp_path):
    """A folder with copies of the four shards of PDM-Lite."""
    folder = tmp_path / "pdm_lite"
    folder.mkdir()
    for path in sorted((shared_data / "results" / "pdm_lite").glob("eval_bench2drive220_*.json")):
        shutil.copy(path, folder)
    return folder


def test_pdm_lite_comes_out_as_published(pdm_lite):
    score = score_files([pdm_lite])
    assert score.problems == ()
    assert score.label == "Bench2Drive"
    assert score.driving_score == pytest.approx(97.01579642, abs=5e-9)
    assert (score.successes, score.routes_scored, score.routes_expected) == (203, 220, 220)
    assert score.success_rate == 203 / 220
    assert score.efficiency == pytest.approx(250.03924965239113, abs=1e-9)
    assert (score.speed_entries_dropped, score.records, score.mismatches) == (288, 220, 0)
    counts = {name: (ability.successes, ability.routes) for name, ability in score.abilities.items()}
    assert counts == {
        "Overtaking": (42, 45), "Merging": (71, 80), "Emergency_Brake": (59, 60), "Give_Way": (9, 10),
        "Traffic_Signs": (87, 95),
    }
    signs = score.abilities["Traffic_Signs"]
    assert signs.rule == "strict"
    assert signs.bounds[0] == signs.value == 87 / 95
    assert signs.bounds[0] < 89 / 95 <= signs.bounds[1]  # what upstream's tool finds with maps
    assert score.driving_score_bounds == (score.driving_score, score.driving_score)
    assert score.as_coded.driving_score == score.driving_score


def test_uniad_tiny_is_five_routes_short(shared_data):
    score = score_files([shared_data / "results" / "zoo" / "UniAD-Tiny.json"])
    assert not score.headline
    assert score.driving_score is score.success_rate is score.efficiency is score.ability_mean is None
    assert all(ability.value is None for ability in score.abilities.values())
    assert (score.routes_scored, len(score.missing_routes), score.successes) == (215, 5, 29)
    low, high = score.driving_score_bounds
    assert low == pytest.approx(40.728517018181826, abs=1e-9)  # what upstream's merge printed
    assert high == pytest.approx(low + 100 * 5 / 220, abs=1e-9)
    assert score.success_rate_bounds == (29 / 220, 34 / 220)
    assert score.as_coded.driving_score == pytest.approx(low)
    assert score.as_coded.abilities["Merging"] == 7 / 75  # upstream drops the five from the denominator
    assert score.abilities["Merging"].bounds == (7 / 80, 12 / 80)
    assert "5 of 220 routes" in message(score, ProblemKind.MISSING)


def test_a_duplicated_shard_is_named_and_not_averaged(pdm_lite):
    shutil.copy(pdm_lite / "eval_bench2drive220_2.json", pdm_lite / "eval_bench2drive220_2 (copy).json")
    score = score_files([pdm_lite])
    assert score.driving_score is None
    assert score.as_coded is None
    assert score.driving_score_bounds == pytest.approx((97.01579642, 97.01579642), abs=1e-8)
    text = message(score, ProblemKind.DUPLICATE)
    assert "eval_bench2drive220_2.json" in text
    assert "(copy)" in text
    assert "55 routes, record for record the same" in text


def test_a_missing_shard_leaves_bounds(pdm_lite):
    (pdm_lite / "eval_bench2drive220_1.json").unlink()
    score = score_files([pdm_lite])
    assert (score.driving_score, score.routes_scored) == (None, 165)
    assert score.driving_score_bounds[0] <= 97.01579642 <= score.driving_score_bounds[1]
    assert "55 of 220 routes" in message(score, ProblemKind.MISSING)


def test_stray_merged_files_are_set_aside(pdm_lite, shared_data):
    for name in ("merged.json", "merged_ability.json"):
        shutil.copy(shared_data / "results" / "pdm_lite" / name, pdm_lite)
    score = score_files([pdm_lite])
    assert score.driving_score == pytest.approx(97.01579642, abs=5e-9)
    assert kinds(score) == {ProblemKind.SET_ASIDE}
    assert len(score.problems) == 2
    assert score_files([pdm_lite / "merged.json"]).driving_score == pytest.approx(score.driving_score, abs=1e-9)


def test_a_merged_file_that_says_something_else_forbids_the_headline(pdm_lite, shared_data):
    data = json.loads((shared_data / "results" / "pdm_lite" / "merged.json").read_text())
    data["_checkpoint"]["records"][0]["scores"] = {"score_route": 0, "score_penalty": 1.0, "score_composed": 0.0}
    data["_checkpoint"]["records"][0]["status"] = "Failed - TickRuntime"
    (pdm_lite / "merged.json").write_text(json.dumps(data))
    score = score_files([pdm_lite])
    assert score.driving_score is None
    assert any("1 route with different figures" in problem.message for problem in score.problems)
    assert score.driving_score_bounds[0] == pytest.approx(97.01579642 - 100 / 220, abs=1e-6)


def test_a_merged_file_does_not_fill_in_for_a_missing_shard(pdm_lite, shared_data):
    shutil.copy(shared_data / "results" / "pdm_lite" / "merged.json", pdm_lite)
    (pdm_lite / "eval_bench2drive220_1.json").unlink()
    score = score_files([pdm_lite])
    assert score.driving_score is None
    assert ProblemKind.DUPLICATE in kinds(score)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (lambda whole: whole[: len(whole) // 2], "is cut off in line"),
        (lambda whole: "", "is empty"),
        (lambda whole: '{"settings": 3}', "no leaderboard results"),
        (lambda whole: whole.replace("}", "]", 1), "is not JSON"),
    ],
)
def test_a_damaged_shard_is_named_and_its_routes_are_missing(pdm_lite, content, text):
    shard = pdm_lite / "eval_bench2drive220_3.json"
    shard.write_text(content(shard.read_text()))
    score = score_files([pdm_lite])
    assert (score.driving_score, score.routes_scored) == (None, 165)
    assert any(text in problem.message and shard.name in problem.message for problem in score.problems)


def test_a_damaged_file_beside_a_complete_set_forbids_the_headline(pdm_lite):
    (pdm_lite / "more.json").write_text('{"_checkpoint": {"records": [{"route_id": "Route')
    score = score_files([pdm_lite])
    assert (score.driving_score, score.routes_scored) == (None, 220)
    assert kinds(score) == {ProblemKind.UNREADABLE}


def test_nan_scores_count_as_missing(pdm_lite):
    shard = pdm_lite / "eval_bench2drive220_0.json"
    shard.write_text(shard.read_text().replace('"score_composed": 100.0', '"score_composed": NaN', 1))
    score = score_files([pdm_lite])
    assert (score.driving_score, score.routes_scored) == (None, 219)
    assert "NaN" in message(score, ProblemKind.INVALID_RECORD)
    json.dumps(score.to_json(), allow_nan=False)


def test_a_file_named_twice_counts_once(pdm_lite):
    assert score_files([pdm_lite, *pdm_lite.glob("*.json"), str(pdm_lite / "*_0.json")]).problems == ()


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.json", "."])
def test_wrong_paths_are_wrong_use(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="PATHS"):
        score_files([path])


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("other.json", '{"Overtaking": 0.9}', "other.json holds JSON, but no leaderboard results"),
    ("words.json", "hello world", "words.json is not JSON"),
    ("half.json", '{"_checkpoint": {"records": [', "half.json is cut off in line 1"),
    ("begun.json", "", "begun.json is empty"),
    ("none.json", '{"_checkpoint": {"records": [], "progress": [0, 5]}}', "none.json holds no record yet"),
    ("results.json", '{"label": "embedded world", "routes": []}', "wamdiff2 report RUN"),
])
def test_paths_without_any_record_are_wrong_use(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match="PATHS: expected result files with records") as caught:
            score_files([path])
        assert reason in str(caught.value)


def test_a_record_that_cannot_be_read_is_a_finding_and_no_wrong_use(tmp_path):
    records = [{"route_id": "RouteScenario_1711_rep0"}]
    (tmp_path / "a.json").write_text(json.dumps({"_checkpoint": {"records": records}}))
    assert ProblemKind.INVALID_RECORD in kinds(score_files([tmp_path]))


def test_a_folder_above_the_shards_says_where_they_are(pdm_lite):
    with pytest.raises(UserError, match="4 files further down"):
        score_files([pdm_lite.parent])


def test_hand_worked_routes():
    score = scored(
        drive("1", 72.4, [HIT, STOP, SLOW], failure=RouteStatus.TICK_LIMIT),  # 72.4 * 0.6 * 0.8
        drive("2", 100, [Infraction.outside_lanes(3.0, 120.0), SLOW]),  # 100 * (1 - 0.025), and no success
        drive("3", 100, [SLOW, SLOW]),
    )
    assert score.problems == ()
    assert score.driving_score == pytest.approx((34.752 + 97.5 + 100) / 3)
    assert (score.successes, score.success_rate) == (1, 1 / 3)
    assert score.as_coded.driving_score == pytest.approx((34.752 + 97.5 + 100) / 220)
    assert score.abilities["Overtaking"].value == 0.0
    assert score.abilities["Merging"].value == 1.0
    assert score.abilities["Traffic_Signs"].value == 0.5
    assert score.abilities["Traffic_Signs"].bounds == (0.5, 1.0)  # route 2 may have passed its junction
    assert score.abilities["Give_Way"].value is None
    assert score.ability_mean == pytest.approx(0.5)
    assert score.as_coded.ability_mean is None


@pytest.mark.parametrize("entry", [STOP, Infraction.red_light(3, PLACE)])
def test_a_sign_run_cannot_be_made_good_by_the_junction_rule(entry):
    score = scored(drive("1"), drive("2", 90, [entry]), drive("3"))
    assert score.abilities["Traffic_Signs"].bounds == (0.5, 0.5)


def test_efficiency_drops_what_is_above_the_limit_and_routes_without_entries():
    speeds = [Infraction.min_speed(value) for value in (50.0, 150.0, 1000.0, 1000.01)]
    score = scored(drive("1", 100, speeds), drive("2", 100, []), drive("3", 100, [speeds[3]]))
    assert score.efficiency == pytest.approx(400.0)
    assert (score.efficiency_routes, score.speed_entries, score.speed_entries_dropped) == (1, 5, 2)
    assert score.efficiency_bounds == (400.0, 400.0)


def test_efficiency_is_withheld_when_entries_cannot_be_read():
    odd = Infraction.read("min_speed_infractions", "Average speed is inf% of the surrounding traffic's one")
    score = scored(drive("1", 100, [odd]), drive("2"), drive("3"))
    assert score.driving_score == 100
    assert score.efficiency is None
    assert kinds(score) == {ProblemKind.EFFICIENCY}


def test_records_at_odds_with_themselves_forbid_the_headline():
    wrong = replace(drive("1", 100, [HIT]), score_composed=100.0)
    score = scored(wrong, drive("2"), drive("3"))
    assert score.driving_score is None
    assert score.mismatches == 1
    assert "100 written, 60 from its infractions" in message(score, ProblemKind.MISMATCH)
    assert score.driving_score_bounds == pytest.approx((260 / 3, 100))
    contradiction = replace(drive("1", 50.0), status=RouteStatus.COMPLETED)
    assert "Completed at 50 %" in message(scored(contradiction, drive("2"), drive("3")), ProblemKind.MISMATCH)


def test_more_metres_off_the_lanes_than_driven_score_0_without_contradiction():
    worst = drive("1", 50.0, [Infraction.outside_lanes(130.0, 100.0)])
    assert (worst.score_penalty, worst.score_composed) == (-0.3, 0.0)
    score = scored(worst, drive("2"), drive("3"))
    assert score.mismatches == 0
    assert score.driving_score == pytest.approx(200 / 3)


def test_routes_outside_of_the_set_forbid_the_headline():
    score = scored(drive("1"), drive("2"), drive("3"), drive("9"))
    assert score.driving_score is None
    assert "outside of small: 9" in message(score, ProblemKind.UNKNOWN_ROUTE)


def test_another_scenario_or_town_under_the_same_id_forbids_the_headline():
    score = scored(drive("1", scenario_name="HighwayExit_1"), drive("2", town="Town15"), drive("3"))
    assert score.driving_score is None
    assert "1 (scenario HighwayExit, expected Accident), 2 (town Town15" in message(score, ProblemKind.OTHER_ROUTE)
    assert score.driving_score_bounds == pytest.approx((100 / 3, 100))


def test_repetitions_are_scored_one_by_one(tmp_path):
    for repetition, completion in ((0, 100), (1, 50.0)):
        records = [drive(i, completion, repetition=repetition) for i in SMALL.routes]
        LeaderboardResults.of_run(records, 3).save(tmp_path / f"{repetition}.json")
    routes = tmp_path / "small.xml"
    routes.write_text(small_xml())
    both = score_files([tmp_path], str(routes))
    assert both.driving_score is None
    assert ProblemKind.REPETITIONS in kinds(both)
    assert both.driving_score_bounds == (50.0, 100.0)
    assert score_files([tmp_path], str(routes), repetition=1).driving_score == 50.0
    with pytest.raises(UserError, match=r"one of 0, 1"):
        score_files([tmp_path], str(routes), repetition=2)


def small_xml():
    return "<routes>" + "".join(
        f'<route id="{i}" town="{facts.town}"><waypoints><position x="0" y="0" z="0"/><position x="1" y="0" z="0"/>'
        f'</waypoints><scenarios><scenario name="{facts.scenario_type}_1" type="{facts.scenario_type}">'
        '<trigger_point x="0" y="0" z="0" yaw="0"/></scenario></scenarios></route>'
        for i, facts in SMALL.routes.items()
    ) + "</routes>"


def test_routes_that_a_program_ended_count_and_are_told_apart():
    crashed = drive("1", 40.0, failure=RouteStatus.SIMULATION_CRASHED)
    score = scored(crashed, drive("2"), drive("3"))
    assert score.driving_score == pytest.approx(80.0)
    assert score.driving_score_bounds == pytest.approx((200 / 3, 100.0))
    assert score.success_rate_bounds == (2 / 3, 1.0)
    assert "1 (Failed - Simulation crashed)" in message(score, ProblemKind.NOT_DRIVEN_OUT)


def shown(score):
    console = Console(file=io.StringIO(), width=100)
    print_score(score, console)
    return console.file.getvalue()


def test_the_embedded_world_is_never_called_bench2drive(tmp_path):
    routes = shipped_sets()["bench2drive220"]
    records = [drive(i, routes=routes) for i in routes.routes]
    results = LeaderboardResults.of_run(records, 220, world=EMBEDDED_WORLD)
    results.save(tmp_path / "run.json")
    merged = results.to_json()
    (tmp_path / "merged").mkdir()
    kept = {"_checkpoint": {"records": merged["_checkpoint"]["records"]}, "driving score": 100.0, "eval num": 220}
    (tmp_path / "merged" / "merged.json").write_text(json.dumps(kept))
    for path in (tmp_path / "run.json", tmp_path / "merged"):
        score = score_files([path])
        assert (score.driving_score, score.label) == (100.0, "embedded world")
        assert "embedded world" in shown(score)
        assert "Bench2Drive" not in shown(score)
        assert score.to_json()["label"] == "embedded world"


def test_the_embedded_world_is_named_whatever_routes_are_expected_and_the_right_ones_are_told_first(tmp_path):
    routes = load_route_set("embedded-40")
    records = [drive(i, routes=routes) for i in routes.routes]
    LeaderboardResults.of_run(records, 40, world=EMBEDDED_WORLD).save(tmp_path / "leaderboard.json")
    (tmp_path / "extra.json").write_text("{}")
    score = score_files([tmp_path])
    assert (score.label, score.headline, score.routes_scored) == ("embedded world", False, 0)
    assert score.problems[0].kind == ProblemKind.UNKNOWN_ROUTE
    assert "add --routes embedded-40" in score.problems[0].message
    assert [problem.forbids_headline for problem in score.problems] == [True, True, False]
    lines = shown(score).splitlines()
    assert "add --routes embedded-40" in " ".join(lines[:3])
    assert "embedded world" in " ".join(lines[:5])
    assert "Bench2Drive" not in shown(score)
    assert score_files([tmp_path], "embedded-40").driving_score == 100.0
    (tmp_path / "cut.json").write_text('{"_checkpoint": ')
    assert score_files([tmp_path]).problems[0].kind == ProblemKind.UNKNOWN_ROUTE


def test_an_evaluation_of_ours_is_scored_by_its_leaderboard_file_alone(tmp_path):
    routes = load_route_set("embedded-20")
    LeaderboardResults.of_run([drive(i, routes=routes) for i in routes.routes], 20).save(tmp_path / "leaderboard.json")
    for name in ("results.json", "map.json", "journal.jsonl"):
        (tmp_path / name).write_text("{}")
    assert score_files([tmp_path], "embedded-20").problems == ()


def test_a_subset_is_expected_alone_and_never_called_bench2drive(pdm_lite):
    whole = {record.route_id: record for path in pdm_lite.iterdir() for record in LeaderboardResults.load(path).records}
    score = score_files([pdm_lite], subset="1711,24211,3307")
    assert (score.label, score.routes_expected) == ("routes of bench2drive220, 3 of its 220 routes", 3)
    own = [whole[i].score_composed for i in ("1711", "24211", "3307")]
    assert score.driving_score == pytest.approx(sum(own) / 3)
    assert [problem.kind for problem in score.problems] == [ProblemKind.LEFT_OUT]
    assert "217 records" in score.problems[0].message
    assert score.to_json()["denominators"]["driving_score"] == 3
    assert score.to_json()["denominators"]["abilities"]["Give_Way"] == 0
    assert score.to_json()["as_coded_upstream"]["denominators"]["driving_score"] == 220
    with pytest.raises(UserError, match="--routes-subset: expected single ids"):
        score_files([pdm_lite], subset="1711-3307")
    with pytest.raises(UserError, match="--routes-subset: expected ids"):
        score_files([pdm_lite], subset="7")


def test_a_range_goes_by_the_order_of_the_route_file(pdm_lite, shared_data):
    file = shared_data / "bench2drive" / "bench2drive220.xml"
    assert score_files([pdm_lite], str(file), subset="1711-1825").routes_expected == 5
    dev10 = ",".join(shipped_sets()["dev10"].routes)
    assert score_files([pdm_lite], str(file), subset=dev10).label == "Bench2Drive Dev10"


def test_the_table_says_what_upstream_divides_by():
    assert "over 220 routes" in shown(scored(drive("1"), drive("2"), drive("3")))


def test_worlds_are_not_mixed():
    score = scored(drive("1", world=EMBEDDED_WORLD), drive("2"), drive("3"))
    assert score.driving_score is None
    assert score.label == "embedded world"
    assert ProblemKind.WORLDS in kinds(score)


def test_the_table_withholds_what_cannot_be_stated(shared_data):
    text = shown(score_files([shared_data / "results" / "zoo" / "UniAD-Tiny.json"]))
    assert "215 of 220 routes" in text
    assert text.count("withheld") == 9
    assert "40.7285 .. 43.0012" in text


def test_names_that_no_terminal_takes_are_shown_all_the_same(tmp_path):
    record = drive("1").to_json(0) | {"route_id": "RouteScenario_\ud800[bold]\x1b_rep0"}
    (tmp_path / "a.json").write_text(json.dumps({"_checkpoint": {"records": [record]}, "world": "\ud800"}))
    text = shown(score_files([tmp_path]))
    assert "[bold]" in text
    text.encode()


# Bounds

outcomes = st.tuples(
    st.integers(0, 10000).map(lambda hundredths: hundredths / 100),
    st.lists(st.sampled_from([HIT, STOP, SLOW, Infraction.min_speed(400.0), Infraction.min_speed(1500.0)]), max_size=4),
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(SMALL.routes)), outcomes), st.tuples(outcomes, outcomes, outcomes))
def test_every_completion_of_the_missing_routes_lies_within_the_bounds(present, rest):
    found = [drive(route_id, *outcome) for route_id, outcome in present.items()]
    partial = scored(*found)
    completion = [drive(i, *outcome) for i, outcome in zip(SMALL.routes, rest, strict=True) if i not in present]
    whole = scored(*found, *completion)
    assert whole.problems == ()
    assert (partial.driving_score is None) == (len(present) < 3)
    for name in ("driving_score", "success_rate", "efficiency", "ability_mean"):
        (low, high), value = getattr(partial, f"{name}_bounds"), getattr(whole, name)
        if value is not None:
            assert low - 1e-9 <= value <= high + 1e-9
    for name in ABILITIES:
        value = whole.abilities[name].value
        assert value is None or partial.abilities[name].bounds[0] <= value <= partial.abilities[name].bounds[1]


@settings(max_examples=60)
@given(st.lists(outcomes, min_size=1, max_size=4), st.data())
def test_every_choice_among_duplicates_lies_within_the_bounds(duplicates, data):
    several = [drive("1", *outcome) for outcome in duplicates]
    others = [drive("2"), drive("3", 60.0)]
    together = scored(*several, *others)
    chosen = scored(data.draw(st.sampled_from(several)), *others)
    assert (together.driving_score is None) == (len(several) > 1)
    for name in ("driving_score", "success_rate", "efficiency"):
        low, high = getattr(together, f"{name}_bounds")
        assert low - 1e-9 <= getattr(chosen, name) <= high + 1e-9


values = st.floats(0, 1000)
options = st.lists(st.none() | values, min_size=1, max_size=3)


@given(st.lists(values, max_size=4), st.lists(options, max_size=4), st.data())
def test_mean_bounds_are_reached_and_never_passed(certain, unsure, data):
    unsure = [options for options in unsure if any(value is not None for value in options)]
    low, high = mean_bounds(certain, unsure)
    drawn = [data.draw(st.sampled_from(options)) for options in unsure]
    kept = [*certain, *(value for value in drawn if value is not None)]
    if kept:
        assert low - 1e-6 <= sum(kept) / len(kept) <= high + 1e-6


def test_an_exponent_is_read_as_upstream_reads_it():
    entry = Infraction.read("min_speed_infractions", "Average speed is 1e+16% of the surrounding traffic's one")
    assert route_efficiency(drive("1", 100, [entry])).mean_pct == 16.0


# Route sets


@pytest.mark.parametrize(
    ("name", "file", "routes", "denominators"),
    [
        ("bench2drive220", "bench2drive220.xml", 220, (45, 80, 60, 10, 95)),
        ("bench2drive-0.0.4", "bench2drive_0.0.4_val.xml", 220, (69, 64, 57, 6, 86)),
        ("dev10", "drivetransformer_bench2drive_dev10.xml", 10, None),
    ],
)
def test_shipped_sets_are_the_route_files(shared_data, name, file, routes, denominators):
    shipped, read = load_route_set(name), load_route_set(str(shared_data / "bench2drive" / file))
    assert shipped.routes == read.routes
    assert shipped.label == read.label != ""
    assert len(shipped.routes) == routes
    if denominators:
        found = [sum(f.scenario_type in types for f in shipped.routes.values()) for types in ABILITIES.values()]
        assert tuple(found) == denominators


def test_an_unknown_route_set_is_wrong_use():
    with pytest.raises(UserError, match="did you mean 'bench2drive220'"):
        load_route_set("bench2drive22")


# The command


def command(*arguments):
    program = (
        "import sys, importlib.metadata as m; from wamdiff2_core.cli import main as c; "
        "c.CommandGroup._entry_points = lambda self: "
        "{'score': m.EntryPoint('score', 'carla_bridge.score.command:score', 'wamdiff2.commands')}; "
        "sys.exit(c.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, "score", "bench2drive", *map(str, arguments)], capture_output=True, text=True
    )


def test_command_prints_one_object_within_two_seconds(pdm_lite):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command(pdm_lite, "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0  # of the processor, start included
    printed = json.loads(done.stdout)
    assert {
        "driving_score", "success_rate", "successes", "routes_scored", "routes_expected", "efficiency", "comfort",
        "abilities", "bounds", "problems",
    } <= printed.keys()
    assert round(printed["driving_score"], 4) == 97.0158
    assert printed["problems"] == []
    assert printed["abilities"]["Merging"] == {"value": 71 / 80, "successes": 71, "routes": 80, "rule": "successes"}


def test_command_ends_with_1_when_the_headline_is_forbidden(shared_data):
    done = command(shared_data / "results" / "zoo" / "UniAD-Tiny.json", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["driving_score"] is None


def test_command_ends_with_2_for_wrong_use(pdm_lite):
    done = command("nowhere.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "PATHS: expected files, folders or patterns that exist, got nowhere.json" in done.stderr
    assert command(pdm_lite, "--maps", pdm_lite).returncode == 2
    assert command(pdm_lite, "--metrics", "nowhere").returncode == 2
