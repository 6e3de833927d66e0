"""Traffic lights and signs in pictures. Oracle: a pinhole written out here says where a lamp must be seen."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("carla")

from carla_bridge.server.geometry.scene import LampColor, RenderActor, RenderCamera, RenderSignal, SignalKind
from carla_bridge.server.rendering.signal_mesh import LAMP_PITCH_M
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import CLEAR_NOON, Weather

pytestmark = pytest.mark.carla

ROWS = {LampColor.RED: LAMP_PITCH_M, LampColor.YELLOW: 0.0, LampColor.GREEN: -LAMP_PITCH_M}
SKIES = {
    "day": CLEAR_NOON,
    "low sun": Weather(sun_altitude_deg=12.0),
    "night": Weather(sun_altitude_deg=-60.0),
    "light fog": Weather(fog_density=25.0),
    "rain": Weather(cloudiness=80.0, precipitation=60.0, precipitation_deposits=50.0),
}


def camera_at(town: Town, index: int, **changes) -> RenderCamera:
    pose = town.spawn_points[index]
    place = {"x": pose.location.x, "y": pose.location.y, "z": 1.8, "yaw": pose.rotation.yaw}
    return RenderCamera(**{**place, "width": 512, "height": 256, **changes})


def signal_ahead(
    camera: RenderCamera,
    ahead_m: float,
    lamp: LampColor = LampColor.OFF,
    kind: SignalKind = SignalKind.TRAFFIC_LIGHT,
    *,
    turned: float = 0.0,
) -> RenderSignal:
    c, s = np.cos(np.deg2rad(camera.yaw)), np.sin(np.deg2rad(camera.yaw))

    def at(right_m: float) -> tuple[float, float]:
        return camera.x + ahead_m * c - right_m * s, camera.y + ahead_m * s + right_m * c

    head_z = 5.0 if kind is SignalKind.TRAFFIC_LIGHT else 2.2
    foot, head = at(4.5), at(1.5 if kind is SignalKind.TRAFFIC_LIGHT else 4.5)
    return RenderSignal(kind, *foot, 0.0, camera.yaw + turned, *head, head_z, lamp)


def pixel(camera: RenderCamera, ahead_m: float, right_m: float, z_m: float) -> tuple[int, int]:
    """(column, row) of a point straight ahead of a level camera."""
    focal = camera.width / 2 / np.tan(np.deg2rad(camera.fov) / 2)
    return (
        int(camera.width / 2 + focal * right_m / ahead_m),
        int(camera.height / 2 - focal * (z_m - camera.z) / ahead_m),
    )


def lamp_seen(picture: np.ndarray, camera: RenderCamera, ahead_m: float) -> tuple[LampColor, float]:
    """Hue of the most colourful pixel of the head, and the height of that pixel in metres."""
    column, bottom = pixel(camera, ahead_m, 1.5, 5.0 - 1.5 * LAMP_PITCH_M)
    _, top = pixel(camera, ahead_m, 1.5, 5.0 + 1.5 * LAMP_PITCH_M)
    head = picture[top : bottom + 1, column - 1 : column + 2, :3].astype(int)
    colorfulness = np.ptp(head, axis=2)
    row = int(np.argmax(colorfulness.max(axis=1)))
    _, green, red = head[row, np.argmax(colorfulness[row])]
    focal = camera.width / 2 / np.tan(np.deg2rad(camera.fov) / 2)
    height = camera.z + (camera.height / 2 - top - row - 0.5) * ahead_m / focal
    if colorfulness.max() < 70:
        return LampColor.OFF, height
    if green > 1.25 * red:
        return LampColor.GREEN, height
    return LampColor.YELLOW if green > 0.55 * red else LampColor.RED, height


@pytest.mark.parametrize("sky", SKIES)
@pytest.mark.parametrize("fov", [70.0, 110.0])
def test_a_lamp_can_be_read_at_forty_metres(wamtown_renderer, wamtown, sky, fov):
    for index in (117, 60):
        camera = camera_at(wamtown, index, fov=fov)
        for lamp in LampColor:
            picture = wamtown_renderer.render(camera, (), [signal_ahead(camera, 40.0, lamp)], SKIES[sky])
            seen, height = lamp_seen(picture, camera, 39.83)
            assert seen is lamp
            if lamp is not LampColor.OFF:
                assert height == pytest.approx(5.0 + ROWS[lamp], abs=0.26)


def test_a_light_shows_its_back_to_oncoming_traffic(wamtown_renderer, wamtown):
    camera = camera_at(wamtown, 117)
    for lamp in ROWS:
        picture = wamtown_renderer.render(camera, (), [signal_ahead(camera, 15.0, lamp, turned=180.0)])
        assert lamp_seen(picture, camera, 15.0)[0] is LampColor.OFF


def test_a_stop_sign_is_red_with_a_white_rim_and_grey_behind(wamtown_renderer, wamtown):
    camera = camera_at(wamtown, 117, fov=60.0)

    def shares(kind, turned):
        picture = wamtown_renderer.render(camera, (), [signal_ahead(camera, 15.0, kind=kind, turned=turned)]).astype(
            int
        )
        column, row = pixel(camera, 15.0, 4.5, 2.2)
        patch = picture[row - 14 : row + 15, column - 14 : column + 15, :3]
        red = (patch[..., 2] > patch[..., 1] + 70) & (patch[..., 2] > patch[..., 0] + 70)
        white = patch.min(axis=2) > 190
        return red.sum(), white.sum()

    red, white = shares(SignalKind.STOP, 0.0)
    assert red > 150
    assert white > 40
    assert shares(SignalKind.STOP, 180.0)[0] < 10
    yield_red, yield_white = shares(SignalKind.YIELD, 0.0)
    assert yield_red > 60
    assert yield_white > yield_red * 0.3


def test_the_pole_stands_on_its_foot(wamtown_renderer, wamtown):
    camera = camera_at(wamtown, 117)
    bare = wamtown_renderer.render(camera).astype(int)
    with_light = wamtown_renderer.render(camera, (), [signal_ahead(camera, 20.0)]).astype(int)
    rows = np.nonzero((np.abs(with_light - bare).max(axis=2) > 10).any(axis=1))[0]
    _, foot = pixel(camera, 20.0, 4.5, 0.0)
    assert rows.max() == pytest.approx(foot, abs=1)


def test_a_wall_hides_the_light_behind_it(wamtown_renderer, wamtown):
    camera = camera_at(wamtown, 117)
    signal = signal_ahead(camera, 40.0, LampColor.RED)
    c, s = np.cos(np.deg2rad(camera.yaw)), np.sin(np.deg2rad(camera.yaw))
    wall = RenderActor("wall", camera.x + 20 * c, camera.y + 20 * s, 0.0, 0.0, camera.yaw, 0.0, 0.2, 8.0, 4.0)
    with_signal, without = (wamtown_renderer.render(camera, [wall], signals) for signals in ([signal], []))
    np.testing.assert_array_equal(with_signal, without)
