"""results.json and the files of a route."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.results import SCHEMA, DriveResults, RouteResult, Tick, TimedInfraction
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.errors import ExitCode, UserError

ROUTE = RouteResult(
    route_id="1", town="Wamtown01", outcome=Outcome.COMPLETED, reason="reached the goal", completion_pct=100.0,
    length_m=50.0, driven_m=49.0, duration_s=9.0, wall_s=4.0, max_deviation_m=0.3, off_lane_s=0.0, frames_sent=36,
    plans=36, plans_unreadable=1, plans_refused=0, plans_missing=0, latency_ms={"p50": 20.0, "p95": 30.0, "max": 40.0},
    decode={"forwards": 3.5, "decode_ms": 9.0},
    infractions=(TimedInfraction("off lane", 1.5, 2.0, -3.0, "up to 2 m"),), folder="routes/1",
)
DRIVE = DriveResults(
    label="embedded world", planner="nano", link="ros", source="abc", latency_mode="lockstep",
    latency_ms=0.0, plan_wait_s=5.0, server="embedded",
    routes_file="demo.xml", seed=0, started="2026-11-29T00:00:00+00:00", machine="m", commit="c",
    planner_camera=CameraSpec(), display_camera=CameraSpec(name="display", width_px=640, height_px=320),
    routes=(ROUTE,), routes_wanted=1,
)


def outcomes(*kinds, error=""):
    routes = tuple(replace(ROUTE, outcome=kind) for kind in kinds)
    return replace(DRIVE, routes=routes, routes_wanted=len(kinds), error=error)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.COMPLETED, Outcome.SERVER_LOST)])
def test_any_failed_route_ends_with_exit_code_1(outcome):
    assert outcomes(Outcome.COMPLETED, outcome, Outcome.COMPLETED).exit_code == ExitCode.FAILED_ITEMS == 1


def test_exit_codes_of_success_of_nothing_and_of_a_lost_server():
    assert outcomes(Outcome.COMPLETED, Outcome.COMPLETED).exit_code == 0
    assert outcomes().exit_code == 1
    assert replace(outcomes(Outcome.COMPLETED), routes_wanted=2).exit_code == 1
    assert outcomes(Outcome.COMPLETED, Outcome.SERVER_LOST).exit_code == 3
    assert outcomes(Outcome.COMPLETED, error="server ended").exit_code == 3


def test_results_come_back_from_the_file_as_they_went(tmp_path):
    DRIVE.save(tmp_path)
    assert DriveResults.load(tmp_path) == DRIVE
    assert json.loads((tmp_path / "results.json").read_text())["routes"][0]["outcome"] == "completed"


def test_results_of_another_version_of_the_schema_are_refused(tmp_path):
    replace(DRIVE, schema=SCHEMA + 1).save(tmp_path)
    with pytest.raises(UserError, match=rf"json: expected results of schema {SCHEMA}, got {SCHEMA + 1}; drive again"):
        DriveResults.load(tmp_path)


def test_results_of_another_schema_are_refused_by_the_name_of_the_key(tmp_path):
    data = json.loads(DRIVE.save(tmp_path).read_text())
    data["plannner"] = data.pop("planner")
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match="plann"):
        DriveResults.load(tmp_path)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**62))
def test_trajectory_line_keeps_every_bit(value, t_ns):
    row = Tick(t_ns, value, 0.1, -0.0, 1e-300, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -1).row()
    assert int(row[0]) == t_ns
    assert float(row[1]) == value
    assert math.copysign(1.0, float(row[1])) == math.copysign(1.0, value)
