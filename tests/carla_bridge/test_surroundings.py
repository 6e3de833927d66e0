"""Surroundings as the ego vehicle's client reads them. Oracle: where the test put things, and `carla`'s own getters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

carla = pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.client.client import Simulation  # noqa: E402
from wamdiff2_core.frames import inverse, transform_points  # noqa: E402
from wamdiff2_core.types import Pose2D, VehicleCommand  # noqa: E402

pytestmark = pytest.mark.carla
DEMO = Path(__file__).resolve().parents[2] / "carla_bridge" / "routes" / "demo.xml"


@pytest.fixture
def simulation(server_port: int, demo_start: Pose2D) -> Iterator[Simulation]:
    with Simulation(port=server_port, ego_pose=demo_start, cameras=[], inertial=False, timeout_s=20.0) as simulation:
        yield simulation


def spawn(simulation: Simulation, kind: str, ahead_m: float, left_m: float, yaw_deg: float = 0.0, **attributes: str):
    """An actor placed relative to the ego vehicle, by the library's own left-handed transform."""
    ego = simulation.world.get_actor(simulation.ego_id).get_transform()
    blueprint = simulation.world.get_blueprint_library().find(kind)
    for name, value in attributes.items():
        blueprint.set_attribute(name, value)
    location = ego.transform(carla.Location(ahead_m, -left_m, 1.0))
    transform = carla.Transform(location, carla.Rotation(yaw=ego.rotation.yaw - yaw_deg))
    return simulation.world.spawn_actor(blueprint, transform)


def test_actors_come_in_the_map_frame_with_size_role_and_left_to_the_left(simulation: Simulation) -> None:
    car = spawn(simulation, "vehicle.audi.tt", 15.0, 3.6, 30.0, role_name="scenario")
    try:
        simulation.tick()
        around = simulation.surroundings()
        seen = around.actor(car.id)
        assert seen is not None
        assert (seen.type_id, seen.role_name) == ("vehicle.audi.tt", "scenario")
        there = transform_points(inverse(around.ego.pose), np.array([[seen.pose.x_m, seen.pose.y_m]]))[0]
        assert there == pytest.approx([15.0, 3.6], abs=0.05)
        assert math.degrees(seen.pose.yaw_rad - around.ego.pose.yaw_rad) % 360 == pytest.approx(30.0, abs=0.1)
        extent = car.bounding_box.extent
        assert seen.extent_m == pytest.approx((extent.x, extent.y, extent.z))
        corners = car.bounding_box.get_world_vertices(car.get_transform())
        expected = sorted({(round(c.x, 2), round(-c.y, 2)) for c in corners})
        assert np.array(sorted(map(tuple, seen.corners_m()))) == pytest.approx(np.array(expected), abs=0.02)
        assert around.ego.id == simulation.ego_id
        assert around.ego.role_name == "hero"
        assert all(actor.id != simulation.ego_id for actor in around.actors)
    finally:
        car.destroy()


def test_motion_is_that_of_the_tick(simulation: Simulation) -> None:
    walker = spawn(simulation, "walker.pedestrian.0001", 12.0, -6.0)
    try:
        ahead = carla.Vector3D(0.6, 0.8, 0.0)
        walker.apply_control(carla.WalkerControl(direction=ahead, speed=1.5))
        seen_at = []
        for _ in range(20):
            simulation.apply(VehicleCommand(0.0, 2.0))
            frame = simulation.tick()
            seen_at.append(simulation.surroundings())
        around = seen_at[-1]
        seen, was = around.actor(walker.id), seen_at[-2].actor(walker.id)
        assert around.stamp_ns == frame.stamp_ns
        moved = np.array([seen.pose.x_m - was.pose.x_m, seen.pose.y_m - was.pose.y_m]) / 0.05
        assert seen.velocity_mps == pytest.approx(moved, abs=0.02)
        assert seen.velocity_mps == pytest.approx([1.5 * ahead.x, -1.5 * ahead.y], abs=0.05)
        assert around.ego.forward_mps == pytest.approx(frame.ego.speed_mps, abs=1e-3)
    finally:
        walker.destroy()


def test_what_is_destroyed_is_gone_and_what_is_no_body_is_not_listed(simulation: Simulation) -> None:
    cone = spawn(simulation, "static.prop.constructioncone", 20.0, 0.0)
    simulation.tick()
    assert simulation.surroundings().actor(cone.id) is not None
    cone.destroy()
    simulation.tick()
    around = simulation.surroundings()
    assert around.actor(cone.id) is None
    assert all(actor.type_id.startswith(("vehicle.", "walker.", "static.")) for actor in around.actors)
