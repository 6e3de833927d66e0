"""The report of a run of many routes: scores, table, worst moments, pages; and what hostile names do to it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from carla_bridge.leaderboard.record import RouteRecord
from carla_bridge.leaderboard.results import LeaderboardResults
from carla_bridge.recording.results import NotDriven
from carla_bridge.recording.scene_track import read_scene
from carla_bridge.report import write_report
from carla_bridge.report.command import report
from carla_bridge.report.compare import compare
from carla_bridge.report.compare_page import load_comparison, write_comparison
from carla_bridge.report.moments import moments_of
from carla_bridge.report.page import PAGE_NAME
from carla_bridge.report.radar import HEIGHT, RADIUS, WIDTH, radar
from carla_bridge.report.run import Ability, load_run
from carla_bridge.report.top_view import route_map
from carla_bridge.score.route_sets import shipped_sets
from tests.carla_bridge.run_doubles import SCENARIOS, entries_of, results_of, write_route
from wamdiff2_core.errors import UserError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID_TAGS = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """Checks that every element is closed in order; keeps links, scripts and the texts of table rows."""

    def __init__(self, html):
        super().__init__()
        self.open, self.links, self.ids, self.rows, self.scripts = [], [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[name] for name in ("src", "href") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        assert not any(name.startswith("on") for name in values), values
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Nothing stays open."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1] += data
        elif "td" in self.open:
            self.rows[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """30 drives asked for: 28 driven, one spoilt, one whose route is unusable."""
    folder = tmp_path_factory.mktemp("many")
    routes = tuple(write_route(folder, i, route_id=str(1000 + i), pictures=i < 8) for i in range(28))
    missing = (NotDriven("1028", 0, "infrastructure", 3, "server gone", "Nowhere", SCENARIOS[3]),
               NotDriven("1029", 0, "unusable", 1, "no such town", "Elsewhere", SCENARIOS[4]))
    results_of(routes, missing=missing).save(folder)
    (folder / "map.json").write_text(json.dumps({"Nowhere": [[[x, 1.75] for x in range(200)]]}))
    write_report(folder, video=False)
    return folder


def expected_score(index):
    completion = 50.0 if index % 7 == 6 else 100.0
    return completion * (0.6 if index % 6 == 5 else 1.0) * (0.7 if index % 10 == 9 else 1.0)


def test_scores_are_stated_with_bounds_where_drives_are_missing(many):
    figures = load_run(many).figures
    total = sum(expected_score(i) for i in range(28))
    wins = sum(expected_score(i) == 100 for i in range(28))
    assert figures.driving_score is None
    assert figures.driving_score_bounds == pytest.approx((total / 30, (total + 200) / 30))
    assert figures.success_rate_bounds == pytest.approx((wins / 30, (wins + 2) / 30))
    give_way = figures.abilities["Give_Way"]
    own = [i for i in range(28) if i % 5 == 3]
    assert give_way.routes == len(own) + 1
    assert give_way.bounds[0] == pytest.approx(sum(expected_score(i) == 100 for i in own) / give_way.routes)
    html = (many / PAGE_NAME).read_text()
    assert "withheld" in html
    assert f"{total / 30:.2f} to {(total + 200) / 30:.2f}" in html
    assert "2 of 30 routes have no record" in html


def test_the_table_has_every_drive_with_its_facts(many):
    page = Page((many / PAGE_NAME).read_text())
    rows = {row[0]: row for row in page.rows if row and row[0].isdigit()}
    assert sorted(rows) == [str(1000 + i) for i in range(30)]
    for index in range(28):
        _, scenario, ability, status, score, _, infractions, _, _ = rows[str(1000 + index)]
        assert scenario == SCENARIOS[index % 5]
        assert ability
        assert status == ("blocked" if index % 7 == 6 else "completed")
        assert float(score) == pytest.approx(expected_score(index))
        assert infractions == "".join(
            {"collisions_vehicle": "hit vehicle", "red_light": "red light"}[entry.kind] for entry in entries_of(index)
        )
    assert rows["1028"][3] == "infrastructure"
    assert rows["1029"][4] == ""


def test_every_page_is_whole_and_links_to_what_is_there(many):
    pages = [many / PAGE_NAME, *sorted((many / "report").glob("*.html"))]
    assert len(pages) == 29
    for path in pages:
        html = path.read_text()
        page = Page(html)
        for link in page.links:
            target = link.partition("#")[0]
            assert not target or (path.parent / target).is_file(), link
        assert "http" not in html.replace("http://www.w3.org", "")
        for drawing in re.findall(r"<svg.*?</svg>", html, re.S):
            ElementTree.fromstring(drawing)
            assert not re.search(r'="[^"]*\bnan\b', drawing)
    assert sum(path.stat().st_size for path in pages) < 30 * 60_000


def test_worst_moments_come_by_their_cost(many):
    html = (many / PAGE_NAME).read_text()
    costs = [int(cost) for cost in re.findall(r"<b>[a-z ]+, -(\d+) %</b>", html)]
    assert html.count('class="moment"') == 12
    assert len(costs) == 10  # four blocked, four hits, two red lights; the rest are near misses
    assert costs == sorted(costs, reverse=True)
    assert costs[:4] == [50] * 4  # blocked half-way
    assert costs[4] == 40


def test_pages_of_routes_lead_to_their_neighbours_and_name_the_world(many):
    for number, expected in ((0, ["001.html"]), (5, ["004.html", "006.html"]), (27, ["026.html"])):
        html = (many / "report" / f"{number:03d}.html").read_text()
        page = Page(html)
        assert [link for link in page.links if re.fullmatch(r"\d+\.html", link)] == expected
        assert "../index.html" in page.links
        assert "embedded world" in html


def test_moments_are_named_as_in_the_table(many):
    html = (many / PAGE_NAME).read_text()
    assert "<b>hit vehicle, -40 %</b>" in html
    assert "collisions_vehicle" not in html
    assert "collisions_vehicle" not in (many / "report" / "005.html").read_text()


@pytest.mark.skipif(not CHROMIUM, reason="no chromium to lay pages out")
@pytest.mark.parametrize("width_px", [390, 1280])
def test_no_page_is_wider_than_the_screen(many, tmp_path, width_px):
    """Frames of the width are laid out in one window: a browser window has a least width of its own."""
    write_comparison(load_comparison(changed(tmp_path / "run", many, range(5), {}), many))
    pages = [many / PAGE_NAME, many / "report" / "005.html", tmp_path / "run" / "compare.html"]
    probe = ("<script>document.title = [...document.querySelectorAll('*')].filter((e) => !e.closest('.wide') && "
             "e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80)).join();"
             "parent.postMessage([innerWidth, document.title], '*')</script>")
    frames = ""
    for number, page in enumerate(pages):
        long = page.read_text().replace("type=vehicle.audi.tt", f"type=vehicle.{'audi' * 20}")
        (tmp_path / f"{number}.html").write_text(long + probe)
        frames += f'<iframe src="{number}.html" style="width:{width_px}px;height:2000px;border:0"></iframe>'
    (tmp_path / "all.html").write_text(
        "<title></title><script>onmessage = (m) => { const p = document.createElement('pre'); "
        f"p.textContent = JSON.stringify(m.data); document.body.append(p) }}</script><body>{frames}</body>")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom",
         "--virtual-time-budget=8000", f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "all.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )
    found = [json.loads(unescape(text)) for text in re.findall(r"<pre>(.*?)</pre>", done.stdout)]
    assert found == [[width_px, ""]] * len(pages), done.stderr[-500:]


def test_a_hundred_routes_take_less_than_five_seconds(many, tmp_path):
    routes = load_run(many).results.routes
    copies = tuple(replace(routes[i % 28], route_id=str(i)) for i in range(100))
    (tmp_path / "routes").symlink_to(many / "routes")
    (tmp_path / "map.json").symlink_to(many / "map.json")
    results_of(copies).save(tmp_path)
    began = time.process_time()
    write_report(tmp_path, video=False)
    assert time.process_time() - began < 5.0
    assert (tmp_path / PAGE_NAME).stat().st_size < 400_000


def test_near_misses_are_found_and_actors_that_were_hit_are_none(many):
    run = load_run(many)
    clean = moments_of(run.entries[0], read_scene(many / "routes" / "0"))
    assert [moment.kind for moment in clean] == ["near miss"]  # the parked truck is none
    assert clean[0].reason.startswith("0.20 m from vehicle.audi.tt at 5.0 m/s")
    hit = moments_of(run.entries[5], read_scene(many / "routes" / "5"))
    assert [moment.kind for moment in hit] == ["collisions_vehicle"]
    blocked = moments_of(run.entries[6], read_scene(many / "routes" / "6"))
    assert (blocked[0].kind, blocked[0].cost) == ("end", pytest.approx(0.5))


def test_radar_places_shares_from_the_middle_to_the_rim():
    abilities = {name: Ability(value, (value, value), 0, 4)
                 for name, value in zip("ABCD", (1.0, 0.5, 0.25, 0.0), strict=True)}
    svg = radar([("run", abilities)])
    ElementTree.fromstring(svg)
    points = re.search(r'class="area s1" points="([^"]*)"', svg).group(1)
    places = np.array([[float(v) for v in pair.split(",")] for pair in points.split()]) - [WIDTH / 2, HEIGHT / 2]
    assert places == pytest.approx(RADIUS * np.array([[0, -1], [0.5, 0], [0, 0.25], [0, 0]]), abs=0.06)
    assert 'class="reach' not in svg
    open_one = abilities | {"B": Ability(None, (0.25, 0.75), 1, 4)}
    svg = radar([("run", open_one)])
    assert 'class="reach s1"' in svg
    assert "25 to 75 % of 4" in svg
    lines = dict(re.findall(r'<line class="(\w+ s\d)" x1="8".*?<title>(.*?)</title>', svg))
    assert lines == {"area s1": "run", "reach s1": "run: at most, where that is open"}
    two = dict(re.findall(r'<line class="(\w+ s\d)" x1="8".*?<title>(.*?)</title>',
                          radar([("<one>", abilities), ("other", open_one)])))
    assert two == {"area s1": "&lt;one&gt;", "area s2": "other", "reach s2": "other: at most, where that is open"}
    assert radar([("run", {"A": abilities["A"], "B": abilities["B"]})]) == ""
    assert radar([("run", abilities), ("other", {"A": abilities["A"]})]) == ""


def test_hostile_names_stay_text(tmp_path):
    evil = '"><script>alert(1)</script><b onclick=\'x\'>&{{7*7}}'
    kinds = "vehicle.</script><script>alert(2)</script>"
    routes = tuple(write_route(tmp_path, i, route_id=f"{evil}{i}", town=evil, type_id=kinds, ticks=40)
                   for i in (5, 6))
    routes = tuple(replace(route, scenario=evil, reason=evil) for route in routes)
    results_of(routes, planner=evil, source=evil, machine=evil, routes_file=evil).save(tmp_path)
    write_report(tmp_path, video=False)
    write_comparison(load_comparison(tmp_path, tmp_path))
    for name in (PAGE_NAME, "compare.html"):
        html = (tmp_path / name).read_text()
        page = Page(html)
        assert not any("alert(1)" in script for script in page.scripts)
        assert "{{7*7}}" in html
        assert html.count("<script") == len(page.scripts)
        assert "<b onclick" not in html
    html = (tmp_path / PAGE_NAME).read_text()
    assert "</script><script>alert(2)" not in html
    scenes = [json.loads(script) for script in Page(html).scripts if script.startswith("{")]
    assert {track["name"] for scene in scenes for track in scene["tracks"]} >= {kinds}


def test_replay_places_actors_where_the_scene_has_them(many):
    scene = read_scene(many / "routes" / "0")
    route = np.stack([np.arange(0.0, 91.0), np.zeros(91)], axis=1)
    svg, replayed = route_map([], route, 50.0, np.array([[0.0, 0.0], [49.0, 0.0]]), (), scene)
    start, goal = (np.array([float(v) for v in re.search(rf'class="{name}" cx="([\d.]+)" cy="([\d.]+)"', svg).groups()])
                   for name in ("start", "goal"))
    scale = (goal - start)[0] / 50.0
    ego = replayed["tracks"][0]
    for index, t_s in enumerate(replayed["t_s"]):
        pose = [value for first, value in ego["poses"] if first <= index][-1]
        assert pose[0] == pytest.approx(start[0] + 5.0 * t_s * scale, abs=0.3)
    assert replayed["near_px"] == pytest.approx(60.0 * scale, abs=0.2)
    assert ego["grown"] == 1.0
    length = float(np.ptp(np.array(ego["outline"])[:, 0]))
    assert length == pytest.approx(2 * scene.ego.half_m[0] * scale, abs=0.05)
    other = next(track for track in replayed["tracks"] if track["name"] == "vehicle.audi.tt")
    assert other["poses"][0][1][0] == pytest.approx(start[0] + 45.0 * scale, abs=0.3)
    assert other["poses"][0][1][1] == pytest.approx(start[1] - 2.2 * scale, abs=0.3)  # left of the route is up
    assert abs(other["poses"][0][1][2]) == pytest.approx(180.0)
    assert [state for _, state in replayed["lights"]["500"]] == ["red", "green"]
    assert 'class="light green"' in svg  # at 7.6 s the ego vehicle was on its stop line


def test_a_page_of_another_evaluators_results(tmp_path):
    records = [RouteRecord.of_drive(str(i), 100.0, entries_of(i), scenario_name=f"{SCENARIOS[i % 5]}_1", town="Town01",
                                    route_length_m=100.0, duration_game_s=20.0) for i in range(10)]
    LeaderboardResults.of_run(records, 10).save(tmp_path / "results.json")
    write_report(tmp_path, video=True)
    page = Page((tmp_path / PAGE_NAME).read_text())
    assert len([row for row in page.rows if row and row[0].isdigit()]) == 10
    assert load_run(tmp_path).label == "Bench2Drive's evaluator, 10 routes"
    assert f"{np.mean([100 * record.score_composed / 100 for record in records]):.2f}" in (
        tmp_path / PAGE_NAME).read_text()


def test_only_a_whole_set_is_called_bench2drive(tmp_path):
    facts = shipped_sets()["bench2drive220"].routes
    records = [RouteRecord.of_drive(key, 100.0, [], scenario_name=f"{fact.scenario_type}_1", town=fact.town)
               for key, fact in facts.items()]
    for number in (220, 219):
        (tmp_path / str(number)).mkdir()
        LeaderboardResults.of_run(records[:number], number).save(tmp_path / str(number) / "results.json")
    whole, most = load_run(tmp_path / "220"), load_run(tmp_path / "219")
    assert whole.label == "Bench2Drive"
    assert most.label == "Bench2Drive's evaluator, 219 routes"
    found = compare(whole, most)
    assert (len(found.pairs), len(found.only_second), len(found.only_first), found.warnings) == (219, 0, 1, ())


def changed(folder, many, keep, changes):
    """A run of some of the routes, with other completions."""
    routes = []
    for result in load_run(many).results.routes:
        index = int(result.route_id) - 1000
        if index in keep:
            record = RouteRecord.from_json(result.record)
            if index in changes:
                record = RouteRecord.of_drive(record.route_id, changes[index], [], town=record.town,
                                              route_length_m=record.route_length_m)
            routes.append(replace(result, record=record.to_json(0)))
    folder.mkdir()
    (folder / "routes").symlink_to(many / "routes")
    results_of(tuple(routes)).save(folder)
    return folder


def test_comparison_pairs_routes_and_counts_what_changed(many, tmp_path):
    scipy_stats = pytest.importorskip("scipy.stats")
    before = changed(tmp_path / "before", many, range(12), {})
    after = changed(tmp_path / "after", many, range(2, 14), {5: 100.0, 3: 40.0})  # 5 hit a vehicle before: 60
    found = compare(load_run(after), load_run(before))
    assert [pair.route_id for pair in found.pairs] == [str(1000 + i) for i in range(2, 12)]
    differences = [0.0] * 10
    differences[5 - 2], differences[3 - 2] = 40.0, -60.0
    assert [pair.difference for pair in found.pairs] == pytest.approx(differences)
    assert found.mean_difference == pytest.approx(-2.0)
    reference = scipy_stats.bootstrap((differences,), np.mean, method="percentile", n_resamples=20_000, rng=5)
    assert found.interval == pytest.approx(tuple(reference.confidence_interval), abs=0.7)
    score, rate = found.in_words()
    assert score.startswith("driving score: ")
    assert ": -2.00 (95 % interval -" in score
    assert rate.startswith("success rate, %: ")
    assert ([p.route_id for p in found.gained], [p.route_id for p in found.lost]) == (["1005"], ["1003"])
    assert (found.better, found.worse, found.chance) == (1, 1, 1.0)
    assert (found.only_second, found.only_first) == (["1000", "1001"], ["1012", "1013"])
    # Those of one run only: after scored 100 and 50 * 1 (1013 is blocked), before 100 and 100.
    assert found.bounds == pytest.approx(((-20 + 0 - 50 - 100 - 100) / 14, (-20 + 100 + 50 + 0 + 0) / 14))
    html = write_comparison(load_comparison(after, before)).read_text()
    Page(html)
    for fact in ("-2.00", "1005 (ParkedObstacle)", "In both: 10 of 14", "Only in the second (2): 1000, 1001",
                 "Only in the first (2): 1012, 1013", "over the 10 routes in both", "over all 14 routes of either"):
        assert fact in html, fact
    for drawing in re.findall(r"<svg.*?</svg>", html, re.S):
        ElementTree.fromstring(drawing)


def test_figures_over_the_routes_in_both_stand_apart_from_those_of_each_whole_run(many, tmp_path):
    before = changed(tmp_path / "before", many, range(12), {})
    after = changed(tmp_path / "after", many, range(2, 14), {})
    comparison = load_comparison(after, before)
    page = Page(write_comparison(comparison).read_text())
    own = [f"{sum(expected_score(i) for i in range(first, first + 12)) / 12:.2f}" for first in (2, 0)]
    common = f"{sum(expected_score(i) for i in range(2, 12)) / 10:.2f}"
    rows = {row[0]: row[1:] for row in page.rows if row}
    assert rows["driving score"] == [common, common, *own]
    assert rows["routes"] == ["10", "10", "12", "12"]
    assert [rows[str(1000 + i)][1] for i in (0, 1, 2, 11, 12, 13)] == [
        "second only", "second only", "both", "both", "first only", "first only"]
    again = changed(tmp_path / "again", many, range(2, 14), {})
    same = Page(write_comparison(load_comparison(after, again)).read_text())
    assert {row[0]: row[1:] for row in same.rows if row}["routes"] == ["12", "12"]


def test_a_route_without_a_verdict_in_one_run_is_no_route_of_the_other_alone(many, tmp_path):
    before = changed(tmp_path / "before", many, range(4), {})
    found = compare(load_run(many), load_run(before))
    assert (found.half_judged, len(found.only_first)) == ([], 24)
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    results = load_run(before).results
    results_of(results.routes[1:], missing=(NotDriven("1000", 0, "infrastructure", 3, "gone", "Nowhere", ""),)).save(
        spoilt)
    found = load_comparison(before, spoilt)
    assert (found.half_judged, found.only_first, found.only_second) == (["1000"], [], [])
    assert "without a verdict in one (1): 1000" in write_comparison(found).read_text()


@pytest.mark.parametrize("twin", ["itself", "a copy"])
def test_a_run_compared_with_itself_is_told(many, tmp_path, twin):
    run = changed(tmp_path / "run", many, range(3), {})
    other = run
    if twin == "a copy":
        other = changed(tmp_path / "copy", many, range(3), {})
    done = CliRunner().invoke(report, [str(run), "--compare", str(other)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "no difference can show" in done.stderr
    assert "no difference can show" in (run / "compare.html").read_text()
    assert compare(load_run(run), load_run(changed(tmp_path / "less", many, range(2), {}))).warnings == ()


def test_films_that_are_wished_for_and_cannot_be_made_are_told(many, tmp_path):
    run = changed(tmp_path / "run", many, range(2), {})
    (run / "routes").unlink()
    shutil.copytree(many / "routes", run / "routes", ignore=shutil.ignore_patterns("*.jpg", "*.mp4"))
    done = CliRunner().invoke(report, [str(run), "--video"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "no film, as the run has no pictures" in done.stderr
    assert "no film" not in CliRunner().invoke(report, [str(run)], catch_exceptions=False).stderr


@pytest.mark.parametrize("other", ["nope", "empty", "strangers"])
def test_what_cannot_be_compared_is_refused_before_anything_is_written(many, tmp_path, other):
    run = changed(tmp_path / "run", many, range(3), {})
    (tmp_path / "empty").mkdir()
    changed(tmp_path / "strangers", many, range(5, 8), {})
    with pytest.raises(UserError, match=r"^--compare: expected"):
        CliRunner().invoke(report, [str(run), "--compare", str(tmp_path / other)], catch_exceptions=False)
    assert not (run / PAGE_NAME).exists()


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 0), (7, 2), (3, 3)])
def test_chance_of_changed_successes_is_the_exact_binomial_test(many, tmp_path, gained, lost):
    scipy_stats = pytest.importorskip("scipy.stats")
    clean = [i for i in range(28) if expected_score(i) == 100]
    before = changed(tmp_path / "before", many, clean, {i: 10.0 for i in clean[:gained]})
    after = changed(tmp_path / "after", many, clean, {i: 10.0 for i in clean[gained : gained + lost]})
    found = compare(load_run(after), load_run(before))
    assert (len(found.gained), len(found.lost)) == (gained, lost)
    expected = scipy_stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert found.chance == pytest.approx(expected)


def test_comparison_says_what_differs_between_the_runs_and_refuses_strangers(many, tmp_path):
    before = changed(tmp_path / "before", many, range(3), {})
    results = load_run(before).results
    other = tmp_path / "other"
    other.mkdir()
    results_of(tuple(replace(route, town="Elsewhere") for route in results.routes), label="routes only",
               latency_mode="measured").save(other)
    warnings = " ".join(compare(load_run(before), load_run(other)).warnings)
    for words in ("worlds differ", "1000, 1001, 1002", "latency mode differs"):
        assert words in warnings, words
    strange = tmp_path / "strange"
    strange.mkdir()
    results_of(tuple(replace(route, record=None) for route in results.routes)).save(strange)
    with pytest.raises(UserError, match="a run with scores"):
        write_comparison(load_comparison(before, strange))


def test_the_command_writes_both_pages_and_refuses_other_folders(many, tmp_path):
    before = changed(tmp_path / "before", many, range(3), {})
    done = CliRunner().invoke(report, [str(before), "--compare", str(before)], catch_exceptions=False)
    assert done.stdout.split()[:2] == [str(before / PAGE_NAME), str(before / "compare.html")]
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UserError, match="run folder"):
            CliRunner().invoke(report, [str(folder)], catch_exceptions=False)


def test_drives_whose_files_are_gone_keep_their_figures(many, tmp_path):
    routes = load_run(many).results.routes[:3]
    (tmp_path / "routes").mkdir()
    (tmp_path / "routes" / "1").symlink_to(many / "routes" / "1")
    results_of(routes).save(tmp_path)
    write_report(tmp_path)
    page = Page((tmp_path / PAGE_NAME).read_text())
    assert [row[0] for row in page.rows if row and row[0].isdigit()] == ["1000", "1001", "1002"]
    assert page.ids == ["route-1"]


def test_a_larger_run_gets_a_film_a_route_and_keeps_those_that_are_newer(tmp_path):
    routes = tuple(write_route(tmp_path, i, route_id=str(i), pictures=i < 2, ticks=25) for i in range(7))
    results_of(routes).save(tmp_path)
    write_report(tmp_path)
    films = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.mp4"))
    assert films == ["routes/0/film.mp4", "routes/1/film.mp4"]
    assert "../routes/0/film.mp4" in Page((tmp_path / "report" / "000.html").read_text()).links
    assert [link for link in Page((tmp_path / PAGE_NAME).read_text()).links if link.endswith("mp4")] == films
    made = (tmp_path / films[0]).stat().st_mtime_ns
    write_report(tmp_path)
    assert (tmp_path / films[0]).stat().st_mtime_ns == made


@pytest.mark.parametrize("content", ["5", "[1]", '{"_checkpoint": {', "\xff"])
def test_a_results_file_that_is_none_is_wrong_use(tmp_path, content):
    (tmp_path / "results.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match="results of a run"):
        load_run(tmp_path)
