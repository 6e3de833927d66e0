"""What a newcomer gets wrong on the command line of `closed-loop` and `server`, and what is said to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from carla_bridge.closed_loop import closed_loop
from carla_bridge.server.command import server
from wamdiff2_core.errors import UserError

ROUTE = ('<routes><route id="1" town="Town77"><waypoints><position x="0" y="0" z="0"/><position x="9" y="0" z="0"/>'
         "</waypoints></route></routes>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "routes.xml").write_text(ROUTE)
    return tmp_path


@pytest.mark.parametrize(("arguments", "field", "fix"), [
    (["--seed", "-1"], "--seed: expected 0 or more, got -1", ""),
    (["--deadline-ms", "-1"], "--deadline-ms: expected milliseconds >= 0, got -1.0", ""),
    (["--maps", "empty"], "--maps: expected a folder of .xodr files, got empty without any", ""),
    (["--maps", "nowhere"], "--maps: expected a folder of .xodr files, got nowhere", ""),
    (["--routes", "routes.xml"], "town in --routes: expected the name of a town, got Town77", "given as --maps"),
    (["--routes", "routes.xml", "--maps", "empty"], "--maps: expected", ""),
    (["--maps", "empty", "--workers", "1"], "--maps: expected a folder of .xodr files, got empty without any", ""),
    (["--vehicles", "600"], "--vehicles: expected 0..500, got 600", ""),
    (["--walkers", "501", "--workers", "1"], "--walkers: expected 0..500, got 501", ""),
    (["--seed", "-1", "--workers", "1"], "--seed: expected 0 or more, got -1", ""),
    (["--planner", "nano", "--device", "cuda:99", "--workers", "1"], "device: expected a device of this machine", ""),
    (["--overwrite"], "--overwrite: expected --workers or --cluster beside it", ""),
    (["--retries", "5"], "--retries: expected --workers or --cluster beside it, got 5", ""),
    (["--repeats", "2"], "--repeats: expected --workers or --cluster beside it, got 2", ""),
    (["--plan-wait", "9"], "--plan-wait: expected a planner that is asked over ROS, got 9.0", ""),
    (["--planner", "random", "--link", "in-process", "--plan-wait", "9"], "--plan-wait: expected", ""),
    (["--tick-wait", "9"], "--tick-wait: expected --passive beside it", ""),
    (["--passive", "--carla", "localhost:2000", "--scenarios"], "--scenarios: expected none with --passive", ""),
    (["--passive", "--carla", "localhost:2000", "--latency", "lockstep"], "--latency: expected none with", ""),
    (["--maps", "empty", "--carla", "localhost:2000"], "--maps: expected none with --carla", ""),
])
def test_a_drive_that_cannot_be_is_refused_before_it_has_a_folder(folder, monkeypatch, arguments, field, fix):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(closed_loop, ["--planner", "expert", "--out", "out", *arguments], catch_exceptions=False)
    assert str(caught.value).startswith(field)
    assert fix in str(caught.value)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(("arguments", "field", "fix"), [
    (["--seed", "-1"], "--seed: expected 0 or more, got -1", ""),
    (["--maps", "empty"], "--maps: expected a folder of .xodr files, got empty without any", ""),
    (["--town", "Town77"], "--town: expected the name of a town, got Town77", "given as --maps"),
    (["--town", "wamtown02"], "--town: expected the name of a town", "did you mean 'Wamtown02'?"),
    (["--map", "nowhere.xodr"], "--map: expected an OpenDRIVE file, got nowhere.xodr", ""),
    (["--host", "here"], "--host: expected an IPv4 address, got here", "127.0.0.1"),
])
def test_a_server_that_cannot_be_is_refused_by_the_name_of_the_option(folder, monkeypatch, arguments, field, fix):
    monkeypatch.chdir(folder)
    alone = typer.Typer(pretty_exceptions_enable=False)
    alone.command()(server)
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(alone, arguments, catch_exceptions=False)
    assert str(caught.value).startswith(field)
    assert fix in str(caught.value)
