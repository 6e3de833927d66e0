"""What a picture shows: projection, what hides what, how small is too small, and real pixels of the painter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.collect.boxes import Boxes, Thing
from carla_bridge.collect.sight import Camera, Status, look
from carla_bridge.nano import NANO_CAMERA
from carla_bridge.server.actors.signals import LAMP_HALF_M
from carla_bridge.server.geometry.scene import LampColor, RenderActor, RenderCamera, RenderSignal, SignalKind
from carla_bridge.server.rendering.renderer import Renderer

pytestmark = pytest.mark.carla
WIDTH, HEIGHT = NANO_CAMERA.width_px, NANO_CAMERA.height_px
AHEAD = Camera(np.array([0.0, 0.0, 1.8]), np.array([[1.0, 0, 0], [0, -1.0, 0], [0, 0, 1.0]]), WIDTH, HEIGHT, WIDTH / 2)
NOISE = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
NOTHING = Boxes.of([])
CAR_HALF = (2.4, 0.9, 0.75)


def box(x: float, y: float, z: float, half: tuple[float, float, float] = CAR_HALF, yaw: float = 0.0) -> tuple:
    c, s = math.cos(yaw), math.sin(yaw)
    return (x, y, z), ((c, s, 0.0), (-s, c, 0.0), (0.0, 0.0, 1.0)), half


def status(rows: list, index: int = 0, scenery: Boxes = NOTHING, picture: np.ndarray = NOISE, label: str = "car",
           **more: object) -> Status:
    things = [Thing(k + 1, label if k == index else "car", **(more if k == index else {})) for k in range(len(rows))]
    found = {item.thing.id: item for item in look(AHEAD, picture, things, Boxes.of(rows), scenery, 0)}
    return found[index + 1].status if index + 1 in found else Status.HIDDEN


def test_a_box_lies_where_a_pinhole_puts_it() -> None:
    (seen,) = look(AHEAD, NOISE, [Thing(1, "car")], Boxes.of([box(12.4, 2.0, 0.75)]), NOTHING, 0)
    # nearest face at 10 m: 128 px focal length, y left is left of the middle, the ground 1.8 m below the eye
    far_px = 128 / 14.8
    assert seen.rect_px == pytest.approx((128 - 12.8 * 2.9, 64 + far_px * 0.3, 128 - far_px * 1.1, 64 + 12.8 * 1.8))
    assert seen.status is Status.SEEN


def test_what_stands_in_front_hides_and_a_part_makes_unsure() -> None:
    far = box(30.0, 0.0, 0.75)
    assert status([far]) is Status.SEEN
    assert status([far, box(10.0, 0.0, 1.5, (2.0, 1.2, 1.5))]) is Status.HIDDEN
    assert status([far, box(10.0, 0.1, 1.5, (0.5, 0.18, 1.5))]) is Status.UNSURE
    assert status([far, box(40.0, 0.0, 5.0, (2.0, 8.0, 5.0))]) is Status.SEEN  # a house behind it
    assert status([far], scenery=Boxes.of([box(20.0, 0.0, 3.0, (4.0, 6.0, 3.0), yaw=0.3)])) is Status.HIDDEN


def test_what_is_behind_beside_small_or_half_outside_is_not_seen() -> None:
    assert status([box(-10.0, 0.0, 0.75)]) is Status.HIDDEN
    assert status([box(100.0, 0.0, 0.75)]) is Status.HIDDEN
    assert status([box(48.0, 0.0, 0.75)]) is Status.UNSURE
    assert status([box(10.0, 10.2, 0.75)]) is Status.UNSURE  # cut by the edge
    assert status([box(1.0, 2.5, 0.75)]) is not Status.SEEN  # reaches behind the camera


def test_a_face_counts_from_its_front_only() -> None:
    head = box(20.0, -3.0, 2.7, LAMP_HALF_M)
    red = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    red[:, ::2] = (255, 30, 20)
    for faces, expected in ((math.pi, Status.SEEN), (0.0, Status.HIDDEN), (math.pi / 2 + 0.2, Status.UNSURE)):
        assert status([head], picture=red, label="traffic light", state="red", faces_rad=faces) is expected


def test_what_does_not_stand_out_and_lamps_of_another_colour_are_unsure() -> None:
    grey = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    assert status([box(15.0, 0.0, 0.75)], picture=grey) is Status.UNSURE
    green = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    green[:, ::2] = (30, 255, 120)
    head = box(20.0, -3.0, 2.7, LAMP_HALF_M)
    assert status([head], picture=green, label="traffic light", state="red", faces_rad=math.pi) is Status.UNSURE
    assert status([head], picture=green, label="traffic light", state="green", faces_rad=math.pi) is Status.SEEN


@pytest.fixture(scope="module")
def place(wamtown_renderer: Renderer, wamtown: object) -> RenderCamera:
    spawn = wamtown.spawn_points[3]  # type: ignore[attr-defined]
    p, yaw = spawn.location, spawn.rotation.yaw
    return RenderCamera(p.x, p.y, 1.8, 0.0, yaw, 0.0, WIDTH, HEIGHT, NANO_CAMERA.hfov_deg)


def rep103(camera: RenderCamera) -> Camera:
    yaw = -math.radians(camera.yaw)
    c, s = math.cos(yaw), math.sin(yaw)
    return Camera(np.array([camera.x, -camera.y, camera.z]), np.array([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, 1.0]]),
                  WIDTH, HEIGHT, NANO_CAMERA.focal_px)


def beside(camera: RenderCamera, ahead: float, left: float) -> tuple[float, float]:
    """CARLA's x and y of a place before a camera."""
    yaw = math.radians(camera.yaw)
    return (camera.x + ahead * math.cos(yaw) + left * math.sin(yaw),
            camera.y + ahead * math.sin(yaw) - left * math.cos(yaw))


