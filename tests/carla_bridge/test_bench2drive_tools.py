"""What Bench2Drive's own tools demand of our result files: by their structure, and by running the tools themselves.

The tools are those of Bench2Drive 0.0.4: `merge_route_json.py`, `ability_benchmark.py` and
`efficiency_smoothness_benchmark.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.evaluation.attempts import Attempt, Kind
from carla_bridge.evaluation.final import write_final_files
from carla_bridge.evaluation.request import Evaluation
from carla_bridge.leaderboard.infractions import Infraction
from carla_bridge.leaderboard.record import EMBEDDED_WORLD, RouteRecord, RouteStatus
from carla_bridge.leaderboard.results import LeaderboardResults
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.route_file import load_routes
from carla_bridge.score.bench2drive import score_files
from tests.carla_bridge.run_doubles import entries_of, write_route
from wamdiff2_core.frames import pose_to_carla
from wamdiff2_core.types import EgoState, Pose2D

pytestmark = pytest.mark.carla
ROUTES = ROUTES_FOLDER / "embedded-20.xml"
TOWNS = Path(__file__).resolve().parents[2] / "carla_bridge" / "server"
BENCH2DRIVE_MERGE = 220  # the tool divides by it, however many routes there are


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of an evaluation of the 20 routes, some of them failed, one hit a vehicle."""
    out = tmp_path_factory.mktemp("evaluation")
    config = DriveConfig(routes=ROUTES, agent=AgentChoice.parse("route-only"), out=out, video=False)
    evaluation = Evaluation(config, tuple(load_routes(ROUTES)))
    attempts = []
    for index, (job, spec) in enumerate(zip(evaluation.jobs, evaluation.specs, strict=True)):
        result = write_route(out, index, route_id=spec.id, town=spec.town, name=job.name(1), ticks=60 + index)
        entries = [*entries_of(index), Infraction.min_speed(80.0 + index), Infraction.min_speed(1200.0)]
        record = RouteRecord.of_drive(spec.id, result.completion_pct, entries, RouteStatus.BLOCKED, town=spec.town)
        attempts.append(Attempt(spec.id, 0, 1, Kind.DRIVEN, "", 0, result=replace(result, record=record.to_json(0))))
    write_final_files(evaluation, attempts)
    return out


@pytest.fixture(scope="module")
def records(folder) -> list[dict]:
    return json.loads((folder / "leaderboard.json").read_text())["_checkpoint"]["records"]


def test_every_record_has_what_the_merge_tool_takes_from_it(records):
    assert [record["index"] for record in records] == list(range(20))
    ids = [record["route_id"] for record in records]
    assert all(re.fullmatch(r"RouteScenario_\d+_rep0", route_id) for route_id in ids)
    assert sorted(ids) == ids
    assert len(set(ids)) == 20
    for record in records:
        assert isinstance(record["scores"]["score_composed"], float)
        assert record["status"] in {"Completed", "Perfect"} or record["status"].startswith("Failed")
        assert all(isinstance(text, str) for texts in record["infractions"].values() for text in texts)


def test_every_record_has_what_the_ability_tool_takes_from_it(records):
    wanted = {spec.id: spec for spec in load_routes(ROUTES)}
    assert [record["route_id"].split("_")[1] for record in records] == list(wanted)
    for record in records:
        spec = wanted[record["route_id"].split("_")[1]]
        assert record["scenario_name"].rpartition("_")[0] == spec.scenarios[0].type
        assert record["town_name"] == spec.town
        assert 0.0 <= record["scores"]["score_route"] <= 100.0
        assert {"stop_infraction", "red_light", "min_speed_infractions"} <= record["infractions"].keys()


def test_every_record_has_what_the_comfort_tool_takes_from_it(records, folder):
    for record in records:
        for text in record["infractions"]["min_speed_infractions"]:
            assert re.search(r"\b\d+\.?\d*%", text)
        info = json.loads((folder / "routes" / record["save_name"] / "metric_info.json").read_text())
        assert list(info) == [str(number) for number in range(len(info))]
        assert len(info) > 2
        for entry in info.values():
            assert {name: len(value) for name, value in entry.items()} == dict.fromkeys(
                ("acceleration", "angular_velocity", "forward_vector", "right_vector", "location", "rotation"), 3)


