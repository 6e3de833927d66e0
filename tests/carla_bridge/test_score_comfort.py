"""Comfort: upstream's rule is reproduced with its faults, and the corrected one has none."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from carla_bridge.leaderboard.results import Infraction, RouteRecord
from carla_bridge.score.bench2drive import score_records
from carla_bridge.score.comfort import (
    CORRECTION,
    MetricFileError,
    MetricInfo,
    find_metric_file,
    load_metric_info,
    route_comfort,
    smoothed,
)
from carla_bridge.score.problems import ProblemKind
from carla_bridge.score.route_sets import RouteFacts, RouteSet
from carla_bridge.score.sources import FoundRecord

ROUTES = RouteSet("two", {"1": RouteFacts("Town01", "Accident"), "2": RouteFacts("Town01", "Accident")})


@pytest.mark.parametrize("length", [3, 4, 5, 6, 7, 20])
def test_the_filter_leaves_a_parabola_as_it_is_however_short(length):
    t = 0.1 * np.arange(length)
    np.testing.assert_allclose(smoothed(2 + 3 * t - 4 * t**2), 2 + 3 * t - 4 * t**2, atol=1e-9)
    np.testing.assert_allclose(smoothed(2 + 3 * t - 4 * t**2, 0.1), 3 - 8 * t, atol=1e-9)


def ride(ticks=100, accel_mps2=(0.0, 0.0), yaw_rate_degps=0.0, step_s=0.05):
    """A ride that looks along x; constants or one value a tick."""
    accel = np.broadcast_to(np.asarray(accel_mps2, dtype=float), (ticks, 2))
    rate = np.broadcast_to(np.asarray(yaw_rate_degps, dtype=float), (ticks,))
    axis = np.eye(2)
    return MetricInfo(accel, np.tile(axis[0], (ticks, 1)), np.tile(axis[1], (ticks, 1)), rate, step_s)


@pytest.mark.parametrize(("rate_degps", "as_coded", "corrected"), [(1.0, 0.0, 1.0), (0.9, 1.0, 1.0), (60.0, 0.0, 0.0)])
def test_a_steady_turn(rate_degps, as_coded, corrected):
    comfort = route_comfort(ride(yaw_rate_degps=rate_degps))
    assert (comfort.as_coded, comfort.corrected) == (as_coded, corrected)
    assert route_comfort(ride(yaw_rate_degps=-rate_degps)) == comfort


def test_swerving_below_the_limit_of_yaw_rate_fails_by_its_yaw_acceleration():
    t = np.arange(100) * 0.05
    swerve = np.rad2deg(0.9 * np.sin(2 * math.pi * t))  # below 0.95 rad/s, but up to 5.7 rad/s^2
    assert route_comfort(ride(yaw_rate_degps=swerve)).corrected == 0.0
    assert route_comfort(ride(yaw_rate_degps=np.rad2deg(0.9 * np.sin(0.5 * math.pi * t)))).corrected == 1.0


@pytest.mark.parametrize(
    ("accel_mps2", "comfortable"),
    [((2.39, 0), True), ((2.41, 0), False), ((-4.04, 0), True), ((-4.06, 0), False), ((0, 4.88), True),
     ((0, 4.9), False), ((0, -4.9), False)],
)
def test_limits_of_acceleration(accel_mps2, comfortable):
    comfort = route_comfort(ride(accel_mps2=accel_mps2))
    assert comfort.as_coded == comfort.corrected == float(comfortable)


@pytest.mark.parametrize(("jerk_mps3", "as_coded", "corrected"), [(4.0, 1.0, 1.0), (5.0, 1.0, 0.0), (6.6, 1.0, 0.0)])
def test_upstream_halves_the_jerk(jerk_mps3, as_coded, corrected):
    accel = np.zeros((20, 2))
    accel[:, 0] = 2.35 - jerk_mps3 * 0.05 * np.arange(20)  # within the limits of acceleration for one second
    comfort = route_comfort(ride(20, accel))
    assert (comfort.as_coded, comfort.corrected) == (as_coded, corrected)


def test_stretches_are_twenty_samples_and_the_rest_is_dropped():
    rate = np.zeros(75)
    rate[25:30] = 2.0  # spoils the second of three whole stretches
    assert route_comfort(ride(75, yaw_rate_degps=rate)).as_coded == pytest.approx(2 / 3)
    rate = np.zeros(59)
    rate[45:] = 2.0  # in the incomplete third
    assert route_comfort(ride(59, yaw_rate_degps=rate)).as_coded == 1.0
    assert route_comfort(ride(3, yaw_rate_degps=2.0)).as_coded == 0.0


def metric_json(ticks=40, rate_degps=1.0, every=1):
    row = {
        "acceleration": [0.0, 0.0, 0.0], "angular_velocity": [0.0, 0.0, rate_degps], "forward_vector": [1.0, 0.0, 0.0],
        "right_vector": [0.0, 1.0, 0.0], "location": [0.0, 0.0, 0.0], "rotation": [0.0, 0.0, 0.0],
    }
    return json.dumps({str(every * step): row for step in range(ticks)})


def put(folder, save_name, text):
    (folder / save_name).mkdir(parents=True)
    (folder / save_name / "metric_info.json").write_text(text)


def score(metrics, save_names=("a", "b")):
    found = [
        FoundRecord(RouteRecord.of_drive(i, 100, [Infraction.min_speed(90.0)], save_name=name), "x.json")
        for i, name in zip("12", save_names, strict=True)
    ]
    return score_records(found, ROUTES, metrics=metrics)


def test_score_states_both_figures_and_why_they_differ(tmp_path):
    put(tmp_path, "a", metric_json(rate_degps=1.0))
    put(tmp_path, "b", metric_json(rate_degps=0.9))
    comfort = score(tmp_path).comfort
    assert (comfort.as_coded, comfort.corrected, comfort.routes) == (0.5, 1.0, 2)
    assert comfort.to_json()["why"] == CORRECTION
    assert comfort.as_coded_bounds == (0.5, 0.5)


def test_a_missing_metric_file_withholds_comfort_only(tmp_path):
    put(tmp_path, "a", metric_json())
    result = score(tmp_path)
    assert result.driving_score == 100
    assert result.comfort.as_coded is None
    assert result.comfort.as_coded_bounds == (0.0, 0.5)
    assert result.comfort.corrected_bounds == (0.5, 1.0)
    assert {problem.kind for problem in result.problems} == {ProblemKind.METRICS}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"0": {"acceleration": [1, 2, 3]}}', metric_json(2), metric_json().replace("0.0,", "null,", 1)],
)
def test_a_bad_metric_file_is_named(tmp_path, text):
    put(tmp_path, "a", text)
    put(tmp_path, "b", metric_json())
    with pytest.raises(MetricFileError, match=r"metric_info\.json"):
        load_metric_info(tmp_path / "a" / "metric_info.json")
    result = score(tmp_path)
    assert result.comfort.as_coded is None
    assert any("metric_info.json" in problem.message for problem in result.problems)


def test_metric_files_further_down_are_found(tmp_path):
    put(tmp_path, "a/debug_viz/x/metric", metric_json())
    assert find_metric_file(tmp_path, "a") is not None
    put(tmp_path, "a/other", metric_json())
    assert find_metric_file(tmp_path, "a") is None  # two, and none in the usual place
    assert find_metric_file(tmp_path, "") is None


def test_samples_of_every_second_tick_are_a_tenth_of_a_second_apart(tmp_path):
    put(tmp_path, "a", metric_json(every=2))
    assert load_metric_info(tmp_path / "a" / "metric_info.json").step_s == pytest.approx(0.1)