@pytest.mark.parametrize(("ahead", "left"), [(9.0, -3.0), (16.0, 2.5), (28.0, 0.5)])
def test_a_red_lamp_lies_in_the_upper_third_of_its_head_and_nowhere_outside(
    wamtown_renderer: Renderer, place: RenderCamera, ahead: float, left: float
) -> None:
    x, y = beside(place, ahead, left)
    light = RenderSignal(SignalKind.TRAFFIC_LIGHT, x, y, 0.0, place.yaw, x, y, 2.7, LampColor.RED)
    with_it, without = (
        wamtown_renderer.render(place, (), signals)[:, :, 2::-1].astype(int) for signals in ((light,), ())
    )
    changed = np.abs(with_it - without).sum(axis=2) > 60
    lamp = changed & (with_it[:, :, 0] - with_it[:, :, 1:].max(axis=2) > 60)
    rows, columns = np.nonzero(lamp)
    head = box(x, -y, 2.7, LAMP_HALF_M, yaw=-math.radians(place.yaw))
    thing = Thing(1, "traffic light", "red", -math.radians(place.yaw) + math.pi)
    (seen,) = look(rep103(place), with_it.astype(np.uint8), [thing], Boxes.of([head]), NOTHING, 0)
    x0, y0, x1, y1 = seen.rect_px
    assert seen.status is Status.SEEN
    assert len(rows) > 2
    assert columns.min() + 0.5 > x0
    assert columns.max() + 0.5 < x1
    assert rows.min() + 0.5 > y0 - 0.5
    assert rows.max() + 0.5 < y0 + (y1 - y0) / 2.2
    # the head fills its box: the dark plate is as wide and high as the box is
    plate = np.nonzero(changed[:, int(x0) : int(x1) + 1].any(axis=1))[0]
    assert plate.min() == pytest.approx(y0, abs=1.5)


@pytest.mark.parametrize(("ahead", "left", "turned"), [(10.0, 0.0, 0.0), (20.0, 3.5, 180.0), (14.0, -6.0, 70.0)])
def test_a_car_fills_its_box(
    wamtown_renderer: Renderer, place: RenderCamera, ahead: float, left: float, turned: float
) -> None:
    x, y = beside(place, ahead, left)
    car = RenderActor("vehicle", x, y, 0.0, yaw=place.yaw + turned, type_id="vehicle.lincoln.mkz_2020")
    near = replace(place)
    with_it, without = (wamtown_renderer.render(near, actors)[:, :, 2::-1].astype(int) for actors in ((car,), ()))
    rows, columns = np.nonzero(np.abs(with_it - without).sum(axis=2) > 90)
    half = (car.extent_x, car.extent_y, car.extent_z)
    row = box(x, -y, car.extent_z, half, yaw=-math.radians(place.yaw + turned))
    (seen,) = look(rep103(place), with_it.astype(np.uint8), [Thing(1, "car")], Boxes.of([row]), NOTHING, 0)
    x0, y0, x1, _ = seen.rect_px
    slack = 0.12 * (x1 - x0) + 1.5
    assert columns.min() == pytest.approx(x0, abs=slack)
    assert columns.max() + 1 == pytest.approx(x1, abs=slack)
    assert rows.min() == pytest.approx(y0, abs=0.15 * (seen.rect_px[3] - y0) + 1.5)