def test_metric_entries_are_of_carlas_left_handed_world():
    from carla import Rotation, Vector3D

    from carla_bridge.leaderboard.metric_info import metric_entry

    ego = EgoState([4.0, 0.0], [1.0, 0.5], yaw_rate_radps=0.1, map_from_base=Pose2D(3.0, 2.0, 0.4))
    x_m, y_m, yaw_deg = pose_to_carla(ego.map_from_base)
    entry, carla_axes = metric_entry(ego), Rotation(yaw=yaw_deg)
    forward, right = carla_axes.get_forward_vector(), carla_axes.get_right_vector()
    assert entry["location"] == [x_m, y_m, 0.0]
    assert entry["rotation"] == [0.0, 0.0, yaw_deg]
    for name, vector in (("forward_vector", forward), ("right_vector", right)):
        assert entry[name] == pytest.approx([vector.x, vector.y, 0.0], abs=1e-6)
    accel: Vector3D = forward * 1.0 - right * 0.5  # half a metre per second squared to the left
    assert entry["acceleration"] == pytest.approx([accel.x, accel.y, 0.0], abs=1e-6)
    assert entry["angular_velocity"] == pytest.approx([0.0, 0.0, -5.729578], abs=1e-6)


@pytest.fixture
def shards(folder, tmp_path) -> Path:
    """A folder of one file a route, as the runner of Bench2Drive's evaluator leaves them."""
    (tmp_path / "shards").mkdir()
    for record in LeaderboardResults.load(folder / "leaderboard.json").records:
        shard = LeaderboardResults.of_run([record], 1, (), EMBEDDED_WORLD)
        shard.save(tmp_path / "shards" / f"{record.route_id}.json")
    return tmp_path / "shards"


def test_shards_hold_one_record_each_that_only_its_index_tells_from_the_whole(records, shards):
    lists = [json.loads(path.read_text())["_checkpoint"]["records"] for path in sorted(shards.glob("*.json"))]
    assert [[{**record, "index": 0}] for record in records] == lists


@pytest.fixture
def tools() -> Path:
    root = os.environ.get("BENCH2DRIVE_ROOT")
    if not root or not (Path(root) / "tools" / "merge_route_json.py").is_file():
        pytest.skip("needs BENCH2DRIVE_ROOT, a checkout of Bench2Drive with its tools folder")
    return Path(root) / "tools"


def run(tool: Path, *arguments: object, **environment: str) -> str:
    done = subprocess.run([sys.executable, str(tool), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def merged(tools: Path, folder: Path, out: Path) -> Path:
    """What the merge tool makes of an evaluation; it reads every JSON file of a folder, so the result has its own."""
    out.mkdir()
    shutil.copy(folder / "leaderboard.json", out)
    run(tools / "merge_route_json.py", "-f", out)
    return out / "merged.json"


def test_the_merge_and_comfort_tools_come_to_the_scorers_figures(tools, folder, tmp_path):
    path = merged(tools, folder, tmp_path / "merged")
    data, ours = json.loads(path.read_text()), score_files([path], str(ROUTES), metrics=folder / "routes").to_json()
    coded = ours["as_coded_upstream"]
    assert data["eval num"] == 20
    assert data["driving score"] == pytest.approx(coded["driving_score"])
    assert data["driving score"] * BENCH2DRIVE_MERGE / 20 == pytest.approx(ours["driving_score"])
    assert data["success rate"] * BENCH2DRIVE_MERGE / 20 == pytest.approx(ours["success_rate"])
    said = run(tools / "efficiency_smoothness_benchmark.py", "-f", path, "-m", folder / "routes")
    efficiency, comfort = (float(line.partition("=")[2]) for line in said.strip().splitlines())
    assert efficiency == pytest.approx(ours["efficiency"])
    assert comfort == pytest.approx(ours["comfort"]["as_coded"])


def test_the_merge_tool_makes_the_same_of_shards(tools, folder, shards, tmp_path):
    run(tools / "merge_route_json.py", "-f", shards)
    ours = json.loads((shards / "merged.json").read_text())
    whole = json.loads(merged(tools, folder, tmp_path / "merged").read_text())
    assert ours.pop("_checkpoint") == whole.pop("_checkpoint")
    assert ours == pytest.approx(whole)


def test_the_ability_tool_comes_to_the_scorers_figures(tools, folder, tmp_path):
    api = os.environ.get("CARLA_API", "")
    if not (Path(api) / "agents" / "navigation" / "global_route_planner.py").is_file():
        pytest.skip("needs CARLA_API, the folder that holds CARLA's agents package")
    maps = tmp_path / "CarlaUE4" / "Content" / "Carla" / "Maps" / "OpenDrive"
    maps.mkdir(parents=True)
    for town in TOWNS.rglob("Wamtown0*.xodr"):
        shutil.copy(town, maps)
    path = merged(tools, folder, tmp_path / "merged")
    run(tools / "ability_benchmark.py", "-f", ROUTES, "-r", path, CARLA_ROOT=str(tmp_path), PYTHONPATH=api)
    found = json.loads(path.with_name("merged_ability.json").read_text())
    assert found.pop("crashed") == []
    ours = score_files([path], str(ROUTES), maps=maps).to_json()["abilities"]
    assert found == pytest.approx({name: ability["value"] for name, ability in ours.items()})
