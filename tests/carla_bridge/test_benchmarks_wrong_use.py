"""Benchmarks refuse wrong input in one line, as every command does."""

from __future__ import annotations

import importlib
import sys

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import ExitCode

pytestmark = pytest.mark.carla


@pytest.mark.parametrize(("name", "arguments", "told"), [
    ("grammar", ["--data", "nowhere.jsonl", "--checkpoint", "nowhere"], "nowhere"),
    ("render_speed", ["--town", "Nowhere"], "Nowhere"),
    ("server_fuzz", ["--shots", "many"], "--shots"),
    ("town_view", ["--town", "Nowhere"], "Nowhere"),
    ("traffic_speed", ["--town", "Nowhere"], "Nowhere"),
    ("traffic_watch", ["--town", "Nowhere"], "Nowhere"),
    ("training_logits", ["--steps", "0"], "--steps"),
    ("warm_start", [], "--data"),
    ("weather_sheet", ["--weathers", "nowhere.xml"], "weathers"),
    ("world_speed", ["--hours", "0.01"], "--hours: expected at least 0.07, got 0.01"),
    ("world_speed", ["--town", "Nowhere"], "Nowhere"),
])
def test_wrong_input_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, arguments: list[str], told: str
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    assert run_alone(module.main, f"benchmarks.{name}") == ExitCode.WRONG_USE
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert told in error
