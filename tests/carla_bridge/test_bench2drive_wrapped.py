"""`closed-loop` with Bench2Drive's evaluator around it: when, for whom, and what its results are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.bench2drive.checkout import Checkout
from carla_bridge.bench2drive.wrapped import is_meant
from carla_bridge.leaderboard.record import EMBEDDED_WORLD
from carla_bridge.leaderboard.results import LeaderboardResults
from tests.carla_bridge.test_bench2drive_run import checkout, config  # noqa: F401 - a fixture
from wamdiff2_core.cli.main import main
from wamdiff2_core.processes import child_environment

ROOT = Path(__file__).resolve().parents[2]
STUBS = {  # what the evaluator imports, as far as the probe looks
    "api/pkg_resources.py": "from types import SimpleNamespace\n"
                            "get_distribution = lambda name: SimpleNamespace(version='0.9.15')\n",
    "api/agents/navigation/global_route_planner.py":
        "class GlobalRoutePlanner:\n    def __init__(self, map, sampling_resolution): pass\n",
    "their checkout/scenario_runner/srunner/scenariomanager/carla_data_provider.py": "",
    "their checkout/leaderboard/leaderboard/scenarios/route_scenario.py": "",
}  # fmt: skip


@pytest.mark.parametrize(("asked", "root", "planner", "carla", "passive", "meant"), [
    (None, True, "random", "", False, True),
    (None, False, "random", "", False, False),
    (None, True, "expert", "", False, False),
    (None, True, "external", "", False, False),
    (None, True, "random", "127.0.0.1:2000", False, False),
    (None, True, "random", "", True, False),
    (False, True, "random", "", False, False),
    (True, False, "expert", "127.0.0.1:2000", False, True),  # and then what is wrong with it is told
])  # fmt: skip
def test_the_environment_decides_unless_the_user_does(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, root: bool, planner: str, carla: str, passive: bool,
    meant: bool,
) -> None:
    monkeypatch.setenv("BENCH2DRIVE_ROOT", "/some/where" if root else "")
    assert is_meant(asked, AgentChoice.parse(planner), carla, passive) is meant


def prepared(folder: Path, checkout: Checkout) -> dict[str, str]:  # noqa: F811
    """A working directory, and everything that the evaluator needs in the environment."""
    for name, text in STUBS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {
        "PYTHONPATH": str(ROOT), "BENCH2DRIVE_ROOT": str(checkout.root), "CARLA_API": str(checkout.api),
        "BENCH2DRIVE_PYTHON": sys.executable, "CARLA_ROOT": "",
    }


def run(folder: Path, checkout: Checkout, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:  # noqa: F811
    """The command."""
    done = subprocess.run(
        [sys.executable, "-m", "wamdiff2_core.cli.main", "closed-loop", *arguments], capture_output=True, text=True,
        timeout=120, check=False, cwd=folder, env=child_environment(prepared(folder, checkout) | environment),
    )
    print(done.stdout, done.stderr)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("genuine", [False, True])
def test_results_are_called_bench2drive_in_a_genuine_carla_only(
    checkout: Checkout, tmp_path: Path, genuine: bool  # noqa: F811
) -> None:
    out, real = tmp_path / "run", tmp_path / "carla"
    real.mkdir()
    (real / "CarlaUE4.sh").write_text("#!/bin/sh\nexec ./CarlaUE4-Linux-Shipping\n")
    routes = str(config(checkout, out, "17").options.routes)
    arguments = ("--planner", "random", "--routes", routes, "--routes-subset", "1,7", "--out", str(out), "--workers",
                 "2", "--seed", "3")
    done = run(tmp_path, checkout, *arguments, CARLA_ROOT=str(real) if genuine else "")
    assert done.returncode in (0, 1), "a score, or one that is withheld"
    said = done.stdout.splitlines()
    assert said[0].startswith("Bench2Drive's own evaluator drives in "
                              + (f"CARLA at {real}" if genuine else "the embedded world, as CARLA_ROOT is not set"))
    assert any(line.strip() == f"routes ({'Bench2Drive' if genuine else 'embedded world, not Bench2Drive'})"
               for line in said)
    worlds = {LeaderboardResults.load(out / "shards" / f"{name}.json").records[0].world for name in "17"}
    assert worlds == {"" if genuine else EMBEDDED_WORLD}
    summary = json.loads((out / "run.json").read_text())
    assert (summary["traffic_seed"], summary["planner"], summary["world"]) == (
        3, "random", "" if genuine else EMBEDDED_WORLD,
    )
    # The same command goes on with its journal.
    assert "2 routes, 2 done before, 2 at a time" in run(
        tmp_path, checkout, *arguments, CARLA_ROOT=str(real) if genuine else ""
    ).stdout


@pytest.mark.parametrize(("arguments", "environment", "message"), [
    (("--out", "run", "--latency", "measured"), {}, "--latency: expected none with Bench2Drive's evaluator"),
    (("--out", "run", "--bench2drive", "--carla", "127.0.0.1:1"), {}, "--carla: expected none with Bench2Drive's"),
    (("--out", "run", "--no-scenarios"), {}, "--scenarios: expected none with Bench2Drive's evaluator"),
    ((), {}, "--out: expected a folder, by which a run is gone on with"),
    (("--out", "run", "--bench2drive", "--planner", "expert"), {}, "--planner: expected a checkpoint or random"),
    (("--out", "run", "--bench2drive"), {"BENCH2DRIVE_ROOT": ""}, "BENCH2DRIVE_ROOT: expected Bench2Drive's checkout"),
    (("--out", "run", "--seed", "-1"), {}, "--seed: expected 0 or more, got -1"),
    (("--out", "run"), {"BENCH2DRIVE_ROOT": "/nowhere"}, "BENCH2DRIVE_ROOT: expected a folder with leaderboard"),
    (("--hero", "ego"), {"BENCH2DRIVE_ROOT": ""}, "--hero: expected --passive beside it, got ego"),
])  # fmt: skip
def test_what_the_evaluator_does_not_know_is_refused(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],  # noqa: F811
    arguments: tuple[str, ...], environment: dict[str, str], message: str,
) -> None:
    for name, value in (prepared(tmp_path, checkout) | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    planner = () if "--planner" in arguments else ("--planner", "random")
    assert main(["closed-loop", *arguments, *planner]) == 2
    assert message in capsys.readouterr().err
