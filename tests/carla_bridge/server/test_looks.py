"""What the world tells the renderer about its actors."""

from __future__ import annotations

import random

import pytest

carla = pytest.importorskip("carla")

from carla_bridge.server.actors.actor import Actor  # noqa: E402
from carla_bridge.server.actors.spawning import make_actor  # noqa: E402
from carla_bridge.server.catalogue.vehicles import EGO_ID  # noqa: E402
from carla_bridge.server.geometry.poses import Pose  # noqa: E402
from carla_bridge.server.geometry.scene import Lamp, RenderCamera  # noqa: E402
from carla_bridge.server.rendering.looks import bodies, look  # noqa: E402
from wamdiff2_core.config import CameraSpec  # noqa: E402

pytestmark = pytest.mark.carla


def spawned(type_id: str, **pose: float) -> Actor:
    return make_actor(1, [0, type_id, []], Pose(**pose), random.Random(0))


def test_lamp_bits_are_those_of_the_client():
    states = carla.VehicleLightState
    names = ["Position", "LowBeam", "HighBeam", "Brake", "RightBlinker", "LeftBlinker", "Reverse", "Fog", "Interior"]
    assert [int(getattr(states, name)) for name in names] == [int(lamp) for lamp in Lamp][:9]


def test_braking_and_reversing_light_their_lamps():
    car = spawned("vehicle.tesla.model3")
    assert look(car).lamps == Lamp.NONE
    car.pedals.brake = 0.4
    assert look(car).lamps == Lamp.BRAKE
    car.pedals.reverse = True
    car.light_flags = int(Lamp.LOW_BEAM) | 1 << 20  # an unknown bit
    assert look(car).lamps == Lamp.BRAKE | Lamp.REVERSE | Lamp.LOW_BEAM


def test_pictures_of_the_shipped_rig_do_not_have_the_carrier_and_those_of_a_chase_camera_do(wamtown, wamtown_renderer):
    rig, place = CameraSpec(), wamtown.spawn_points[3]
    for type_id in (EGO_ID, "vehicle.audi.tt", "vehicle.carlamotors.firetruck"):
        car = spawned(type_id, x=place.location.x, y=place.location.y, z=place.location.z, yaw=place.rotation.yaw)
        for mount, seen in ((Pose(rig.x_m, -rig.y_m, rig.z_m), False), (Pose(-9.0, 0.0, 4.0, pitch=-10.0), True)):
            camera = spawned("sensor.camera.rgb")
            camera.parent, camera.attached = car, mount
            camera.follow_parent()
            p = camera.pose
            view = RenderCamera(p.x, p.y, p.z, p.pitch, p.yaw, p.roll, rig.width_px, rig.height_px, rig.hfov_deg)
            shown = wamtown_renderer.render(view, bodies([car], camera))
            assert (shown != wamtown_renderer.render(view)).any() == seen


def test_a_walker_stands_on_its_feet():
    walker = spawned("walker.pedestrian.0001", z=0.93)
    seen = look(walker)
    assert (seen.kind, seen.z) == ("walker", pytest.approx(0.0))
    walker.velocity = (0.0, -1.5, 0.0)
    assert look(walker).speed_mps == pytest.approx(1.5)


def test_the_blueprint_and_the_carrier_are_told():
    cone = spawned("static.prop.constructioncone")
    assert (look(cone).kind, look(cone).type_id) == ("prop", "static.prop.constructioncone")
    assert look(cone).visible
    assert not look(cone, visible=False).visible


def test_what_has_a_body_is_seen_whether_or_not_it_can_be_hit():
    cone, debris = spawned("static.prop.constructioncone"), spawned("static.prop.dirtdebris01")
    assert not debris.blueprint.solid
    seen = bodies([cone, debris, spawned("static.trigger.friction"), spawned("sensor.other.imu")], None)
    assert [actor.type_id for actor in seen] == [cone.type_id, debris.type_id]
