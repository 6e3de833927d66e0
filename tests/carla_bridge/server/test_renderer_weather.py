"""What weather does to a picture. Oracles: the weather's own numbers, and places that the map knows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("carla")

from benchmarks.street_scenes import street_scene
from benchmarks.weather_sheet import contact_sheet, read_weathers
from carla_bridge.server.geometry.polygons import Material
from carla_bridge.server.geometry.scene import BoxKind, Lamp, RenderActor, RenderCamera, StaticBox
from carla_bridge.server.rendering.lamp_light import CELL_M, StreetLamps
from carla_bridge.server.rendering.renderer import Renderer
from carla_bridge.server.rendering.upright_mesh import build_uprights
from carla_bridge.server.weather import CLEAR_NOON, Weather
from wamdiff2_core.errors import UserError

pytestmark = pytest.mark.carla

NIGHT = Weather(sun_altitude_deg=-60.0, fog_density=0.0)
# The table's ids 8 and 14 are both a downpour under a closed sky; they differ in puddles and a little fog.
NEAR_DUPLICATES = {("14", "8"): 0.8}
LEAST_DISTANCE = 3.5


@pytest.fixture(scope="module")
def scene(wamtown):
    return street_scene(wamtown, 117, actors=4, width=256, height=128)


def picture(renderer: Renderer, scene, weather: Weather, **changes) -> np.ndarray:
    """(H, W, 3) int BGR."""
    arguments = {"actors": scene.actors, "signals": scene.signals, "time_s": 1.0, **changes}
    return renderer.render(scene.camera, weather=weather, **arguments)[..., :3].astype(int)


def without_traffic(renderer: Renderer, scene, weather: Weather, **changes) -> np.ndarray:
    return picture(renderer, scene, weather, **{"actors": (), "signals": (), **changes})


def test_all_weathers_of_bench2drive_look_different(wamtown_renderer, scene, shared_data):
    weathers = read_weathers(shared_data / "bench2drive" / "weather.xml")
    assert len(weathers) == 23
    pictures = {name: picture(wamtown_renderer, scene, weather) for name, weather in weathers.items()}
    distances = {
        (a, b): np.abs(pictures[a] - pictures[b]).mean() for a, b in itertools.combinations(sorted(pictures), 2)
    }
    too_close = {pair: d for pair, d in distances.items() if d <= NEAR_DUPLICATES.get(pair, LEAST_DISTANCE)}
    assert not too_close


def test_the_table_must_be_readable(tmp_path):
    for text in (None, "<weathers>", "<weathers/>"):
        path = tmp_path / "weather.xml"
        if text is not None:
            path.write_text(text)
        with pytest.raises(UserError, match="weathers"):
            read_weathers(path)


def test_a_sheet_holds_every_picture():
    pictures = {str(i): np.full((20, 30, 4), i, np.uint8) for i in range(7)}
    assert contact_sheet(pictures, columns=3).shape == (60, 90, 3)


def test_brightness_follows_the_sun(wamtown_renderer, scene):
    levels = [
        without_traffic(wamtown_renderer, scene, Weather(sun_altitude_deg=a, fog_density=0.0)).mean()
        for a in (-60.0, -5.0, 0.0, 15.0, 45.0)
    ]
    assert levels == sorted(levels)
    assert levels[0] < 0.35 * levels[-1]


def test_a_low_sun_is_warm(wamtown_renderer, scene):
    def warmth(weather):
        blue, _, red = without_traffic(wamtown_renderer, scene, weather).reshape(-1, 3).mean(axis=0)
        return red - blue

    assert warmth(Weather(sun_altitude_deg=8.0)) > warmth(CLEAR_NOON) + 20


def test_a_low_sun_dazzles_only_who_looks_at_it(wamtown_renderer, scene):
    weather = Weather(sun_altitude_deg=6.0)
    x, y, _ = weather.sun_direction
    into = replace(scene.camera, z=25.0, yaw=float(np.rad2deg(np.arctan2(y, x))))
    away = replace(into, yaw=into.yaw + 180.0)
    clear = Weather(sun_altitude_deg=41.0)  # too high to dazzle
    dazzled, undazzled = (
        wamtown_renderer.render(camera, weather=weather)[..., 2].mean()
        / wamtown_renderer.render(camera, weather=clear)[..., 2].mean()
        for camera in (into, away)
    )
    assert dazzled > undazzled + 0.08


def test_clouds_take_the_blue_and_the_shadows(wamtown_renderer, scene):
    clear, grey = (without_traffic(wamtown_renderer, scene, Weather(cloudiness=c)) for c in (5.0, 100.0))
    top = slice(0, scene.camera.height // 8)
    assert (clear[top, :, 0] - clear[top, :, 2]).mean() > (grey[top, :, 0] - grey[top, :, 2]).mean() + 40


def test_fog_hides_what_is_far_and_not_what_is_near(wamtown_renderer, scene):
    def contrast(weather, at_m):
        x, y = scene.camera.x, scene.camera.y
        yaw = np.deg2rad(scene.camera.yaw)
        black = RenderActor("cube", x + at_m * np.cos(yaw), y + at_m * np.sin(yaw), 0.0, color_rgb=(0, 0, 0))
        with_cube = without_traffic(wamtown_renderer, scene, weather, actors=(black,))
        return np.abs(with_cube - without_traffic(wamtown_renderer, scene, weather)).max()

    thick = Weather(fog_density=80.0)
    assert contrast(CLEAR_NOON, 90.0) > 60
    assert contrast(thick, 90.0) < 25
    assert contrast(thick, 8.0) > 40


@pytest.mark.parametrize("fog_distance_m", [0.0, 30.0])
def test_fog_takes_the_share_that_its_extinction_says(wamtown_renderer, scene, fog_distance_m):
    """A black wall across the view shows as much of the fog as Beer and Lambert say."""
    weather = Weather(fog_density=60.0, fog_distance_m=fog_distance_m, fog_falloff=0.0)
    yaw = np.deg2rad(scene.camera.yaw)
    shown = []
    for at_m in (20.0, 40.0, 60.0):
        x, y = scene.camera.x + at_m * np.cos(yaw), scene.camera.y + at_m * np.sin(yaw)
        wall = RenderActor("wall", x, y, 0.0, 0.0, scene.camera.yaw, 0.0, 0.01, 30.0, 10.0, (0, 0, 0))
        image = without_traffic(wamtown_renderer, scene, weather, actors=(wall,))
        shown.append(image[scene.camera.height // 2 - 2, scene.camera.width // 2])
    haze = without_traffic(wamtown_renderer, scene, Weather(fog_density=100.0, fog_falloff=0.0))[4, 4]
    clear_pm = weather.extinction_pm - weather.fog_extinction_pm
    for at_m, seen in zip((20.0, 40.0, 60.0), shown, strict=True):
        depth = weather.fog_extinction_pm * max(at_m - fog_distance_m, 0.0) + clear_pm * at_m
        np.testing.assert_allclose(seen, haze * (1.0 - np.exp(-depth)), atol=5)


def test_rain_falls_and_is_the_same_at_the_same_time(wamtown_renderer, scene):
    rain = Weather(cloudiness=90.0, precipitation=80.0)
    first, again, later = (without_traffic(wamtown_renderer, scene, rain, time_s=t) for t in (1.0, 1.0, 1.05))
    np.testing.assert_array_equal(first, again)
    assert (np.abs(first - later).max(axis=2) > 8).mean() > 0.003


def test_a_wet_road_mirrors_a_wall(wamtown_renderer, scene):
    yaw = np.deg2rad(scene.camera.yaw)
    x, y = scene.camera.x + 25.0 * np.cos(yaw), scene.camera.y + 25.0 * np.sin(yaw)
    wall = RenderActor("wall", x, y, 0.0, 0.0, scene.camera.yaw, 0.0, 0.01, 3.0, 3.0, (255, 0, 255))

    def pink_below(weather):
        image = without_traffic(wamtown_renderer, scene, weather, actors=(wall,))
        focal, middle = scene.camera.width / 2, scene.camera.height / 2
        foot = int(middle + focal * scene.camera.z / 25.0) + 2
        column = image[foot : foot + 12, scene.camera.width // 2 - 8 : scene.camera.width // 2 + 8]
        return (column[..., [0, 2]].mean() - column[..., 1].mean()).item()

    assert pink_below(Weather(wetness=100.0)) > pink_below(CLEAR_NOON) + 10


def test_a_wet_road_is_darker(wamtown_renderer, scene):
    rows = slice(-12, None)
    dry, wet = (without_traffic(wamtown_renderer, scene, Weather(wetness=w))[rows].mean() for w in (0.0, 100.0))
    assert wet < 0.85 * dry


def test_lamps_light_the_road_at_night(wamtown_renderer, scene):
    own = RenderActor("vehicle", scene.camera.x, scene.camera.y, 0.0, yaw=scene.camera.yaw, visible=False)
    near = slice(int(0.75 * scene.camera.height), None), slice(90, 166)
    dark = without_traffic(wamtown_renderer, scene, NIGHT, actors=(own,))[near].mean()
    low = without_traffic(wamtown_renderer, scene, NIGHT, actors=(replace(own, lamps=Lamp.LOW_BEAM),))
    high = without_traffic(wamtown_renderer, scene, NIGHT, actors=(replace(own, lamps=Lamp.HIGH_BEAM),))
    assert low[near].mean() > 2.0 * dark
    far = slice(int(0.53 * scene.camera.height), int(0.58 * scene.camera.height)), slice(110, 146)
    assert high[far].mean() > low[far].mean() + 1
    day = [without_traffic(wamtown_renderer, scene, CLEAR_NOON, actors=(replace(own, lamps=lamp),)) for lamp in (0, 2)]
    np.testing.assert_array_equal(*day)


def test_windows_and_street_lamps_shine_at_night(wamtown_renderer, scene):
    lit = without_traffic(wamtown_renderer, scene, NIGHT)
    bright = (lit[..., 2] > 180) & (lit[..., 2] > lit[..., 0] + 40)
    assert 0.001 < bright.mean() < 0.2


@pytest.mark.parametrize(
    ("lamp", "color"),
    [(Lamp.BRAKE, "red"), (Lamp.POSITION, "red"), (Lamp.RIGHT_BLINKER, "amber"), (Lamp.LEFT_BLINKER, "amber")],
)
@pytest.mark.parametrize("weather", [CLEAR_NOON, NIGHT], ids=["day", "night"])
def test_lamps_of_a_car_ahead_can_be_seen(wamtown_renderer, scene, lamp, color, weather):
    yaw = np.deg2rad(scene.camera.yaw)
    x, y = scene.camera.x + 15.0 * np.cos(yaw), scene.camera.y + 15.0 * np.sin(yaw)
    car = RenderActor("vehicle", x, y, 0.0, yaw=scene.camera.yaw, color_rgb=(90, 90, 95), type_id="vehicle.audi.tt")
    # blinkers are lit in the first half of their period
    dark = without_traffic(wamtown_renderer, scene, weather, actors=(car,), time_s=0.1)
    shining = without_traffic(wamtown_renderer, scene, weather, actors=(replace(car, lamps=lamp),), time_s=0.1)
    off_again = without_traffic(wamtown_renderer, scene, weather, actors=(replace(car, lamps=lamp),), time_s=0.5)
    brighter = shining - dark
    changed = brighter[..., 2] > 25
    assert changed.sum() >= 4
    green_share = brighter[changed][:, 1].mean() / brighter[changed][:, 2].mean()
    assert green_share < 0.35 if color == "red" else green_share > 0.45
    columns = np.nonzero(changed)[1]
    if lamp is Lamp.LEFT_BLINKER:
        assert columns.max() <= 128
    elif lamp is Lamp.RIGHT_BLINKER:
        assert columns.min() >= 127
    if color == "amber":
        np.testing.assert_array_equal(off_again, dark)
    else:
        np.testing.assert_array_equal(off_again, shining)


def test_braking_outshines_the_tail_lamps(wamtown_renderer, scene):
    yaw = np.deg2rad(scene.camera.yaw)
    x, y = scene.camera.x + 20.0 * np.cos(yaw), scene.camera.y + 20.0 * np.sin(yaw)
    car = RenderActor("vehicle", x, y, 0.0, yaw=scene.camera.yaw, color_rgb=(90, 90, 95), lamps=Lamp.POSITION)
    tail, brake = (
        (without_traffic(wamtown_renderer, scene, NIGHT, actors=(replace(car, lamps=lamps),))[..., 2] - 100)
        .clip(0)
        .sum()
        for lamps in (Lamp.POSITION, Lamp.POSITION | Lamp.BRAKE)
    )
    nothing = (without_traffic(wamtown_renderer, scene, NIGHT)[..., 2] - 100).clip(0).sum()
    assert brake - nothing > 1.5 * (tail - nothing)


@pytest.mark.parametrize("weather", [NIGHT, Weather(precipitation=70.0, fog_density=40.0)], ids=["night", "rain"])
def test_every_weather_is_deterministic(wamtown_renderer, scene, weather):
    first = picture(wamtown_renderer, scene, weather)
    for other in (CLEAR_NOON, NIGHT, Weather(fog_density=90.0)):
        picture(wamtown_renderer, scene, other)
    np.testing.assert_array_equal(picture(wamtown_renderer, scene, weather), first)


def test_a_low_sun_dazzles_less_from_behind_something(wamtown_renderer):
    low = Weather(sun_altitude_deg=15.0)
    yaw = np.rad2deg(np.arctan2(*low.sun_direction[1::-1]))
    camera = RenderCamera(0.0, 0.0, 60.0, pitch=10.0, yaw=yaw, width=256, height=128)
    x, y, z = np.array((0.0, 0.0, 58.0)) + 20.0 * low.sun_direction
    bus = RenderActor("vehicle", x, y, z, yaw=yaw, extent_x=1.0, extent_y=2.0, extent_z=2.0)
    free, hidden = (wamtown_renderer.render(camera, actors, weather=low)[:, :60, :3].mean() for actors in ((), (bus,)))
    assert free > hidden + 3


@pytest.mark.parametrize("yaw", [0.0, 130.0])
def test_street_lamps_light_the_ground_below_their_heads(yaw):
    post = StaticBox(BoxKind.LAMP, 40.0, 60.0, 3.0, yaw, 0.09, 0.09, 3.0, (72, 76, 82))
    solid, _ = build_uprights("one lamp", [post])
    head = solid.vertices_m[solid.materials == Material.STREET_LAMP].mean(axis=(0, 1))
    pool = StreetLamps([post]).light(np.zeros(2))
    row, column = np.unravel_index(pool.argmax(), pool.shape)
    assert np.array((column, row)) * CELL_M == pytest.approx(head[:2], abs=CELL_M)
