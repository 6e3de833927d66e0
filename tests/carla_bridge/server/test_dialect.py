"""The two wire dialects, and towns found by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.server.app import ServerConfig
from carla_bridge.server.handlers import all_methods
from carla_bridge.server.protocol.dialect import DIALECTS
from carla_bridge.server.protocol.rpc import answer
from carla_bridge.server.town.town_library import TownLibrary
from carla_bridge.server.world import World
from wamdiff2_core.errors import UserError

METHODS = all_methods()
CAR, POSE = [0, "vehicle.lincoln.mkz_2020", []], [[0.0, 0.0, 0.5], [0.0, 0.0, 0.0]]
FIRST_TYPE = {"0.9.15": 0, "0.9.16": 1}
STATE_TYPE = {"0.9.15": 16, "0.9.16": 17}
SPAWN_BODY: dict[str, list] = {
    "0.9.15": [CAR, POSE, [False], [[[18, [0, [5]]]]]],
    "0.9.16": [CAR, POSE, [False], 0, "", [[[18, [0, [5]]]]]],
}


@pytest.fixture(params=DIALECTS)
def world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    return make_world(dialect=DIALECTS[request.param])


def call(world: World, name: str, *arguments: Any) -> Any:
    error, result = answer(METHODS, world, name, list(arguments))
    assert error is None, error
    return result


def test_version_is_the_dialects(world: World) -> None:
    assert call(world, "version") == [[1, world.dialect.version]]


def test_world_state_carries_the_type_number_of_the_version(world: World) -> None:
    world.step(0.05)
    (sensor_type,) = struct.unpack_from("<Q", world.hub.take(world.state_stream)[-1])  # type: ignore[attr-defined]
    assert sensor_type == STATE_TYPE[world.dialect.version]


def test_attribute_types_are_counted_as_the_version_does(world: World) -> None:
    ((_, definitions),) = call(world, "get_actor_definitions")
    attributes = {name: kind for _, id_, _, rows in definitions if id_ == CAR[1] for name, kind, *_ in rows}
    first = FIRST_TYPE[world.dialect.version]
    expected = {"has_lights": first, "generation": first + 1, "base_type": first + 3, "color": first + 4}
    assert {name: attributes[name] for name in expected} == expected


def test_batch_spawn_takes_the_versions_fields_and_no_other(world: World) -> None:
    for version, body in SPAWN_BODY.items():
        ((code, result),) = call(world, "apply_batch", [[[0, body]]])[0]
        assert code == (version == world.dialect.version), result
        if code:
            assert call(world, "get_vehicle_light_state", result) == [[1, [5]]]
            call(world, "destroy_actor", result)


def test_unknown_version_is_wrong_use() -> None:
    with pytest.raises(UserError, match=r"0\.9\.15, 0\.9\.16.*0\.9\.14"):
        ServerConfig(dialect="0.9.14")


def test_towns_are_found_by_the_last_part_of_a_map_name(tmp_path: Path) -> None:
    folder, single = tmp_path / "my maps", tmp_path / "Yard.xodr"
    folder.mkdir()
    for path in (folder / "Town01.xodr", folder / "Wamtown01.xodr", single):
        path.touch()
    library = TownLibrary(folder, single)
    assert {"Town01", "Wamtown01", "Yard"} <= set(library.names())
    assert library.names() == sorted(library.names())
    assert library.find("/Game/Carla/Maps/Town01") == folder / "Town01.xodr"
    assert library.find("Wamtown01") == folder / "Wamtown01.xodr"
    assert library.find("Yard") == single
    assert TownLibrary().find("Wamtown01").parent.name == "towns"
    for unknown in ("Town1", "../my maps/Town01.xodr", "", "/etc/passwd"):
        with pytest.raises(UserError, match="town"):
            library.find(unknown)
    with pytest.raises(UserError, match=r"--maps.*Town02\.xodr|Town02\.xodr.*--maps"):
        library.find("Town02")


def test_folder_without_towns_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--maps: .* without any$"):
        TownLibrary(tmp_path)
    (tmp_path / "OpenDrive").mkdir()
    (tmp_path / "OpenDrive" / "Town01.xodr").touch()
    with pytest.raises(UserError, match=r"some lie in .*OpenDrive$"):
        TownLibrary(tmp_path)


@pytest.mark.parametrize("wrong", [{"maps_folder": Path("nowhere")}, {"map_file": Path("no.xodr")}, {"town": "Town77"}])
def test_missing_maps_are_wrong_use(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ServerConfig(**wrong)
