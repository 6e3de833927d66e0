"""What a set that is gone on with must be the same in, and what `collect` refuses before anything is begun."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.collect import collect
from carla_bridge.collect import command as command_module
from carla_bridge.collect.command import _request
from carla_bridge.collect.output import SetFolder
from carla_bridge.collect.runner import CollectConfig
from carla_bridge.evaluation import installation
from carla_bridge.route_sets import __main__ as route_sets
from carla_bridge.routes import DEMO_ROUTES
from carla_bridge.server.town.town_library import SHIPPED_FOLDER
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import ExitCode, UserError
from wamdiff2_core.model.checkpoint import checkpoint_hash

pytestmark = pytest.mark.carla
TOWN = "Wamtown01"


def maps_in(folder: Path, tail: str = "") -> Path:
    folder.mkdir()
    text = (SHIPPED_FOLDER / f"{TOWN}.xodr").read_text()
    (folder / f"{TOWN}.xodr").write_text(text + tail)
    (folder / "Unused.xodr").write_text(text + f"<!-- {folder.name} -->")
    return folder


def test_maps_are_known_by_their_content(tmp_path: Path) -> None:
    def request(maps: Path) -> dict:
        return _request(CollectConfig(routes=(DEMO_ROUTES,), out=tmp_path, maps=maps))

    first = request(maps_in(tmp_path / "first"))
    assert first["maps"].keys() == {TOWN}
    assert request(maps_in(tmp_path / "moved")) == first
    assert request(maps_in(tmp_path / "edited", "\n")) != first


@pytest.mark.parametrize(("name", "change"), [
    ("code_hash", lambda: "another"), ("versions_of", lambda *names: dict.fromkeys(names, "0.0")),
])
def test_other_code_or_versions_do_not_go_on_with_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: object
) -> None:
    config = CollectConfig(routes=(DEMO_ROUTES,), out=tmp_path)
    with SetFolder(tmp_path, _request(config), 10):
        pass
    monkeypatch.setattr(command_module, name, change)
    key = {"code_hash": "code", "versions_of": "versions"}[name]
    with pytest.raises(UserError, match=f"same arguments, code and maps, got {key} "):
        SetFolder(tmp_path, _request(config), 10)


def test_walkers_are_the_embedded_worlds_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[CollectConfig] = []

    def none(config: CollectConfig, first: int, workers: int, end: int) -> Iterator[object]:
        begun.append(config)
        raise UserError("test", "nothing", "to drive")
        yield

    monkeypatch.setattr("carla_bridge.collect.runner.episodes", none)
    with pytest.raises(UserError, match="--walkers: expected none with --carla"):
        collect(tmp_path, [DEMO_ROUTES], carla="127.0.0.1:2000", walkers=5)
    for number, (address, walkers) in enumerate([("", None), ("127.0.0.1:2000", None), ("127.0.0.1:2000", 0), ("", 7)]):
        with pytest.raises(UserError, match="to drive"):
            collect(tmp_path / str(number), [DEMO_ROUTES], carla=address, walkers=walkers)
    assert [config.walkers for config in begun] == [40, 0, 0, 7]


@pytest.mark.parametrize(("command", "name"), [
    (route_sets.write_sets, "carla_bridge.route_sets"), (installation.main, "carla_bridge.evaluation.installation"),
])
def test_a_module_that_is_run_without_its_argument_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: object, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    assert run_alone(command, name) == ExitCode.WRONG_USE  # type: ignore[arg-type]
    assert "Missing argument" in capsys.readouterr().err


def test_a_learner_must_see_and_be_told_what_a_fleets_vehicle_is(nano_folder: Path, tmp_path: Path) -> None:
    def config(**more: object) -> CollectConfig:
        return CollectConfig(routes=(DEMO_ROUTES,), out=tmp_path, **more)  # type: ignore[arg-type]

    assert _request(config(learner=nano_folder))["learner"] == checkpoint_hash(nano_folder)
    assert "torch" in _request(config(learner=nano_folder))["learner_versions"]
    assert "learner" not in _request(config())
    with pytest.raises(UserError, match="record of planning"):
        config(learner=tmp_path)
    with pytest.raises(UserError, match="pictures to drive by"):
        config(learner=nano_folder, images=False)
    other = shutil.copytree(nano_folder, tmp_path / "other")
    record = json.loads((other / "wamdiff2.json").read_text())
    record["rig"][0]["z_m"] = 2.5
    (other / "wamdiff2.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="camera and targets of the nano"):
        config(learner=other)
    with pytest.raises(UserError, match="--learner with it"):
        collect(tmp_path / "set", learner_share=0.5)


def test_defaults_that_the_help_shows_are_those_of_a_set() -> None:
    shown = {name: hint.__metadata__[0].show_default
             for name, hint in get_type_hints(collect, include_extras=True).items() if hasattr(hint, "__metadata__")}
    for name in ("walkers", "encounters", "learner_share"):
        assert shown[name] == str(getattr(CollectConfig(routes=(DEMO_ROUTES,), out=Path("x")), name))


def test_encounters_without_a_fleet_that_has_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 with --fleet 0"):
        collect(tmp_path / "set", fleet=0, encounters=0.5)


def test_a_learner_plans_without_looking_at_the_clock_or_the_vehicle_before(nano_folder: Path, tmp_path: Path) -> None:
    hasty = shutil.copytree(nano_folder, tmp_path / "hasty")
    record = json.loads((hasty / "wamdiff2.json").read_text())
    record["decode"] |= {"deadline_ms": 50.0, "warm_start": "previous", "prompt_reuse": "always"}
    (hasty / "wamdiff2.json").write_text(json.dumps(record))
    decode = CollectConfig(routes=(DEMO_ROUTES,), out=tmp_path, learner=hasty).wishes.learner.decode  # type: ignore
    assert (decode.deadline_ms, decode.warm_start, decode.prompt_reuse) == (0.0, "off", "off")
