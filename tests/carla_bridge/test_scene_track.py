"""The scene beside a route: what is read again is what was around."""

from __future__ import annotations

import io

import numpy as np
import pytest

from carla_bridge.agents.in_process import RouteOnly
from carla_bridge.client.surroundings import Actor, LightState, StopLine, Surroundings, TrafficLight
from carla_bridge.drive.route_run import RouteSetup
from carla_bridge.recording.scene_track import NEAR_M, SAME_M, SAME_RAD, SCENE_NAME, SceneWriter, read_scene
from tests.carla_bridge.drive_doubles import FakeWorld, drive_route, straight_route
from wamdiff2_core.types import Pose2D


def actor(key, x_m, y_m, yaw_rad=0.0, kind="vehicle.audi.tt"):
    return Actor(key, kind, "", Pose2D(x_m, y_m, yaw_rad), 0.0, np.zeros(2), 0.0, (2.0, 1.0, 0.7), np.array([0.3, 0.0]))


def walks(seed, moments=60):
    """Surroundings in which some drive, some stand, some come and go; the ego vehicle passes them all."""
    random = np.random.default_rng(seed)
    start, speed = random.uniform(-150, 150, (12, 2)), random.choice([0.0, 0.004, 3.0], (12, 1))
    light = TrafficLight(500, LightState.RED, Pose2D(60.0, 3.0, 0.0), 0.0, np.zeros(2),
                         (StopLine((1, -1), Pose2D(55.0, 0.0, 0.1), 0.0, 3.5),))
    for index in range(moments):
        xy = start + speed * index
        actors = tuple(actor(100 + i, *xy[i], 0.001 * index * i) for i in range(12) if random.random() > 0.1)
        state = list(LightState)[index // 10 % 3]
        shown = TrafficLight(light.id, state, light.pose, 0.0, light.area_m, light.stop_lines)
        yield Surroundings(index, 0, actor(7, -100.0 + 4 * index, 0.0), actors, (shown,), ())


@pytest.mark.parametrize("seed", range(3))
def test_every_moment_is_read_as_it_was_written(tmp_path, seed):
    written, file = list(walks(seed)), io.StringIO()
    writer = SceneWriter(file)
    for index, around in enumerate(written):
        writer.write(index * 200_000_000, around)
    (tmp_path / SCENE_NAME).write_text(file.getvalue())
    scene = read_scene(tmp_path)
    assert [moment.t_s for moment in scene.moments] == pytest.approx([0.2 * i for i in range(len(written))])
    seen_light = False
    for moment, around in zip(scene.moments, written, strict=True):
        ego = around.ego.pose
        near = {one.id: one for one in around.actors
                if np.hypot(one.pose.x_m - ego.x_m, one.pose.y_m - ego.y_m) < NEAR_M}
        assert moment.poses.keys() == near.keys()
        assert moment.ego == ego
        for key, pose in moment.poses.items():
            assert abs(pose.x_m - near[key].pose.x_m) <= SAME_M + 0.011
            assert abs(pose.y_m - near[key].pose.y_m) <= SAME_M + 0.011
            assert abs(pose.yaw_rad - near[key].pose.yaw_rad) <= SAME_RAD + 0.0011
        if abs(ego.x_m - 55.0) < NEAR_M:
            seen_light = True
            assert moment.lights == {500: around.lights[0].state.value}
    assert seen_light
    assert scene.lamps[500].stop_lines == ((55.0, 0.0, 0.1, 3.5),)
    first = scene.bodies[next(iter(scene.bodies))]
    assert first.corners_m(Pose2D(10.0, 5.0, np.pi / 2)) == pytest.approx(
        np.array([[9.0, 7.3], [9.0, 3.3], [11.0, 3.3], [11.0, 7.3]])
    )


def test_what_stands_is_written_once():
    file = io.StringIO()
    writer = SceneWriter(file)
    for index in range(50):
        writer.write(index, Surroundings(index, 0, actor(1, 0.0, 0.0), (actor(2, 9.0, 3.0),), (), ()))
    assert file.getvalue().count('"poses"') == 1


def test_a_line_that_was_cut_off_ends_the_scene(tmp_path):
    assert read_scene(tmp_path).moments == []
    file = io.StringIO()
    writer = SceneWriter(file)
    for index, around in enumerate(walks(0, 5)):
        writer.write(index, around)
    (tmp_path / SCENE_NAME).write_text(file.getvalue()[:-20])
    assert len(read_scene(tmp_path).moments) == 4


def test_a_drive_leaves_its_scene(tmp_path):
    world = FakeWorld()
    result = drive_route(tmp_path, RouteOnly(), world, straight_route(), RouteSetup(straight_route()))
    scene = read_scene(tmp_path)
    assert scene.ego.half_m == (2.45, 1.08)
    assert np.diff([moment.t_s for moment in scene.moments]) == pytest.approx(0.2)
    assert scene.moments[0].t_s == 0
    assert scene.moments[-1].t_s > result.duration_s - 0.2
