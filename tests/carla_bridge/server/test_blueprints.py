"""The blueprint library against what Bench2Drive's scenarios look up, filter by and spawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.wire import AttributeType
from carla_bridge.server.world import World

NAMED_BY_SCENARIOS = (
    "vehicle.lincoln.mkz_2020", "vehicle.lincoln.mkz_2017", "vehicle.tesla.model3", "vehicle.volkswagen.t2",
    "vehicle.audi.tt", "vehicle.carlamotors.carlacola", "vehicle.kawasaki.ninja", "vehicle.diamondback.century",
    "vehicle.bh.crossbike", "vehicle.gazelle.omafiets", "vehicle.nissan.micra", "vehicle.nissan.patrol",
    "vehicle.nissan.patrol_2021", "vehicle.mini.cooper_s_2021", "vehicle.mercedes.coupe_2020",
    "vehicle.dodge.charger_2020", "vehicle.dodge.charger_police_2020", "vehicle.ford.mustang",
    "vehicle.chevrolet.impala", "walker.pedestrian.0001", "static.prop.container", "static.prop.vendingmachine",
    "static.prop.advertisement", "static.prop.dirtdebris01", "static.prop.dirtdebris02",
    "static.prop.constructioncone", "static.prop.warningconstruction", "static.prop.trafficwarning",
    "static.prop.warningaccident", "static.prop.streetbarrier", "static.prop.chainbarrier", "static.prop.mesh",
    "static.trigger.friction", "sensor.camera.rgb", "sensor.lidar.ray_cast", "sensor.other.radar",
    "sensor.other.gnss", "sensor.other.imu", "sensor.other.collision", "sensor.other.lane_invasion",
    "sensor.other.obstacle", "controller.ai.walker",
)  # fmt: skip
FILTERS: tuple[dict[str, str], ...] = (
    {"base_type": "car", "has_lights": "true", "special_type": ""},
    {"base_type": "car", "generation": "2"},
    {"base_type": "car", "generation": "2", "special_type": ""},
    {"base_type": "car", "has_dynamic_doors": "true"},
    {"special_type": "emergency"},
    {"base_type": "bicycle"},
)
TYPES = {
    "base_type": AttributeType.STRING, "special_type": AttributeType.STRING, "generation": AttributeType.INT,
    "number_of_wheels": AttributeType.INT, "has_lights": AttributeType.BOOL, "has_dynamic_doors": AttributeType.BOOL,
    "color": AttributeType.COLOR, "role_name": AttributeType.STRING, "driver": AttributeType.STRING,
}  # fmt: skip


def attributes(type_id: str) -> dict[str, Any]:
    return {attribute.name: attribute for attribute in LIBRARY[type_id].attributes}


def vehicles() -> list[str]:
    return [type_id for type_id in LIBRARY if type_id.startswith("vehicle.")]


@pytest.mark.parametrize("type_id", NAMED_BY_SCENARIOS)
def test_everything_that_scenarios_name_exists_and_has_a_role_name(type_id: str) -> None:
    assert attributes(type_id)["role_name"].modifiable


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_filters_of_scenarios_find_several_vehicles_but_not_all(wanted: dict[str, str]) -> None:
    found = [v for v in vehicles() if all(attributes(v)[name].default == value for name, value in wanted.items())]
    assert 2 <= len(found) < len(vehicles())


def test_vehicle_attributes_have_the_types_that_filters_compare_with() -> None:
    for type_id in vehicles():
        assert {name: attributes(type_id)[name].type for name in TYPES} == TYPES, type_id


def test_default_values_parse_as_their_type() -> None:
    checks: dict[AttributeType, Callable[[str], Any]] = {
        AttributeType.INT: int,
        AttributeType.FLOAT: float,
        AttributeType.BOOL: ["true", "false"].index,
        AttributeType.COLOR: lambda value: [bytes([int(part)]) for part in value.split(",")][2],
        AttributeType.STRING: str,
    }
    for blueprint in LIBRARY.values():
        for attribute in blueprint.attributes:
            for value in (attribute.default, *attribute.recommended):
                checks[attribute.type](value)


def test_bodies_have_a_size_and_two_wheelers_two_wheels() -> None:
    for type_id, blueprint in LIBRARY.items():
        assert not blueprint.solid or min(blueprint.extent_m) > 0.05, type_id
    for type_id in vehicles():
        two = attributes(type_id)["base_type"].default in ("bicycle", "motorcycle")
        assert attributes(type_id)["number_of_wheels"].default == ("2" if two else "4")
        assert LIBRARY[type_id].model is not None


def test_what_cannot_be_spawned_says_why(make_world: Callable[..., World]) -> None:
    world = make_world()
    refused = {type_id: blueprint.missing for type_id, blueprint in LIBRARY.items() if blueprint.missing}
    assert "sensor.camera.normals" in refused
    assert "controller.ai.walker" in refused
    for type_id, reason in refused.items():
        with pytest.raises(RpcError) as refusal:
            world.spawn([0, type_id, []], Pose())
        assert str(refusal.value) == f"{type_id}: {reason}"


def test_everything_else_can_be_spawned_and_the_world_goes_on(make_world: Callable[..., World]) -> None:
    world = make_world()
    spawned = [
        world.spawn([0, type_id, []], Pose(x=20.0 * index))
        for index, (type_id, blueprint) in enumerate(LIBRARY.items())
        if not blueprint.missing
    ]
    for _ in range(3):
        world.step(0.05)
    assert all(actor.id in world.actors for actor in spawned)


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("image_size_x", "-5", "1 to 4096"), ("image_size_y", "0", "1 to 4096"), ("image_size_x", "20000", "1 to 4096"),
        ("fov", "400", "1 to 170"), ("fov", "0", "1 to 170"), ("fov", "nan", "1 to 170"),
        ("sensor_tick", "-0.1", "0 to 1e"),
    ],
)  # fmt: skip
def test_camera_that_cannot_be_is_refused_by_the_name_of_its_attribute(name: str, value: str, limits: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .* from {limits}.*'{value}'"):
        LIBRARY["sensor.camera.rgb"].check([(name, value)])
