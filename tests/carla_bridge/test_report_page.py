"""Page and film of a recorded run folder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.drive.route_run import RouteSetup
from carla_bridge.recording.results import DriveResults, PlanRecord
from carla_bridge.report import write_report
from carla_bridge.report.charts import Marker, Series, histogram, line_chart, nice_ticks
from carla_bridge.report.top_view import route_map
from carla_bridge.report.video import BLUE, LANE, TEAL, _MapPane, film_picture
from tests.carla_bridge.drive_doubles import FakeLink, FakeWorld, drive_route, linked, straight_plan, straight_route
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import UserError


@pytest.fixture
def run_folder(tmp_path):
    """A run of two routes: one driven, one without any answer."""
    routes = []
    answers = {"a": lambda stamp_ns: (straight_plan(stamp_ns), 20_000_000), "b<i>": lambda stamp_ns: None}
    for name, answer in answers.items():
        route = replace(straight_route(), route_id=name)
        setup = RouteSetup(route, "display")
        routes.append(drive_route(tmp_path / "routes" / name, linked(FakeLink(answer)), FakeWorld(), route, setup))
    DriveResults(
        label="embedded world", planner="nano", link="ros", source="0123abcd", latency_mode="lockstep",
        latency_ms=0.0, plan_wait_s=5.0, server="embedded",
        routes_file="demo.xml", seed=3, started="2026-11-29T12:00:00+00:00", machine="m", commit="c",
        planner_camera=CameraSpec(), display_camera=CameraSpec(name="display", width_px=64, height_px=32),
        routes=tuple(routes), routes_wanted=2,
    ).save(tmp_path)
    (tmp_path / "map.json").write_text(json.dumps({"Nowhere": [[[0, 1.75], [100, 1.75]]]}))
    return tmp_path


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "data", "poster")]


def test_page_names_the_facts_of_the_drive_and_needs_nothing_but_what_lies_beside_it(run_folder):
    write_report(run_folder)
    html = (run_folder / "index.html").read_text()
    for fact in ("1 of 2 routes completed", "0123abcd", "lockstep", "Nowhere", "reached the goal",
                 "no plan within 5 s of wall time", "planner lost", "2026-11-29 12:00:00 UTC", "not Bench2Drive scores",
                 "denoising steps"):
        assert fact in html, fact
    links = Links()
    links.feed(html)
    assert links.found.count("drive.mp4") == 1
    pictures = [link for link in links.found if link.endswith(".jpg")]
    assert pictures
    for link in links.found:
        assert link.startswith("#route-") or (run_folder / link).is_file(), link
    assert "url(" not in html
    assert "@import" not in html
    assert "b&lt;i&gt;" in html
    assert "<i>" not in html


def test_charts_of_the_page_are_well_formed(run_folder):
    write_report(run_folder, video=False)
    html = (run_folder / "index.html").read_text()
    drawings = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(drawings) == 2 * 4 + 2  # map and three charts each; latencies of one, the end of the other
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing
    assert "<video" not in html


def test_film_has_a_frame_for_each_picture_in_the_order_of_the_drive(run_folder):
    write_report(run_folder)
    pictures = sum(len(list((run_folder / "routes" / name / "frames").iterdir())) for name in ("a", "b<i>"))
    with av.open(str(run_folder / "drive.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == pictures + 2 * 18
    assert frames[0].shape == (480, 960, 3)
    # The double's pictures get brighter with time: the view's upper part shows it.
    sky = [frame[10:60, 10:300].mean() for frame in frames[: 20]]
    assert all(b > a for a, b in pairwise(sky))


def test_a_picture_is_the_films_frame_at_its_time(run_folder):
    later = film_picture(run_folder, "a", 1.0)
    assert later.shape == (480, 960, 3)
    assert later[10:60, 10:300].mean() > film_picture(run_folder, "a", 0.0)[10:60, 10:300].mean()
    with pytest.raises(UserError, match="--route: expected a route of the run"):
        film_picture(run_folder, "z", 0.0)
    with pytest.raises(UserError, match="--at: expected"):
        film_picture(run_folder, "a", 1e6)


def test_the_film_sees_from_above_what_is_near_the_car(run_folder):
    plan = PlanRecord(0, (100.0, 50.0, 0.0), 5.0, "FOLLOW", [], True, True, "", "", [[5.0, 0.0]], 0.5, 1.0, 0.0, 0.0,
                      0.0, 0, 0, 0, 0, "")
    other = np.array([[120.0, 60.0], [124.0, 60.0], [124.0, 62.0], [120.0, 62.0]])
    route = np.stack([np.arange(0.0, 400.0), np.full(400, 50.0)], axis=1)
    far = [np.array([[500.0, 0.0], [600.0, 0.0]])]
    pane = _MapPane(far, route, 399.0).draw(route[:100], plan, [(other, BLUE)])
    scale = 320 / 80.0
    assert tuple(pane[round(160 - 11 * scale), round(160 + 22 * scale)]) == BLUE  # ahead is right, left is up
    assert tuple(pane[160, round(160 - 20 * scale)]) == TEAL
    assert not (pane == LANE).all(axis=-1).any()


def test_a_page_tells_of_a_deadline_where_there_was_one(run_folder):
    write_report(run_folder)
    assert "not reproducible" not in (run_folder / "index.html").read_text()
    replace(DriveResults.load(run_folder), deadline_ms=80.5).save(run_folder)
    write_report(run_folder)
    assert "80.5 ms of wall time a plan: not reproducible" in (run_folder / "index.html").read_text()


def test_run_without_pictures_gives_a_page_and_no_film(run_folder):
    results = DriveResults.load(run_folder)
    replace(results, routes=(), error="the planner node ended before it was ready").save(run_folder)
    write_report(run_folder)
    assert not (run_folder / "drive.mp4").exists()
    html = (run_folder / "index.html").read_text()
    assert "The drive ended early: the planner node ended before it was ready" in html


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 9))
def test_ticks_are_round_evenly_spaced_and_inside(low, span, count):
    ticks = nice_ticks(low, low + span, count)
    assert len(ticks) <= count + 1
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    if len(ticks) > 2:
        steps = np.diff(ticks)
        rounding = 4 * np.spacing(abs(low) + span)
        assert steps == pytest.approx(np.full(len(steps), steps[0]), rel=1e-6, abs=rounding)
        mantissa = steps[0] / 10 ** np.floor(np.log10(steps[0]) + 1e-9)
        assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 1e-3


def polyline(svg, style):
    found = re.search(rf'class="{style}" points="([^"]*)"', svg)
    return np.array([[float(v) for v in pair.split(",")] for pair in found.group(1).split()])


def test_line_chart_keeps_proportions_and_puts_larger_values_higher():
    points = polyline(line_chart("v", "t", [Series("v", [0, 1, 4], [0, 2, 8])]), "line s1")
    assert (points[1] - points[0]) * 4 == pytest.approx(points[2] - points[0], abs=0.3)
    assert points[2, 1] < points[0, 1]


def test_map_is_north_up_and_true_to_scale():
    route = np.stack([np.arange(0.0, 101.0), np.zeros(101)], axis=1)
    driven = np.array([[0.0, 0.0], [0.0, 50.0], [50.0, 50.0]])
    svg, replayed = route_map([], route, 80.0, driven, [Marker(1.0, 2.0, 'hit "it" & stopped')])
    points = polyline(svg, "line s1")
    up, right = points[1] - points[0], points[2] - points[1]
    assert up[0] == pytest.approx(0, abs=0.2)
    assert up[1] < 0
    assert right == pytest.approx([-up[1], 0.0], abs=0.2)
    planned = polyline(svg, "planned")
    assert planned[-1, 0] - planned[0, 0] == pytest.approx(80.0 / 50.0 * right[0], abs=1.0)  # cut at the goal
    ElementTree.fromstring(svg)
    assert replayed is None


def test_bars_of_the_histogram_hold_every_value():
    values = [1.0, 2.0, 2.0, 3.0, 500.0] * 20
    svg = histogram("latency", "ms", values, [("p50", 2.0)])
    assert sum(int(n) for n in re.findall(r"<title>(\d+) from", svg)) == len(values)
