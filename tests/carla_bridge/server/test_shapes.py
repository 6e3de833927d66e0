"""Shapes of everything that can be spawned. Oracle: the blueprint's own sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("carla")

from carla_bridge.server.actors.spawning import make_actor
from carla_bridge.server.catalogue.blueprints import LIBRARY
from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import Lamp, RenderActor
from carla_bridge.server.rendering.actor_mesh import actor_mesh
from carla_bridge.server.rendering.looks import look
from carla_bridge.server.rendering.vehicle_shapes import Body, body_of

pytestmark = pytest.mark.carla

BODIES = [blueprint.id for blueprint in LIBRARY.values() if blueprint.solid]
BLUE, AMBER = (120, 160, 255), (255, 176, 34)


def seen(type_id: str, **changes) -> RenderActor:
    actor = look(make_actor(1, [0, type_id, []], Pose(), random.Random(0)))
    return RenderActor(**{**actor.__dict__, **changes})


@pytest.mark.parametrize("type_id", BODIES)
def test_a_shape_fills_its_box_and_stays_in_it(type_id):
    actor = seen(type_id)
    mesh = actor_mesh(actor, 0.0)
    upright = mesh.materials != Material.PAVED  # its dark patch on the ground reaches a little farther
    low, high = mesh.vertices_m[upright].min(axis=(0, 1)), mesh.vertices_m[upright].max(axis=(0, 1))
    half = np.array([actor.extent_x, actor.extent_y, actor.extent_z])
    assert np.isfinite(mesh.vertices_m).all()
    if actor.kind != "walker":  # arms and legs swing beyond the box, as in CARLA
        assert (high - (0, 0, half[2]) <= half + 0.2).all()
        assert (low - (0, 0, half[2]) >= -half - 0.2).all()
    assert high[2] > 1.6 * half[2]
    assert low[2] < 0.3 * half[2]
    lengths = np.linalg.norm(mesh.normals, axis=1)
    assert np.isclose(lengths, 1.0).all() | np.isclose(lengths * (lengths - 1.0), 0.0).all()


def test_bodywork_goes_by_the_base_type_of_the_blueprint():
    for blueprint in LIBRARY.values():
        base_type = next((a.default for a in blueprint.attributes if a.name == "base_type"), "")
        if base_type:
            assert body_of(blueprint.id, blueprint.extent_m[0]) is Body(base_type), blueprint.id


@pytest.mark.parametrize("type_id", ["vehicle.ford.ambulance", "vehicle.dodge.charger_police_2020"])
def test_blue_lights_flash_in_turn(type_id):
    def blue_sides(time_s, lamps=Lamp.SPECIAL1):
        mesh = actor_mesh(seen(type_id, lamps=lamps), time_s)
        lit = (mesh.materials == Material.LAMP) & (np.abs(mesh.colors - BLUE).max(axis=1) < 1)
        return set(np.sign(mesh.vertices_m[lit].mean(axis=1)[:, 1]).astype(int))

    assert blue_sides(0.1) & {-1, 1} == {-1}
    assert blue_sides(0.35) & {-1, 1} == {1}
    assert blue_sides(0.1, Lamp.NONE) == set()


@pytest.mark.parametrize("type_id", ["vehicle.tesla.model3", "vehicle.mercedes.sprinter", "vehicle.kawasaki.ninja"])
def test_blinkers_shine_on_their_side_half_of_the_time(type_id):
    for lamp, side in ((Lamp.LEFT_BLINKER, -1), (Lamp.RIGHT_BLINKER, 1)):
        lit = []
        for time_s in np.arange(0.0, 2.0, 0.05):
            mesh = actor_mesh(seen(type_id, lamps=lamp), float(time_s))
            amber = (mesh.materials == Material.LAMP) & (np.abs(mesh.colors - AMBER).max(axis=1) < 1)
            lit.append(amber.any())
            assert (np.sign(mesh.vertices_m[amber].mean(axis=1)[:, 1]) == side).all()
        assert np.mean(lit) == pytest.approx(0.5, abs=0.06)


def test_a_walker_strides_by_the_way_it_comes_and_stands_when_it_stands():
    def spread(x, speed_mps):
        mesh = actor_mesh(seen("walker.pedestrian.0001", x=x, speed_mps=speed_mps), 0.0)
        body = mesh.vertices_m[mesh.materials == Material.PLAIN]
        feet = body[body[..., 2] < 0.05]
        return float(np.ptp(feet[:, 0]))

    walking = [spread(x, 1.4) for x in np.arange(0.0, 1.5, 0.1)]
    assert max(walking) > min(walking) + 0.3
    assert spread(0.4, 1.4) == spread(1.9, 1.4)  # one full step, both feet, is 1.5 m
    assert {spread(x, 0.0) for x in (0.0, 0.4, 0.7)} == {min(walking)}
